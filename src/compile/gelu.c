/* gelu.c - a GELU joins the product before it.
 *
 *     u = add(matmul(x, w), b);  gelu_tanh(u)      ->  matmul_gelu(x, w, b), which gives u too
 *
 * A layer's widest tensor is then written by the product that makes it, and not read again by a
 * kernel of its own. For devices whose products can, in bfloat16. Done before autodiff, and only
 * where nothing is computed again: with u kept and GELU computed again the whole product would be.
 * The slope of the backward pass stays out of the product beside it: tried in cuBLASLt's end and in
 * our own, it took longer than a kernel that sums up the bias's gradient as well.
 */
#include "compile/passes.h"

#include "ops.h"
#include "ops/matmul.h"
#include <string.h>

enum { ALIGN = 8 }; /* elements: rows of what an epilogue reads and writes begin at 16 bytes */

/* A product of rows with a matrix that nobody else reads. */
static bool is_product(const mx_node *y, const int *uses)
{
    if (y->op != &mx_op_matmul || y->n_in != 2 || uses[y->id] != 1)
        return false;
    const char *spec = ((const mx_matmul_attr *)y->attr)->spec, *out = strstr(spec, "->") + 2;
    return *spec == '*' && *out == '*' && strlen(out) == 2 && y->type.dtype == MX_BF16 &&
           y->in[0]->type.dtype == MX_BF16 && y->type.dim[y->type.ndim - 1] % ALIGN == 0;
}

static bool is_bias(const mx_node *b, const mx_node *y)
{
    return b->type.ndim == 1 && b->type.dim[0] == y->type.dim[y->type.ndim - 1];
}

static void join_gelu(mx_graph *g, mx_node *n, const int *uses)
{
    mx_node *u = n->in[0];
    if (u->op != &mx_op_add || uses[u->id] != 1 || !is_product(u->in[0], uses) ||
        !is_bias(u->in[1], u->in[0]) || n->type.dtype != MX_BF16)
        return;
    g->seq = n->seq;
    g->scope = n->scope;
    mx_node *now = mx_matmul_gelu(g, u->in[0], mx_cast(g, u->in[1], MX_BF16));
    now->name = n->name;
    mx_node_forward(n, now);
}

void mx_pass_gelu(mx_graph *g)
{
    if (g->error)
        return;
    const char *scope = g->scope;
    int *uses = MX_NEW_N(&g->arena, int, g->n_nodes), n_nodes = g->n_nodes;
    for (int i = 0; i < n_nodes; i++)
        for (int k = 0; k < g->node[i]->n_in; k++)
            if (g->node[i]->in[k])
                uses[g->node[i]->in[k]->id]++;
    for (int i = 0; i < g->n_roots; i++)
        uses[g->root[i]->id]++;
    for (int i = 0; i < n_nodes; i++)
        if (g->node[i]->op == &mx_op_gelu_tanh)
            join_gelu(g, g->node[i], uses);
    g->seq = -1;
    g->scope = scope;
    mx_graph_resolve(g);
}
