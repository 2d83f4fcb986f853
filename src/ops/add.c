/* add.c - a + b, broadcasting. */
#include "ops/tile.h"

MX_TILE2(add, a + b)

mx_node *mx_add(mx_graph *g, mx_node *a, mx_node *b)
{
    return MX_APPLY(g, &mx_op_add, NULL, a, b);
}

static void add_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    for (int i = 0; i < 2; i++)
        din[i] = mx_sum_like(g, dout[0], n, n->in[i]);
}

const mx_op mx_op_add = {
    MX_ELEMENTWISE_FIELDS(add),
    .doc = "a + b",
    .linear = true,
    .grad = add_vjp,
    .cases = (const mx_case[]){{2, {{2, {3, 8}}, {2, {3, 8}}}},
                               {2, {{3, {2, 3, 8}}, {1, {8}}}},
                               {2, {{2, {3, 1}}, {2, {3, 8}}}},
                               {0}},
};
