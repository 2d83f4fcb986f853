/* prefetch.c - starts a copy from host memory, the way back of mx_offload. The result may be read
 * after mx_wait alone. */
#include "ops.h"
#include "ops/copy.h"

mx_node *mx_prefetch(mx_graph *g, mx_node *h)
{
    return MX_APPLY(g, &mx_op_prefetch, NULL, h);
}

const mx_op mx_op_prefetch = {
    .name = "prefetch",
    .doc = "starts a copy from host memory",
    .dtypes = MX_ANY_DTYPE,
    .dims = "*->*",
    .no_cast = true,
    .cost = mx_cost_move,
    .cpu = mx_copy_cpu,
};
