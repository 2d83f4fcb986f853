/* qwen3_moe.c - Qwen3 with experts (30B-A3B, 235B-A22B, Coder): Qwen3's decoder, many small
 * experts.
 *
 * Router: softmax over all experts, the best k, their shares if norm_topk_prob. A layer is dense
 * when mlp_only_layers names it, or when it is not the decoder_sparse_step-th.
 */
#include "models/decoder.h"
#include "models/mixture.h"

typedef struct {
    mx_decoder base; /* first: the shared rows of the field table address it */
    mx_moe moe;
    mx_sparse_layers sparse;
} config;

static mx_node *mlp(mx_graph *g, const mx_decoder *base, mx_build *b, mx_node *x, int64_t l)
{
    const config *c = (const config *)base;
    if (mx_is_dense(&c->moe, &c->sparse, l))
        return mx_decoder_mlp(g, base, b, x, l);
    mx_scope(g, "mlp");
    return mx_scope_end(g, mx_qwen_experts(g, b, &c->moe, x, base->act));
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
    if (c->moe.experts)
        MX_TRY(mx_check_moe(&c->moe));
    return mx_decoder_finish(config_, json);
}

static const mx_cfg_field fields[] = {
    MX_CFG_DECODER(mx_decoder, 10000),
    MX_CFG(mx_decoder, qkv_bias, "attention_bias", MX_CFG_BOOL),
    MX_CFG(mx_decoder, window, "sliding_window", MX_IS_LENGTH_OR_0, .fallback = 4096,
           .maxtext = "sliding_window_size"),
    MX_CFG(mx_decoder, use_window, "use_sliding_window", MX_CFG_BOOL),
    MX_CFG_QWEN_MOE(config, 8, 768, 0),
    {0},
};

const mx_model mx_model_qwen3_moe = {
    .name = "qwen3_moe",
    .doc = "Qwen3 with experts: 30B-A3B, 235B-A22B, Coder 480B-A35B",
    .model_types = "qwen3_moe",
    .architecture = "Qwen3MoeForCausalLM",
    .fields = fields,
    MX_EXPERTS_FAMILY(config, finish, build),
    .decoder_block = "qwen3_moe",
    .fixed_keys = "use_qk_norm=true",
};
