/* slice.c - `length` entries of one dim, from `start` on. The gradient is padding with zeros. */
#include "ops.h"
#include "ops/copy.h"

typedef struct {
    int64_t dim, start, length;
} slice_attr;

static void infer(mx_graph *g, mx_node *n)
{
    const slice_attr *at = n->attr;
    int64_t d = mx_dim_index(g, "slice", n->in[0], at->dim);
    if (g->error)
        return;
    int64_t size = n->in[0]->type.dim[d];
    if (at->start < 0 || at->length < 0 || at->start > size - at->length)
        mx_graph_fail(g, "slice: entries %lld to %lld of dim %lld, which has %lld",
                      (long long)at->start, (long long)(at->start + at->length), (long long)d,
                      (long long)size);
    n->type.dim[d] = at->length;
}

static const char *notation(const mx_node *n)
{
    return mx_dims_resized(n->in[0]->type.ndim, ((const slice_attr *)n->attr)->dim);
}

static void slice_cpu(const mx_call *c)
{
    const slice_attr *at = c->attr;
    const mx_type *x = &c->in[0].type, *y = &c->out[0].type;
    int d = (int)at->dim;
    size_t one = mx_dims_after_bytes(x, d);
    mx_copy_runs(c->out[0].data, (size_t)y->dim[d] * one,
                 (const char *)c->in[0].data + (size_t)at->start * one, (size_t)x->dim[d] * one,
                 (size_t)y->dim[d] * one, mx_dims_before(x, d));
}

/* A negative dim counts from the right. */
mx_node *mx_slice(mx_graph *g, mx_node *x, int64_t dim, int64_t start, int64_t length)
{
    slice_attr at = {mx_dim_index(g, "slice", x, dim), start, length};
    if (!g->error && start == 0 && length == x->type.dim[at.dim])
        return x;
    return MX_APPLY(g, &mx_op_slice, &at, x);
}

static void slice_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    const slice_attr *at = n->attr;
    int64_t after = n->in[0]->type.dim[at->dim] - at->start - at->length;
    din[0] = mx_pad(g, dout[0], at->dim, at->start, after);
}

const mx_op mx_op_slice = {
    .name = "slice",
    .doc = "a range of one dim",
    .dtypes = MX_ANY_DTYPE,
    .linear = true,
    .attr_size = sizeof(slice_attr),
    .fields = (const mx_attr_field[]){MX_FIELD(slice_attr, MX_ATTR_INT, dim),
                                      MX_FIELD(slice_attr, MX_ATTR_INT, start),
                                      MX_FIELD(slice_attr, MX_ATTR_INT, length), {0}},
    .notation = notation,
    .no_cast = true,
    .infer = infer,
    .grad = slice_vjp,
    .cost = mx_cost_move,
    .cpu = slice_cpu,
    .cases = (const mx_case[]){{1, {{3, {4, 5, 6}}}, &(slice_attr){1, 2, 3}},
                               {1, {{2, {4, 6}}}, &(slice_attr){1, 0, 5}},
                               {1, {{2, {4, 6}, MX_I32, 0, 9}}, &(slice_attr){0, 3, 1}},
                               {1, {{1, {7}}}, &(slice_attr){0, 6, 1}}, {0}},
};
