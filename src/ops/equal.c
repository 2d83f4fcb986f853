/* equal.c - a = b as 0 or 1; no gradient. Integers are compared as floats (exact below 2^24). */
#include "ops/tile.h"

MX_TILE2(equal, a == b)

static void as_float(mx_graph *g, mx_node *n)
{
    (void)g;
    if (!mx_dtype_is_float(n->type.dtype))
        n->type.dtype = MX_F32;
}

mx_node *mx_equal(mx_graph *g, mx_node *a, mx_node *b)
{
    return MX_APPLY(g, &mx_op_equal, NULL, a, b);
}

const mx_op mx_op_equal = {
    MX_ELEMENTWISE_FIELDS(equal),
    .doc = "1 where a = b, else 0",
    .infer = as_float,
    .cases = (const mx_case[]){{2, {{2, {3, 8}, MX_I32, 0, 3}, {2, {3, 8}, MX_I32, 0, 3}}}, {0}},
};
