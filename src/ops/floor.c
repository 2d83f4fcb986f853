/* floor.c - the largest whole number not above x; no gradient. For computing indices. */
#include "ops/tile.h"

MX_TILE1(floor, MX_T_FLOOR(a))

mx_node *mx_floor(mx_graph *g, mx_node *x)
{
    return MX_APPLY(g, &mx_op_floor, NULL, x);
}

const mx_op mx_op_floor = {
    MX_ELEMENTWISE_FIELDS(floor),
    .doc = "the largest whole number not above x",
    .cases = (const mx_case[]){{1, {{2, {3, 8}, .lo = -3, .hi = 3, .no_grad = true}}}, {0}},
};
