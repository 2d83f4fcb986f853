/* bias.c - what is done to a product's sums joins the product.
 *
 *     add(matmul(x, w), b)                  ->  matmul(x, w, b)
 *     u = add(matmul(x, w), b); gelu(u)     ->  matmul_gelu(x, w, b), which gives u too
 * The product's own kernel does it to sums that it still has in registers. For devices whose
 * products can.
 *
 * A bias joins where the add would be a kernel of its own: an add that elementwise ops follow is
 * part of their group anyway, and there it costs nothing. A GELU joins (bfloat16) so that a layer's
 * widest tensor is not read again by a kernel of its own; but only where nothing is computed again:
 * with u kept and GELU computed again the whole product would be. Its slope in the backward pass
 * joins another product: slope.c.
 */
#include "compile/passes.h"

#include "ops.h"
#include "ops/matmul.h"

enum { ALIGN = 8 }; /* elements: rows of what GELU's end reads and writes begin at 16 bytes */

typedef struct {
    int n;     /* uses by nodes and roots */
    bool tiled; /* one of them runs in a group */
} uses;

static uses *count_uses(mx_graph *g)
{
    uses *u = MX_NEW_N(&g->arena, uses, g->n_nodes);
    for (int i = 0; i < g->n_nodes; i++)
        for (int k = 0; k < g->node[i]->n_in; k++)
            if (g->node[i]->in[k]) {
                uses *x = &u[g->node[i]->in[k]->id];
                x->n++;
                x->tiled |= mx_op_kind_is_tiled(g->node[i]->op->kind);
            }
    for (int i = 0; i < g->n_roots; i++)
        u[g->root[i]->id].n++;
    return u;
}

/* The bias of an add to a product that nobody else reads, or NULL. */
static mx_node *bias_of(const mx_node *add, const uses *u)
{
    if (add->op != &mx_op_add)
        return NULL;
    const mx_node *y = add->in[0];
    mx_node *b = add->in[1];
    bool product = y->op == &mx_op_matmul && y->n_in == 2 && u[y->id].n == 1;
    return product && b->type.ndim == 1 && b->type.dim[0] == y->type.dim[y->type.ndim - 1] &&
                   add->type.dtype == y->type.dtype && y->type.dtype == y->in[0]->type.dtype
               ? b
               : NULL;
}

static bool is_wide(const mx_node *y)
{
    return mx_matmul_is_of_rows(y) && y->type.dim[y->type.ndim - 1] % ALIGN == 0;
}

/* The product that does this node's work too, or NULL. */
static mx_node *joined(mx_graph *g, const mx_node *n, const uses *u, bool gelu)
{
    bool ends = gelu && n->op == &mx_op_gelu_tanh && u[n->in[0]->id].n == 1;
    const mx_node *add = ends ? n->in[0] : n;
    mx_node *b = bias_of(add, u);
    if (!b || (ends ? !is_wide(add->in[0]) : u[add->id].tiled))
        return NULL;
    g->seq = n->seq;
    g->scope = n->scope;
    g->stage = n->stage;
    b = mx_cast(g, b, add->type.dtype);
    return ends ? mx_matmul_gelu(g, add->in[0], b) : mx_matmul_bias(g, add->in[0], b);
}

void mx_pass_bias(mx_graph *g, bool gelu)
{
    if (g->error)
        return;
    const char *scope = g->scope;
    uses *u = count_uses(g);
    for (int i = 0, n = g->n_nodes; i < n; i++) {
        mx_node *old = g->node[i], *now = joined(g, old, u, gelu);
        if (!now)
            continue;
        now->name = old->name;
        mx_node_forward(old, now);
    }
    g->seq = -1;
    g->scope = scope;
    g->stage = 0;
    mx_graph_resolve(g);
}
