/* held.c - see held.h. */
#include "train/check/held.h"

#include "compile/uses.h"
#include "ops.h"
#include <stdio.h>
#include <string.h>

typedef struct {
    const mx_graph *g;
    const mx_held_reads *r;
    int n_nodes;
    bool *weighty; /* by node id: depends on a weight */
    bool *dirty;   /* depends on a matrix that is still to be rounded */
    bool *needed;  /* by a tensor of later rounds */
    bool *held;
} cut;

static void spread(const cut *c, int first)
{
    for (int i = 0; i < c->n_nodes; i++) {
        const mx_node *n = c->g->node[i];
        c->weighty[i] = n->op == &mx_op_variable;
        c->dirty[i] = c->r->rank[i] >= first;
        for (int k = 0; k < n->n_in; k++)
            if (n->in[k]) {
                c->weighty[i] |= c->weighty[n->in[k]->id];
                c->dirty[i] |= c->dirty[n->in[k]->id];
            }
    }
}

static void find_needed(const cut *c, int end)
{
    memset(c->needed, 0, sizeof *c->needed * (size_t)c->n_nodes);
    for (int k = end; k < c->r->n; k++)
        c->needed[c->r->x[k]->id] = true;
    for (int i = c->n_nodes - 1; i >= 0; i--)
        for (int k = 0; c->needed[i] && k < c->g->node[i]->n_in; k++)
            if (c->g->node[i]->in[k])
                c->needed[c->g->node[i]->in[k]->id] = true;
}

static bool is_source(const mx_node *n)
{
    return n->op == &mx_op_variable || n->op == &mx_op_input;
}

/* Marks what the rounds after [first, end) begin with. False: not all of it can be held. */
static bool find(const cut *c, int first, int end)
{
    spread(c, first);
    find_needed(c, end);
    memset(c->held, 0, sizeof *c->held * (size_t)c->n_nodes);
    for (int k = end; k < c->r->n; k++)
        c->held[c->r->x[k]->id] = !c->dirty[c->r->x[k]->id];
    for (int i = 0; i < c->n_nodes; i++)
        for (int k = 0; c->needed[i] && c->dirty[i] && k < c->g->node[i]->n_in; k++) {
            const mx_node *x = c->g->node[i]->in[k];
            if (x && !c->dirty[x->id] && c->weighty[x->id] && !is_source(x))
                c->held[x->id] = true;
        }
    for (int i = 0; i < c->n_nodes; i++)
        if (c->held[i] && (c->g->node[i]->n_out != 1 || c->g->node[i]->type.dtype != MX_F32))
            return false;
    return true;
}

/* A round begins at the tokens where the memory for less is not there. */
static bool has_room(const cut *c, const mx_held *now)
{
    int64_t n = 0;
    for (int i = 0; i < c->n_nodes; i++)
        n += c->held[i] ? mx_type_count(&c->g->node[i]->type) : 0;
    return n <= now->most;
}

static void root(mx_graph *g, const cut *c, mx_held *now)
{
    for (int i = 0; i < c->n_nodes; i++)
        if (c->held[i]) {
            char name[32];
            snprintf(name, sizeof name, "hold:%d", now->n);
            mx_graph_root(g, name, mx_affine(g, g->node[i], 1, 0));
            now->count = mx_realloc(now->count, sizeof *now->count * (size_t)(now->n + 1));
            now->count[now->n++] = mx_type_count(&g->node[i]->type);
            now->window += mx_type_count(&g->node[i]->type);
        }
}

static void replace(mx_graph *g, const cut *c)
{
    mx_uses uses;
    mx_uses_init(&uses, g);
    for (int i = 0, k = 0; i < c->n_nodes; i++)
        if (c->held[i]) {
            mx_node *n = g->node[i];
            char name[32];
            snprintf(name, sizeof name, "held:%d", k++);
            mx_node *in = mx_input(g, name, mx_shape_of(&n->type), MX_F32);
            mx_uses_enter_new(&uses);
            if (mx_uses_count(&uses, n))
                mx_uses_replace(&uses, n, in);
        }
    mx_uses_fini(&uses);
    mx_graph_renumber(g);
}

void mx_held_cut(mx_graph *g, const mx_held_reads *r, const mx_held *was, mx_held *now)
{
    mx_arena scratch = {0};
    size_t n = (size_t)g->n_nodes;
    cut c = {g, r, g->n_nodes, MX_NEW_N(&scratch, bool, n), MX_NEW_N(&scratch, bool, n),
             MX_NEW_N(&scratch, bool, n), MX_NEW_N(&scratch, bool, n)};
    if (now->end < r->n && find(&c, now->first, now->end) && has_room(&c, now))
        root(g, &c, now);
    if (was->n) {
        bool again = find(&c, was->first, was->end);
        MX_ASSERT(again, "%d tensors were held", was->n);
        replace(g, &c);
    }
    mx_arena_fini(&scratch);
}

mx_status mx_held_room(mx_held *h, int i, int n_windows)
{
    if (!h->values) {
        MX_TRY(mx_alloc((void **)&h->values, sizeof *h->values * (size_t)n_windows, "calibration"));
        h->n_windows = n_windows;
    }
    return mx_alloc((void **)&h->values[i], sizeof(float) * (size_t)h->window,
                    "what calibration holds of a window");
}

void mx_held_drop(mx_held *h, int i)
{
    if (h->values) {
        mx_free(h->values[i]);
        h->values[i] = NULL;
    }
}

void mx_held_fini(mx_held *h)
{
    for (int i = 0; i < h->n_windows; i++)
        mx_free(h->values[i]);
    mx_free(h->values);
    mx_free(h->count);
    *h = (mx_held){0};
}
