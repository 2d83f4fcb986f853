/* all_reduce.c - the sum, or the maximum, over the ranks of a group, for all of them.
 *
 * Inserted where every rank needs a partial sum whole. The result is the same on all ranks and so
 * is its gradient, which each rank's term has unchanged. `to` is the mx_reduction; a maximum has no
 * gradient (it only keeps exponentials in range).
 */
#include "ops.h"
#include "ops/collective.h"
#include "ops/gpu_work.h"

#include <string.h>

static void all_reduce_cpu(const mx_call *c)
{
    const mx_collective_attr *a = c->attr;
    if (!c->group) {
        memcpy(c->out[0].data, c->in[0].data, mx_type_bytes(&c->in[0].type));
        return;
    }
    mx_reduce_args r = {.in = c->in[0].data, .out = c->out[0].data,
                        .n = mx_type_count(&c->in[0].type), .dtype = c->in[0].type.dtype,
                        .how = (mx_reduction)a->to};
    mx_call_fail(c, c->group->kind->all_reduce(c->group, &r));
}

static size_t gpu_work_bytes(const mx_node *n, size_t most)
{
    (void)most;
    return mx_gpu_reduce_bytes(mx_type_bytes(&n->in[0]->type));
}

static mx_cost cost(const mx_node *n)
{
    const mx_collective_attr *a = n->attr;
    return (mx_cost){.flops = (double)(a->size - 1) * (double)mx_type_count(&n->type),
                     .bytes = 3 * (double)mx_type_bytes(&n->type)};
}

mx_node *mx_all_reduce(mx_graph *g, mx_node *x, mx_collective_attr a)
{
    return MX_APPLY(g, &mx_op_all_reduce, &a, x);
}

static void vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    (void)g;
    if (((const mx_collective_attr *)n->attr)->to == MX_REDUCE_SUM)
        din[0] = dout[0];
}

const mx_op mx_op_all_reduce = {
    .name = "all_reduce",
    .doc = "the sum over ranks, for all of them",
    .dtypes = MX_NUMBERS,
    MX_COLLECTIVE_OP,
    .infer = mx_collective_infer_same,
    .grad = vjp,
    .cost = cost,
    .cpu = all_reduce_cpu,
    .gpu_work_bytes = gpu_work_bytes,
    .cases = (const mx_case[]){{1, {{2, {3, 4}}}, &(mx_collective_attr){.size = 1}}, {0}},
};
