/* parts.c - split and concat that copy nothing: values that lie inside others.
 *
 *     split    its outputs are columns of its input, read where they lie
 *     concat   its inputs are columns of its output, written there by the nodes that make them
 *
 * Both along the last dim, and only where every reader and writer concerned can do it: attention
 * (parts_in and parts_out of its op), which then finds q, k and v in the one projection that made
 * them and leaves their gradients in one tensor, and fused groups, such as the rotation of q and k
 * in between. A group that alone reads a part leaves its result in its place, or the whole tensor
 * would be kept for the sake of the other parts beside that result. For devices whose kernels take
 * strides; the CPU's do not.
 */
#include "compile/parts.h"

#include "ops.h"
#include "ops/group.h"

typedef struct {
    const mx_program *p;
    mx_parts *parts;
    int *first, *user; /* users of node i: user[first[i]] up to user[first[i + 1]] */
    bool *root;
} finder;

static void find_users(finder *f, mx_arena *a)
{
    const mx_program *p = f->p;
    int n = p->graph->n_nodes;
    f->first = MX_NEW_N(a, int, n + 2);
    f->root = MX_NEW_N(a, bool, n);
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < p->n; i++)
            for (int k = 0; k < p->order[i]->n_in; k++) {
                const mx_node *in = p->order[i]->in[k];
                if (in && !pass)
                    f->first[in->id + 2]++;
                else if (in)
                    f->user[f->first[in->id + 1]++] = p->order[i]->id;
            }
        for (int i = 0; i < n && !pass; i++)
            f->first[i + 2] += f->first[i + 1];
        if (!pass)
            f->user = MX_NEW_N(a, int, f->first[n + 1] + 1);
    }
    for (int i = 0; i < p->graph->n_roots; i++)
        f->root[p->graph->root[i]->id] = true;
}

/* A part is seen by attention as rows of heads: its runs are the last two dims. */
static bool fits(const mx_type *t, int64_t run)
{
    return t->ndim >= 2 && t->dim[t->ndim - 1] * t->dim[t->ndim - 2] == run;
}
/* By a group, as rows of its last dim: its runs are whole last dims, any number of them. */
static bool fits_group(const mx_type *t, int64_t run)
{
    int64_t n = t->ndim ? t->dim[t->ndim - 1] : 0;
    for (int i = t->ndim - 2; i >= 0 && n < run; i--)
        n *= t->dim[i];
    return n == run;
}
static bool reads_part(const mx_node *u, int i, int64_t run)
{
    return u->op == &mx_op_fused ? fits_group(&u->in[i]->type, run)
                                 : u->op->parts_in >> i & 1 && fits(&u->in[i]->type, run);
}
/* A group leaves its results in rows, but for sums over columns. */
static bool writes_part(const mx_node *m, int out, const mx_type *t, int64_t run)
{
    if (m->op != &mx_op_fused)
        return m->op->parts_out >> out & 1 && fits(t, run);
    const mx_group *g = ((const mx_fused_attr *)m->attr)->group;
    int64_t all = 1;
    for (int i = 0; i < g->space.ndim; i++)
        all *= g->space.dim[i];
    return mx_type_count(t) == all &&
           !mx_group_step_sums_columns(&g->step[g->out[out] - g->n_ext]) && fits_group(t, run);
}

/* May the value x lie in runs? `joined`, a concat, may read it once. */
static bool all_take(const finder *f, const mx_node *x, int64_t run, const mx_node *joined,
                     int *times)
{
    if (f->root[x->id])
        return false;
    for (int e = f->first[x->id]; e < f->first[x->id + 1]; e++) {
        const mx_node *u = f->p->graph->node[f->user[e]];
        if (u->op->kind == MX_PROJECT)
            continue; /* another output of x */
        if (u->op->kind == MX_VIEW) {
            if (!all_take(f, u, run, joined, times))
                return false;
            continue;
        }
        if (u == joined) {
            if (++*times > 1)
                return false;
            continue;
        }
        for (int i = 0; i < u->n_in; i++)
            if (u->in[i] == x && !reads_part(u, i, run))
                return false;
    }
    return true;
}

/* Does an update in place go over x, or may one come from outside? */
static bool overwritten(const finder *f, const mx_node *x)
{
    if (x->op->kind == MX_SOURCE)
        return true;
    if (x->op->kind == MX_VIEW)
        return overwritten(f, x->in[0]);
    for (int e = f->first[x->id]; e < f->first[x->id + 1]; e++) {
        const mx_node *u = f->p->graph->node[f->user[e]];
        for (int k = 0; k < u->n_out; k++)
            if (u->op->alias[k] && u->in[u->op->alias[k] - 1] == x)
                return true;
    }
    return false;
}

