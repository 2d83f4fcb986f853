/* exp.c - e^x. */
#include "ops/tile.h"

MX_TILE1(exp, MX_T_EXP(a))

mx_node *mx_exp(mx_graph *g, mx_node *x)
{
    return MX_APPLY(g, &mx_op_exp, NULL, x);
}

static void exp_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    din[0] = mx_mul(g, dout[0], n);
}

const mx_op mx_op_exp = {
    MX_ELEMENTWISE_FIELDS(exp),
    .doc = "e^x",
    .grad = exp_vjp,
    .cases = (const mx_case[]){{1, {{2, {3, 8}}}}, {0}},
};
