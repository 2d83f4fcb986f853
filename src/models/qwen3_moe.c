/* qwen3_moe.c - Qwen3 with experts (30B-A3B, 235B-A22B, Coder): Qwen3's decoder, many small
 * experts.
 *
 * Router: softmax over all experts, the best k, their shares if norm_topk_prob. A layer is dense
 * when mlp_only_layers names it, or when it is not the decoder_sparse_step-th.
 */
#include "models/decoder.h"
#include "models/mixture.h"

#include "ops.h"

typedef struct {
    mx_decoder base; /* first: the shared rows of the field table address it */
    mx_moe moe;
    int64_t sparse_step;
    mx_int_list dense_layers;
} config;

static bool is_dense(const config *c, int64_t l)
{
    for (int i = 0; i < c->dense_layers.n; i++)
        if (c->dense_layers.v[i] == l)
            return true;
    return c->moe.experts == 0 || (l + 1) % c->sparse_step != 0;
}

static mx_node *mlp(mx_graph *g, const mx_decoder *base, mx_build *b, mx_node *x, int64_t l)
{
    const config *c = (const config *)base;
    const mx_moe *m = &c->moe;
    if (is_dense(c, l))
        return mx_decoder_mlp(g, base, b, x, l);
    mx_scope(g, "mlp");
    mx_node *logits = mx_router_logits(g, b, x, "gate", m->experts, false);
    mx_choice choice = {.k = m->k, .renormalise = m->renormalise};
    mx_routing r = mx_route(g, logits, mx_softmax(g, logits), choice);
    mx_balance(g, b, m, &r);
    mx_expert_names names = {"gate_proj", "up_proj", "down_proj"};
    return mx_scope_end(g, mx_expert_mlp(g, b, x, &r, m, names, base->act));
}

static mx_head build(mx_graph *g, const void *c, mx_build *b)
{
    return mx_decoder_build_with(g, c, b, mlp);
}

static mx_status finish(void *config_, const json_t *json)
{
    config *c = config_;
    c->base.qk_norm = true;
    c->base.out_bias = c->base.qkv_bias;
    c->base.first_window_layer = 0;
    c->base.use_window &= c->base.window > 0;
    if (c->sparse_step < 1)
        return mx_fail(MX_INPUT, "\"decoder_sparse_step\" is %lld, expected 1 or more",
                       (long long)c->sparse_step);
    if (c->moe.experts)
        MX_TRY(mx_check_moe(&c->moe));
    return mx_decoder_finish(config_, json);
}

static const mx_cfg_field fields[] = {
    MX_CFG_DECODER(mx_decoder, 10000),
    MX_CFG(mx_decoder, qkv_bias, "attention_bias", MX_CFG_BOOL),
    MX_CFG(mx_decoder, window, "sliding_window", MX_CFG_INT, .fallback = 4096,
           .maxtext = "sliding_window_size"),
    MX_CFG(mx_decoder, use_window, "use_sliding_window", MX_CFG_BOOL),
    MX_CFG_MOE(config, "num_experts|num_local_experts", 8),
    MX_CFG(config, moe.d_ff, "moe_intermediate_size", MX_CFG_INT, .fallback = 768,
           .maxtext = "base_moe_mlp_dim"),
    MX_CFG(config, moe.renormalise, "norm_topk_prob", MX_CFG_BOOL, .maxtext = "norm_topk_prob"),
    MX_CFG(config, sparse_step, "decoder_sparse_step", MX_CFG_INT, .fallback = 1,
           .maxtext = "interleave_moe_layer_step"),
    MX_CFG(config, dense_layers, "mlp_only_layers", MX_CFG_INTS),
    {0},
};

const mx_model mx_model_qwen3_moe = {
    .name = "qwen3_moe",
    .doc = "Qwen3 with experts: 30B-A3B, 235B-A22B, Coder 480B-A35B",
    .model_types = "qwen3_moe",
    .architecture = "Qwen3MoeForCausalLM",
    .fields = fields,
    .config_size = sizeof(config),
    .finish = finish,
    .summary = mx_decoder_summary,
    .build = build,
    .other_parts = mx_joined_experts,
    .no_decay = "*norm*,*.bias",
    .decoder_block = "qwen3_moe",
};
