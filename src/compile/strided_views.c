/* strided_views.c - split and concat that copy nothing: values that lie inside others.
 *
 *     split    its outputs are columns of its input, read where they lie
 *     concat   its inputs are columns of its output, written there by the nodes that make them
 *
 * Both along the last dim, and only where every reader and writer concerned takes strides:
 * attention (strided_in and strided_out of its op), which then finds q, k and v in the one
 * projection that made them and leaves their gradients in one tensor, and fused groups, such as the
 * rotation of q and k in between. A group that alone reads a strided view leaves its result in its
 * place, or the whole tensor would be kept for the sake of the other views beside that result. For
 * devices with the trait strided_views.
 */
#include "compile/strided_views.h"

#include "compile/uses.h"
#include "ops.h"
#include "ops/group.h"

typedef struct {
    const mx_program *p;
    mx_strided_views *views;
    mx_uses uses;
} finder;

/* An op sees a strided view as rows of heads: its runs are the last two dims. */
static bool fits(const mx_type *t, int64_t run)
{
    return t->ndim >= 2 && t->dim[t->ndim - 1] * t->dim[t->ndim - 2] == run;
}
/* A group, as rows of its last dim: its runs are whole last dims, any number of them. */
static bool fits_group(const mx_type *t, int64_t run)
{
    int64_t n = t->ndim ? t->dim[t->ndim - 1] : 0;
    for (int i = t->ndim - 2; i >= 0 && n < run; i--)
        n *= t->dim[i];
    return n == run;
}
static bool reads_view(const mx_node *u, int i, int64_t run)
{
    return u->op == &mx_op_fused ? fits_group(&u->in[i]->type, run)
                                 : u->op->strided_in >> i & 1 && fits(&u->in[i]->type, run);
}
/* A group leaves its results in rows, but for sums over columns. */
static bool writes_view(const mx_node *m, int out, const mx_type *t, int64_t run)
{
    if (m->op != &mx_op_fused)
        return m->op->strided_out >> out & 1 && fits(t, run);
    const mx_group *g = ((const mx_fused_attr *)m->attr)->group;
    int64_t all = 1;
    for (int i = 0; i < g->space.ndim; i++)
        all *= g->space.dim[i];
    return mx_type_count(t) == all &&
           !mx_group_step_sums_columns(&g->step[g->out[out] - g->n_ext]) && fits_group(t, run);
}

/* May the value x lie in runs? `concat` may read it once. */
static bool all_take(const finder *f, const mx_node *x, int64_t run, const mx_node *concat,
                     int *times)
{
    const mx_use_list *l = mx_uses_of(&f->uses, x);
    if (l->n_roots)
        return false;
    for (int e = 0; e < l->n; e++) {
        const mx_node *u = l->use[e].by;
        if (u->op->kind == MX_PROJECT)
            continue; /* another output of x */
        if (u->op->kind == MX_VIEW) {
            if (!all_take(f, u, run, concat, times))
                return false;
            continue;
        }
        if (u == concat) {
            if (++*times > 1)
                return false;
            continue;
        }
        if (!reads_view(u, l->use[e].input, run))
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
    const mx_use_list *l = mx_uses_of(&f->uses, x);
    for (int e = 0; e < l->n; e++) {
        const mx_node *u = l->use[e].by;
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
    const mx_use_list *l = mx_uses_of(&f->uses, n);
    for (int e = 0; e < l->n; e++) {
        const mx_node *u = l->use[e].by;
        if (u->op->kind == MX_PROJECT &&
            !all_take(f, u, u->type.dim[u->type.ndim - 1], NULL, &none))
            return;
    }
    f->views->copies_nothing[n->id] = true;
}

static const mx_node *through_views(const mx_node *x)
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

static bool can_lie_in(const finder *f, const mx_node *c, int i)
{
    const mx_node *x = through_views(c->in[i]);
    int out, times = 0;
    const mx_node *m = maker(x, &out);
    int64_t run = c->in[i]->type.dim[c->in[i]->type.ndim - 1];
    return writes_view(m, out, &x->type, run) && x->type.dtype == c->type.dtype &&
           !f->views->inside[(size_t)m->id * MX_MAX_OUT + (size_t)out].of &&
           all_take(f, x, run, c, &times);
}

static void try_concat(finder *f, mx_node *c)
{
    int64_t at = 0, pitch = c->type.dim[c->type.ndim - 1];
    if (*(const int64_t *)c->attr != c->type.ndim - 1) /* its only attribute: the dim */
        return;
    for (int i = 0; i < c->n_in; i++)
        if (!can_lie_in(f, c, i))
            return;
    f->views->copies_nothing[c->id] = true;
    for (int i = 0; i < c->n_in; i++) {
        int out;
        const mx_node *m = maker(through_views(c->in[i]), &out);
        int64_t run = c->in[i]->type.dim[c->in[i]->type.ndim - 1];
        f->views->inside[(size_t)m->id * MX_MAX_OUT + (size_t)out] =
            (mx_strided_view){c, at, run, pitch};
        at += run;
    }
}

static bool read_once(const finder *f, const mx_node *x)
{
    const mx_use_list *l = mx_uses_of(&f->uses, x);
    int n = 0;
    for (int e = 0; e < l->n; e++)
        n += l->use[e].by->op->kind != MX_PROJECT; /* those are other outputs */
    return n == 1 && !l->n_roots;
}
/* The free split whose output x is, perhaps as a view, if nothing else reads it; or NULL. */
static const mx_node *own_view(const finder *f, const mx_node *x, int64_t *run)
{
    for (; x->op->kind == MX_VIEW; x = x->in[0])
        if (!read_once(f, x))
            return NULL;
    int out;
    const mx_node *s = maker(x, &out);
    *run = x->type.ndim ? x->type.dim[x->type.ndim - 1] : 0;
    return s->op == &mx_op_split && read_once(f, x) && f->views->copies_nothing[s->id] &&
                   read_once(f, s->in[0])
               ? s
               : NULL;
}
/* Every element of a row is read before one is written, by threads that have no other row. */
static void try_over(finder *f, mx_node *n)
{
    if (n->op != &mx_op_fused || f->views->inside[(size_t)n->id * MX_MAX_OUT].of)
        return;
    for (int i = 0; i < n->n_in; i++) {
        int64_t run;
        int none = 0;
        const mx_type *t = &n->in[i]->type;
        if (t->dtype == n->type.dtype && mx_shape_equal(t, &n->type) &&
            own_view(f, n->in[i], &run) && writes_view(n, 0, &n->type, run) &&
            all_take(f, n, run, NULL, &none)) {
            f->views->over[n->id] = n->in[i];
            return;
        }
    }
}

void mx_strided_views_find(mx_strided_views *views, const mx_program *p)
{
    finder f = {.p = p, .views = views};
    mx_uses_init(&f.uses, p->graph);
    for (int i = 0; i < p->n; i++) {
        if (p->order[i]->op == &mx_op_split)
            try_split(&f, p->order[i]);
        else if (p->order[i]->op == &mx_op_concat)
            try_concat(&f, p->order[i]);
    }
    for (int i = 0; i < p->n; i++)
        try_over(&f, p->order[i]);
    mx_uses_fini(&f.uses);
}
