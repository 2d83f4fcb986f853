/* split.c - the last dim cut into parts of given sizes, one output each.
 *
 *     x (*, a + b + c) -> (*, a), (*, b), (*, c)
 * Used where one matmul makes several things (q, k, v; gate and up). The gradient puts the parts
 * together again; a part that nothing depends on counts as zeros.
 */
#include "ops.h"
#include "ops/copy.h"

typedef struct {
    int64_t n;
    int64_t size[MX_MAX_OUT];
} split_attr;

static void infer(mx_graph *g, mx_node *n)
{
    const split_attr *at = n->attr;
    const mx_type *x = &n->in[0]->type;
    int64_t total = 0;
    for (int k = 0; k < at->n && k < n->n_out; k++) {
        mx_type *t = k ? &n->more[k - 1] : &n->type;
        t->dim[x->ndim - 1] = at->size[k];
        total += at->size[k];
    }
    if (total != x->dim[x->ndim - 1] || at->n != n->n_out)
        mx_graph_fail(g, "split: %lld parts of %lld entries in all, but the last dim has %lld",
                      (long long)at->n, (long long)total, (long long)x->dim[x->ndim - 1]);
}

static void split_cpu(const mx_call *c)
{
    const mx_type *x = &c->in[0].type;
    size_t item = mx_dtype_bytes(x->dtype), row = (size_t)x->dim[x->ndim - 1] * item, at = 0;
    int64_t rows = mx_dims_before(x, x->ndim - 1);
    for (int k = 0; k < c->n_out; k++) {
        size_t run = (size_t)c->out[k].type.dim[x->ndim - 1] * item;
        mx_copy_runs(c->out[k].data, run, (const char *)c->in[0].data + at, row, run, rows);
        at += run;
    }
}

/* Output k is read by mx_output(g, node, k). */
mx_node *mx_split(mx_graph *g, mx_node *x, int n, const int64_t *sizes)
{
    MX_ASSERT(n > 0 && n <= MX_MAX_OUT, "n=%d", n);
    split_attr at = {.n = n};
    for (int k = 0; k < n; k++)
        at.size[k] = sizes[k];
    return mx_apply_n(g, &mx_op_split, &at, 1, &x, n);
}

static void split_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    mx_node *part[MX_MAX_OUT];
    for (int k = 0; k < n->n_out; k++) {
        mx_dtype d = n->type.dtype;
        mx_shape s = mx_shape_of(mx_node_type(n, k));
        part[k] = dout[k] ? mx_cast(g, dout[k], d)
                          : mx_broadcast_to(g, mx_constant(g, MX_SCALAR, d, 0), s);
    }
    din[0] = mx_concat(g, n->n_out, part, -1);
}

const mx_op mx_op_split = {
    .name = "split",
    .doc = "the last dim cut into parts",
    .dtypes = MX_ANY_DTYPE,
    .dims = "*!a->*!b,*!c,*!d,*!e,*!f,*!g,*!h,*!i",
    .n_out = -1,
    .attr_size = sizeof(split_attr),
    .fields = (const mx_attr_field[]){MX_FIELD(split_attr, MX_ATTR_INT, n), {0}},
    .no_cast = true,
    .infer = infer,
    .grad = split_vjp,
    .cost = mx_cost_move,
    .cpu = split_cpu,
    .cases = (const mx_case[]){{1, {{3, {2, 4, 9}}}, &(split_attr){3, {4, 2, 3}}, .n_out = 3},
                               {1, {{1, {6}}}, &(split_attr){2, {5, 1}}, .n_out = 2},
                               {1, {{2, {2, 6}, MX_I32, 0, 9}}, &(split_attr){2, {3, 3}},
                                .n_out = 2}, {0}},
};
