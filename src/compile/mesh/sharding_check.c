/* sharding_check.c - how much of a model is replicated that the mesh should shard.
 *
 * A weight counts as unsharded when an axis that cuts weights (all but data) has several ranks and
 * cuts none of its dims. A few are meant to be so, norms and biases above all; when they are more
 * than a share of all weights, rules and mesh do not fit the model, and ranks would hold copies of
 * what was to be shared. The largest are named, each with the reason.
 */
#include "compile/mesh/partition_impl.h"

#include "ops.h"

enum { NAMED = 5 };

/* The axes that should cut this weight and do not. */
static mx_axis_set missing(const mx_partition *how, const mx_node *v)
{
    const mx_axis_set cuts = 1u << MX_AXIS_FSDP | 1u << MX_AXIS_FSDP_TRANSPOSE |
                             1u << MX_AXIS_CONTEXT | 1u << MX_AXIS_TENSOR |
                             1u << MX_AXIS_SEQUENCE | 1u << MX_AXIS_EXPERT;
    return mx_mesh_axes(how->mesh) & cuts & ~mx_placement_axes(&v->box->at);
}

static double elements(const mx_node *v)
{
    return (double)mx_type_count(&v->box->whole);
}

/* Quantized ones are whole on purpose: their blocks are. */
static bool is_weight(const mx_node *n)
{
    const mx_var_attr *a = n->attr;
    return n->op == &mx_op_variable && a->kind == MX_VAR_WEIGHT && !a->quantized;
}

/* The largest after `last`, by size and then by place; NULL: the largest of all. */
static const mx_node *next_largest(const mx_partition *how, const mx_graph *g, const mx_node *last)
{
    const mx_node *best = NULL;
    for (int i = 0; i < g->n_nodes; i++) {
        const mx_node *n = g->node[i];
        if (!is_weight(n) || !missing(how, n))
            continue;
        bool later = !last || elements(n) < elements(last) ||
                     (elements(n) == elements(last) && n->id > last->id);
        if (later && (!best || elements(n) > elements(best)))
            best = n;
    }
    return best;
}

static void name(const mx_partition *how, const mx_node *v, mx_str *s)
{
    mx_axis_report report = {0};
    mx_placement at;
    mx_str_addf(s, "\n  %s ", v->name);
    mx_type_print(s, &v->box->whole);
    mx_str_add(s, ": not cut by ");
    mx_axis_set_print(s, missing(how, v));
    if (!v->axes || !mx_axis_rules_place(how->rules, how->mesh, v->axes, &v->box->whole, &at,
                                         &report))
        return;
    for (int i = 0; i < report.n; i++) {
        mx_str_add(s, "\n    ");
        mx_axis_loss_print(s, v->name, v->axes, how->mesh, &report.loss[i]);
    }
}

mx_status mx_partition_check(const mx_partition *how, const mx_graph *g)
{
    double all = 0, whole = 0;
    mx_str s = {0};
    for (int i = 0; i < g->n_nodes; i++)
        if (is_weight(g->node[i])) {
            all += elements(g->node[i]);
            whole += missing(how, g->node[i]) ? elements(g->node[i]) : 0;
        }
    if (whole <= how->sharding_tolerance * all)
        return MX_OK;
    const mx_node *v = NULL;
    for (int k = 0; k < NAMED && (v = next_largest(how, g, v)); k++)
        name(how, v, &s);
    mx_status st = mx_fail(MX_USAGE,
                           "%.3g %% of the weights are not cut by every axis of the mesh, and "
                           "sharding_tolerance=%g allows %.3g %%. The largest:%s\nUse degrees that "
                           "divide their dims, other logical_axis_rules, or a larger "
                           "sharding_tolerance", 100 * whole / all, how->sharding_tolerance,
                           100 * how->sharding_tolerance, mx_str_text(&s));
    mx_str_fini(&s);
    return st;
}
