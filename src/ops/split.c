/* split.c - the last dim cut into parts of given sizes, one output each.
 *
 *     x (*, a + b + c) -> (*, a), (*, b), (*, c)
 * Used where one matmul makes several things (q, k, v; gate and up). The gradient puts the parts
 * together again; a part that nothing depends on counts as zeros.
 */
#include "ir/partition.h"
#include "ops.h"
#include "ops/copy.h"

#include <string.h>

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

/* --- on a mesh: a dim cut in blocks is split between them --- */

/* Cuts of the parts of the last dim; false when a part ends inside a block. */
static bool parts_of(const mx_node *n, const mx_partition_call *p, const mx_cut *c, mx_cut *part)
{
    const split_attr *at = n->attr;
    int block = 0;
    for (int k = 0; k < at->n; k++) {
        int first = block;
        int64_t sum = 0;
        while (block < c->n_blocks && sum < at->size[k])
            sum += c->block[block++];
        if (sum != at->size[k])
            return false;
        part[k] = mx_cut_blocks(p->mesh, c, first, block - first);
    }
    return true;
}

static void place(const mx_node *n, mx_partition_call *p)
{
    int last = n->type.ndim - 1;
    mx_cut part[MX_MAX_OUT] = {0};
    p->in[0] = p->have[0];
    if (!parts_of(n, p, &p->have[0].dim[last], part)) {
        memset(part, 0, sizeof part);
        p->in[0].dim[last] = (mx_cut){0};
    }
    for (int k = 0; k < n->n_out; k++) {
        p->out[k] = p->in[0];
        p->out[k].dim[last] = part[k];
    }
}

static mx_node *local(mx_graph *g, const mx_node *n, mx_node *const *in, mx_partition_call *p)
{
    split_attr at = *(const split_attr *)n->attr;
    for (int k = 0; k < at.n; k++)
        at.size[k] = mx_cut_local(p->mesh, &p->out[k].dim[n->type.ndim - 1], at.size[k]);
    return mx_split(g, in[0], n->n_out, at.size);
}

const mx_op mx_op_split = {
    .name = "split",
    .doc = "the last dim cut into parts",
    .dtypes = MX_ANY_DTYPE,
    .dims = "*!a->*!b,*!c,*!d,*!e,*!f,*!g,*!h,*!i",
    .n_out = -1,
    .linear = true,
    .place = place,
    .local = local,
    .attr_size = sizeof(split_attr),
    .fields = (const mx_attr_field[]){MX_FIELD(split_attr, MX_ATTR_INT, n),
                                      MX_QUIET_FIELD(split_attr, MX_ATTR_INTS, size), {0}},
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
