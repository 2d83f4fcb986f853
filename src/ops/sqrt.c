/* sqrt.c - square root. With y = sqrt(x): dx = dy / (2 y). */
#include "ops/tile.h"

MX_TILE1(sqrt, MX_T_SQRT(a))

mx_node *mx_sqrt(mx_graph *g, mx_node *x)
{
    return MX_APPLY(g, &mx_op_sqrt, NULL, x);
}

static void sqrt_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    din[0] = mx_affine(g, mx_div(g, dout[0], n), 0.5, 0);
}

const mx_op mx_op_sqrt = {
    MX_ELEMENTWISE_FIELDS(sqrt),
    .doc = "square root",
    .grad = sqrt_vjp,
    .cases = (const mx_case[]){{1, {{2, {3, 8}, .lo = 0.5, .hi = 2}}}, {0}},
};
