/* gemma.c - Gemma 1, 2 and 3 (text).
 *
 * Embeddings are scaled by sqrt(d); norms store w - 1; the MLP is GELU-gated; the head is tied.
 *   Gemma 2: a norm after as well as before each block, caps on attention scores and logits, every
 *            other layer sees a sliding window, attention is scaled by query_pre_attn_scalar.
 *   Gemma 3: no caps, a norm on each head of q and k, five sliding layers to one full, and a rotary
 *            base of their own for the sliding ones.
 * x (B, S, d).
 */
#include "models/gemma.h"

#include "ops.h"
#include <math.h>

static bool slides(const mx_gemma *c, int64_t l)
{
    if (c->layer_types.n)
        return c->layer_types.type[l] == 1;
    return c->pattern > 0 && (l + 1) % c->pattern != 0;
}

static mx_node *attention(mx_graph *g, const mx_gemma *c, mx_build *b, mx_node *x, int64_t l,
                          const mx_rope_table *t)
{
    mx_scope(g, "self_attn");
    int64_t B = b->batch, S = b->seq, H = c->heads, K = c->kv_heads, D = c->head_dim;
    mx_head_axes axes = mx_attention_axes(g, D);
    mx_node *q = mx_linear(g, b, x, "q_proj", H * D, axes.q, c->attention_bias);
    mx_node *k = mx_linear(g, b, x, "k_proj", K * D, axes.kv, c->attention_bias);
    mx_node *v = mx_linear(g, b, x, "v_proj", K * D, axes.kv, c->attention_bias);
    q = mx_name(g, "query_proj", mx_reshape(g, q, MX_SHAPE(B, S, H, D)));
    k = mx_name(g, "key_proj", mx_reshape(g, k, MX_SHAPE(B, S, K, D)));
    v = mx_name(g, "value_proj", mx_reshape(g, v, MX_SHAPE(B, S, K, D)));
    if (c->generation == 3) {
        q = mx_rms_norm(g, q, "q_norm", c->eps, true);
        k = mx_rms_norm(g, k, "k_norm", c->eps, true);
    }
    mx_attention_attr a = {.causal = !c->bidirectional, .softcap = c->attention_cap,
                           .scale = 1 / sqrt(c->query_scalar),
                           .window = slides(c, l) ? c->window : 0};
    mx_node *o = mx_attend(g, b, mx_rope_apply(g, q, t), mx_rope_apply(g, k, t), v, a, NULL);
    o = mx_linear(g, b, o, "o_proj", c->d, axes.out, c->attention_bias);
    return mx_scope_end(g, mx_name(g, "out_proj", o));
}

static mx_node *mlp(mx_graph *g, const mx_gemma *c, mx_build *b, mx_node *x)
{
    mx_scope(g, "mlp");
    return mx_scope_end(g, mx_gated_mlp(g, b, x, c->d_ff, c->act, false));
}

static mx_node *layer(mx_graph *g, const mx_gemma *c, mx_build *b, mx_node *x, int64_t l,
                      const mx_rope_table *t)
{
    mx_scope(g, "layers.%lld", (long long)l);
    mx_node *h = attention(g, c, b, mx_rms_norm(g, x, "input_layernorm", c->eps, true), l, t);
    if (c->generation == 1) {
        x = mx_add(g, x, h);
        h = mlp(g, c, b, mx_rms_norm(g, x, "post_attention_layernorm", c->eps, true));
        return mx_scope_end(g, mx_add(g, x, h));
    }
    x = mx_add(g, x, mx_rms_norm(g, h, "post_attention_layernorm", c->eps, true));
    h = mlp(g, c, b, mx_rms_norm(g, x, "pre_feedforward_layernorm", c->eps, true));
    h = mx_rms_norm(g, h, "post_feedforward_layernorm", c->eps, true);
    return mx_scope_end(g, mx_add(g, x, h));
}

/* The factor sqrt(d) is rounded to the dtype of the embeddings in the reference, float32 here. */
mx_node *mx_gemma_embed(mx_graph *g, const mx_gemma *c, mx_build *b)
{
    mx_node *x = mx_embedding(g, b, "embed_tokens", c->vocab, c->d);
    return mx_affine(g, x, sqrt((double)c->d), 0);
}

mx_node *mx_gemma_layers(mx_graph *g, const mx_gemma *c, mx_build *b, mx_node *x)
{
    mx_rope local = c->rope;
    if (c->generation == 3)
        local = (mx_rope){.type = "default", .theta = c->local_theta, .factor = 1};
    mx_rope_table full = mx_rope_tables(g, b, &c->rope, c->head_dim, false);
    mx_rope_table near =
        c->generation == 3 ? mx_rope_tables(g, b, &local, c->head_dim, false) : full;
    for (int64_t l = 0; l < c->layers; l++)
        x = layer(g, c, b, x, l, slides(c, l) ? &near : &full);
    return mx_rms_norm(g, x, "norm", c->eps, true);
}

mx_head mx_gemma_build(mx_graph *g, const void *config, mx_build *b)
{
    const mx_gemma *c = config;
    mx_scope(g, "model");
    mx_node *x = mx_gemma_layers(g, c, b, mx_gemma_embed(g, c, b));
    mx_scope_end(g, x);
    return (mx_head){.hidden = x, .softcap = c->logit_cap,
                     .weight = mx_head_weight(g, b, c->vocab, c->d, c->tied)};
}

mx_status mx_gemma_finish(void *config, const json_t *json)
{
    mx_gemma *c = config;
    (void)json;
    MX_TRY(mx_check_heads(c->d, c->heads, &c->kv_heads, &c->head_dim));
    MX_TRY(mx_check_layer_types(&c->layer_types, c->layers));
    if (c->query_scalar == 0)
        c->query_scalar = (double)c->head_dim;
    return mx_check_rope(&c->rope, c->max_positions);
}

void mx_gemma_summary(const void *config, mx_model_summary *s)
{
    const mx_gemma *c = config;
    *s = (mx_model_summary){c->vocab, c->d, c->layers, c->max_positions, c->init_scale, c->tied};
}

/* --- Gemma 1 --- */

static mx_status finish_1(void *config, const json_t *json)
{
    ((mx_gemma *)config)->generation = 1;
    return mx_gemma_finish(config, json);
}

static const mx_cfg_field fields_1[] = {
    MX_CFG_GEMMA(mx_gemma, 10000),
    MX_CFG(mx_gemma, act, "hidden_activation|hidden_act", MX_CFG_ACT, .fallback = MX_ACT_GELU_TANH),
    {0},
};

const mx_model mx_model_gemma = {
    .name = "gemma",
    .doc = "Gemma 1",
    .model_types = "gemma",
    .architecture = "GemmaForCausalLM",
    .fields = fields_1,
    MX_GEMMA_FAMILY(finish_1),
    .decoder_block = "gemma",
    .fixed_keys = "logits_via_embedding=true",
};
