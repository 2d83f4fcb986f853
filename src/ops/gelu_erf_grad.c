/* gelu_erf_grad.c - the gradient of gelu_erf: Phi(a) + a phi(a), times b. */
#include "ops/tile.h"

MX_TILE2(gelu_erf_grad, b * ((MX_T_ERF(a *(real)0.70710678118654752) + 1) / 2 +
                           a * MX_T_EXP(-a * a / 2) * (real)0.39894228040143268))

mx_node *mx_gelu_erf_grad(mx_graph *g, mx_node *a, mx_node *b)
{
    return MX_APPLY(g, &mx_op_gelu_erf_grad, NULL, a, b);
}

const mx_op mx_op_gelu_erf_grad = {
    MX_ELEMENTWISE_FIELDS(gelu_erf_grad),
    .doc = "b d gelu_erf(a) / da",
    .cases =
        (const mx_case[]){{2, {{2, {3, 8}, .no_grad = true}, {2, {3, 8}, .no_grad = true}}}, {0}},
};
