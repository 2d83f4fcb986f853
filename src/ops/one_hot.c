/* one_hot.c - ids (*) int32 -> (*, n) float32: 1 at the id, 0 elsewhere; ids outside give 0. */
#include "ops.h"
#include "ops/copy.h"

typedef struct {
    int64_t n;
} one_hot_attr;

static void infer(mx_graph *g, mx_node *n)
{
    (void)g;
    n->type.dim[n->type.ndim - 1] = ((const one_hot_attr *)n->attr)->n;
    n->type.dtype = MX_F32;
}

static void one_hot_cpu(const mx_call *c)
{
    int64_t n = ((const one_hot_attr *)c->attr)->n, rows = mx_type_count(&c->in[0].type);
    const int32_t *id = c->in[0].data;
    float *out = c->out[0].data;
#pragma omp parallel for schedule(static) if (rows * n > 1 << 15)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < n; i++)
            out[r * n + i] = id[r] == i;
}

mx_node *mx_one_hot(mx_graph *g, mx_node *ids, int64_t n)
{
    return MX_APPLY(g, &mx_op_one_hot, &(one_hot_attr){n}, ids);
}

const mx_op mx_op_one_hot = {
    .name = "one_hot",
    .doc = "1 at the id, 0 elsewhere",
    .dtypes = MX_INDICES,
    .dims = "*->*!n",
    .attr_size = sizeof(one_hot_attr),
    .fields = (const mx_attr_field[]){MX_FIELD(one_hot_attr, MX_ATTR_INT, n), {0}},
    .infer = infer,
    .cost = mx_cost_move,
    .cpu = one_hot_cpu,
    .cases = (const mx_case[]){{1, {{2, {2, 6}, MX_I32, -1, 6}}, &(one_hot_attr){5}}, {0}},
};
