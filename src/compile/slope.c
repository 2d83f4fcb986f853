/* slope.c - the slope of a GELU, and the gradient of the bias in it, join the product beside it:
 *
 *     du = gelu_tanh_slope(u, matmul(dy, v)); sum_to(du)     ->  matmul_gelu_slope(dy, v, u)
 *
 * For devices whose products can; behind remat, since it makes gradients. Only where u lies in
 * memory because a matmul_gelu left it there (compile/bias.c): a u that is computed again, or comes
 * back from the host, is made in the slope's group, and never written.
 */
#include "compile/passes.h"

#include "ops.h"
#include "ops/matmul.h"

typedef struct {
    int *uses;     /* of each node, by nodes and roots */
    mx_node **sum; /* of each node: the sum of its rows, or NULL */
} readers;

static bool sums_rows(const mx_node *n)
{
    const mx_type *x = &n->in[0]->type;
    return n->op == &mx_op_sum_to && n->type.ndim == 1 && n->type.dim[0] == x->dim[x->ndim - 1];
}

static readers find_readers(mx_graph *g)
{
    readers r = {MX_NEW_N(&g->arena, int, g->n_nodes), MX_NEW_N(&g->arena, mx_node *, g->n_nodes)};
    for (int i = 0; i < g->n_nodes; i++) {
        mx_node *n = g->node[i];
        for (int k = 0; k < n->n_in; k++)
            if (n->in[k])
                r.uses[n->in[k]->id]++;
        if (n->n_in && n->in[0] && sums_rows(n))
            r.sum[n->in[0]->id] = n;
    }
    for (int i = 0; i < g->n_roots; i++)
        r.uses[g->root[i]->id]++;
    return r;
}

static void join(mx_graph *g, mx_node *n, const readers *r)
{
    mx_node *u = n->in[0], *sum = r->sum[n->id];
    if (n->op != &mx_op_gelu_tanh_slope || u->op->kind != MX_PROJECT ||
        u->in[0]->op != &mx_op_matmul_gelu || !mx_matmul_is_of_rows(n->in[1]) ||
        r->uses[n->in[1]->id] != 1 || !sum || n->type.dtype != MX_BF16 ||
        sum->type.dtype != MX_F32)
        return;
    g->seq = n->seq;
    g->scope = n->scope;
    g->stage = n->stage;
    mx_node *now = mx_matmul_gelu_slope(g, n->in[1], u);
    mx_node_forward(n, now);
    mx_node_forward(sum, mx_output(g, now, 1));
}

void mx_pass_slope(mx_graph *g)
{
    if (g->error)
        return;
    const char *scope = g->scope;
    readers r = find_readers(g);
    for (int i = 0, n = g->n_nodes; i < n; i++)
        if (g->node[i]->n_in == 2)
            join(g, g->node[i], &r);
    g->seq = -1;
    g->scope = scope;
    g->stage = 0;
    mx_graph_resolve(g);
}
