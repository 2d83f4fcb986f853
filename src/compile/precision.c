/* precision.c - a float32 model computed in bfloat16.
 *
 * Runs before autodiff. Every op that is not elementwise reads its float32 inputs through a cast to
 * the compute dtype (unless it says no_cast: losses, reductions, routers), and its result follows
 * by inference. Elementwise results take the dtype of their largest input, so activations stay 16
 * bits wide while a float32 factor per row stays exact. Inside a fused group arithmetic is float32
 * anyway.
 *
 * A cast of a weight becomes, in the optimizer pass, a variable of its own that the update writes:
 * the weight is not converted again in every step. Where no update will come (decoding), the weight
 * itself takes the compute dtype: half the memory, and half the bytes to read for a token.
 */
#include "compile/compile.h"

#include "ops.h"
#include <string.h>

/* Is input k_in the mask of dropout, 0 and 1, beside activations that are narrow? */
static bool is_mask(const mx_node *n, int k_in)
{
    const mx_node *x = n->in[k_in];
    return n->op == &mx_op_mul && k_in == 1 && x->op == &mx_op_greater &&
           x->in[0]->op == &mx_op_random_uniform && n->in[0]->type.dtype == MX_BF16;
}

static bool wants_cast(const mx_node *n, int k_in)
{
    const mx_node *x = n->in[k_in];
    mx_op_kind k = n->op->kind;
    if (is_mask(n, k_in))
        return true;
    if (mx_op_kind_is_tiled(k) || k == MX_SOURCE || k == MX_VIEW || k == MX_PROJECT ||
        n->op->no_cast ||
        (n->op->n_cast && k_in >= n->op->n_cast))
        return false;
    return x && x->type.dtype == MX_F32;
}

void mx_pass_precision(mx_graph *g, mx_dtype compute)
{
    if (!mx_dtype_is_computed(compute))
        mx_graph_fail(g, "nothing is computed in %s; expected float32, bfloat16 or float64",
                      mx_dtype_name(compute));
    if (compute == MX_F32 || compute == MX_F64 || g->error)
        return;
    mx_arena scratch = {0};
    int n_old = g->n_nodes;
    mx_node **copy = MX_NEW_N(&scratch, mx_node *, n_old);
    for (int i = 0; i < n_old && !g->error; i++) {
        mx_node *n = g->node[i];
        for (int k = 0; k < n->n_in; k++) {
            mx_node *x = n->in[k];
            if (!wants_cast(n, k))
                continue;
            if (!copy[x->id]) {
                g->seq = x->seq;
                const char *scope = g->scope;
                g->scope = x->scope;
                copy[x->id] = mx_cast(g, x, compute);
                g->scope = scope;
                g->seq = -1;
            }
            n->in[k] = copy[x->id];
        }
        if (n->op->kind != MX_SOURCE)
            mx_node_infer(g, n);
    }
    mx_arena_fini(&scratch);
}

void mx_pass_narrow_weights(mx_graph *g, bool trained_too)
{
    if (g->error)
        return;
    mx_arena scratch = {0};
    bool *wide = MX_NEW_N(&scratch, bool, g->n_nodes);
    mx_node **cast = MX_NEW_N(&scratch, mx_node *, g->n_nodes);
    for (int i = 0; i < g->n_nodes; i++)
        for (int k = 0; k < g->node[i]->n_in; k++) {
            const mx_node *x = g->node[i]->in[k];
            if (x && g->node[i]->op == &mx_op_cast && !cast[x->id])
                cast[x->id] = g->node[i];
            else if (x)
                wide[x->id] = true;
        }
    for (int i = 0; i < g->n_roots; i++)
        wide[g->root[i]->id] = true;
    for (int i = 0; i < g->n_nodes; i++) {
        mx_node *w = g->node[i];
        if (w->op != &mx_op_variable || ((const mx_var_attr *)w->attr)->kind != MX_VAR_WEIGHT ||
            !cast[i] || wide[i] || !(trained_too || ((const mx_var_attr *)w->attr)->frozen))
            continue;
        w->type.dtype = cast[i]->type.dtype;
        mx_node_forward(cast[i], w);
    }
    mx_arena_fini(&scratch);
    mx_graph_resolve(g);
}

/* Set on variables and carried over to what has their values: casts and concatenations. */
void mx_pass_grad_dtypes(mx_graph *g, mx_dtype narrow)
{
    if (g->error)
        return;
    for (int i = 0; i < g->n_nodes; i++)
        if (g->node[i]->op == &mx_op_variable)
            mx_node_set_grad_dtype(g->node[i], narrow < MX_DTYPE_COUNT ? narrow
                                                                       : g->node[i]->type.dtype);
    mx_arena scratch = {0};
    int n;
    mx_node **order = mx_graph_order(g, &scratch, &n);
    for (int i = 0; i < n; i++)
        if (order[i]->op->same_value)
            order[i]->grad_dtype = order[i]->in[0]->grad_dtype;
    mx_arena_fini(&scratch);
}

static mx_status run(mx_graph *g, mx_compilation *c)
{
    const mx_compile_options *o = c->o;
    bool fixed = o->weights_fixed && !c->training;
    mx_pass_precision(g, o->compute);
    if (fixed || o->narrow_weights || o->narrow_frozen)
        mx_pass_narrow_weights(g, fixed || o->narrow_weights);
    if (o->reads_copies && !c->training) {
        int n;
        mx_node **var = mx_trainable(g, &n);
        mx_read_copies(g, var, n);
    }
    return MX_OK;
}

const mx_compile_pass mx_compile_pass_precision = {
    .name = "precision",
    .doc = "float32 model -> activations and weight copies in the compute dtype",
    .programs = MX_IN_FORWARD | MX_IN_TRAINING,
    .run = run,
};
