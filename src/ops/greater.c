/* greater.c - a > b as 0 or 1; no gradient. */
#include "ops/tile.h"

MX_TILE2(greater, a > b)

mx_node *mx_greater(mx_graph *g, mx_node *a, mx_node *b)
{
    return MX_APPLY(g, &mx_op_greater, NULL, a, b);
}

const mx_op mx_op_greater = {
    MX_ELEMENTWISE_FIELDS(greater),
    .doc = "1 where a > b, else 0",
    .cases =
        (const mx_case[]){{2, {{2, {3, 8}, .no_grad = true}, {2, {3, 8}, .no_grad = true}}}, {0}},
};
