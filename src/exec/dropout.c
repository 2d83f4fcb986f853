/* dropout.c - see dropout.h. Tensors are found by the names that remat has for them. */
#include "exec/dropout.h"

#include "base/rng.h"
#include "ops.h"
#include <stdio.h>

#define BRANCHES "out_proj,mlpwo,moe_out"
#define TABLES "*embed_tokens.weight,wte.weight,*.wte.weight"

/* Its name in the whole model; "": it has no dropout. */
static const char *target(const mx_node *n, char *name, size_t cap)
{
    *name = 0;
    if (n->op == &mx_op_embed && n->in[0]->name && mx_glob_any(TABLES, n->in[0]->name))
        snprintf(name, cap, "%s", n->in[0]->name);
    else if (n->name && mx_scope_layer(n->scope) && mx_glob_any(BRANCHES, n->name))
        snprintf(name, cap, "%s.%s", n->scope, n->name);
    return name;
}

static mx_node *dropped(mx_graph *g, mx_node *n, mx_node *seed, const char *name, double rate)
{
    const char *scope = g->scope;
    g->scope = n->scope;
    g->seq = n->seq;
    mx_node *y = mx_dropout(g, n, seed, (int64_t)mx_stream_of(name), rate);
    g->seq = -1;
    g->scope = scope;
    return y;
}

void mx_pass_dropout(mx_graph *g, double rate)
{
    int n_old = g->n_nodes, n_dropped = 0;
    char name[600];
    if (!(rate > 0) || g->error)
        return;
    mx_arena scratch = {0};
    mx_node *seed = mx_dropout_seed(g);
    mx_node **now = MX_NEW_N(&scratch, mx_node *, n_old);
    for (int i = 0; i < n_old; i++)
        if (*target(g->node[i], name, sizeof name)) {
            now[i] = dropped(g, g->node[i], seed, name, rate);
            n_dropped++;
        }
    for (int i = 0; i < n_old; i++)
        for (int k = 0; k < g->node[i]->n_in; k++) {
            const mx_node *x = g->node[i]->in[k];
            if (x && x->id < n_old && now[x->id])
                g->node[i]->in[k] = now[x->id];
        }
    mx_arena_fini(&scratch);
    if (!n_dropped)
        mx_graph_fail(g, "dropout_rate: this model has no tensor that it applies to");
    mx_graph_renumber(g);
}
