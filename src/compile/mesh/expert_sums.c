/* expert_sums.c - gradients of experts whose rows come from several ranks, summed rank by rank.
 *
 *     grouped_outer(a, b, starts of experts)  ->  grouped_outer(a, b, starts by expert and rank)
 *     embed_grad(experts of rows, dy)         ->  embed_grad(experts of rows, dy, the same starts)
 *
 * The first is for matrices, the second for biases. An expert's gradient then has the bits of one
 * device that accumulates the ranks' rows as microbatches, like the gradient of every other weight.
 * It costs one pass over the gradient per rank, so devices choose whether to have it.
 */
#include "compile/rules.h"

#include "ops.h"
#include "ops/collective.h"

static bool guard(const mx_rewriter *r, mx_node *n, mx_match *m)
{
    (void)r, (void)m;
    const mx_node *start = n->in[2];
    if (start->op != &mx_op_output || start->in[0]->op != &mx_op_exchange_plan)
        return false;
    const mx_type *starts = mx_node_type(start->in[0], 1);
    const mx_collective_attr *a = start->in[0]->attr;
    return a->size > 1 && start->type.dim[0] == starts->dim[0] &&
           (n->type.dtype == MX_F32 || n->type.dtype == MX_F64);
}

static void build(mx_graph *g, mx_node *n, mx_match *m)
{
    mx_node *plan = n->in[2]->in[0];
    const mx_collective_attr *a = plan->attr;
    mx_match_replace(m, n, mx_grouped_outer_parts(g, n, mx_output(g, plan, 2), a->size));
}

/* The experts' numbers, counted from this rank's first, of rows that came from several ranks. */
static mx_node *exchanged_ids(mx_node *ids)
{
    while (ids->op == &mx_op_affine || ids->op == &mx_op_cast)
        ids = ids->in[0];
    return ids->op == &mx_op_exchange_rows ? ids->in[1] : NULL;
}

static bool bias_guard(const mx_rewriter *r, mx_node *n, mx_match *m)
{
    (void)r, (void)m;
    const mx_node *plan = exchanged_ids(n->in[0]);
    if (!plan || plan->op != &mx_op_exchange_plan)
        return false;
    const mx_collective_attr *a = plan->attr;
    return a->size > 1 && n->n_in == 3 && !n->in[2] &&
           n->type.dim[0] * a->size == mx_node_type(plan, 2)->dim[0] - 1;
}

static void bias_build(mx_graph *g, mx_node *n, mx_match *m)
{
    mx_node *plan = exchanged_ids(n->in[0]);
    const mx_collective_attr *a = plan->attr;
    mx_match_replace(m, n, mx_embed_grad_parts(g, n, mx_output(g, plan, 2), a->size));
}

const mx_rule mx_rule_expert_bias_sums = {"expert_bias_sums", &mx_op_embed_grad, bias_guard,
                                          bias_build};
const mx_rule mx_rule_expert_sums = {"expert_sums", &mx_op_grouped_outer, guard, build};
