/* sigmoid.c - logistic function. dx = dy y (1 - y). */
#include "ops/tile.h"

MX_TILE1(sigmoid, MX_T_SIGMOID(a))

mx_node *mx_sigmoid(mx_graph *g, mx_node *x)
{
    return MX_APPLY(g, &mx_op_sigmoid, NULL, x);
}

static void sigmoid_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    mx_node *derivative = mx_mul(g, n, mx_affine(g, n, -1, 1));
    din[0] = mx_mul(g, dout[0], derivative);
}

const mx_op mx_op_sigmoid = {
    MX_ELEMENTWISE_FIELDS(sigmoid),
    .doc = "1 / (1 + e^-x)",
    .grad = sigmoid_vjp,
    .cases = (const mx_case[]){{1, {{2, {3, 8}}}}, {0}},
};
