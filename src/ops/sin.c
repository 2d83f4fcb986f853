/* sin.c - sine. */
#include "ops/tile.h"

MX_TILE1(sin, MX_T_SIN(a))

mx_node *mx_sin(mx_graph *g, mx_node *x)
{
    return MX_APPLY(g, &mx_op_sin, NULL, x);
}

static void sin_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    din[0] = mx_mul(g, dout[0], mx_cos(g, n->in[0]));
}

const mx_op mx_op_sin = {
    MX_ELEMENTWISE_FIELDS(sin),
    .doc = "sine",
    .costly = true,
    .grad = sin_vjp,
    .cases = (const mx_case[]){{1, {{2, {3, 8}}}}, {0}},
};
