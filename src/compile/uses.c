/* uses.c - see uses.h. A list for each node, in the table's arena; lists grow by doubling, and what
 * they leave behind goes with the table. */
#include "compile/uses.h"

#include <string.h>

static void add_use(mx_uses *u, mx_node *by, int input)
{
    mx_use_list *l = &u->of[by->in[input]->id];
    if (l->n == l->cap) {
        mx_use *old = l->use;
        l->cap = l->cap ? 2 * l->cap : 2;
        l->use = MX_NEW_N(&u->arena, mx_use, l->cap);
        if (l->n)
            memcpy(l->use, old, sizeof *old * (size_t)l->n);
    }
    l->use[l->n++] = (mx_use){by, input};
}

static void remove_use(mx_uses *u, const mx_node *by, int input)
{
    mx_use_list *l = &u->of[by->in[input]->id];
    int i = 0;
    while (i < l->n && (l->use[i].by != by || l->use[i].input != input))
        i++;
    MX_ASSERT(i < l->n, "%s is not among the readers of its input %d", by->op->name, input);
    memmove(&l->use[i], &l->use[i + 1], sizeof *l->use * (size_t)(--l->n - i));
}

static void enter(mx_uses *u, mx_node *n)
{
    for (int i = 0; i < n->n_in; i++)
        if (n->in[i])
            add_use(u, n, i);
}

/* Empty lists for all nodes there are. */
static void make_room(mx_uses *u)
{
    int n = u->g->n_nodes;
    if (n > u->cap) {
        int cap = n > 2 * u->cap ? n : 2 * u->cap;
        mx_use_list *of = MX_NEW_N(&u->arena, mx_use_list, cap);
        if (u->n)
            memcpy(of, u->of, sizeof *of * (size_t)u->n);
        u->of = of;
        u->cap = cap;
    }
    u->n = n;
}

void mx_uses_init(mx_uses *u, mx_graph *g)
{
    *u = (mx_uses){.g = g};
    mx_arena scratch = {0};
    const bool *live = mx_graph_live(g, &scratch);
    make_room(u);
    for (int i = 0; i < g->n_nodes; i++)
        if (live[i])
            enter(u, g->node[i]);
    for (int i = 0; i < g->n_roots; i++)
        u->of[g->root[i]->id].n_roots++;
    mx_arena_fini(&scratch);
}

void mx_uses_fini(mx_uses *u)
{
    mx_arena_fini(&u->arena);
    *u = (mx_uses){0};
}

mx_node *mx_uses_find(const mx_uses *u, const mx_node *n, const mx_op *op)
{
    const mx_use_list *l = mx_uses_of(u, n);
    for (int i = 0; i < l->n; i++)
        if (l->use[i].by->op == op)
            return l->use[i].by;
    return NULL;
}

void mx_uses_enter_new(mx_uses *u)
{
    int from = u->n;
    make_room(u);
    for (int i = from; i < u->n; i++)
        enter(u, u->g->node[i]);
}

/* n is not needed any more and reads nothing; nor does what only n needed. */
static void leave(mx_uses *u, mx_node *n)
{
    for (int i = 0; i < n->n_in; i++)
        if (n->in[i]) {
            remove_use(u, n, i);
            if (mx_uses_count(u, n->in[i]) == 0)
                leave(u, n->in[i]);
        }
}

void mx_uses_replace(mx_uses *u, mx_node *old, mx_node *now)
{
    mx_use_list *l = &u->of[old->id];
    MX_ASSERT(old != now && old->n_out == 1, "%s by %s", old->op->name, now->op->name);
    mx_node_forward(old, now);
    if (mx_uses_count(u, old) == 0)
        return; /* it has left with what was replaced before it */
    for (int i = 0; i < l->n; i++) {
        MX_ASSERT(l->use[i].by != now, "%s would read itself", now->op->name);
        l->use[i].by->in[l->use[i].input] = now;
        add_use(u, l->use[i].by, l->use[i].input);
    }
    for (int i = 0; l->n_roots && i < u->g->n_roots; i++)
        if (u->g->root[i] == old)
            u->g->root[i] = now;
    u->of[now->id].n_roots += l->n_roots;
    l->n = l->n_roots = 0;
    leave(u, old);
}
