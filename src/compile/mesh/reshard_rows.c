/* reshard_rows.c - rows of tokens to the ranks of their experts and back. See reshard.c and
 * ops/exchange_rows.c. */
#include "compile/mesh/partition_impl.h"

#include "ops.h"

static mx_node *plan_of(mx_move *m, const mx_cut *c)
{
    mx_partitioner *p = m->p;
    for (mx_exchange_plan *q = p->plans; q; q = q->next)
        if (q->sorted_by == c->sorted_by && q->axes == c->exchanged)
            return q->plan;
    mx_node *starts = mx_output(p->to, p->value[c->sorted_by - 1].made_by, 1);
    mx_exchange_plan *q = MX_NEW(&p->to->arena, mx_exchange_plan);
    *q = (mx_exchange_plan){c->sorted_by, c->exchanged, NULL, p->plans};
    q->plan = mx_exchange_plan_rows(p->to, starts, mx_move_group(m, c->exchanged, 0));
    p->plans = q;
    return q->plan;
}

mx_node *mx_move_row_starts(mx_move *m, const mx_cut *c)
{
    return mx_output(m->p->to, plan_of(m, c), 1);
}

void mx_move_send_rows(mx_move *m, const mx_cut *c)
{
    mx_collective_attr g = mx_move_group(m, c->exchanged, 0);
    g.to = c->rows;
    m->x = mx_exchange_rows(m->p->to, m->x, plan_of(m, c), g);
    m->at.dim[0] = *c;
}

void mx_move_return_rows(mx_move *m)
{
    mx_cut *c = &m->at.dim[0];
    mx_collective_attr g = mx_move_group(m, c->exchanged, 0);
    mx_cut own = *c;
    own.exchanged = 0;
    g.to = mx_cut_local(m->p->how->mesh, &own, m->whole->dim[0]);
    m->x = mx_return_rows(m->p->to, m->x, plan_of(m, c), g);
    *c = own;
}
