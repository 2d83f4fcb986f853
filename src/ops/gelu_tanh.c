/* gelu_tanh.c - GELU by its tanh approximation (GPT-2, Gemma).
 * With u = sqrt(2/pi) (x + 0.044715 x^3): (1 + tanh u) / 2 is the
 * logistic function of 2u, so one exponential does it. */
#include "ops/tile.h"

MX_TILE1(gelu_tanh, a *MX_T_GELU_GATE(a))

mx_node *mx_gelu_tanh(mx_graph *g, mx_node *x)
{
    return MX_APPLY(g, &mx_op_gelu_tanh, NULL, x);
}

static void gelu_tanh_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    din[0] = mx_gelu_tanh_grad(g, n->in[0], dout[0]);
}

const mx_op mx_op_gelu_tanh = {
    MX_ELEMENTWISE_FIELDS(gelu_tanh),
    .doc = "x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))",
    .grad = gelu_tanh_vjp,
    .cases = (const mx_case[]){{1, {{2, {3, 8}}}}, {0}},
};
