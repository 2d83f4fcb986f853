/* qwen3_next.c - Qwen3-Next 80B-A3B: three gated delta networks, then one layer of attention, and
 * so on; a mixture with a gated shared expert in every layer.
 *
 * Attention: q_proj gives each head its query and a gate, whose sigmoid multiplies what the head
 * found; a norm on each head of q and k; a quarter of a head is rotated. Norms store w - 1, except
 * the one inside a delta network. Router: softmax, the best k, their shares if norm_topk_prob.
 * The MTP layers (mtp.*) are not built.
 * x (B, S, d); q (B, S, H, D); k, v (B, S, K, D).
 */
#include "models/qwen3_next.h"

#include "ops.h"
#include <math.h>

enum { LINEAR = 1, FULL };

static mx_node *attention(mx_graph *g, const mx_decoder *c, mx_build *b, mx_node *x,
                          const mx_rope_table *t)
{
    int64_t B = b->batch, S = b->seq, H = c->heads, K = c->kv_heads, D = c->head_dim;
    mx_head_axes axes = mx_attention_axes(g, D);
    const char *q_gate = mx_attention_axes(g, 2 * D).q; /* a head's query, then its gate */
    mx_node *q = mx_linear(g, b, x, "q_proj", 2 * H * D, q_gate, c->qkv_bias);
    mx_node *k = mx_linear(g, b, x, "k_proj", K * D, axes.kv, c->qkv_bias);
    mx_node *v = mx_linear(g, b, x, "v_proj", K * D, axes.kv, c->qkv_bias);
    q = mx_name(g, "query_proj", mx_reshape(g, q, MX_SHAPE(B, S, H, 2 * D)));
    k = mx_name(g, "key_proj", mx_reshape(g, k, MX_SHAPE(B, S, K, D)));
    v = mx_name(g, "value_proj", mx_reshape(g, v, MX_SHAPE(B, S, K, D)));
    q = mx_split(g, q, 2, (int64_t[]){D, D});
    mx_node *gate = mx_reshape(g, mx_output(g, q, 1), MX_SHAPE(B, S, H * D));
    q = mx_rope_apply(g, mx_rms_norm(g, q, "q_norm", c->eps, true), t);
    k = mx_rope_apply(g, mx_rms_norm(g, k, "k_norm", c->eps, true), t);
    mx_attention_attr a = {.causal = true, .scale = 1 / sqrt((double)D)};
    mx_node *o = mx_mul(g, mx_attend(g, b, q, k, v, a, NULL), mx_sigmoid(g, gate));
    o = mx_linear(g, b, o, "o_proj", c->d, axes.out, c->qkv_bias);
    return mx_name(g, "out_proj", o);
}

static mx_node *mlp(mx_graph *g, const mx_qwen3_next *c, mx_build *b, mx_node *x, int64_t l)
{
    mx_act act = c->base.act;
    if (mx_is_dense(&c->moe, &c->sparse, l))
        return mx_gated_mlp(g, b, x, c->base.d_ff, act, false);
    return mx_add(g, mx_qwen_experts(g, b, &c->moe, x, act),
                  mx_shared_expert(g, b, x, "shared_expert", c->shared_d_ff, act,
                                   "shared_expert_gate"));
}

mx_node *mx_qwen3_next_layers(mx_graph *g, const mx_qwen3_next *c, mx_build *b)
{
    const mx_decoder *d = &c->base;
    mx_node *x = mx_embedding(g, b, "embed_tokens", d->vocab, d->d);
    mx_rope_table t = mx_rope_tables(g, b, &d->rope, d->head_dim, false);
    for (int64_t l = 0; l < d->layers; l++) {
        bool full = d->layer_types.type[l] == FULL;
        mx_scope(g, "layers.%lld", (long long)l);
        mx_node *h = mx_rms_norm(g, x, "input_layernorm", d->eps, true);
        mx_scope(g, full ? "self_attn" : "linear_attn");
        h = full ? attention(g, d, b, h, &t) : mx_delta_net_layer(g, b, h, &c->net, d->eps);
        x = mx_add(g, x, mx_scope_end(g, h));
        h = mx_rms_norm(g, x, "post_attention_layernorm", d->eps, true);
        mx_scope(g, "mlp");
        h = mx_scope_end(g, mlp(g, c, b, h, l));
        x = mx_scope_end(g, mx_add(g, x, h));
    }
    return mx_rms_norm(g, x, "norm", d->eps, true);
}

mx_head mx_qwen3_next_build(mx_graph *g, const void *config, mx_build *b)
{
    const mx_qwen3_next *c = config;
    const mx_decoder *d = &c->base;
    mx_scope(g, "model");
    mx_node *x = mx_scope_end(g, mx_qwen3_next_layers(g, c, b));
    return (mx_head){.hidden = x, .weight = mx_head_weight(g, b, d->vocab, d->d, d->tied)};
}

static mx_status check_net(const mx_delta_net *n)
{
    if (n->v_heads % n->k_heads)
        return mx_fail(MX_INPUT, "the delta networks have %lld key heads and %lld value heads; "
                       "expected the second to be a multiple of the first",
                       (long long)n->k_heads, (long long)n->v_heads);
    return MX_OK;
}

mx_status mx_qwen3_next_finish(void *config, const json_t *json)
{
    mx_qwen3_next *c = config;
    mx_layer_types *t = &c->base.layer_types;
    for (int64_t l = 0; !t->n && l < c->base.layers && l < MX_MAX_LAYERS; l++)
        t->type[l] = (l + 1) % c->full_interval ? LINEAR : FULL;
    if (!t->n)
        t->n = (int)(c->base.layers < MX_MAX_LAYERS ? c->base.layers : MX_MAX_LAYERS);
    if (c->base.rope.partial == 0)
        c->base.rope.partial = 0.25;
    MX_TRY(check_net(&c->net));
    if (c->moe.experts)
        MX_TRY(mx_check_moe(&c->moe));
    return mx_decoder_finish(config, json);
}

static const mx_cfg_field fields[] = {
    MX_CFG_DECODER(mx_decoder, 10000),
    MX_CFG_DELTA_NET(mx_qwen3_next),
    MX_CFG_QWEN_MOE(mx_qwen3_next, 10, 512, 1),
    MX_CFG(mx_qwen3_next, shared_d_ff, "shared_expert_intermediate_size", MX_IS_WIDTH,
           .fallback = 512),
    {0},
};

const mx_model mx_model_qwen3_next = {
    .name = "qwen3_next",
    .doc = "Qwen3-Next 80B-A3B",
    .model_types = "qwen3_next",
    .architecture = "Qwen3NextForCausalLM",
    .fields = fields,
    .config_size = sizeof(mx_qwen3_next),
    .finish = mx_qwen3_next_finish,
    .summary = mx_decoder_summary,
    .build = mx_qwen3_next_build,
    .other_parts = mx_fused_experts,
    .no_decay = "*norm*,*.bias,*.dt_bias,*.A_log",
    .unused = "mtp.*",
    .decoder_block = "qwen3_next",
    .fixed_keys = "use_qk_norm=true",
};
