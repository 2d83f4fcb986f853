/* zigzag.c - the chunks of a dim in the order in which ranks share a causal sequence.
 *
 *     2 C chunks 0, 1, ...  ->  0, 2C-1, 1, 2C-2, 2, ...
 * so that each of C ranks has a pair of equal work: an early chunk, which sees little, and a late
 * one. `back` goes the other way; each is the other's gradient. Made by the partition pass alone.
 */
#include "ops.h"
#include "ops/copy.h"

typedef struct {
    int64_t dim, ranks;
    bool back;
} zigzag_attr;

static void infer(mx_graph *g, mx_node *n)
{
    const zigzag_attr *a = n->attr;
    int64_t d = mx_dim_index(g, "zigzag", n->in[0], a->dim);
    n->type = n->in[0]->type;
    if (!g->error && n->type.dim[d] % (2 * a->ranks))
        mx_graph_fail_inputs(g, n, "dim %lld does not divide into %lld chunks", (long long)d,
                             (long long)(2 * a->ranks));
}

static void zigzag_cpu(const mx_call *c)
{
    const zigzag_attr *a = c->attr;
    const mx_type *t = &c->in[0].type;
    int64_t chunks = 2 * a->ranks;
    size_t run = (size_t)(t->dim[a->dim] / chunks) * mx_dims_after_bytes(t, (int)a->dim);
    size_t row = run * (size_t)chunks;
    for (int64_t i = 0; i < chunks; i++) {
        int64_t natural = i % 2 ? chunks - 1 - i / 2 : i / 2;
        int64_t from = a->back ? i : natural, to = a->back ? natural : i;
        mx_copy_runs((char *)c->out[0].data + (size_t)to * run, row,
                     (const char *)c->in[0].data + (size_t)from * run, row, run,
                     mx_dims_before(t, (int)a->dim));
    }
}

mx_node *mx_zigzag(mx_graph *g, mx_node *x, int64_t dim, int64_t ranks, bool back)
{
    return MX_APPLY(g, &mx_op_zigzag, (&(zigzag_attr){dim, ranks, back}), x);
}

static void vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    const zigzag_attr *a = n->attr;
    din[0] = mx_zigzag(g, dout[0], a->dim, a->ranks, !a->back);
}

const mx_op mx_op_zigzag = {
    .name = "zigzag",
    .doc = "chunks of a sequence in pairs of equal work",
    .linear = true,
    .attr_size = sizeof(zigzag_attr),
    .fields = (const mx_attr_field[]){MX_FIELD(zigzag_attr, MX_ATTR_INT, dim),
                                      MX_FIELD(zigzag_attr, MX_ATTR_INT, ranks),
                                      MX_FIELD(zigzag_attr, MX_ATTR_BOOL, back), {0}},
    .no_cast = true,
    .infer = infer,
    .grad = vjp,
    .cost = mx_cost_move,
    .cpu = zigzag_cpu,
    .cases = (const mx_case[]){{1, {{3, {2, 12, 3}}}, &(zigzag_attr){1, 3, false}},
                               {1, {{2, {8, 2}}}, &(zigzag_attr){0, 2, true}},
                               {1, {{2, {3, 4}, MX_I32, 0, 9}}, &(zigzag_attr){1, 1, false}}, {0}},
};
