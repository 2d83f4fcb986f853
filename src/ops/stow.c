/* stow.c - starts a copy of x to host memory. What it gives may be used behind mx_landed alone: on
 * a GPU the copy goes on beside the computation. A part of another tensor is stowed as a tensor of
 * its own. Made by the offload pass (compile/offload.c). */
#include "ops.h"
#include "ops/copy.h"

mx_node *mx_stow(mx_graph *g, mx_node *x)
{
    return MX_APPLY(g, &mx_op_stow, NULL, x);
}

const mx_op mx_op_stow = {
    .name = "stow",
    .doc = "starts a copy to host memory",
    .dims = "*->*",
    .no_cast = true,
    .parts_in = 1,
    .hosted = 1,
    .cost = mx_cost_move,
    .cpu = mx_copy_cpu,
};
