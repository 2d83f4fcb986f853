/* panels.c - weights of matmuls laid out as the CPU's GEMM reads them (ops/panels.h).
 *
 * For a weight (n, k) of whole panels, in the dtype of its matmuls or of int8 or int4 codes, that
 * nothing else reads but, where it is a tied embedding, the lookup. The ops have an attribute that
 * says so. Scales lie as their codes do.
 */
#include "compile/panels.h"

#include "compile/compile.h"
#include "ir/source.h"
#include "ops.h"
#include "ops/dequant_matmul.h"
#include "ops/embed.h"
#include "ops/inputs.h"
#include "ops/matmul.h"

#include <string.h>

enum { MX_INPUTS_DEQUANT_MATMUL };

/* y = x w^T, rows by a whole weight. */
static bool is_linear(const mx_node *n)
{
    if (n->op != &mx_op_matmul || n->n_in != 2)
        return false;
    const char *s = ((const mx_matmul_attr *)n->attr)->spec;
    return strlen(s) == 9 && s[0] == '*' && s[2] == ',' && strncmp(s + 5, "->*", 3) == 0 &&
           s[4] == s[1] && s[3] == s[8] && n->in[0]->type.dtype == n->in[1]->type.dtype;
}

/* Is input k of n its weight, or the scales of that? */
static bool reads_weight(const mx_node *n, int k)
{
    if (n->op == &mx_op_dequant_matmul)
        return k == DEQUANT_CODES || k == DEQUANT_SCALE;
    return k == 1 && is_linear(n);
}

/* Of each node: 1, a linear layer reads it as its weight; 2, something else does. */
static char *find_readers(const mx_graph *g, mx_arena *a)
{
    char *by = MX_NEW_N(a, char, g->n_nodes);
    for (int i = 0; i < g->n_nodes; i++) {
        const mx_node *n = g->node[i];
        for (int k = 0; k < n->n_in && !n->forward; k++) {
            bool table = k == 0 && n->op == &mx_op_embed;
            if (n->in[k])
                by[n->in[k]->id] |= reads_weight(n, k) ? 1 : table ? 0 : 2;
        }
    }
    for (int i = 0; i < g->n_roots; i++)
        by[g->root[i]->id] |= 2;
    return by;
}

static bool is_whole(const mx_node *w, const char *by)
{
    return w->op == &mx_op_variable && by[w->id] == 1 && w->type.ndim == 2 && !w->box;
}

/* How the weight of n may lie; no columns: in rows. */
static mx_panels panels_of(const mx_node *n, const char *by, bool quantized)
{
    if (n->forward || n->n_in < 2 || !reads_weight(n, 1) || !is_whole(n->in[1], by))
        return (mx_panels){0};
    const mx_type *w = &n->in[1]->type;
    const mx_var_attr *a = n->in[1]->attr;
    if (n->op == &mx_op_dequant_matmul)
        return is_whole(n->in[DEQUANT_SCALE], by)
                   ? mx_code_panels_of(w, &n->in[DEQUANT_SCALE]->type)
                   : (mx_panels){0};
    bool real = w->dtype == MX_F32 || w->dtype == MX_BF16;
    bool takes = !quantized && real && a->kind == MX_VAR_WEIGHT && !a->adapter;
    return takes && mx_panels_fit(mx_panels_of(w->dtype), w) ? mx_panels_of(w->dtype)
                                                              : (mx_panels){0};
}

/* For programs whose weights are fixed, and whose rows must not depend on each other. */
static mx_status run(mx_graph *g, mx_compilation *c)
{
    const mx_compile_options *o = c->o;
    if (g->error || !o->weights_fixed || !g->one_path || !c->device->host_memory)
        return MX_OK;
    mx_arena scratch = {0};
    char *by = find_readers(g, &scratch);
    mx_panels *lies = MX_NEW_N(&scratch, mx_panels, g->n_nodes);
    for (int i = 0; i < g->n_nodes; i++) {
        mx_node *n = g->node[i];
        mx_panels p = panels_of(n, by, o->quant.dtype != MX_F32);
        if (!p.cols)
            continue;
        lies[n->in[1]->id] = p;
        if (n->op == &mx_op_dequant_matmul)
            ((mx_dequant_attr *)mx_attr_edit(n))->panels = true;
        else
            ((mx_matmul_attr *)mx_attr_edit(n))->panels = true;
    }
    for (int i = 0; i < g->n_nodes; i++) {
        mx_node *n = g->node[i];
        if (!n->forward && n->op == &mx_op_embed && lies[n->in[0]->id].cols)
            ((mx_embed_attr *)mx_attr_edit(n))->panels = lies[n->in[0]->id];
    }
    mx_arena_fini(&scratch);
    return MX_OK;
}

const mx_node *mx_panel_weight(const mx_node *n)
{
    bool numbers = n->op == &mx_op_matmul && ((const mx_matmul_attr *)n->attr)->panels;
    bool codes = n->op == &mx_op_dequant_matmul && ((const mx_dequant_attr *)n->attr)->panels;
    return numbers || codes ? n->in[1] : NULL;
}

const mx_node *mx_panel_scale(const mx_node *n)
{
    return mx_panel_weight(n) && n->op == &mx_op_dequant_matmul ? n->in[DEQUANT_SCALE] : NULL;
}

const mx_compile_pass mx_compile_pass_panels = {
    .name = "panels",
    .doc = "weights of served models as the CPU's GEMM reads them",
    .after = "quantize",
    .programs = MX_IN_FORWARD,
    .run = run,
};
