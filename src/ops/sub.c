/* sub.c - a - b, broadcasting. */
#include "ops/tile.h"

MX_TILE2(sub, a - b)

mx_node *mx_sub(mx_graph *g, mx_node *a, mx_node *b)
{
    return MX_APPLY(g, &mx_op_sub, NULL, a, b);
}

static void sub_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    din[0] = mx_sum_like(g, dout[0], n, n->in[0]);
    din[1] = mx_sum_like(g, mx_affine(g, dout[0], -1, 0), n, n->in[1]);
}

const mx_op mx_op_sub = {
    MX_ELEMENTWISE_FIELDS(sub),
    .doc = "a - b",
    .linear = true,
    .grad = sub_vjp,
    .cases = (const mx_case[]){{2, {{2, {3, 8}}, {2, {3, 8}}}},
                               {2, {{3, {2, 3, 8}}, {1, {8}}}},
                               {2, {{2, {3, 1}}, {2, {3, 8}}}},
                               {0}},
};
