/* qwen3_vl.h - Qwen3-VL's image encoder, for the dense models and those with experts. */
#ifndef MX_MODELS_QWEN3_VL_H
#define MX_MODELS_QWEN3_VL_H

#include "models/decoder.h"

typedef struct {
    int64_t d, d_ff, layers, heads, channels, patch, side, frames, out, positions;
    mx_act act;
    double theta;
    mx_int_list deep;     /* layers whose output goes deeper into the decoder */
    mx_int_list sections; /* of the decoder's rotary positions */
    int64_t image_token;
} mx_qwen3_tower;

/* A whole model under its names on the hub: model.visual, model.language_model, lm_head. */
mx_head mx_qwen3_vl_build(mx_graph *g, const mx_decoder *c, const mx_qwen3_tower *v, mx_build *b,
                          mx_decoder_block *mlp);
/* After the language part's: its rotary positions become three. */
mx_status mx_qwen3_vl_finish(mx_decoder *c, mx_qwen3_tower *v, const json_t *json) MX_MUST_USE;
void mx_qwen3_vl_images(const mx_qwen3_tower *v, mx_image_spec *s);

/* Its weights without the mergers, which are what projects. */
#define MX_QWEN3_TOWER "model.visual.blocks.*,model.visual.patch_embed.*,model.visual.pos_embed.*"

/* Rows for a member called `tower`. */
#define MX_CFG_QWEN3_TOWER(T)                                                                      \
    MX_CFG(T, tower.d, "vision_config.hidden_size", MX_IS_WIDTH, .fallback = 1152,                 \
               .maxtext = "hidden_size_for_vit"),                                                  \
        MX_CFG(T, tower.d_ff, "vision_config.intermediate_size", MX_IS_WIDTH, .fallback = 4304,    \
               .maxtext = "intermediate_size_for_vit"),                                            \
        MX_CFG(T, tower.layers, "vision_config.depth", MX_IS_LAYERS, .fallback = 27,               \
               .maxtext = "num_hidden_layers_for_vit"),                                            \
        MX_CFG(T, tower.heads, "vision_config.num_heads|vision_config.num_attention_heads",        \
               MX_IS_HEADS, .fallback = 16, .maxtext = "num_attention_heads_for_vit"),             \
        MX_CFG(T, tower.channels, "vision_config.in_channels", MX_IS_CHANNELS, .fallback = 3,      \
               .maxtext = "num_channels_for_vit"),                                                 \
        MX_CFG(T, tower.patch, "vision_config.patch_size", MX_IS_PATCH, .fallback = 16,            \
               .maxtext = "patch_size_for_vit"),                                                   \
        MX_CFG(T, tower.side, "vision_config.spatial_merge_size", MX_IS_SIDE, .fallback = 2,       \
               .maxtext = "spatial_merge_size_for_vit"),                                           \
        MX_CFG(T, tower.frames, "vision_config.temporal_patch_size", MX_IS_SIDE,                   \
               .fallback = 2, .maxtext = "temporal_patch_size_for_vit"),                           \
        MX_CFG(T, tower.out, "vision_config.out_hidden_size", MX_IS_WIDTH, .fallback = 3584,       \
               .maxtext = "out_hidden_size_for_vit"),                                              \
        MX_CFG(T, tower.positions, "vision_config.num_position_embeddings", MX_IS_PLACES,          \
               .fallback = 2304, .maxtext = "num_position_embeddings_for_vit"),                    \
        MX_CFG(T, tower.act, "vision_config.hidden_act", MX_CFG_ACT,                               \
               .fallback = MX_ACT_GELU_TANH, .own = true),                                         \
        MX_CFG(T, tower.theta, "vision_config.rope_parameters.rope_theta", MX_IS_THETA,            \
               .fallback = 10000, .maxtext = "rope_theta_for_vit"),                                \
        MX_CFG(T, tower.deep, "vision_config.deepstack_visual_indexes", MX_IS_LAYER_LIST,          \
               .maxtext = "deepstack_visual_indexes_for_vit"),                                     \
        MX_CFG(T, tower.sections,                                                                  \
               "text_config.rope_parameters.mrope_section|text_config.rope_scaling.mrope_section", \
               MX_CFG_INTS(0, 512), .maxtext = "mrope_section"),                                   \
        MX_CFG(T, tower.image_token, "image_token_id", MX_IS_TOKEN, .fallback = 151655)

#endif
