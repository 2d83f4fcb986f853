/* log.c - natural logarithm. */
#include "ops/tile.h"

MX_TILE1(log, MX_T_LOG(a))

mx_node *mx_log(mx_graph *g, mx_node *x)
{
    return MX_APPLY(g, &mx_op_log, NULL, x);
}

static void log_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    din[0] = mx_div(g, dout[0], n->in[0]);
}

const mx_op mx_op_log = {
    MX_ELEMENTWISE_FIELDS(log),
    .doc = "natural logarithm",
    .grad = log_vjp,
    .cases = (const mx_case[]){{1, {{2, {3, 8}, .lo = 0.5, .hi = 2}}}, {0}},
};
