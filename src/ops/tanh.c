/* tanh.c - hyperbolic tangent. dx = dy (1 - y^2). */
#include "ops/tile.h"

MX_TILE1(tanh, MX_T_TANH(a))

mx_node *mx_tanh(mx_graph *g, mx_node *x)
{
    return MX_APPLY(g, &mx_op_tanh, NULL, x);
}

static void tanh_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    mx_node *derivative = mx_affine(g, mx_mul(g, n, n), -1, 1);
    din[0] = mx_mul(g, dout[0], derivative);
}

const mx_op mx_op_tanh = {
    MX_ELEMENTWISE_FIELDS(tanh),
    .doc = "hyperbolic tangent",
    .grad = tanh_vjp,
    .cases = (const mx_case[]){{1, {{2, {3, 8}}}}, {0}},
};
