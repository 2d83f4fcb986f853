/* rewrite.c - see rewrite.h. */
#include "compile/rewrite.h"

#include "ops.h"

bool mx_is_read_in_group(const mx_rewriter *r, const mx_node *n)
{
    const mx_use_list *l = mx_uses_of(&r->uses, n);
    for (int i = 0; i < l->n; i++)
        if (mx_op_kind_is_tiled(l->use[i].by->op->kind) || l->use[i].by->op == &mx_op_sum_to)
            return true;
    return false;
}

void mx_match_replace(mx_match *m, mx_node *old, mx_node *now)
{
    MX_ASSERT(m->n_replaced < MX_MAX_OUT, "%s", old->op->name);
    m->replaced[m->n_replaced].old = old;
    m->replaced[m->n_replaced++].now = now;
}

static void apply(mx_rewriter *r, const mx_rule *rule, mx_node *n, mx_match *m)
{
    mx_graph *g = r->g, before = *g;
    g->seq = m->place->seq;
    g->scope = m->place->scope;
    g->backward = m->place->backward;
    g->stage = m->place->stage;
    rule->build(g, n, m);
    g->seq = before.seq;
    g->scope = before.scope;
    g->backward = before.backward;
    g->stage = before.stage;
    for (int i = before.n_nodes; i < g->n_nodes; i++)
        g->node[i]->recomputed = m->place->recomputed;
    mx_uses_enter_new(&r->uses);
    for (int i = 0; i < m->n_replaced && !g->error; i++) {
        mx_node *old = m->replaced[i].old, *now = m->replaced[i].now;
        if (!now->name)
            now->name = old->name;
        mx_uses_replace(&r->uses, old, now);
    }
}

void mx_rewrite(mx_graph *g, const mx_rule *const *rules, mx_remat remat)
{
    if (g->error || !rules)
        return;
    mx_rewriter r = {.g = g, .remat = remat};
    mx_uses_init(&r.uses, g);
    for (; *rules; rules++)
        for (int i = 0, n = g->n_nodes; i < n && !g->error; i++) {
            mx_node *x = g->node[i];
            mx_match m = {.place = x};
            if (x->op == (*rules)->root && mx_uses_count(&r.uses, x) && (*rules)->guard(&r, x, &m))
                apply(&r, *rules, x, &m);
        }
    mx_uses_fini(&r.uses);
}
