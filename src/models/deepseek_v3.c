/* deepseek_v3.c - DeepSeek V3, R1, V3.1 and Kimi K2: see deepseek.c.
 *
 * Router: sigmoid scores; a bias that no gradient reaches is added for the choice alone; of the
 * groups of experts, those with the best two of theirs are open; the weights of the chosen sum to
 * the scaling factor. The layers that predict further tokens (num_nextn_predict_layers), which
 * checkpoints have behind the last, are built when mtp_num_layers asks for them, and passed over
 * otherwise.
 */
#include "models/deepseek.h"

static mx_head build(mx_graph *g, const void *config, mx_build *b)
{
    static const mx_deepseek_parts parts = {.route = mx_deepseek_route_sigmoid};
    return mx_deepseek_build(g, config, b, &parts);
}

static mx_status finish(void *config, const json_t *json)
{
    return mx_deepseek_finish(config, json);
}

static const mx_cfg_field fields[] = {
    MX_CFG_DEEPSEEK(8, 3, 1),
    MX_CFG_DEEPSEEK_SIGMOID,
    MX_CFG(mx_deepseek, interleaved, "rope_interleave", MX_CFG_BOOL, .fallback = 1,
           .maxtext = "rope_interleave"),
    {0},
};

const mx_model mx_model_deepseek_v3 = {
    .name = "deepseek_v3",
    .doc = "DeepSeek V3, R1, V3.1; Kimi K2",
    .model_types = "deepseek_v3,kimi_k2",
    .architecture = "DeepseekV3ForCausalLM",
    .fields = fields,
    .config_size = sizeof(mx_deepseek),
    .finish = finish,
    .summary = mx_decoder_summary,
    .build = build,
    .other_parts = mx_joined_experts,
    .no_decay = "*norm*,*.bias",
    .layer_prefix = "model.layers.",
    .decoder_block = "deepseek",
    .decoder_keys = "routed_score_func=sigmoid,use_indexer=false",
    .always = "attention_type=mla,routed_bias=true",
};
