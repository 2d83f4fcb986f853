/* rsqrt.c - 1 / sqrt(x). With y = x^(-1/2): dx = -dy y^3 / 2. */
#include "ops/tile.h"

MX_TILE1(rsqrt, 1 / MX_T_SQRT(a))

mx_node *mx_rsqrt(mx_graph *g, mx_node *x)
{
    return MX_APPLY(g, &mx_op_rsqrt, NULL, x);
}

static void rsqrt_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    mx_node *cube = mx_mul(g, n, mx_mul(g, n, n));
    din[0] = mx_affine(g, mx_mul(g, dout[0], cube), -0.5, 0);
}

const mx_op mx_op_rsqrt = {
    MX_ELEMENTWISE_FIELDS(rsqrt),
    .doc = "1 / sqrt(x)",
    .grad = rsqrt_vjp,
    .cases = (const mx_case[]){{1, {{2, {3, 8}, .lo = 0.5, .hi = 2}}}, {0}},
};
