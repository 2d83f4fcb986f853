/* gradients.c - gradients that no update consumes at once: kept as roots, or accumulated.
 *
 * The sum of a weight's gradients is the variable NAME.grad. The program that applies it reads the
 * weights' copies in the compute dtype, so programs that accumulate read those too.
 */
#include "compile/compile.h"

#include "compile/mesh/partition.h"
#include "ops.h"
#include "ops/collective.h"
#include <stdio.h>

mx_node **mx_trainable(mx_graph *g, int *n)
{
    mx_node **v = MX_NEW_N(&g->arena, mx_node *, g->n_nodes);
    *n = 0;
    for (int i = 0; i < g->n_nodes; i++) {
        const mx_var_attr *a = g->node[i]->attr;
        if (g->node[i]->op == &mx_op_variable && a->kind == MX_VAR_WEIGHT && !a->frozen)
            v[(*n)++] = g->node[i];
    }
    return v;
}

void mx_read_copies(mx_graph *g, mx_node *const *var, int n)
{
    mx_arena scratch = {0};
    mx_node **cast = mx_first_casts(g, &scratch);
    for (int i = 0; i < n; i++)
        mx_weight_copy(g, var[i], cast[var[i]->id]);
    mx_arena_fini(&scratch);
    mx_graph_resolve(g);
}

mx_node *mx_gradient_sum(mx_graph *g, const mx_node *w)
{
    char name[512];
    snprintf(name, sizeof name, "%s.grad", w->name);
    mx_type t = mx_type_of(MX_F32, mx_shape_of(&w->type));
    const mx_node *twin = mx_graph_find(g, name); /* another stage has the weight too */
    mx_node *v = twin ? mx_node_copy(g, twin, NULL)
                      : mx_variable(g, name, t, (mx_var_attr){.kind = MX_VAR_GRADIENT});
    v->axes = w->axes;
    v->box = w->box;
    return v;
}

/* The least of the row factors of a step's microbatches. */
static void keep_least(mx_graph *g, mx_node *factors, mx_node *first)
{
    mx_node *v = mx_row_scale_variable(g, factors), *anew = mx_constant(g, MX_SCALAR, MX_F32, 1);
    mx_node *least = mx_where(g, first, factors, mx_minimum(g, v, factors));
    mx_graph_root(g, NULL, mx_accumulate(g, v, least, anew));
}

/* A gradient into the sum of this rank's own microbatches: what is left to be summed over ranks is
 * noted on the variable. */
static void add_late(mx_graph *g, const mx_node *w, mx_node *grad, mx_node *first)
{
    mx_node *v = mx_gradient_sum(g, w);
    mx_var_attr *a = mx_arena_copy(&g->arena, v->attr, sizeof *a);
    a->unsummed = ((const mx_collective_attr *)grad->attr)->axes;
    v->attr = a;
    mx_graph_root(g, NULL, mx_accumulate(g, v, grad->in[0], first));
}

mx_node *mx_gradient_of_ranks(mx_graph *g, mx_node *own, const mx_compile_options *o)
{
    const mx_node *v = o->sums ? mx_graph_find(o->sums, own->name) : NULL;
    mx_axis_set axes = v ? (mx_axis_set)((const mx_var_attr *)v->attr)->unsummed : 0;
    if (!axes || !mx_type_count(&own->type)) /* empty: a weight of another stage */
        return own;
    const mx_mesh *m = o->partition->mesh;
    mx_collective_attr a = {.axes = axes, .size = mx_mesh_size(m, axes),
                            .index = mx_mesh_index(m, o->partition->rank, axes)};
    mx_node *anew = mx_constant(g, MX_SCALAR, MX_F32, 1);
    return mx_accumulate(g, own, mx_all_reduce(g, own, a), anew);
}

void mx_keep_gradients(mx_graph *g, const mx_compilation *c)
{
    bool sums = c->use == MX_GRADS_ACCUMULATE;
    if (sums)
        mx_read_copies(g, c->var, c->n);
    mx_node *first = sums ? mx_graph_find(g, "first") : NULL;
    if (sums && !first) /* the partition keeps what the model reads */
        first = mx_input(g, "first", MX_SCALAR, MX_F32);
    for (int i = 0; i < c->n; i++) {
        char name[512];
        mx_node *w = c->var[i], *d = c->grad[i];
        snprintf(name, sizeof name, "grad:%s", w->name);
        if (!d)
            continue;
        g->stage = w->stage;
        if (first && c->o->sum_late && d->op == &mx_op_all_reduce)
            add_late(g, w, d, first);
        else if (first)
            mx_graph_root(g, NULL, mx_accumulate(g, mx_gradient_sum(g, w), d, first));
        else /* a copy, so that naming it cannot rename a weight or share another root's node */
            mx_graph_root(g, name, mx_affine(g, mx_cast(g, d, w->type.dtype), 1, 0));
    }
    for (int i = 0, n_roots = g->n_roots; first && i < n_roots; i++)
        if (mx_row_scale_of(g->root[i]))
            keep_least(g, g->root[i], first);
    g->stage = 0;
}
