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

/* norm(x) W, (B, S, m), in float32. */
static mx_node *project(mx_graph *g, const mx_build *b, mx_node *x, const mx_hyper *c,
                        const char *name, int64_t m)
{
    mx_dtype t = g->param_dtype == MX_F64 ? MX_F64 : MX_F32;
    mx_node *w = named(g, name, "fn", MX_SHAPE(m, x->type.dim[2]), MX_NORMAL(b->init_scale));
    mx_node *mean = mx_row_mean(g, mx_mul(g, x, x));
    mx_node *y = mx_matmul_as(g, "*d,fd->*f", x, w, t);
    return mx_mul(g, y, mx_rsqrt(g, mx_affine(g, mean, 1, c->norm_eps)));
}

/* Parts of z: k of them, each times a scale of its own and with its part of the base. */
static void gates(mx_graph *g, mx_node *z, const char *name, int k, const int64_t *size,
                  mx_node **out)
{
    int64_t m = z->type.dim[2];
    mx_node *scale = named(g, name, "scale", MX_SHAPE(k), MX_ONES);
    mx_node *base = named(g, name, "base", MX_SHAPE(m), MX_ZEROS);
    for (int64_t i = 0, at = 0; i < k; at += size[i++]) {
        mx_node *part = k > 1 ? mx_slice(g, z, 2, at, size[i]) : z;
        part = mx_mul(g, part, mx_slice(g, scale, 0, i, 1));
        out[i] = mx_add(g, part, mx_slice(g, base, 0, at, size[i]));
    }
}

static mx_node *column(mx_graph *g, mx_node *x, int64_t i)
{
    return mx_slice(g, x, 2, i, 1);
}

static mx_node *add_to(mx_graph *g, mx_node *sum, mx_node *x)
{
    return sum ? mx_add(g, sum, x) : x;
}

/* The streams of x one by one. */
static void split_streams(mx_graph *g, mx_node *x, int64_t n, mx_node **out)
{
    int64_t size[MX_MAX_STREAMS];
    for (int64_t i = 0; i < n; i++)
        size[i] = x->type.dim[2] / n;
    mx_node *all = n > 1 ? mx_split(g, x, (int)n, size) : x;
    for (int64_t i = 0; i < n; i++)
        out[i] = mx_output(g, all, (int)i);
}

mx_hyper_block mx_hyper_enter(mx_graph *g, const mx_build *b, mx_node *x, const mx_hyper *c,
                              const char *name)
{
    int64_t n = c->streams, size[3] = {n, n, n * n};
    mx_hyper_block h = {.n = n};
    mx_node *z[3];
    gates(g, project(g, b, x, c, name, 2 * n + n * n), name, 3, size, z);
    mx_node *pre = mx_affine(g, mx_sigmoid(g, z[0]), 1, c->eps);
    mx_node *post = mx_affine(g, mx_sigmoid(g, z[1]), 2, 0);
    mx_node *mix = mx_softmax(g, mx_reshape(g, z[2], MX_SHAPE(b->batch, b->seq, n, n)));
    mix = mx_sinkhorn(g, mx_affine(g, mix, 1, c->eps), c->steps, c->eps);
    mix = mx_reshape(g, mix, MX_SHAPE(b->batch, b->seq, n * n));
    split_streams(g, x, n, h.stream);
    for (int64_t j = 0; j < n; j++) {
        h.in = add_to(g, h.in, mx_mul(g, h.stream[j], column(g, pre, j)));
        h.post[j] = column(g, post, j);
        for (int64_t k = 0; k < n; k++)
            h.mix[j][k] = column(g, mix, j * n + k);
    }
    return h;
}

mx_node *mx_hyper_leave(mx_graph *g, const mx_hyper_block *h, mx_node *out)
{
    mx_node *next[MX_MAX_STREAMS];
    for (int64_t k = 0; k < h->n; k++) {
        next[k] = mx_mul(g, out, h->post[k]);
        for (int64_t j = 0; j < h->n; j++)
            next[k] = mx_add(g, next[k], mx_mul(g, h->stream[j], h->mix[j][k]));
    }
    return h->n > 1 ? mx_concat(g, (int)h->n, next, 2) : next[0];
}

mx_node *mx_hyper_begin(mx_graph *g, mx_node *x, const mx_hyper *c)
{
    mx_node *same[MX_MAX_STREAMS];
    for (int64_t i = 0; i < c->streams; i++)
        same[i] = x;
    return c->streams > 1 ? mx_concat(g, (int)c->streams, same, 2) : x;
}

mx_node *mx_hyper_end(mx_graph *g, const mx_build *b, mx_node *x, const mx_hyper *c,
                      const char *name)
{
    int64_t n = c->streams;
    mx_node *z, *stream[MX_MAX_STREAMS], *sum = NULL;
    gates(g, project(g, b, x, c, name, n), name, 1, &n, &z);
    mx_node *pre = mx_affine(g, mx_sigmoid(g, z), 1, c->eps);
    split_streams(g, x, n, stream);
    for (int64_t j = 0; j < n; j++)
        sum = add_to(g, sum, mx_mul(g, stream[j], column(g, pre, j)));
    return sum;
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
