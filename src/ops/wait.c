/* wait.c - y, once what makes it of x has ended: a copy (mx_offload, mx_prefetch), or a collective
 * beside other nodes. It has y's memory, and it reads x, so that neither end is used for anything
 * else before. The CPU copies at once; for collectives the device waits (device/cpu/cpu.c). */
#include "ops.h"

static void infer(mx_graph *g, mx_node *n)
{
    (void)g;
    n->type = n->in[0]->type;
}

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
    .doc = "y, once what makes it of x has ended",
    .dtypes = MX_ANY_DTYPE,
    .infer = infer,
    .alias = {1},
    .no_cast = true,
    .strided_in = 2,
    .cost = cost,
    .cpu = wait_cpu,
};
