/* fetch.c - starts a copy from host memory: the way back of mx_stow. What it gives may be used
 * behind mx_landed alone. */
#include "ops.h"
#include "ops/copy.h"

mx_node *mx_fetch(mx_graph *g, mx_node *h)
{
    return MX_APPLY(g, &mx_op_fetch, NULL, h);
}

const mx_op mx_op_fetch = {
    .name = "fetch",
    .doc = "starts a copy from host memory",
    .dims = "*->*",
    .no_cast = true,
    .cost = mx_cost_move,
    .cpu = mx_copy_cpu,
};
