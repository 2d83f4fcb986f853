/* div.c - a / b, broadcasting. With y = a / b: da = dy / b, db = -da y. */
#include "ops/tile.h"

MX_TILE2(div, a / b)

mx_node *mx_div(mx_graph *g, mx_node *a, mx_node *b)
{
    return MX_APPLY(g, &mx_op_div, NULL, a, b);
}

static void div_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    mx_node *da = mx_div(g, dout[0], n->in[1]);
    din[0] = mx_sum_like(g, da, n, n->in[0]);
    din[1] = mx_sum_like(g, mx_affine(g, mx_mul(g, da, n), -1, 0), n, n->in[1]);
}

const mx_op mx_op_div = {
    MX_ELEMENTWISE_FIELDS(div),
    .doc = "a / b",
    .grad = div_vjp,
    .cases = (const mx_case[]){{2, {{2, {3, 8}}, {2, {3, 8}, .lo = 0.5, .hi = 2}}},
                               {2, {{2, {3, 8}}, {1, {8}, .lo = 0.5, .hi = 2}}},
                               {0}},
};
