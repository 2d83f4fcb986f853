/* hyper.c - see hyper.h. The norm of all streams divides what W makes of them instead of them: it
 * is one number for a token, and W is linear. */
#include "nn/hyper.h"

#include "ops.h"
#include <stdio.h>

static mx_node *named(mx_graph *g, const char *name, const char *part, mx_shape shape, mx_init init)
{
    char full[64];
    snprintf(full, sizeof full, "%s_%s", name, part);
    return mx_param(g, full, shape, shape.ndim == 2 ? "norm,embed" : "norm", init);
}

/* scale * (norm(x) W) + base, (B, S, m) in float32: of k parts, each with a scale of its own, the
 * last takes what the others leave. x (B, S, n, d). */
static mx_node *gates(mx_graph *g, const mx_build *b, mx_node *x, const mx_hyper *c,
                      const char *name, int k)
{
    int64_t n = c->streams, m = k > 1 ? 2 * n + n * n : n, all = n * x->type.dim[3];
    mx_dtype t = g->param_dtype == MX_F64 ? MX_F64 : MX_F32;
    double part[MX_MAX_STREAMS * (2 + MX_MAX_STREAMS)];
    for (int64_t i = 0; i < m; i++)
        part[i] = (double)(i / n < k ? i / n : k - 1);
    x = mx_reshape(g, x, MX_SHAPE(b->batch, b->seq, all));
    mx_node *w = named(g, name, "fn", MX_SHAPE(m, all), MX_NORMAL(b->init_scale));
    mx_node *scale = named(g, name, "scale", MX_SHAPE(k), MX_ONES);
    mx_node *base = named(g, name, "base", MX_SHAPE(m), MX_ZEROS);
    mx_node *mean = mx_row_mean(g, mx_mul(g, x, x));
    mx_node *z = mx_mul(g, mx_matmul_as(g, "*d,fd->*f", x, w, t),
                        mx_rsqrt(g, mx_affine(g, mean, 1, c->norm_eps)));
    scale = mx_gather_last(g, scale, mx_table(g, MX_SHAPE(m), MX_I32, part));
    return mx_add(g, mx_mul(g, z, scale), base);
}

/* sum_j (sigmoid(z_j) + eps) x_j */
static mx_node *gather_streams(mx_graph *g, const mx_build *b, mx_node *x, mx_node *z,
                               const mx_hyper *c)
{
    int64_t B = b->batch, S = b->seq;
    mx_node *pre = mx_affine(g, mx_sigmoid(g, z), 1, c->eps);
    mx_node *y = mx_blend(g, x, mx_reshape(g, pre, MX_SHAPE(B, S, c->streams, 1)));
    return mx_reshape(g, y, MX_SHAPE(B, S, x->type.dim[3]));
}

mx_hyper_block mx_hyper_enter(mx_graph *g, const mx_build *b, mx_node *x, const mx_hyper *c,
                              const char *name)
{
    int64_t B = b->batch, S = b->seq, n = c->streams;
    mx_node *z = mx_split(g, gates(g, b, x, c, name, 3), 3, (int64_t[]){n, n, n * n});
    mx_node *post = mx_affine(g, mx_sigmoid(g, mx_output(g, z, 1)), 2, 0);
    mx_node *mix = mx_softmax(g, mx_reshape(g, mx_output(g, z, 2), MX_SHAPE(B, S, n, n)));
    return (mx_hyper_block){.in = gather_streams(g, b, x, z, c), .streams = x,
                            .post = mx_reshape(g, post, MX_SHAPE(B, S, 1, n)),
                            .mix = mx_sinkhorn(g, mx_affine(g, mix, 1, c->eps), c->steps, c->eps)};
}

mx_node *mx_hyper_leave(mx_graph *g, const mx_hyper_block *h, mx_node *out)
{
    mx_shape one = mx_shape_of(&h->streams->type);
    one.dim[2] = 1;
    return mx_add(g, mx_blend(g, h->streams, h->mix),
                  mx_blend(g, mx_reshape(g, out, one), h->post));
}

mx_node *mx_hyper_begin(mx_graph *g, mx_node *x, const mx_hyper *c)
{
    int64_t B = x->type.dim[0], S = x->type.dim[1], d = x->type.dim[2];
    x = mx_reshape(g, x, MX_SHAPE(B, S, 1, d));
    return mx_broadcast_to(g, x, MX_SHAPE(B, S, c->streams, d));
}

mx_node *mx_hyper_end(mx_graph *g, const mx_build *b, mx_node *x, const mx_hyper *c,
                      const char *name)
{
    return gather_streams(g, b, x, gates(g, b, x, c, name, 1), c);
}

mx_status mx_check_hyper(const mx_hyper *c)
{
    if (c->streams < 1 || c->streams > MX_MAX_STREAMS || c->steps < 1 || c->steps > 64 ||
        c->eps < 0)
        return mx_fail(MX_INPUT, "%lld residual streams, mixed in %lld Sinkhorn steps with an "
                       "epsilon of %g; expected 1 to %d, 1 to 64, and 0 or more",
                       (long long)c->streams, (long long)c->steps, c->eps, MX_MAX_STREAMS);
    return MX_OK;
}
