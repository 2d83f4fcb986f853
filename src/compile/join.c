/* join.c - products of one input with several weights become one product.
 *
 *     x Wq^T, x Wk^T, x Wv^T   ->   split(x [Wq; Wk; Wv]^T)
 * The gradient then is one product as well: dx comes out summed instead of as three tensors that a
 * kernel has to read and add, and products too narrow to fill the chip are gone. Split and concat
 * along columns copy nothing (parts.c) where attention and the rotation of q and k are all that
 * touches them; the weights' rows are copied together in every step, and again for the backward
 * pass, rather than kept so long, and their gradients apart.
 *
 * Where it pays: three or more. Of two, gate and up, the products gain nothing by themselves; they
 * are joined where SwiGLU is (swiglu.c). Weights that are not trained (LoRA's) stay as they are.
 * For devices whose kernels take parts.
 */
#include "compile/passes.h"

#include "ops.h"
#include "ops/matmul.h"
#include <string.h>

enum { ENOUGH = 3, ALIGN = 8 }; /* ALIGN: elements; parts begin at 16 bytes */

/* A weight in a matrix of its own, as it is or cast. */
static bool is_weight(const mx_node *w)
{
    const mx_node *v = w->op == &mx_op_cast ? w->in[0] : w;
    const mx_var_attr *a = v->attr;
    return v->op == &mx_op_variable && a->kind == MX_VAR_WEIGHT && !a->frozen && w->type.ndim == 2;
}
static bool is_candidate(const mx_node *n)
{
    return n->op == &mx_op_matmul && n->n_in == 2 && is_weight(n->in[1]) &&
           strcmp(((const mx_matmul_attr *)n->attr)->spec, "*d,fd->*f") == 0 &&
           !((const mx_matmul_attr *)n->attr)->has_out && n->in[1]->type.dim[0] % ALIGN == 0;
}
static bool same_kind(const mx_node *a, const mx_node *b)
{
    return a->in[0] == b->in[0] && a->in[1]->type.dtype == b->in[1]->type.dtype &&
           a->in[1] != b->in[1];
}

static void join(mx_graph *g, mx_node **product, int n)
{
    mx_node *w[MX_MAX_OUT];
    int64_t sizes[MX_MAX_OUT];
    for (int i = 0; i < n; i++)
        w[i] = product[i]->in[1], sizes[i] = w[i]->type.dim[0];
    g->seq = product[0]->seq;
    g->scope = product[0]->scope;
    g->stage = product[0]->stage;
    mx_node *y = mx_matmul(g, "*d,fd->*f", product[0]->in[0], mx_concat(g, n, w, 0));
    mx_node *parts = mx_split(g, y, n, sizes);
    for (int i = 0; i < n; i++) {
        mx_node *now = mx_output(g, parts, i);
        now->name = product[i]->name;
        mx_node_forward(product[i], now);
    }
}

void mx_pass_join(mx_graph *g)
{
    if (g->error)
        return;
    const char *scope = g->scope;
    int n_nodes = g->n_nodes;
    mx_node **first = MX_NEW_N(&g->arena, mx_node *, n_nodes); /* candidate that reads node i */
    for (int i = 0; i < n_nodes; i++)
        if (is_candidate(g->node[i]) && !first[g->node[i]->in[0]->id])
            first[g->node[i]->in[0]->id] = g->node[i];
    for (int x = 0; x < n_nodes; x++) {
        mx_node *product[MX_MAX_OUT];
        int n = 0;
        for (int i = first[x] ? first[x]->id : n_nodes; i < n_nodes && n < MX_MAX_OUT; i++)
            if (is_candidate(g->node[i]) && g->node[i]->in[0]->id == x &&
                (n == 0 || same_kind(product[n - 1], g->node[i])))
                product[n++] = g->node[i];
        if (n >= ENOUGH)
            join(g, product, n);
    }
    g->seq = -1;
    g->scope = scope;
    g->stage = 0;
    mx_graph_resolve(g);
}

void mx_pass_join_backward(mx_graph *g)
{
    const char *scope = g->scope;
    for (int i = g->n_forward, n = g->n_nodes; i < n && !g->error; i++) {
        mx_node *user = g->node[i];
        for (int k = 0; k < user->n_in && user->op == &mx_op_matmul; k++) {
            const mx_node *c = user->in[k];
            if (c->id >= g->n_forward || c->op != &mx_op_concat || !is_weight(c->in[0]))
                continue;
            g->seq = user->seq;
            g->scope = user->scope;
            g->stage = user->stage;
            user->in[k] = mx_concat(g, c->n_in, c->in, *(const int64_t *)c->attr);
        }
    }
    g->seq = -1;
    g->scope = scope;
    g->stage = 0;
}
