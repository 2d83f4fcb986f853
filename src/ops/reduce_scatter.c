/* reduce_scatter.c - the sum over the ranks of a group, of which each keeps its piece of one dim.
 *
 *     x (.., size n, ..)  ->  (.., n, ..)
 * Inserted where a partial sum is needed as a sharded tensor. The gradient: every rank's piece,
 * gathered.
 */
#include "ops.h"
#include "ops/collective.h"
#include "ops/copy.h"
#include "ops/gpu_work.h"

#include <string.h>

static void reduce_scatter_cpu(const mx_call *c)
{
    const mx_collective_attr *a = c->attr;
    const mx_type *piece = &c->out[0].type;
    if (!c->group) {
        memcpy(c->out[0].data, c->in[0].data, mx_type_bytes(piece));
        return;
    }
    bool packed = mx_pieces_are_packed(piece, (int)a->dim);
    if (!packed)
        mx_pieces_pack(c->work, c->in[0].data, piece, (int)a->dim, a->size);
    mx_reduce_args r = {.in = packed ? c->in[0].data : c->work, .out = c->out[0].data,
                        .n = mx_type_count(piece), .dtype = piece->dtype};
    mx_call_fail(c, c->group->kind->reduce_scatter(c->group, &r));
}

static size_t work_bytes(const mx_node *n, int n_threads)
{
    const mx_collective_attr *a = n->attr;
    (void)n_threads;
    bool packed = mx_pieces_are_packed(&n->type, (int)a->dim);
    return packed ? 0 : mx_type_bytes(&n->in[0]->type);
}

static size_t gpu_work_bytes(const mx_node *n, size_t most)
{
    (void)most;
    return mx_gpu_reduce_bytes(mx_type_bytes(&n->in[0]->type));
}

static mx_cost cost(const mx_node *n)
{
    const mx_collective_attr *a = n->attr;
    double bytes = (double)mx_type_bytes(&n->type);
    return (mx_cost){.flops = (double)(a->size - 1) * (double)mx_type_count(&n->type),
                     .bytes = 2 * bytes * (double)a->size};
}

mx_node *mx_reduce_scatter(mx_graph *g, mx_node *x, mx_collective_attr a)
{
    return MX_APPLY(g, &mx_op_reduce_scatter, &a, x);
}

static void vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    mx_collective_attr a = *(const mx_collective_attr *)n->attr;
    a.varying = true;
    din[0] = mx_all_gather(g, dout[0], a);
}

const mx_op mx_op_reduce_scatter = {
    .name = "reduce_scatter",
    .doc = "the sum over ranks, a piece for each",
    .dtypes = MX_NUMBERS,
    MX_COLLECTIVE_OP,
    .infer = mx_collective_infer_piece,
    .grad = vjp,
    .cost = cost,
    .cpu = reduce_scatter_cpu,
    .work_bytes = work_bytes,
    .gpu_work_bytes = gpu_work_bytes,
    .cases = (const mx_case[]){{1, {{3, {2, 3, 4}}}, &(mx_collective_attr){.size = 1, .dim = 1}},
                               {0}},
};
