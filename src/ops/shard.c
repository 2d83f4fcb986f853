/* shard.c - this rank's piece of a tensor that all ranks of the group have whole.
 *
 *     x (.., size n, ..)  ->  (.., n, ..)
 * No communication. The gradient of x, which all ranks have whole again, is every rank's piece of
 * it: all_gather. */
#include "ops.h"
#include "ops/collective.h"
#include "ops/copy.h"

static void shard_cpu(const mx_call *c)
{
    const mx_collective_attr *a = c->attr;
    const mx_type *y = &c->out[0].type;
    size_t run = (size_t)y->dim[a->dim] * mx_dims_after_bytes(y, (int)a->dim);
    mx_copy_runs(c->out[0].data, run, (const char *)c->in[0].data + (size_t)a->index * run,
                 (size_t)a->size * run, run, mx_dims_before(y, (int)a->dim));
}

mx_node *mx_shard(mx_graph *g, mx_node *x, mx_collective_attr a)
{
    return MX_APPLY(g, &mx_op_shard, &a, x);
}

static void vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    mx_collective_attr a = *(const mx_collective_attr *)n->attr;
    a.varying = false;
    din[0] = mx_all_gather(g, dout[0], a);
}

const mx_op mx_op_shard = {
    .name = "shard",
    .doc = "this rank's piece of what all ranks have",
    .dtypes = MX_ANY_DTYPE,
    MX_COLLECTIVE_ATTR,
    .same_value = true,
    .infer = mx_collective_infer_piece,
    .grad = vjp,
    .cost = mx_cost_move,
    .cpu = shard_cpu,
    .cases = (const mx_case[]){{1, {{3, {2, 3, 4}}}, &(mx_collective_attr){.size = 1, .dim = 1}},
                               {0}},
};
