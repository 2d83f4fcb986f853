/* sum_in_order.c - numbers added up one after the other.
 *
 *     x (n) float64  ->  float32: ((x0 + x1) + x2) + ..., every number and every sum rounded
 * What a chain of additions on one device gives, for numbers that come from several ranks at once:
 * norms then have the same bits on every mesh. It has no gradient.
 */
#include "ops.h"
#include "ops/copy.h"
#include "ops/load.h"

static void infer(mx_graph *g, mx_node *n)
{
    if (n->in[0]->type.ndim != 1)
        mx_graph_fail_inputs(g, n, "expected one dim");
    n->type = mx_type_of(MX_F32, MX_SCALAR);
}

static void sum_in_order_cpu(const mx_call *c)
{
    float sum = 0;
    for (int64_t i = 0; i < mx_type_count(&c->in[0].type); i++)
        sum += (float)mx_load_f64(&c->in[0], i);
    *(float *)c->out[0].data = sum;
}

mx_node *mx_sum_in_order(mx_graph *g, mx_node *x)
{
    return MX_APPLY(g, &mx_op_sum_in_order, NULL, x);
}

const mx_op mx_op_sum_in_order = {
    .name = "sum_in_order",
    .doc = "numbers added up one after the other, in float32",
    .dtypes = MX_REALS,
    .dims = "!n->",
    .no_cast = true,
    .infer = infer,
    .cost = mx_cost_move,
    .cpu = sum_in_order_cpu,
    .cases = (const mx_case[]){{1, {{1, {7}, .no_grad = true}}}, {0}},
};
