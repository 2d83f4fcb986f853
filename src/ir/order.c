/* order.c - which nodes live, and in what order they run.
 *
 * Kahn's algorithm with a heap on (seq, id): the result is topological and otherwise as close as
 * possible to the order the passes asked for. Sources come first: they cost nothing, and a weight's
 * copy, which the optimizer pass makes late, would hold the forward pass up while what the backward
 * pass can do early goes ahead and is then kept. Besides data edges there are edges from every
 * reader of a variable to the node that overwrites it, so that an update in place never runs early.
 */
#include "ir/graph.h"

#include <string.h>

typedef struct {
    mx_node **v;
    int n;
} heap;

static bool before(const mx_node *a, const mx_node *b)
{
    bool a_source = a->op->kind == MX_SOURCE, b_source = b->op->kind == MX_SOURCE;
    if (a_source != b_source)
        return a_source;
    return a->seq != b->seq ? a->seq < b->seq : a->id < b->id;
}

static void push(heap *h, mx_node *x)
{
    int i = h->n++;
    while (i > 0 && before(x, h->v[(i - 1) / 2])) {
        h->v[i] = h->v[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    h->v[i] = x;
}

static mx_node *pop(heap *h)
{
    mx_node *top = h->v[0], *x = h->v[--h->n];
    int i = 0;
    for (int c; (c = 2 * i + 1) < h->n; i = c) {
        if (c + 1 < h->n && before(h->v[c + 1], h->v[c]))
            c++;
        if (!before(h->v[c], x))
            break;
        h->v[i] = h->v[c];
    }
    h->v[i] = x;
    return top;
}

typedef struct {
    int n_edges, cap;
    struct {
        int from, to;
    } *raw;
} edges;

static void add_edge(edges *e, int from, int to)
{
    MX_GROW(e->raw, e->n_edges, e->cap);
    e->raw[e->n_edges].from = from;
    e->raw[e->n_edges++].to = to;
}

/* Views lie where their input lies; a projection lies where that output does. */
size_t mx_node_memory(const mx_node *n)
{
    while (n->op->kind == MX_VIEW)
        n = n->in[0];
    if (n->op->kind == MX_PROJECT) /* its only attribute is the number of the output */
        return (size_t)n->in[0]->id * MX_MAX_OUT + (size_t)*(const int64_t *)n->attr;
    return (size_t)n->id * MX_MAX_OUT;
}

const mx_node *mx_node_overwrites(const mx_node *n, int k)
{
    int a = n->op->alias[k];
    return a && a <= n->n_in ? n->in[a - 1] : NULL;
}

bool *mx_graph_live(const mx_graph *g, mx_arena *arena)
{
    mx_arena scratch = {0};
    bool *live = MX_NEW_N(arena, bool, g->n_nodes);
    mx_node **stack = MX_NEW_N(&scratch, mx_node *, g->n_nodes);
    int depth = 0;
    for (int i = 0; i < g->n_roots; i++)
        if (!live[g->root[i]->id]) {
            live[g->root[i]->id] = true;
            stack[depth++] = g->root[i];
        }
    while (depth) {
        mx_node *n = stack[--depth];
        for (int k = 0; k < n->n_in; k++)
            if (n->in[k] && !live[n->in[k]->id]) {
                live[n->in[k]->id] = true;
                stack[depth++] = n->in[k];
            }
    }
    mx_arena_fini(&scratch);
    return live;
}

/* Edges from every other reader of a variable to the node that overwrites it. */
static void add_write_edges(const mx_graph *g, const bool *live, edges *e, mx_arena *scratch)
{
    /* 1 + id of the node that overwrites it, by memory */
    int *writer = MX_NEW_N(scratch, int, (size_t)g->n_nodes * MX_MAX_OUT);
    bool any = false;
    for (int i = 0; i < g->n_nodes; i++)
        for (int k = 0; live[i] && k < g->node[i]->n_out; k++) {
            const mx_node *old = mx_node_overwrites(g->node[i], k);
            any |= old != NULL;
            if (old)
                writer[mx_node_memory(old)] = i + 1;
        }
    if (!any)
        return;
    for (int i = 0; i < g->n_nodes; i++)
        for (int k = 0; live[i] && k < g->node[i]->n_in; k++) {
            if (!g->node[i]->in[k] || g->node[i]->op->kind == MX_VIEW ||
                g->node[i]->op->kind == MX_PROJECT)
                continue;
            int w = writer[mx_node_memory(g->node[i]->in[k])];
            if (w && w - 1 != i)
                add_edge(e, i, w - 1);
        }
}

/* The edges by the node they leave, or by the node they reach. */
static mx_edges sort_edges(const edges *e, int n_nodes, bool by_target, mx_arena *arena)
{
    mx_edges out = {MX_NEW_N(arena, int, n_nodes + 2), MX_NEW_N(arena, int, e->n_edges + 1)};
    for (int i = 0; i < e->n_edges; i++)
        out.start[(by_target ? e->raw[i].to : e->raw[i].from) + 2]++;
    for (int i = 0; i < n_nodes; i++)
        out.start[i + 2] += out.start[i + 1];
    for (int i = 0; i < e->n_edges; i++) {
        int at = by_target ? e->raw[i].to : e->raw[i].from;
        out.node[out.start[at + 1]++] = by_target ? e->raw[i].from : e->raw[i].to;
    }
    return out;
}

static edges find_edges(const mx_graph *g, const bool *live, mx_arena *scratch)
{
    edges e = {0};
    for (int i = 0; i < g->n_nodes; i++)
        for (int k = 0; live[i] && k < g->node[i]->n_in; k++)
            if (g->node[i]->in[k])
                add_edge(&e, g->node[i]->in[k]->id, i);
    add_write_edges(g, live, &e, scratch);
    return e;
}

mx_edges mx_graph_before(const mx_graph *g, mx_arena *arena)
{
    mx_arena scratch = {0};
    bool *live = mx_graph_live(g, &scratch);
    edges e = find_edges(g, live, &scratch);
    mx_edges out = sort_edges(&e, g->n_nodes, true, arena);
    mx_free(e.raw);
    mx_arena_fini(&scratch);
    return out;
}

mx_node **mx_graph_order(const mx_graph *g, mx_arena *arena, int *n_out)
{
    mx_arena scratch = {0};
    bool *live = mx_graph_live(g, &scratch);
    edges e = find_edges(g, live, &scratch);
    mx_edges after = sort_edges(&e, g->n_nodes, false, &scratch);

    int *waiting = MX_NEW_N(&scratch, int, g->n_nodes);
    for (int i = 0; i < e.n_edges; i++)
        waiting[e.raw[i].to]++;
    heap h = {MX_NEW_N(&scratch, mx_node *, g->n_nodes + 1), 0};
    int n_live = 0, n = 0;
    for (int i = 0; i < g->n_nodes; i++) {
        n_live += live[i];
        if (live[i] && !waiting[i])
            push(&h, g->node[i]);
    }
    mx_node **order = MX_NEW_N(arena, mx_node *, n_live);
    while (h.n) {
        mx_node *x = pop(&h);
        order[n++] = x;
        for (int j = after.start[x->id]; j < after.start[x->id + 1]; j++)
            if (--waiting[after.node[j]] == 0)
                push(&h, g->node[after.node[j]]);
    }
    mx_free(e.raw);
    mx_arena_fini(&scratch);
    MX_ASSERT(n == n_live, "the graph has a cycle: %d of %d nodes ordered", n, n_live);
    *n_out = n;
    return order;
}

mx_node **mx_node_order(const mx_graph *g, mx_node *root, mx_arena *arena, int *n_out)
{
    mx_graph only = *g;
    only.root = &root;
    only.n_roots = 1;
    return mx_graph_order(&only, arena, n_out);
}

bool mx_node_depends(const mx_graph *g, const mx_node *n, const mx_node *on)
{
    mx_arena scratch = {0};
    bool *seen = MX_NEW_N(&scratch, bool, g->n_nodes);
    const mx_node **stack = MX_NEW_N(&scratch, const mx_node *, g->n_nodes + 1);
    int depth = 0;
    bool found = false;
    stack[depth++] = n;
    seen[n->id] = true;
    while (depth && !found) {
        const mx_node *x = stack[--depth];
        found = x == on;
        for (int k = 0; k < x->n_in; k++)
            if (x->in[k] && !seen[x->in[k]->id]) {
                seen[x->in[k]->id] = true;
                stack[depth++] = x->in[k];
            }
    }
    mx_arena_fini(&scratch);
    return found;
}

void mx_graph_renumber(mx_graph *g)
{
    mx_arena scratch = {0};
    int n;
    mx_node **order = mx_graph_order(g, &scratch, &n);
    bool *live = mx_graph_live(g, &scratch);
    mx_node **all = MX_NEW_N(&scratch, mx_node *, g->n_nodes);
    memcpy(all, order, sizeof *all * (size_t)n);
    for (int i = 0; i < g->n_nodes; i++) /* a pass that comes later may read them, by name */
        if (!live[i] && g->node[i]->op->kind == MX_SOURCE && g->node[i]->name &&
            mx_graph_find(g, g->node[i]->name) == g->node[i])
            all[n++] = g->node[i];
    for (int i = 0; i < n; i++) {
        g->node[i] = all[i];
        all[i]->id = all[i]->seq = i;
    }
    g->n_nodes = n;
    mx_arena_fini(&scratch);
}
