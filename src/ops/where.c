/* where.c - choose elementwise; the condition has no gradient. */
#include "ops/tile.h"

MX_TILE3(where, a != 0 ? b : c)

mx_node *mx_where(mx_graph *g, mx_node *a, mx_node *b, mx_node *c)
{
    return MX_APPLY(g, &mx_op_where, NULL, a, b, c);
}

static void where_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    mx_node *zero = mx_constant(g, MX_SCALAR, n->type.dtype, 0);
    din[1] = mx_sum_like(g, mx_where(g, n->in[0], dout[0], zero), n, n->in[1]);
    din[2] = mx_sum_like(g, mx_where(g, n->in[0], zero, dout[0]), n, n->in[2]);
}

const mx_op mx_op_where = {
    MX_ELEMENTWISE_FIELDS(where),
    .doc = "b where a is not 0, else c",
    .grad = where_vjp,
    .cases = (const mx_case[]){{3, {{2, {3, 8}, .no_grad = true}, {2, {3, 8}}, {2, {3, 8}}}}, {0}},
};
