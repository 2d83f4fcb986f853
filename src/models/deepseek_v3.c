/* deepseek_v3.c - DeepSeek V3, R1, V3.1, Kimi K2 and the language part of Kimi K2.5 and K2.6: see
 * deepseek.c.
 *
 * Router: sigmoid scores; a bias that no gradient reaches is added for the choice alone; of the
 * groups of experts, those with the best two of theirs are open; the weights of the chosen sum to
 * the scaling factor. The MTP layers (num_nextn_predict_layers), which checkpoints have after the
 * last, are built when mtp_num_layers asks for them, and passed over otherwise.
 *
 * Kimi K2.5's checkpoints wrap the decoder: its configuration is text_config and its tensors are
 * language_model.*. They are read and written in that form. The image encoder is not built:
 * vision_tower.* and mm_projector.* are kept as they are.
 */
#include "models/deepseek.h"

#include <stdio.h>
#include <string.h>

static mx_head build(mx_graph *g, const void *config, mx_build *b)
{
    static const mx_deepseek_parts parts = {.route = mx_deepseek_route_sigmoid};
    return mx_deepseek_build(g, config, b, &parts);
}

static mx_status finish(void *config, const json_t *json)
{
    return mx_deepseek_finish(config, json);
}

static mx_head build_language_part(mx_graph *g, const void *config, mx_build *b)
{
    mx_scope(g, "language_model");
    mx_head head = build(g, config, b);
    mx_scope_end(g, head.hidden);
    return head;
}

/* transformers writes the layers of the language part as blocks, like those of the encoder. */
static const char *as_blocks(const char *name, char *buf, size_t cap)
{
    static const char prefix[] = "language_model.model.", layers[] = "layers.";
    size_t n = sizeof prefix - 1;
    if (strncmp(name, prefix, n) != 0 || strncmp(name + n, layers, sizeof layers - 1) != 0)
        return NULL;
    snprintf(buf, cap, "%sblocks.%s", prefix, name + n + sizeof layers - 1);
    return buf;
}

static const mx_cfg_field fields[] = {
    MX_CFG_DEEPSEEK(8, 3, 1),
    MX_CFG_DEEPSEEK_SIGMOID,
    MX_CFG(mx_deepseek, interleaved, "rope_interleave", MX_CFG_BOOL, .fallback = 1,
           .maxtext = "rope_interleave"),
    {0},
};

static const mx_cfg_field no_fields[] = {{0}};

const mx_model mx_model_deepseek_v3 = {
    .name = "deepseek_v3",
    .doc = "DeepSeek V3, R1, V3.1; Kimi K2",
    .model_types = "deepseek_v3,kimi_k2",
    .architecture = "DeepseekV3ForCausalLM",
    .fields = fields,
    MX_EXPERTS_FAMILY(mx_deepseek, finish, build),
    .layer_prefix = "model.layers.",
    .drafts = true,
    .decoder_block = "deepseek",
    .decoder_keys = "routed_score_func=sigmoid,use_indexer=false",
    .fixed_keys = "attention_type=mla,routed_bias=true",
};

const mx_model mx_model_kimi_k25 = {
    .name = "kimi_k25",
    .doc = "Kimi K2.5, K2.6; text, the image encoder is kept",
    .model_types = "kimi_k25",
    .architecture = "KimiK25ForConditionalGeneration,Kimi_K25ForConditionalGeneration",
    .text = &mx_model_deepseek_v3,
    .fields = no_fields,
    .config_size = sizeof(mx_deepseek),
    .build = build_language_part,
    .other_name = as_blocks,
    .other_parts = mx_fused_experts,
    .no_decay = "*norm*,*.bias",
    .layer_prefix = "language_model.model.layers.",
    .unused = "vision_tower.*,mm_projector.*,model.mm_projector.*",
};
