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

/* The logical axis of a dim of channels [q, k, v]: each of the three is cut by key heads. */
static const char *channels(mx_graph *g, const mx_delta_net *c, const char *before,
                            const char *after)
{
    long long D = c->k_dim, keys = c->k_heads * D, E = c->v_heads / c->k_heads * c->v_dim;
    return mx_axes_text(g, "%s(%lld*%lld+%lld*%lld+%lld*%lld)%s", before, keys, D, keys, D,
                        (long long)c->k_heads * E, E, after);
}

/* [q, k, v] (B, S, C) -> the same, each channel mixed with its own past. */
static mx_node *convolve(mx_graph *g, const mx_build *b, mx_node *x, const mx_delta_net *c)
{
    int64_t C = x->type.dim[2];
    mx_node *w = mx_param(g, "conv1d.weight", MX_SHAPE(C, 1, c->taps),
                          channels(g, c, "gdn_head", ",,"), MX_NORMAL(b->init_scale));
    mx_recurrent r = mx_cache_recurrent(g, b, "conv", MX_SHAPE(c->taps - 1, C), b->cache_dtype);
    const char *before = b->pages ? ",,cache_heads" : "decode_batch,,cache_heads";
    if (r.state)
        r.state->axes = channels(g, c, before, "");
    w = mx_reshape(g, w, MX_SHAPE(C, c->taps));
    return mx_silu(g, mx_causal_conv(g, x, w, b->segments, &r));
}

/* What a layer reads from its input: qkv (B, S, 2 K D + H E) is [q, k, v]; z (B, S, H, E); gates
 * b and a (B, S, H). */
typedef struct {
    mx_node *qkv, *z, *b, *a;
} projections;

static projections project_joined(mx_graph *g, const mx_build *b, mx_node *x,
                                  const mx_delta_net *c)
{
    int64_t B = b->batch, S = b->seq, K = c->k_heads, H = c->v_heads, D = c->k_dim, E = c->v_dim;
    int64_t r = H / K, keys = K * D, values = H * E;
    const char *qkvz = mx_axes_text(g, "gdn_head*%lld,embed", (long long)(2 * D + 2 * r * E));
    const char *gates = mx_axes_text(g, "gdn_head*%lld,embed", (long long)(2 * r));
    mx_node *p = mx_linear(g, b, x, "in_proj_qkvz", 2 * keys + 2 * values, qkvz, false);
    p = mx_reshape(g, mx_name(g, "qkv_proj", p), MX_SHAPE(B, S, K, 2 * D + 2 * r * E));
    p = mx_split(g, p, 4, (int64_t[]){D, D, r * E, r * E});
    mx_node *flat[] = {mx_reshape(g, p, MX_SHAPE(B, S, keys)),
                       mx_reshape(g, mx_output(g, p, 1), MX_SHAPE(B, S, keys)),
                       mx_reshape(g, mx_output(g, p, 2), MX_SHAPE(B, S, values))};
    mx_node *ba = mx_linear(g, b, x, "in_proj_ba", 2 * H, gates, false);
    ba = mx_split(g, mx_reshape(g, ba, MX_SHAPE(B, S, K, 2 * r)), 2, (int64_t[]){r, r});
    return (projections){.qkv = mx_concat(g, 3, flat, 2),
                         .z = mx_reshape(g, mx_output(g, p, 3), MX_SHAPE(B, S, H, E)),
                         .b = mx_reshape(g, ba, MX_SHAPE(B, S, H)),
                         .a = mx_reshape(g, mx_output(g, ba, 1), MX_SHAPE(B, S, H))};
}

static projections project(mx_graph *g, const mx_build *b, mx_node *x, const mx_delta_net *c)
{
    int64_t H = c->v_heads, values = H * c->v_dim, qkv = 2 * c->k_heads * c->k_dim + values;
    if (!c->separate)
        return project_joined(g, b, x, c);
    long long r = H / c->k_heads;
    const char *of_v = mx_axes_text(g, "gdn_head*%lld,embed", r * (long long)c->v_dim);
    const char *gates = mx_axes_text(g, "gdn_head*%lld,embed", r);
    mx_node *p =
        mx_linear(g, b, x, "in_proj_qkv", qkv, channels(g, c, "gdn_head", ",embed"), false);
    mx_node *z = mx_linear(g, b, x, "in_proj_z", values, of_v, false);
    mx_node *beta = mx_linear(g, b, x, "in_proj_b", H, gates, false);
    mx_node *a = mx_linear(g, b, x, "in_proj_a", H, gates, false);
    return (projections){.qkv = mx_name(g, "qkv_proj", p), .b = beta, .a = a,
                         .z = mx_reshape(g, z, MX_SHAPE(b->batch, b->seq, H, c->v_dim))};
}

/* The logarithm of how much of the memory stays, from a (B, S, H); `each`: of a key head. */
static mx_node *decay(mx_graph *g, mx_node *a, int64_t heads, int64_t each)
{
    const char *axes = mx_axes_text(g, "gdn_head*%lld", (long long)each);
    a = mx_add(g, a, mx_param(g, "dt_bias", MX_SHAPE(heads), axes, MX_ONES));
    mx_node *rate = mx_exp(g, mx_param(g, "A_log", MX_SHAPE(heads), axes, MX_LOG_UNIFORM(16)));
    return mx_affine(g, mx_mul(g, rate, mx_softplus(g, a)), -1, 0);
}

mx_node *mx_delta_net_layer(mx_graph *g, const mx_build *b, mx_node *x, const mx_delta_net *c,
                            double eps)
{
    int64_t B = b->batch, S = b->seq, K = c->k_heads, H = c->v_heads, D = c->k_dim, E = c->v_dim;
    int64_t keys = K * D, values = H * E;
    mx_dtype t = g->param_dtype == MX_F64 ? MX_F64 : MX_F32;
    projections p = project(g, b, x, c);
    mx_node *qkv = convolve(g, b, p.qkv, c);
    qkv = mx_split(g, qkv, 3, (int64_t[]){keys, keys, values});
    mx_node *in[5] = {unit(g, mx_reshape(g, qkv, MX_SHAPE(B, S, K, D))),
                      unit(g, mx_reshape(g, mx_output(g, qkv, 1), MX_SHAPE(B, S, K, D))),
                      mx_reshape(g, mx_output(g, qkv, 2), MX_SHAPE(B, S, H, E))};
    in[3] = decay(g, mx_cast(g, p.a, t), H, H / K);
    in[4] = mx_sigmoid(g, mx_cast(g, p.b, t));
    mx_recurrent r = mx_cache_recurrent(g, b, "memory", MX_SHAPE(H, D, E), t);
    if (r.state)
        r.state->axes = mx_axes_text(g, "%s,cache_heads*%lld,,", b->pages ? "" : "decode_batch",
                                     (long long)(H / K));
    mx_node *o = mx_delta_rule(g, in, 1 / sqrt((double)D), c->chunk, b->segments, &r);
    o->axes = mx_axes_text(g, "activation_batch_attn,activation_length_attn,"
                           "activation_heads*%lld,", (long long)(H / K));
    o = mx_rms_norm(g, mx_name(g, "context", o), "norm", eps, false);
    o = mx_reshape(g, mx_mul(g, o, mx_silu(g, p.z)), MX_SHAPE(B, S, values));
    const char *out = mx_axes_text(g, "embed,gdn_head*%lld", (long long)(H / K * E));
    o = mx_linear(g, b, o, "out_proj", x->type.dim[2], out, false);
    return mx_name(g, "out_proj", o);
}
