/* pad.c - zeros before and after one dim. The gradient is the slice in the middle. */
#include "ops.h"
#include "ops/copy.h"

typedef struct {
    int64_t dim, before, after;
} pad_attr;

static void infer(mx_graph *g, mx_node *n)
{
    const pad_attr *at = n->attr;
    int64_t d = mx_dim_index(g, "pad", n->in[0], at->dim);
    if (g->error)
        return;
    if (at->before < 0 || at->after < 0)
        mx_graph_fail(g, "pad: %lld entries before and %lld after; use slice to cut",
                      (long long)at->before, (long long)at->after);
    n->type.dim[d] = n->in[0]->type.dim[d] + at->before + at->after;
}

static const char *notation(const mx_node *n)
{
    return mx_dims_resized(n->in[0]->type.ndim, ((const pad_attr *)n->attr)->dim);
}

static void pad_cpu(const mx_call *c)
{
    const pad_attr *at = c->attr;
    const mx_type *x = &c->in[0].type, *y = &c->out[0].type;
    int d = (int)at->dim;
    size_t one = mx_dims_after_bytes(x, d), from = (size_t)x->dim[d] * one;
    size_t to = (size_t)y->dim[d] * one, lead = (size_t)at->before * one;
    int64_t rows = mx_dims_before(x, d);
    char *out = c->out[0].data;
    mx_zero_runs(out, to, lead, rows);
    mx_copy_runs(out + lead, to, c->in[0].data, from, from, rows);
    mx_zero_runs(out + lead + from, to, (size_t)at->after * one, rows);
}

/* A negative dim counts from the right. */
mx_node *mx_pad(mx_graph *g, mx_node *x, int64_t dim, int64_t before, int64_t after)
{
    pad_attr at = {mx_dim_index(g, "pad", x, dim), before, after};
    return before || after ? MX_APPLY(g, &mx_op_pad, &at, x) : x;
}

/* The sum of two that pad neighbouring ranges of one dim: both ranges, padded once; NULL: they are
 * something else. Slices that together are a whole have such gradients. The last dim, whose slices
 * are columns, is left to split. */
mx_node *mx_pad_join(mx_graph *g, mx_node *a, mx_node *b)
{
    if (a->op != &mx_op_pad || b->op != &mx_op_pad || !mx_shape_equal(&a->type, &b->type) ||
        a->type.dtype != b->type.dtype)
        return NULL;
    const pad_attr *p = a->attr, *q = b->attr;
    int64_t size = a->type.dim[p->dim];
    if (p->before > q->before)
        return mx_pad_join(g, b, a);
    if (p->dim != q->dim || p->dim == a->type.ndim - 1 || size - p->after != q->before)
        return NULL;
    return mx_pad(g, mx_concat_flat(g, a->in[0], b->in[0], p->dim), p->dim, p->before, q->after);
}

static void pad_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    const pad_attr *at = n->attr;
    din[0] = mx_slice(g, dout[0], at->dim, at->before, n->in[0]->type.dim[at->dim]);
}

const mx_op mx_op_pad = {
    .name = "pad",
    .doc = "zeros before and after one dim",
    .dtypes = MX_ANY_DTYPE,
    .linear = true,
    .attr_size = sizeof(pad_attr),
    .fields = (const mx_attr_field[]){MX_FIELD(pad_attr, MX_ATTR_INT, dim),
                                      MX_FIELD(pad_attr, MX_ATTR_INT, before),
                                      MX_FIELD(pad_attr, MX_ATTR_INT, after), {0}},
    .notation = notation,
    .no_cast = true,
    .infer = infer,
    .grad = pad_vjp,
    .cost = mx_cost_move,
    .cpu = pad_cpu,
    .cases = (const mx_case[]){{1, {{3, {4, 5, 6}}}, &(pad_attr){1, 2, 3}},
                               {1, {{2, {4, 6}}}, &(pad_attr){1, 1, 0}},
                               {1, {{2, {4, 6}, MX_I32, 1, 9}}, &(pad_attr){0, 0, 2}}, {0}},
};
