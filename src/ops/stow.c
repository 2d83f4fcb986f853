/* stow.c - starts a copy of x to host memory. What it gives may be used behind mx_landed alone: on
 * a GPU the copy goes on beside the computation. Made by the offload pass (compile/offload.c). */
#include "ops.h"
#include "ops/copy.h"

/* Dense, or in runs: a part of another tensor is stowed as a tensor of its own. */
static void stow_cpu(const mx_call *c)
{
    const mx_tensor *x = &c->in[0];
    size_t item = mx_dtype_bytes(x->type.dtype), bytes = mx_type_bytes(&x->type);
    size_t run = x->pitch ? (size_t)x->run * item : bytes;
    mx_copy_runs(c->out[0].data, run, x->data, (size_t)x->pitch * item, run,
                 run ? (int64_t)(bytes / run) : 0);
}

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
    .cpu = stow_cpu,
};
