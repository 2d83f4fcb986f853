/* silu.c - x sigmoid(x), the activation of SwiGLU. */
#include "ops/tile.h"

MX_TILE1(silu, a *MX_T_SIGMOID(a))

mx_node *mx_silu(mx_graph *g, mx_node *x)
{
    return MX_APPLY(g, &mx_op_silu, NULL, x);
}

static void silu_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    din[0] = mx_silu_grad(g, n->in[0], dout[0]);
}

const mx_op mx_op_silu = {
    MX_ELEMENTWISE_FIELDS(silu),
    .doc = "x sigmoid(x)",
    .grad = silu_vjp,
    .cases = (const mx_case[]){{1, {{2, {3, 8}}}}, {0}},
};