static void try_split(finder *f, const mx_node *n)
{
    int none = 0;
    if (overwritten(f, n->in[0]) ||
        !all_take(f, n, n->type.dim[n->type.ndim - 1], NULL, &none))
        return;
    for (int e = f->first[n->id]; e < f->first[n->id + 1]; e++) {
        const mx_node *u = f->p->graph->node[f->user[e]];
        if (u->op->kind == MX_PROJECT &&
            !all_take(f, u, u->type.dim[u->type.ndim - 1], NULL, &none))
            return;
    }
    f->parts->copies_nothing[n->id] = true;
}

static const mx_node *behind_views(const mx_node *x)
{
    while (x->op->kind == MX_VIEW)
        x = x->in[0];
    return x;
}

/* Who makes x, which is no view: a node and one of its outputs. */
static const mx_node *maker(const mx_node *x, int *out)
{
    bool project = x->op->kind == MX_PROJECT;
    *out = project ? (int)*(const int64_t *)x->attr : 0;
    return project ? x->in[0] : x;
}

static bool can_join(const finder *f, const mx_node *c, int i)
{
    const mx_node *x = behind_views(c->in[i]);
    int out, times = 0;
    const mx_node *m = maker(x, &out);
    int64_t run = c->in[i]->type.dim[c->in[i]->type.ndim - 1];
    return writes_part(m, out, &x->type, run) && x->type.dtype == c->type.dtype &&
           !f->parts->inside[(size_t)m->id * MX_MAX_OUT + (size_t)out].of &&
           all_take(f, x, run, c, &times);
}

static void try_concat(finder *f, mx_node *c)
{
    int64_t at = 0, pitch = c->type.dim[c->type.ndim - 1];
    if (*(const int64_t *)c->attr != c->type.ndim - 1) /* its only attribute: the dim */
        return;
    for (int i = 0; i < c->n_in; i++)
        if (!can_join(f, c, i))
            return;
    f->parts->copies_nothing[c->id] = true;
    for (int i = 0; i < c->n_in; i++) {
        int out;
        const mx_node *m = maker(behind_views(c->in[i]), &out);
        int64_t run = c->in[i]->type.dim[c->in[i]->type.ndim - 1];
        f->parts->inside[(size_t)m->id * MX_MAX_OUT + (size_t)out] = (mx_part){c, at, run, pitch};
        at += run;
    }
}

static bool read_once(const finder *f, const mx_node *x)
{
    int n = 0;
    for (int e = f->first[x->id]; e < f->first[x->id + 1]; e++)
        n += f->p->graph->node[f->user[e]]->op->kind != MX_PROJECT; /* those are other outputs */
    return n == 1 && !f->root[x->id];
}
/* The free split whose output x is, perhaps as a view, with nobody else reading it; or NULL. */
static const mx_node *own_part(const finder *f, const mx_node *x, int64_t *run)
{
    for (; x->op->kind == MX_VIEW; x = x->in[0])
        if (!read_once(f, x))
            return NULL;
    int out;
    const mx_node *s = maker(x, &out);
    *run = x->type.ndim ? x->type.dim[x->type.ndim - 1] : 0;
    return s->op == &mx_op_split && read_once(f, x) && f->parts->copies_nothing[s->id] &&
                   read_once(f, s->in[0])
               ? s
               : NULL;
}
/* Every element of a row is read before one is written, by threads that have no other row. */
static void try_over(finder *f, mx_node *n)
{
    if (n->op != &mx_op_fused || f->parts->inside[(size_t)n->id * MX_MAX_OUT].of)
        return;
    for (int i = 0; i < n->n_in; i++) {
        int64_t run;
        int none = 0;
        const mx_type *t = &n->in[i]->type;
        if (t->dtype == n->type.dtype && mx_shape_equal(t, &n->type) &&
            own_part(f, n->in[i], &run) && writes_part(n, 0, &n->type, run) &&
            all_take(f, n, run, NULL, &none)) {
            f->parts->over[n->id] = n->in[i];
            return;
        }
    }
}

void mx_parts_find(mx_parts *parts, const mx_program *p, mx_arena *scratch)
{
    finder f = {.p = p, .parts = parts};
    find_users(&f, scratch);
    for (int i = 0; i < p->n; i++) {
        if (p->order[i]->op == &mx_op_split)
            try_split(&f, p->order[i]);
        else if (p->order[i]->op == &mx_op_concat)
            try_concat(&f, p->order[i]);
    }
    for (int i = 0; i < p->n; i++)
        try_over(&f, p->order[i]);
}
