/* softplus.c - log(1 + e^x), written so that large x does not overflow. */
#include "ops/tile.h"

MX_TILE1(softplus, (a > 0 ? a : 0) + MX_T_LOG(1 + MX_T_EXP(a > 0 ? -a : a)))

mx_node *mx_softplus(mx_graph *g, mx_node *x)
{
    return MX_APPLY(g, &mx_op_softplus, NULL, x);
}

static void softplus_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    din[0] = mx_mul(g, dout[0], mx_sigmoid(g, n->in[0]));
}

const mx_op mx_op_softplus = {
    MX_ELEMENTWISE_FIELDS(softplus),
    .doc = "log(1 + e^x)",
    .grad = softplus_vjp,
    .cases = (const mx_case[]){{1, {{2, {3, 8}}}}, {0}},
};
