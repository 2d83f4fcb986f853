/* output.c - output k of an op that has several. Output 0 is the node itself. */
#include "ops.h"

typedef struct {
    int64_t k;
} output_attr;

static void pick(mx_graph *g, mx_node *n)
{
    int64_t k = ((const output_attr *)n->attr)->k;
    if (k <= 0 || k >= n->in[0]->n_out)
        mx_graph_fail(g, "%s has no output %lld", n->in[0]->op->name, (long long)k);
    else
        n->type = *mx_node_type(n->in[0], (int)k);
}

mx_node *mx_output(mx_graph *g, mx_node *x, int k)
{
    return k == 0 ? x : MX_APPLY(g, &mx_op_output, &(output_attr){k}, x);
}

const mx_op mx_op_output = {
    .name = "output",
    .doc = "output k of an op with several",
    .dtypes = MX_ANY_DTYPE,
    .kind = MX_PROJECT,
    .attr_size = sizeof(output_attr),
    .fields = (const mx_attr_field[]){MX_FIELD(output_attr, MX_ATTR_INT, k), {0}},
    .infer = pick,
};
