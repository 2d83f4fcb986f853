/* all_to_all.c - a tensor that is cut along one dim becomes one that is cut along another.
 *
 *     x (.., n, .., size m, ..)  ->  (.., size n, .., m, ..)     dim: of n, to: of m
 * Each rank sends a piece of dim `to` to every other. The gradient goes the same way back.
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
    int64_t to = mx_dim_index(g, n->op->name, n->in[0], a->to);
    if (g->error)
        return;
    if (n->type.dim[to] % a->size || d == to)
        mx_graph_fail_inputs(g, n, "dim %lld cannot be cut for the %lld ranks of the group",
                             (long long)to, (long long)a->size);
    n->type.dim[to] /= a->size;
    n->type.dim[d] *= a->size;
}

static void all_to_all_cpu(const mx_call *c)
{
    const mx_collective_attr *a = c->attr;
    size_t bytes = mx_type_bytes(&c->in[0].type), each = bytes / (size_t)a->size;
    if (!c->group) {
        memcpy(c->out[0].data, c->in[0].data, bytes);
        return;
    }
    mx_type piece = c->in[0].type;
    piece.dim[a->to] /= a->size;
    void *sent = c->work, *came = (char *)c->work + bytes;
    mx_pieces_pack(sent, c->in[0].data, &piece, (int)a->to, a->size);
    mx_call_fail(c, c->group->kind->all_to_all(c->group, sent, came, each));
    mx_pieces_unpack(c->out[0].data, came, &piece, (int)a->dim, a->size);
}

static size_t work_bytes(const mx_node *n, int n_threads)
{
    (void)n_threads;
    return 2 * mx_type_bytes(&n->in[0]->type);
}

static size_t gpu_work_bytes(const mx_node *n, size_t most)
{
    (void)most;
    return mx_gpu_all_to_all_bytes(mx_type_bytes(&n->in[0]->type));
}

static mx_cost cost(const mx_node *n)
{
    return (mx_cost){.bytes = 6 * (double)mx_type_bytes(&n->type)};
}

mx_node *mx_all_to_all(mx_graph *g, mx_node *x, mx_collective_attr a)
{
    return MX_APPLY(g, &mx_op_all_to_all, &a, x);
}

static void vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    mx_collective_attr a = *(const mx_collective_attr *)n->attr;
    int64_t dim = a.dim;
    a.dim = a.to;
    a.to = dim;
    din[0] = mx_all_to_all(g, dout[0], a);
}

const mx_op mx_op_all_to_all = {
    .name = "all_to_all",
    .doc = "cut along another dim",
    .dtypes = MX_ANY_DTYPE,
    MX_COLLECTIVE_OP,
    .infer = infer,
    .grad = vjp,
    .cost = cost,
    .cpu = all_to_all_cpu,
    .work_bytes = work_bytes,
    .gpu_work_bytes = gpu_work_bytes,
    .cases = (const mx_case[]){
        {1, {{3, {2, 3, 4}}}, &(mx_collective_attr){.size = 1, .dim = 1, .to = 2}}, {0}},
};
