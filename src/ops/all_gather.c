/* all_gather.c - the pieces of all ranks of a group, put together along one dim.
 *
 *     x (.., n, ..)  ->  (.., size n, ..)
 * Two gradients. Where all ranks do the same with the result, each has the whole gradient and takes
 * its piece of it (shard). Where they do different work (`varying`: a gathered weight and each
 * rank's own tokens), the gradient is the sum over ranks, of which each needs its piece:
 * reduce_scatter.
 */
#include "ops.h"
#include "ops/collective.h"
#include "ops/copy.h"
#include "ops/gpu_work.h"

#include <string.h>

static void infer(mx_graph *g, mx_node *n)
{
    const mx_collective_attr *a = n->attr;
    n->type = n->in[0]->type;
    int64_t d = mx_dim_index(g, n->op->name, n->in[0], a->dim);
    if (!g->error)
        n->type.dim[d] *= a->size;
}

static void all_gather_cpu(const mx_call *c)
{
    const mx_collective_attr *a = c->attr;
    const mx_type *piece = &c->in[0].type;
    size_t bytes = mx_type_bytes(piece);
    if (!c->group) {
        memcpy(c->out[0].data, c->in[0].data, bytes);
        return;
    }
    bool packed = mx_pieces_are_packed(piece, (int)a->dim);
    void *pieces = packed ? c->out[0].data : c->work;
    mx_call_fail(c, c->group->kind->all_gather(c->group, c->in[0].data, pieces, bytes));
    if (!packed)
        mx_pieces_unpack(c->out[0].data, pieces, piece, (int)a->dim, a->size);
}

static size_t work_bytes(const mx_node *n, int n_threads)
{
    const mx_collective_attr *a = n->attr;
    (void)n_threads;
    return mx_pieces_are_packed(&n->in[0]->type, (int)a->dim) ? 0 : mx_type_bytes(&n->type);
}

static size_t gpu_work_bytes(const mx_node *n, size_t most)
{
    const mx_collective_attr *a = n->attr;
    (void)most;
    return mx_gpu_gather_bytes(mx_type_bytes(&n->type),
                               mx_pieces_are_packed(&n->in[0]->type, (int)a->dim));
}

static mx_cost cost(const mx_node *n)
{
    return (mx_cost){.bytes = 2 * (double)mx_type_bytes(&n->type)};
}

mx_node *mx_all_gather(mx_graph *g, mx_node *x, mx_collective_attr a)
{
    return MX_APPLY(g, &mx_op_all_gather, &a, x);
}

static void vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    const mx_collective_attr *a = n->attr;
    din[0] = a->varying ? mx_reduce_scatter(g, dout[0], *a) : mx_shard(g, dout[0], *a);
}

const mx_op mx_op_all_gather = {
    .name = "all_gather",
    .doc = "the pieces of all ranks, put together",
    .dtypes = MX_ANY_DTYPE,
    MX_COLLECTIVE_OP,
    .same_value = true,
    .infer = infer,
    .grad = vjp,
    .cost = cost,
    .cpu = all_gather_cpu,
    .work_bytes = work_bytes,
    .gpu_work_bytes = gpu_work_bytes,
    .cases = (const mx_case[]){{1, {{3, {2, 3, 4}}}, &(mx_collective_attr){.size = 1, .dim = 1}},
                               {0}},
};
