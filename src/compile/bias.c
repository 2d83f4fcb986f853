/* bias.c - a bias joins the product it is added to, where the add would be a kernel of its own.
 *
 *     add(matmul(x, w), b)  ->  matmul(x, w, b)
 * The product's own kernel adds it to sums that it still has in registers. An add that elementwise
 * ops follow is part of their group anyway, and there it costs nothing. For devices whose products
 * can (cuBLASLt's epilogues).
 */
#include "compile/passes.h"

#include "ops.h"

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

/* The bias of an add to a product, or NULL. */
static mx_node *bias_of(const mx_node *add, const uses *u)
{
    if (add->op != &mx_op_add)
        return NULL;
    const mx_node *y = add->in[0];
    mx_node *b = add->in[1];
    bool product = y->op == &mx_op_matmul && y->n_in == 2 && u[y->id].n == 1 && !u[add->id].tiled;
    return product && b->type.ndim == 1 && b->type.dim[0] == y->type.dim[y->type.ndim - 1] &&
                   add->type.dtype == y->type.dtype && y->type.dtype == y->in[0]->type.dtype
               ? b
               : NULL;
}

void mx_pass_bias(mx_graph *g)
{
    if (g->error)
        return;
    const char *scope = g->scope;
    uses *u = count_uses(g);
    for (int i = 0, n = g->n_nodes; i < n; i++) {
        mx_node *add = g->node[i], *b = bias_of(add, u);
        if (!b)
            continue;
        g->seq = add->seq;
        g->scope = add->scope;
        mx_node *now = mx_matmul_bias(g, add->in[0], mx_cast(g, b, add->type.dtype));
        now->name = add->name;
        mx_node_forward(add, now);
    }
    g->seq = -1;
    g->scope = scope;
    mx_graph_resolve(g);
}
