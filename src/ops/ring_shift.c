/* ring_shift.c - sends to the rank `to` places further round the ring and gives what the rank as
 * many places before has sent. The gradient travels the other way. */
#include "ops.h"
#include "ops/collective.h"

#include <string.h>

static void ring_shift_cpu(const mx_call *c)
{
    const mx_collective_attr *a = c->attr;
    size_t bytes = mx_type_bytes(&c->in[0].type);
    if (!c->group) {
        memcpy(c->out[0].data, c->in[0].data, bytes);
        return;
    }
    mx_call_fail(c, c->group->kind->shift(c->group, c->in[0].data, c->out[0].data, bytes,
                                          (int)a->to));
}

static mx_cost cost(const mx_node *n)
{
    return (mx_cost){.bytes = 2 * (double)mx_type_bytes(&n->type)};
}

mx_node *mx_ring_shift(mx_graph *g, mx_node *x, mx_collective_attr a)
{
    return MX_APPLY(g, &mx_op_ring_shift, &a, x);
}

static void vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    mx_collective_attr a = *(const mx_collective_attr *)n->attr;
    a.to = -a.to;
    din[0] = mx_ring_shift(g, dout[0], a);
}

const mx_op mx_op_ring_shift = {
    .name = "ring_shift",
    .doc = "to a rank further on in the ring",
    .dtypes = MX_ANY_DTYPE,
    MX_COLLECTIVE_OP,
    .infer = mx_collective_infer_same,
    .grad = vjp,
    .cost = cost,
    .cpu = ring_shift_cpu,
    .cases = (const mx_case[]){{1, {{2, {3, 4}}}, &(mx_collective_attr){.size = 1, .to = 1}}, {0}},
};
