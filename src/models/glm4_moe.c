/* glm4_moe.c - GLM-4.5, 4.5-Air and 4.6: grouped-query attention with half a head rotated, DeepSeek
 * V3's router.
 *
 * Router: sigmoid scores; a bias that no gradient reaches is added for the choice alone; the
 * weights of the chosen sum to the scaling factor. The first layers have a dense MLP, the others
 * experts and one more that sees every token. The MTP layer, which checkpoints have after the
 * last, is passed over.
 */
#include "models/decoder.h"
#include "models/mixture.h"

#include "ops.h"

typedef struct {
    mx_decoder base; /* first: the shared rows of the field table address it */
    mx_moe moe;
    int64_t dense_layers, shared_experts, groups, open_groups;
    double bias_rate;
} config;

static mx_node *mlp(mx_graph *g, const mx_decoder *base, mx_build *b, mx_node *x, int64_t l)
{
    const config *c = (const config *)base;
    const mx_moe *m = &c->moe;
    if (l < c->dense_layers)
        return mx_decoder_mlp(g, base, b, x, l);
    mx_scope(g, "mlp");
    mx_node *logits = mx_router_logits(g, b, x, "gate", m->experts, false);
    mx_node *bias = mx_router_bias(g, "gate.e_score_correction_bias", m->experts);
    mx_gating choice = {.k = m->k, .renormalise = m->renormalise, .scale = m->scale, .bias = bias,
                        .groups = c->groups, .open_groups = c->open_groups, .group_best = 2};
    mx_routing r = mx_route(g, logits, mx_sigmoid(g, logits), choice);
    mx_router_bias_update(g, b, bias, &r, c->bias_rate);
    mx_balance(g, b, m, &r);
    mx_expert_names names = {"gate_proj", "up_proj", "down_proj"};
    mx_node *y = mx_expert_mlp(g, b, x, &r, m, names, base->act);
    if (c->shared_experts)
        y = mx_add(g, y, mx_shared_expert(g, b, x, "shared_experts", c->shared_experts * m->d_ff,
                                          base->act, NULL));
    return mx_scope_end(g, y);
}

static mx_head build(mx_graph *g, const void *c, mx_build *b)
{
    return mx_decoder_build_with(g, c, b, mlp);
}

static mx_status finish(void *config_, const json_t *json)
{
    config *c = config_;
    if (c->base.rope.partial == 0)
        c->base.rope.partial = 0.5;
    MX_TRY(mx_check_moe(&c->moe));
    MX_TRY(mx_check_groups(&c->moe, c->groups, c->open_groups));
    return mx_decoder_finish(config_, json);
}

static const mx_cfg_field fields[] = {
    MX_CFG_DECODER(mx_decoder, 10000),
    MX_CFG(mx_decoder, eps, "rms_norm_eps", MX_IS_EPSILON, .fallback = 1e-5,
           .maxtext = "normalization_layer_epsilon"),
    MX_CFG(mx_decoder, kv_heads, "num_key_value_heads", MX_IS_HEADS_OR_0, .fallback = 8,
           .maxtext = "base_num_kv_heads"),
    MX_CFG(mx_decoder, qkv_bias, "attention_bias", MX_CFG_BOOL),
    MX_CFG(mx_decoder, qk_norm, "use_qk_norm", MX_CFG_BOOL, .maxtext = "use_qk_norm"),
    MX_CFG_MOE(config, "n_routed_experts|num_local_experts", 8, 0),
    MX_CFG(config, moe.d_ff, "moe_intermediate_size", MX_IS_WIDTH, .fallback = 1408,
           .maxtext = "base_moe_mlp_dim"),
    MX_CFG(config, moe.scale, "routed_scaling_factor", MX_IS_FACTOR_OR_0, .fallback = 1,
           .maxtext = "routed_scaling_factor"),
    MX_CFG(config, moe.renormalise, "norm_topk_prob", MX_CFG_BOOL, .fallback = 1,
           .maxtext = "norm_topk_prob"),
    MX_CFG(config, groups, "n_group", MX_IS_COUNT_OR_0, .fallback = 1),
    MX_CFG(config, open_groups, "topk_group", MX_IS_COUNT_OR_0, .fallback = 1),
    MX_CFG(config, dense_layers, "first_k_dense_replace", MX_IS_COUNT_OR_0, .fallback = 1,
           .maxtext = "first_num_dense_layers"),
    MX_CFG(config, shared_experts, "n_shared_experts", MX_IS_COUNT_OR_0, .fallback = 1,
           .maxtext = "shared_experts"),
    MX_CFG(config, bias_rate, "routed_bias_update_rate", MX_IS_SHARE,
           .maxtext = "routed_bias_update_rate", .run = "routed_bias_update_rate"),
    {0},
};

const mx_model mx_model_glm4_moe = {
    .name = "glm4_moe",
    .doc = "GLM-4.5, GLM-4.5-Air, GLM-4.6",
    .model_types = "glm4_moe",
    .architecture = "Glm4MoeForCausalLM",
    .fields = fields,
    MX_EXPERTS_FAMILY(config, finish, build),
    .layer_prefix = "model.layers.",
    .decoder_block = "glm4_moe",
    .fixed_keys = "routed_score_func=sigmoid,routed_bias=true",
};
