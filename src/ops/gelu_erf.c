/* gelu_erf.c - GELU, exact form. */
#include "ops/tile.h"

MX_TILE1(gelu_erf, a * (MX_T_ERF(a *(real)0.70710678118654752) + 1) / 2)

mx_node *mx_gelu_erf(mx_graph *g, mx_node *x)
{
    return MX_APPLY(g, &mx_op_gelu_erf, NULL, x);
}

static void gelu_erf_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    din[0] = mx_gelu_erf_grad(g, n->in[0], dout[0]);
}

const mx_op mx_op_gelu_erf = {
    MX_ELEMENTWISE_FIELDS(gelu_erf),
    .doc = "x/2 (1 + erf(x / sqrt 2))",
    .grad = gelu_erf_vjp,
    .cases = (const mx_case[]){{1, {{2, {3, 8}}}}, {0}},
};
