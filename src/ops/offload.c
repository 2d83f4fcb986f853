/* offload.c - starts a copy of x to host memory. The result may be read after mx_wait alone: a
 * device with memory of its own copies while it computes. A strided view is offloaded as a dense
 * tensor. Made by the offload pass (compile/offload.c). */
#include "ops.h"
#include "ops/copy.h"

mx_node *mx_offload(mx_graph *g, mx_node *x)
{
    return MX_APPLY(g, &mx_op_offload, NULL, x);
}

const mx_op mx_op_offload = {
    .name = "offload",
    .doc = "starts a copy to host memory",
    .dtypes = MX_ANY_DTYPE,
    .dims = "*->*",
    .no_cast = true,
    .strided_in = 1,
    .hosted = 1,
    .cost = mx_cost_move,
    .cpu = mx_copy_cpu,
};
