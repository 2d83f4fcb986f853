/* cos.c - cosine. */
#include "ops/tile.h"

MX_TILE1(cos, MX_T_COS(a))

mx_node *mx_cos(mx_graph *g, mx_node *x)
{
    return MX_APPLY(g, &mx_op_cos, NULL, x);
}

static void cos_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    din[0] = mx_affine(g, mx_mul(g, dout[0], mx_sin(g, n->in[0])), -1, 0);
}

const mx_op mx_op_cos = {
    MX_ELEMENTWISE_FIELDS(cos),
    .doc = "cosine",
    .costly = true,
    .grad = cos_vjp,
    .cases = (const mx_case[]){{1, {{2, {3, 8}}}}, {0}},
};
