/* wait.c - y, once the copy from x to it (mx_offload, mx_prefetch) has ended. It has y's memory,
 * and it reads x, so that neither end of a copy is used for anything else before. The CPU copies at
 * once and has nothing to wait for. */
#include "ops.h"

static void wait_cpu(const mx_call *c)
{
    (void)c;
}

static mx_cost cost(const mx_node *n)
{
    (void)n;
    return (mx_cost){0, 1}; /* 0 would stand for its inputs and outputs */
}

mx_node *mx_wait(mx_graph *g, mx_node *y, mx_node *x)
{
    return MX_APPLY(g, &mx_op_wait, NULL, y, x);
}

const mx_op mx_op_wait = {
    .name = "wait",
    .doc = "y, once the copy from x to it has ended",
    .dtypes = MX_ANY_DTYPE,
    .dims = "*,*->*",
    .alias = {1},
    .no_cast = true,
    .strided_in = 2,
    .cost = cost,
    .cpu = wait_cpu,
};
