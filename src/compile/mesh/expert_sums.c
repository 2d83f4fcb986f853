/* expert_sums.c - gradients of experts whose rows come from several ranks, summed rank by rank.
 *
 *     grouped_outer(a, b, starts of experts)  ->  grouped_outer(a, b, starts by expert and rank)
 *
 * Then an expert's gradient has the bits of one device that accumulates the ranks' rows as
 * microbatches, as the gradient of every other weight has. It costs a pass over the gradient for
 * each rank, so a device chooses it.
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

const mx_rule mx_rule_expert_sums = {"expert_sums", &mx_op_grouped_outer, guard, build};
