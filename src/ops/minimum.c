/* minimum.c - elementwise, broadcasting. */
#include "ops/tile.h"

MX_TILE2(minimum, a < b ? a : b)

mx_node *mx_minimum(mx_graph *g, mx_node *a, mx_node *b)
{
    return MX_APPLY(g, &mx_op_minimum, NULL, a, b);
}

static void minimum_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    for (int i = 0; i < 2; i++) {
        mx_node *mine = mx_greater(g, n->in[1 - i], n->in[i]); /* a tie gives neither a gradient */
        din[i] = mx_sum_like(g, mx_mul(g, dout[0], mine), n, n->in[i]);
    }
}

const mx_op mx_op_minimum = {
    MX_ELEMENTWISE_FIELDS(minimum),
    .doc = "the smaller of a and b",
    .grad = minimum_vjp,
    .cases = (const mx_case[]){{2, {{2, {3, 8}}, {2, {3, 8}}}}, {0}},
};
