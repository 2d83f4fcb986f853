/* detach.c - x without a gradient (stop_gradient): for what one loss reads and only another one
 * trains. */
#include "ops/tile.h"

MX_TILE1(detach, a)

mx_node *mx_detach(mx_graph *g, mx_node *x)
{
    return MX_APPLY(g, &mx_op_detach, NULL, x);
}

const mx_op mx_op_detach = {
    MX_ELEMENTWISE_FIELDS(detach),
    .doc = "x without a gradient",
    .linear = true,
    .cases = (const mx_case[]){{1, {{2, {3, 8}, .no_grad = true}}}, {0}},
};
