/* panels.c - weights of matmuls laid out as the CPU's GEMM reads them (ops/panels.h).
 *
 * For a weight (n, k) of whole panels, in the dtype of its matmuls, that nothing else reads but,
 * where it is a tied embedding, the lookup. Both ops have an attribute that says so.
 */
#include "compile/panels.h"

#include "compile/compile.h"
#include "ir/source.h"
#include "ops.h"
#include "ops/embed.h"
#include "ops/matmul.h"

#include <string.h>

/* y = x w^T, rows by a whole weight. */
static bool is_linear(const mx_node *n)
{
    if (n->op != &mx_op_matmul || n->n_in != 2)
        return false;
    const char *s = ((const mx_matmul_attr *)n->attr)->spec;
    return strlen(s) == 9 && s[0] == '*' && s[2] == ',' && strncmp(s + 5, "->*", 3) == 0 &&
           s[4] == s[1] && s[3] == s[8] && n->in[0]->type.dtype == n->in[1]->type.dtype;
}

/* Of each node: 1, a linear layer reads it as its weight; 2, something else does. */
static char *find_readers(const mx_graph *g, mx_arena *a)
{
    char *by = MX_NEW_N(a, char, g->n_nodes);
    for (int i = 0; i < g->n_nodes; i++) {
        const mx_node *n = g->node[i];
        for (int k = 0; k < n->n_in && !n->forward; k++) {
            bool weight = k == 1 && is_linear(n), table = k == 0 && n->op == &mx_op_embed;
            if (n->in[k])
                by[n->in[k]->id] |= weight ? 1 : table ? 0 : 2;
        }
    }
    for (int i = 0; i < g->n_roots; i++)
        by[g->root[i]->id] |= 2;
    return by;
}

static bool takes_panels(const mx_node *w, char by)
{
    if (w->op != &mx_op_variable || by != 1 || w->type.ndim != 2 ||
        (w->type.dtype != MX_F32 && w->type.dtype != MX_BF16))
        return false;
    const mx_var_attr *a = w->attr;
    return a->kind == MX_VAR_WEIGHT && !a->adapter && !w->box &&
           mx_panels_fit(mx_panels_of(w->type.dtype), &w->type);
}

/* For programs whose weights are fixed, and whose rows must not depend on each other. */
static mx_status run(mx_graph *g, mx_compilation *c)
{
    const mx_compile_options *o = c->o;
    if (g->error || !o->weights_fixed || !g->one_path || o->quant.dtype != MX_F32 ||
        !c->device->host_memory)
        return MX_OK;
    mx_arena scratch = {0};
    char *by = find_readers(g, &scratch);
    for (int i = 0; i < g->n_nodes; i++) {
        mx_node *n = g->node[i];
        bool linear = is_linear(n), table = n->op == &mx_op_embed;
        const mx_node *w = linear || table ? n->in[linear] : NULL;
        if (n->forward || !w || !takes_panels(w, by[w->id]))
            continue;
        if (linear)
            ((mx_matmul_attr *)mx_attr_edit(n))->panels = true;
        else
            ((mx_embed_attr *)mx_attr_edit(n))->panels = mx_panels_of(n->in[0]->type.dtype);
    }
    mx_arena_fini(&scratch);
    return MX_OK;
}

const mx_node *mx_panel_weight(const mx_node *n)
{
    return n->op == &mx_op_matmul && ((const mx_matmul_attr *)n->attr)->panels ? n->in[1] : NULL;
}

const mx_compile_pass mx_compile_pass_panels = {
    .name = "panels",
    .doc = "weights of served models as the CPU's GEMM reads them",
    .after = "quantize",
    .programs = MX_IN_FORWARD,
    .run = run,
};
