/* delta_net.c - see delta_net.h. K key heads of D, H value heads of E, r = H / K. */
#include "nn/delta_net.h"

#include "ops.h"
#include <math.h>

/* x / |x|, along the last dim. */
static mx_node *unit(mx_graph *g, mx_node *x)
{
    mx_node *sum = mx_row_sum(g, mx_mul(g, x, x));
    return mx_mul(g, x, mx_rsqrt(g, mx_affine(g, sum, 1, 1e-6)));
}

/* [q, k, v] (B, S, C) -> the same, each channel mixed with its own past. */
static mx_node *convolve(mx_graph *g, const mx_build *b, mx_node *x, const mx_delta_net *c)
{
    int64_t C = x->type.dim[2];
    mx_node *w = mx_param(g, "conv1d.weight", MX_SHAPE(C, 1, c->taps), "heads,norm,norm",
                          MX_NORMAL(b->init_scale));
    mx_node *state = NULL;
    if (b->cache_len)
        state = mx_cache_state(g, "conv", MX_SHAPE(b->batch, c->taps - 1, C), b->cache_dtype);
    w = mx_reshape(g, w, MX_SHAPE(C, c->taps));
    return mx_silu(g, mx_causal_conv(g, x, w, b->segments, state, b->positions));
}

/* How much of the memory stays, as a logarithm; how much of the correction enters: (B, S, H). */
static void gates(mx_graph *g, const mx_build *b, mx_node *x, const mx_delta_net *c,
                  mx_node **decay, mx_node **beta)
{
    int64_t H = c->v_heads, r = H / c->k_heads;
    mx_shape heads = MX_SHAPE(b->batch, b->seq, H);
    mx_dtype t = g->param_dtype == MX_F64 ? MX_F64 : MX_F32;
    mx_node *ba = mx_linear(g, b, x, "in_proj_ba", 2 * H, "heads,embed", false);
    ba = mx_reshape(g, ba, MX_SHAPE(b->batch, b->seq, c->k_heads, 2 * r));
    ba = mx_split(g, ba, 2, (int64_t[]){r, r});
    *beta = mx_sigmoid(g, mx_cast(g, mx_reshape(g, ba, heads), t));
    mx_node *a = mx_cast(g, mx_reshape(g, mx_output(g, ba, 1), heads), t);
    a = mx_add(g, a, mx_param(g, "dt_bias", MX_SHAPE(H), "heads", MX_ONES));
    mx_node *rate = mx_exp(g, mx_param(g, "A_log", MX_SHAPE(H), "heads", MX_LOG_UNIFORM(16)));
    *decay = mx_affine(g, mx_mul(g, rate, mx_softplus(g, a)), -1, 0);
}

mx_node *mx_delta_net_layer(mx_graph *g, const mx_build *b, mx_node *x, const mx_delta_net *c,
                            double eps)
{
    int64_t B = b->batch, S = b->seq, K = c->k_heads, H = c->v_heads, D = c->k_dim, E = c->v_dim;
    int64_t r = H / K, keys = K * D, values = H * E;
    mx_node *p = mx_linear(g, b, x, "in_proj_qkvz", 2 * keys + 2 * values, "heads,embed", false);
    p = mx_reshape(g, mx_name(g, "qkv_proj", p), MX_SHAPE(B, S, K, 2 * D + 2 * r * E));
    p = mx_split(g, p, 4, (int64_t[]){D, D, r * E, r * E});
    mx_node *flat[] = {mx_reshape(g, p, MX_SHAPE(B, S, keys)),
                       mx_reshape(g, mx_output(g, p, 1), MX_SHAPE(B, S, keys)),
                       mx_reshape(g, mx_output(g, p, 2), MX_SHAPE(B, S, values))};
    mx_node *z = mx_reshape(g, mx_output(g, p, 3), MX_SHAPE(B, S, H, E));
    mx_node *qkv = convolve(g, b, mx_concat(g, 3, flat, 2), c);
    qkv = mx_split(g, qkv, 3, (int64_t[]){keys, keys, values});
    mx_node *in[5] = {unit(g, mx_reshape(g, qkv, MX_SHAPE(B, S, K, D))),
                      unit(g, mx_reshape(g, mx_output(g, qkv, 1), MX_SHAPE(B, S, K, D))),
                      mx_reshape(g, mx_output(g, qkv, 2), MX_SHAPE(B, S, H, E))};
    gates(g, b, x, c, &in[3], &in[4]);
    mx_node *state = NULL;
    if (b->cache_len)
        state = mx_cache_state(g, "memory", MX_SHAPE(B, H, D, E), in[3]->type.dtype);
    mx_node *o = mx_delta_rule(g, in, 1 / sqrt((double)D), c->chunk, b->segments, state,
                               b->positions);
    o = mx_rms_norm(g, mx_name(g, "context", o), "norm", eps, false);
    o = mx_reshape(g, mx_mul(g, o, mx_silu(g, z)), MX_SHAPE(B, S, values));
    o = mx_linear(g, b, o, "out_proj", x->type.dim[2], "embed,heads", false);
    return mx_name(g, "out_proj", o);
}
