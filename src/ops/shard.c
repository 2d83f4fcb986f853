/* shard.c - this rank's piece of a tensor that all ranks of the group have whole.
 *
 *     x (.., size n, ..)  ->  (.., n, ..)
 * No communication. The gradient of x, which all ranks have whole again, is every rank's piece of
 * it: all_gather. */
#include "ops.h"
#include "ops/collective.h"
#include "ops/copy.h"

static void infer(mx_graph *g, mx_node *n)
{
    const mx_collective_attr *a = n->attr;
    n->type = n->in[0]->type;
    int64_t d = mx_dim_index(g, n->op->name, n->in[0], a->dim);
    if (g->error)
        return;
    if (n->type.dim[d] % a->size)
        mx_graph_fail_inputs(g, n, "dim %lld does not divide by the %lld ranks of the group",
                             (long long)d, (long long)a->size);
    n->type.dim[d] /= a->size;
}

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
    .attr_size = sizeof(mx_collective_attr),
    .fields = mx_collective_fields,
    .no_cast = true,
    .same_value = true,
    .infer = infer,
    .grad = vjp,
    .cost = mx_cost_move,
    .cpu = shard_cpu,
    .cases = (const mx_case[]){{1, {{3, {2, 3, 4}}}, &(mx_collective_attr){.size = 1, .dim = 1}},
                               {0}},
};
