/* swiglu.c - a SwiGLU joins the products before it, and its gradient the product behind it:
 *
 *     g = matmul(x, w); u = matmul(x, w2); mul(silu(g), u)          ->  matmul_swiglu(x, w, w2)
 *     d = matmul(dy, v); silu_slope(g, mul(d, u)); mul(d, silu(g))  ->  matmul_swiglu_slope
 *
 * For devices whose products can; behind remat, when it is known who reads what, and in bfloat16;
 * but only where nothing is computed again, so that what is kept in host memory changes no bit.
 * What other groups read stays out: it would be a tensor more for them to read. So do gradients
 * where the SwiGLU itself did not join, since then g and u need not lie in memory.
 */
#include "compile/passes.h"

#include "ops.h"
#include "ops/matmul.h"
#include <string.h>

typedef struct {
    int *uses;          /* of each node, by nodes and roots */
    bool *tiled;        /* one of them may run in a group */
    mx_node *(*mul)[2]; /* the first two of them that multiply it by something */
} readers;

static readers find_readers(mx_graph *g)
{
    readers r = {MX_NEW_N(&g->arena, int, g->n_nodes), MX_NEW_N(&g->arena, bool, g->n_nodes),
                 mx_arena_alloc(&g->arena, sizeof *r.mul * (size_t)g->n_nodes)};
    for (int i = 0; i < g->n_nodes; i++)
        for (int k = 0; k < g->node[i]->n_in; k++) {
            mx_node *n = g->node[i], *x = n->in[k];
            if (!x)
                continue;
            r.uses[x->id]++;
            if (n->op == &mx_op_mul)
                r.mul[x->id][r.mul[x->id][0] != NULL] = n;
            r.tiled[x->id] |= mx_op_kind_is_tiled(n->op->kind) || n->op == &mx_op_sum_to;
        }
    for (int i = 0; i < g->n_roots; i++)
        r.uses[g->root[i]->id]++;
    return r;
}

static bool same_kind(const mx_node *a, const mx_node *b)
{
    return a != b && a->in[0] == b->in[0] && mx_shape_equal(&a->in[1]->type, &b->in[1]->type) &&
           strcmp(((const mx_matmul_attr *)a->attr)->spec,
                  ((const mx_matmul_attr *)b->attr)->spec) == 0;
}
/* Nobody would have to read it who has it at hand. */
static bool may_go(const mx_node *n, const readers *r)
{
    return !r->tiled[n->id] && n->type.dtype == MX_BF16;
}

static void begin(mx_graph *g, const mx_node *n)
{
    g->seq = n->seq;
    g->scope = n->scope;
    g->stage = n->stage;
}

/* n is a product of two. */
static void join_forward(mx_graph *g, mx_node *n, const readers *r)
{
    for (int k = 0; k < 2; k++) {
        mx_node *silu = n->in[k], *up = n->in[1 - k];
        if (silu->op != &mx_op_silu)
            continue;
        mx_node *gate = silu->in[0];
        if (!mx_matmul_is_of_rows(gate) || !mx_matmul_is_of_rows(up) || !same_kind(gate, up) ||
            !may_go(n, r))
            continue;
        begin(g, gate->seq > up->seq ? gate : up);
        mx_node *now = mx_matmul_swiglu(g, gate, up);
        mx_node *g_now = mx_output(g, now, 1), *u_now = mx_output(g, now, 2);
        now->name = n->name, g_now->name = gate->name, u_now->name = up->name;
        mx_node_forward(n, now);
        mx_node_forward(gate, g_now);
        mx_node_forward(up, u_now);
        return;
    }
}

/* g and u of one SwiGLU, of d's shape. */
static bool are_factors(const mx_node *gate, const mx_node *up, const mx_node *d)
{
    return gate != up && gate->op->kind == MX_PROJECT && up->op->kind == MX_PROJECT &&
           gate->in[0] == up->in[0] && gate->in[0]->op == &mx_op_matmul_swiglu &&
           mx_shape_equal(&gate->type, &d->type);
}
static mx_node *other(const mx_node *mul, const mx_node *x)
{
    return mul->in[mul->in[0] == x];
}

/* n is silu_slope(g, mul(d, u)). */
static void join_backward(mx_graph *g, mx_node *n, const readers *r)
{
    mx_node *gate = n->in[0], *by_up = n->in[1];
    for (int k = 0; k < 2 && by_up->op == &mx_op_mul && r->uses[by_up->id] == 1; k++) {
        mx_node *d = by_up->in[k], *up = by_up->in[1 - k];
        if (!mx_matmul_is_of_rows(d) || r->uses[d->id] != 2 || !r->mul[d->id][1])
            continue;
        mx_node *by_silu = r->mul[d->id][r->mul[d->id][0] == by_up];
        const mx_node *silu = other(by_silu, d);
        if (by_silu == by_up || silu->op != &mx_op_silu || silu->in[0] != gate ||
            !are_factors(gate, up, d) || !may_go(n, r) || !may_go(by_silu, r))
            continue;
        begin(g, n->seq > by_silu->seq ? by_silu : n);
        mx_node *now = mx_matmul_swiglu_slope(g, d, gate, up);
        mx_node_forward(n, now);
        mx_node_forward(by_silu, mx_output(g, now, 1));
        return;
    }
}

static void for_each(mx_graph *g, const mx_op *op,
                     void (*join)(mx_graph *g, mx_node *n, const readers *r))
{
    if (g->error)
        return;
    const char *scope = g->scope;
    readers r = find_readers(g);
    for (int i = 0, n = g->n_nodes; i < n; i++)
        if (g->node[i]->op == op)
            join(g, g->node[i], &r);
    g->seq = -1;
    g->scope = scope;
    g->stage = 0;
    mx_graph_resolve(g);
}

void mx_pass_swiglu(mx_graph *g)
{
    for_each(g, &mx_op_mul, join_forward);
    for_each(g, &mx_op_silu_slope, join_backward);
}
