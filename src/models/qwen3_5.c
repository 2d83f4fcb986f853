/* qwen3_5.c - Qwen3.5: the decoder of Qwen3-Next (qwen3_next.c), dense or with experts.
 *
 * What differs: the projections of a delta network are four matrices in plain order, the dense
 * sizes have an MLP in every layer, the shares of the chosen experts always sum to one. Rotary
 * positions come in three interleaved parts (time, height, width), which are one number where there
 * are no images.
 *
 * Released checkpoints have an image encoder and name the decoder model.language_model; they are
 * read and written in that form. The encoder is not built: model.visual.* and the MTP layers
 * (mtp.*) are kept as they are.
 */
#include "models/qwen3_next.h"

#include "ops.h"

static mx_status finish(void *config, const json_t *json)
{
    mx_qwen3_next *c = config;
    c->net.separate = true;
    c->moe.renormalise = true;
    c->sparse.step = 1;
    return mx_qwen3_next_finish(config, json);
}

static mx_head build_language_part(mx_graph *g, const void *config, mx_build *b)
{
    const mx_qwen3_next *c = config;
    const mx_decoder *d = &c->base;
    mx_scope(g, "model.language_model");
    mx_node *x = mx_scope_end(g, mx_qwen3_next_layers(g, c, b));
    return (mx_head){.hidden = x,
                     .weight = mx_head_weight_of_part(g, b, d->vocab, d->d, d->tied)};
}

static const mx_cfg_field dense_fields[] = {
    MX_CFG_SIZES_OR(mx_decoder, 248320, 4096, 12288, 32, 16),
    MX_CFG_DECODER_REST(mx_decoder, 10000),
    MX_CFG_DELTA_NET(mx_qwen3_next),
    {0},
};

static const mx_cfg_field moe_fields[] = {
    MX_CFG_SIZES_OR(mx_decoder, 248320, 2048, 0, 40, 16),
    MX_CFG_DECODER_REST(mx_decoder, 10000),
    MX_CFG_DELTA_NET(mx_qwen3_next),
    MX_CFG_MOE(mx_qwen3_next, "num_experts", 8, 0.001),
    MX_CFG(mx_qwen3_next, moe.d_ff, "moe_intermediate_size", MX_IS_WIDTH, .fallback = 512,
           .maxtext = "base_moe_mlp_dim"),
    MX_CFG(mx_qwen3_next, shared_d_ff, "shared_expert_intermediate_size", MX_IS_WIDTH,
           .fallback = 512),
    {0},
};

static const mx_cfg_field no_fields[] = {{0}};

#define FAMILY                                                                                     \
    .config_size = sizeof(mx_qwen3_next), .other_parts = mx_fused_experts,                        \
    .no_decay = "*norm*,*.bias,*.dt_bias,*.A_log"

const mx_model mx_model_qwen3_5 = {
    .name = "qwen3_5",
    .doc = "Qwen3.5 dense, text",
    .model_types = "qwen3_5_text",
    .architecture = "Qwen3_5ForCausalLM",
    .fields = dense_fields,
    .finish = finish,
    .summary = mx_decoder_summary,
    .build = mx_qwen3_next_build,
    .unused = "mtp.*",
    FAMILY,
};

const mx_model mx_model_qwen3_5_moe = {
    .name = "qwen3_5_moe",
    .doc = "Qwen3.5 with experts, text: 35B-A3B, 397B-A17B",
    .model_types = "qwen3_5_moe_text",
    .architecture = "Qwen3_5MoeForCausalLM",
    .fields = moe_fields,
    .finish = finish,
    .summary = mx_decoder_summary,
    .build = mx_qwen3_next_build,
    .unused = "mtp.*",
    .decoder_block = "qwen3_5",
    .fixed_keys = "base_mlp_dim=*,norm_topk_prob=true,use_qk_norm=true",
    FAMILY,
};

const mx_model mx_model_qwen3_5_released = {
    .name = "qwen3_5_released",
    .doc = "Qwen3.5 dense as released; text, the image encoder is kept",
    .model_types = "qwen3_5",
    .architecture = "Qwen3_5ForConditionalGeneration",
    .text = &mx_model_qwen3_5,
    .fields = no_fields,
    .build = build_language_part,
    .unused = "mtp.*,model.visual.*",
    FAMILY,
};

const mx_model mx_model_qwen3_5_moe_released = {
    .name = "qwen3_5_moe_released",
    .doc = "Qwen3.5 with experts as released; text, the image encoder is kept",
    .model_types = "qwen3_5_moe",
    .architecture = "Qwen3_5MoeForConditionalGeneration",
    .text = &mx_model_qwen3_5_moe,
    .fields = no_fields,
    .build = build_language_part,
    .unused = "mtp.*,model.visual.*",
    FAMILY,
};
