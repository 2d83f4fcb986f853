/* vary.c - x itself, which all ranks of the group have, where they do different work with it from
 * here on. Its gradient is then a sum over the ranks: all_reduce. (Megatron's f.) */
#include "ops.h"
#include "ops/collective.h"

mx_node *mx_vary(mx_graph *g, mx_node *x, mx_collective_attr a)
{
    return MX_APPLY(g, &mx_op_vary, &a, x);
}

static void vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    din[0] = mx_all_reduce(g, dout[0], *(const mx_collective_attr *)n->attr);
}

const mx_op mx_op_vary = {
    .name = "vary",
    .doc = "x, where ranks do different work with it from here on",
    .dtypes = MX_ANY_DTYPE,
    .kind = MX_VIEW,
    MX_COLLECTIVE_ATTR,
    .same_value = true,
    .infer = mx_collective_infer_same,
    .grad = vjp,
    .cases = (const mx_case[]){{1, {{2, {3, 4}}}, &(mx_collective_attr){.size = 1}}, {0}},
};
