/* gelu_tanh_grad.c - the gradient of gelu_tanh. With h = (1 + tanh u) / 2, which is a
 * logistic function of 2u: dh/du = 2 h (1 - h), so gelu' = h + a h (1 - h) d(2u)/da. */
#include "ops/tile.h"

MX_TILE2(gelu_tanh_grad,
         b * MX_T_GELU_GATE(a) *
             (1 + a * (1 - MX_T_GELU_GATE(a)) *
                      ((real)1.5957691216057308 + (real)0.21406444881780074 * a * a)))

mx_node *mx_gelu_tanh_grad(mx_graph *g, mx_node *a, mx_node *b)
{
    return MX_APPLY(g, &mx_op_gelu_tanh_grad, NULL, a, b);
}

const mx_op mx_op_gelu_tanh_grad = {
    MX_ELEMENTWISE_FIELDS(gelu_tanh_grad),
    .doc = "b d gelu_tanh(a) / da",
    .cases =
        (const mx_case[]){{2, {{2, {3, 8}, .no_grad = true}, {2, {3, 8}, .no_grad = true}}}, {0}},
};
