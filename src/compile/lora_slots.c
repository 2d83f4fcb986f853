/* lora_slots.c - places for several adapters beside one model, chosen row by row: serving.
 *
 *     y = W x + B^T (m (A x))      A (S r, in)   B (S r, out)   m (S r): ones for the row's adapter
 * Adapters of rank r or less lie one after the other, each in one of S slots, with its scale in B;
 * what a row does not use is multiplied by zero, so that slots and neighbours do not change its
 * bits. Empty slots are zero, and so is a row's mask without an adapter.
 */
#include "compile/lora.h"

#include "ops.h"
#include "ops/matmul.h"
#include <stdio.h>
#include <string.h>

static mx_node *declare(mx_graph *g, const mx_node *w, const char *end, int64_t rows, int64_t cols)
{
    char name[640];
    int n = (int)(strlen(w->name) - strlen(".weight"));
    snprintf(name, sizeof name, "%.*s%s", n, w->name, end);
    mx_var_attr at = {.init = MX_ZEROS, .kind = MX_VAR_WEIGHT, .adapter = true, .frozen = true};
    return mx_variable(g, name, mx_type_of(g->param_dtype, MX_SHAPE(rows, cols)), at);
}

/* y = x W^T again, with what the adapters add. */
static mx_node *beside(mx_graph *g, mx_node *y, mx_node *mask)
{
    const mx_node *w = y->in[1];
    bool in_out = ((const mx_var_attr *)w->attr)->in_out;
    int64_t in = w->type.dim[in_out ? 0 : 1], out = w->type.dim[in_out ? 1 : 0];
    int64_t rows = mask->type.dim[2];
    const char *scope = g->scope;
    g->scope = "";
    mx_node *a = declare(g, w, MX_LORA_SLOTS_A, rows, in);
    mx_node *b = declare(g, w, MX_LORA_SLOTS_B, rows, out);
    g->scope = scope;
    mx_node *own = mx_apply_n(g, y->op, y->attr, y->n_in, y->in, y->n_out);
    mx_node *low = mx_mul(g, mx_matmul(g, "*d,rd->*r", y->in[0], a), mask);
    mx_node *more = mx_matmul(g, "*r,rf->*f", low, b);
    mx_node *sum = mx_add(g, own, mx_cast(g, more, own->type.dtype));
    if (y->name && !mx_graph_find(g, y->name))
        sum->name = y->name;
    return sum;
}

/* A linear layer of the model: all that reads its weight is this one matmul. */
static bool is_layer(const mx_node *n, const int *readers)
{
    const mx_node *w = n->n_in == 2 ? n->in[1] : NULL;
    if (n->op != &mx_op_matmul || w->op != &mx_op_variable || w->type.ndim != 2 ||
        readers[w->id] != 1 || !mx_ends_with(w->name, ".weight"))
        return false;
    const char *spec = ((const mx_matmul_attr *)n->attr)->spec;
    return ((const mx_var_attr *)w->attr)->kind == MX_VAR_WEIGHT && mx_lora_is_linear(w->name) &&
           n->in[0]->type.ndim == 3 &&
           (strcmp(spec, "*d,fd->*f") == 0 || strcmp(spec, "*d,df->*f") == 0);
}

void mx_pass_lora_slots(mx_graph *g, int64_t slots, int64_t rank)
{
    int n_old = g->n_nodes;
    mx_arena scratch = {0};
    int *readers = MX_NEW_N(&scratch, int, n_old);
    if (g->error)
        return;
    const mx_type *tokens = &mx_graph_find(g, "tokens")->type;
    mx_shape rows = MX_SHAPE(tokens->dim[0], tokens->dim[1], slots * rank);
    mx_node *mask = mx_input(g, MX_LORA_MASK, rows, MX_F32);
    for (int i = 0; i < n_old; i++)
        for (int k = 0; k < g->node[i]->n_in; k++)
            if (g->node[i]->in[k] && !g->node[i]->forward)
                readers[g->node[i]->in[k]->id]++;
    for (int i = 0; i < n_old && !g->error; i++) {
        mx_node *n = g->node[i];
        if (n->forward || !is_layer(n, readers))
            continue;
        const char *scope = g->scope;
        g->scope = n->scope;
        g->seq = n->seq;
        mx_node_forward(n, beside(g, n, mask));
        g->seq = -1;
        g->scope = scope;
    }
    mx_arena_fini(&scratch);
    mx_graph_resolve(g);
    mx_graph_renumber(g);
}
