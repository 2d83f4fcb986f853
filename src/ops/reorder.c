/* reorder.c - the chunks of a dim in another order. Made by the partition pass alone.
 *
 * zigzag, in which C ranks share a causal sequence of 2 C chunks:
 *     0, 1, 2, ...  ->  0, 2C-1, 1, 2C-2, 2, ...
 * so that each rank has a pair of equal work: an early chunk, which sees little, and a late one.
 *
 * interleave, for a dim made of blocks that R ranks share block by block (channels of q, k and v):
 *     q0 q1 .. k0 k1 .. v0 v1 ..  ->  q0 k0 v0 q1 k1 v1 ..
 * so that what a rank has lies in one piece.
 *
 * `back` goes the other way; each direction is the other's gradient.
 */
#include "ops/reorder.h"

#include "ops.h"
#include "ops/copy.h"

typedef struct {
    int64_t dim, ranks;
    int64_t n_blocks; /* 0: zigzag */
    int64_t block[MX_MAX_BLOCKS];
    bool back;
} reorder_attr;

static void infer(mx_graph *g, mx_node *n)
{
    const reorder_attr *a = n->attr;
    int64_t d = mx_dim_index(g, "reorder", n->in[0], a->dim), sum = 0;
    bool fits = true;
    n->type = n->in[0]->type;
    for (int64_t b = 0; b < a->n_blocks; b++) {
        fits &= a->block[b] % a->ranks == 0;
        sum += a->block[b];
    }
    if (!a->n_blocks)
        fits = n->type.dim[d] % (2 * a->ranks) == 0;
    if (!g->error && (!fits || (a->n_blocks && sum != n->type.dim[d])))
        mx_graph_fail_inputs(g, n, "dim %lld does not divide into chunks for %lld ranks",
                             (long long)d, (long long)a->ranks);
}

int mx_reorder_dim(const void *attr)
{
    return (int)((const reorder_attr *)attr)->dim;
}

int64_t mx_reorder_count(const void *attr)
{
    const reorder_attr *a = attr;
    return a->n_blocks ? a->n_blocks * a->ranks : 2 * a->ranks;
}

/* Chunk i of the natural order and where it is dealt to; see above. */
static mx_reorder_chunk zigzag_at(const reorder_attr *a, int64_t extent, int64_t i)
{
    int64_t chunks = 2 * a->ranks, size = extent / chunks;
    return (mx_reorder_chunk){(i % 2 ? chunks - 1 - i / 2 : i / 2) * size, i * size, size};
}

static mx_reorder_chunk interleaved_at(const reorder_attr *a, int64_t extent, int64_t i)
{
    int64_t b = i / a->ranks, r = i % a->ranks, block = 0, size = a->block[b] / a->ranks;
    for (int64_t k = 0; k < b; k++)
        block += a->block[k];
    return (mx_reorder_chunk){block + r * size, r * (extent / a->ranks) + block / a->ranks, size};
}

mx_reorder_chunk mx_reorder_at(const void *attr, int64_t extent, int64_t i)
{
    const reorder_attr *a = attr;
    mx_reorder_chunk m = a->n_blocks ? interleaved_at(a, extent, i) : zigzag_at(a, extent, i);
    return a->back ? (mx_reorder_chunk){m.to, m.from, m.size} : m;
}

static void reorder_cpu(const mx_call *c)
{
    const mx_type *t = &c->in[0].type;
    int d = mx_reorder_dim(c->attr);
    size_t one = mx_dims_after_bytes(t, d), row = (size_t)t->dim[d] * one;
    for (int64_t i = 0; i < mx_reorder_count(c->attr); i++) {
        mx_reorder_chunk m = mx_reorder_at(c->attr, t->dim[d], i);
        mx_copy_runs((char *)c->out[0].data + (size_t)m.to * one, row,
                     (const char *)c->in[0].data + (size_t)m.from * one, row,
                     (size_t)m.size * one, mx_dims_before(t, d));
    }
}

mx_node *mx_zigzag(mx_graph *g, mx_node *x, int64_t dim, int64_t ranks, bool back)
{
    return MX_APPLY(g, &mx_op_reorder, (&(reorder_attr){dim, ranks, .back = back}), x);
}

mx_node *mx_interleave(mx_graph *g, mx_node *x, int64_t dim, int64_t ranks, const mx_cut *blocks,
                       bool back)
{
    reorder_attr a = {dim, ranks, blocks->n_blocks, .back = back};
    for (int b = 0; b < blocks->n_blocks; b++)
        a.block[b] = blocks->block[b];
    return MX_APPLY(g, &mx_op_reorder, &a, x);
}

static void vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    reorder_attr a = *(const reorder_attr *)n->attr;
    a.back = !a.back;
    din[0] = MX_APPLY(g, &mx_op_reorder, &a, dout[0]);
}

const mx_op mx_op_reorder = {
    .name = "reorder",
    .doc = "chunks of a dim as ranks share them",
    .dtypes = MX_ANY_DTYPE,
    .linear = true,
    .attr_size = sizeof(reorder_attr),
    .fields = (const mx_attr_field[]){MX_FIELD(reorder_attr, MX_ATTR_INT, dim),
                                      MX_FIELD(reorder_attr, MX_ATTR_INT, ranks),
                                      MX_FIELD(reorder_attr, MX_ATTR_INT, n_blocks),
                                      MX_QUIET_FIELD(reorder_attr, MX_ATTR_INTS, block),
                                      MX_FIELD(reorder_attr, MX_ATTR_BOOL, back), {0}},
    .no_cast = true,
    .infer = infer,
    .grad = vjp,
    .cost = mx_cost_move,
    .cpu = reorder_cpu,
    .cases = (const mx_case[]){{1, {{3, {2, 12, 3}}}, &(reorder_attr){1, 3}},
                               {1, {{2, {8, 2}}}, &(reorder_attr){0, 2, .back = true}},
                               {1, {{2, {3, 4}, MX_I32, 0, 9}}, &(reorder_attr){1, 1}},
                               {1, {{3, {2, 12, 3}}}, &(reorder_attr){1, 2, 3, {4, 6, 2}}},
                               {1, {{2, {3, 9}}}, &(reorder_attr){1, 3, 2, {3, 6}, true}}, {0}},
};
