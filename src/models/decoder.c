/* decoder.c - pre-norm decoder: RMSNorm, grouped-query attention with rotary embeddings, RMSNorm,
 * SwiGLU. x (B, S, d); q (B, S, H, D); k, v (B, S, K, D). */
#include "models/decoder.h"

#include "nn/qk_clip.h"
#include "ops.h"
#include <math.h>

static bool slides(const mx_decoder *c, int64_t l)
{
    if (c->layer_types.n)
        return c->layer_types.type[l] == 1;
    return c->use_window && l >= c->first_window_layer;
}

static mx_node *attention(mx_graph *g, const mx_decoder *c, mx_build *b, mx_node *x, int64_t l,
                          const mx_rope_table *t)
{
    mx_scope(g, "self_attn");
    int64_t B = b->batch, S = b->seq, H = c->heads, K = c->kv_heads, D = c->head_dim;
    mx_head_axes axes = mx_attention_axes(g, D);
    mx_node *q = mx_linear(g, b, x, "q_proj", H * D, axes.q, c->qkv_bias);
    mx_node *k = mx_linear(g, b, x, "k_proj", K * D, axes.kv, c->qkv_bias);
    mx_node *v = mx_linear(g, b, x, "v_proj", K * D, axes.kv, c->qkv_bias);
    q = mx_name(g, "query_proj", mx_reshape(g, q, MX_SHAPE(B, S, H, D)));
    k = mx_name(g, "key_proj", mx_reshape(g, k, MX_SHAPE(B, S, K, D)));
    v = mx_name(g, "value_proj", mx_reshape(g, v, MX_SHAPE(B, S, K, D)));
    if (c->qk_norm) {
        q = mx_rms_norm(g, q, "q_norm", c->eps, false);
        k = mx_rms_norm(g, k, "k_norm", c->eps, false);
    }
    if (!c->rope_layers.n || c->rope_layers.v[l]) {
        q = mx_rope_apply(g, q, t);
        k = mx_rope_apply(g, k, t);
    }
    mx_attention_attr a = {.causal = true, .scale = 1 / sqrt((double)D),
                           .window = slides(c, l) ? c->window : 0};
    if (!c->qk_norm)
        mx_qk_clip_plain(g, mx_qk_clip(g, b, q, k, &a), H, K, D, c->qkv_bias);
    mx_node *sinks = c->sinks ? mx_param(g, "sinks", MX_SHAPE(H), "heads", MX_ZEROS) : NULL;
    mx_node *o = mx_attend(g, b, q, k, v, a, sinks);
    o = mx_linear(g, b, o, "o_proj", c->d, axes.out, c->out_bias);
    return mx_scope_end(g, mx_name(g, "out_proj", o));
}

mx_node *mx_decoder_mlp(mx_graph *g, const mx_decoder *c, mx_build *b, mx_node *x, int64_t l)
{
    (void)l;
    mx_scope(g, "mlp");
    return mx_scope_end(g, mx_gated_mlp(g, b, x, c->d_ff, c->act, c->mlp_bias));
}

mx_node *mx_decoder_layers(mx_graph *g, const mx_decoder *c, mx_build *b, mx_decoder_block *mlp,
                           const mx_decoder_images *images)
{
    mx_node *x = mx_embedding(g, b, "embed_tokens", c->vocab, c->d);
    x = images ? mx_add(g, x, images->embedded) : x;
    mx_rope_table t = mx_rope_tables(g, b, &c->rope, c->head_dim, false);
    for (int64_t l = 0; l < c->layers; l++) {
        mx_scope(g, "layers.%lld", (long long)l);
        mx_node *h = mx_rms_norm(g, x, "input_layernorm", c->eps, false);
        x = mx_add(g, x, attention(g, c, b, h, l, &t));
        h = mx_rms_norm(g, x, "post_attention_layernorm", c->eps, false);
        x = mx_scope_end(g, mx_add(g, x, mlp(g, c, b, h, l)));
        if (images && l < images->n_deep)
            x = mx_add(g, x, images->deep[l]);
    }
    return mx_rms_norm(g, x, "norm", c->eps, false);
}

mx_head mx_decoder_build_with(mx_graph *g, const mx_decoder *c, mx_build *b, mx_decoder_block *mlp)
{
    mx_scope(g, "model");
    mx_node *x = mx_scope_end(g, mx_decoder_layers(g, c, b, mlp, NULL));
    return (mx_head){.hidden = x, .weight = mx_head_weight(g, b, c->vocab, c->d, c->tied)};
}

mx_head mx_decoder_build(mx_graph *g, const void *config, mx_build *b)
{
    return mx_decoder_build_with(g, config, b, mx_decoder_mlp);
}

mx_status mx_decoder_finish(void *config, const json_t *json)
{
    mx_decoder *c = config;
    (void)json;
    MX_TRY(mx_check_heads(c->d, c->heads, &c->kv_heads, &c->head_dim));
    MX_TRY(mx_check_layer_types(&c->layer_types, c->layers));
    return mx_check_rope(&c->rope, c->max_positions);
}

void mx_decoder_summary(const void *config, mx_model_summary *s)
{
    const mx_decoder *c = config;
    *s = (mx_model_summary){c->vocab, c->d, c->layers, c->max_positions, c->init_scale, c->tied};
}
