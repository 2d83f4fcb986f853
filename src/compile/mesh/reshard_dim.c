/* reshard_dim.c - one dim of a value gathered or cut. See reshard.c.
 *
 * The pieces of a dim are in the order of the mesh, so an axis is gathered together with those that
 * are inside it. A dim of several factors is seen as (outer, factor, inner) for the purpose. */
#include "compile/mesh/partition_impl.h"

#include "ops.h"

static const mx_mesh *mesh_of(const mx_move *m)
{
    return m->p->how->mesh;
}

/* --- the order of pieces --- */

static mx_cut blocks_now(const mx_cut *c, int64_t size)
{
    int64_t sum = 0;
    mx_cut now = *c;
    for (int b = 0; b < c->n_blocks; b++)
        sum += c->block[b];
    for (int b = 0; b < c->n_blocks; b++)
        now.block[b] /= sum / size; /* what other axes have left of it */
    return now;
}

void mx_move_reorder(mx_move *m, int d, const mx_cut *c, mx_axis_set axes, bool back)
{
    bool context = axes >> MX_AXIS_CONTEXT & 1;
    for (int f = 0; f < c->n && context; f++)
        if (c->zigzag[f])
            m->x = mx_zigzag(m->p->to, m->x, d, mx_mesh_degree(mesh_of(m), MX_AXIS_CONTEXT), back);
    if (!c->n_blocks)
        return;
    mx_cut now = blocks_now(c, m->x->type.dim[d]);
    m->x = mx_interleave(m->p->to, m->x, d, mx_mesh_size(mesh_of(m), axes), &now, back);
}

/* Axes of `of` that lie inside (after) every other axis that `beside` has. */
static bool inside(mx_axis_set of, mx_axis_set beside)
{
    return !of || (beside & ~of) < (of & -of);
}

bool mx_move_innermost(const mx_move *m, const mx_cut *c, mx_axis_set axes)
{
    int last = c->n - 1;
    if (last < 0 || (axes & ~c->axes[last]) || !inside(axes, c->axes[last]))
        return false;
    bool one = true; /* of what is outside, a rank has one index only */
    for (int f = 0; f < last && !c->n_blocks; f++)
        one &= c->size[f] == mx_mesh_size(mesh_of(m), c->axes[f]);
    return one;
}

/* --- a collective along one factor --- */

/* The value seen as (outer, n, inner) around factor f of dim d; n is the factor's local size. */
static mx_shape around(const mx_move *m, int d, int f)
{
    const mx_cut *c = &m->at.dim[d];
    const mx_type *t = &m->x->type;
    mx_shape s = {3, {1, t->dim[d], 1}};
    for (int i = 0; i < t->ndim; i++)
        s.dim[i < d ? 0 : 2] *= i == d ? 1 : t->dim[i];
    for (int i = 0; i < c->n; i++) {
        int64_t local = c->size[i] / mx_mesh_size(mesh_of(m), c->axes[i]);
        if (i != f) {
            s.dim[i < f ? 0 : 2] *= local;
            s.dim[1] /= local;
        }
    }
    return s;
}

typedef mx_node *(*collective)(mx_graph *g, mx_node *x, mx_collective_attr a);

/* Applies a collective along factor f of dim d; c says in which order its pieces are. */
static void along(mx_move *m, int d, int f, const mx_cut *c, mx_collective_attr g, collective op)
{
    bool gathers = op == mx_all_gather, views = m->at.dim[d].n > 1 && !c->n_blocks;
    mx_shape after = mx_shape_of(&m->x->type);
    mx_cut order = *c;
    int at = views ? 1 : d;
    if (views) {
        m->x = mx_reshape(m->p->to, m->x, around(m, d, f));
        order = (mx_cut){1, {c->size[f]}, {c->axes[f]}, {c->zigzag[f]}};
    }
    int64_t before = m->x->type.dim[at];
    g.dim = at;
    if (!gathers)
        mx_move_reorder(m, at, &order, (mx_axis_set)g.axes, false);
    m->x = op(m->p->to, m->x, g);
    if (gathers)
        mx_move_reorder(m, at, &order, (mx_axis_set)g.axes, true);
    after.dim[d] = after.dim[d] / before * m->x->type.dim[at];
    if (views)
        m->x = mx_reshape(m->p->to, m->x, after);
}

static void gather_factor(mx_move *m, int d, int f, mx_axis_set axes, mx_axis_set *vary)
{
    bool all = (axes & ~*vary) == 0, none = (axes & *vary) == 0;
    while (axes) {
        mx_axis_set now = axes;
        if (!all && !none) /* some of both: one at a time, from the inside */
            now = 1u << (31 - __builtin_clz(axes));
        mx_collective_attr g = mx_move_group(m, now, d);
        g.varying = (now & *vary) != 0;
        mx_cut c = m->at.dim[d];
        along(m, d, f, &c, g, mx_all_gather);
        m->at.dim[d].axes[f] &= ~now;
        *vary &= ~now;
        axes &= ~now;
    }
}

static void shard_factor(mx_move *m, int d, int f, const mx_cut *to, mx_axis_set axes)
{
    if (!axes)
        return;
    int64_t n = mx_mesh_size(mesh_of(m), axes), rest = m->x->type.dim[d] % n;
    if (rest && to->n == 1 && !to->n_blocks)
        m->x = mx_pad(m->p->to, m->x, d, 0, n - rest);
    along(m, d, f, to, mx_move_group(m, axes, d), mx_shard);
    m->at.dim[d].axes[f] |= axes;
}

/* --- the whole dim --- */

static bool uneven(const mx_move *m, int d, const mx_cut *c)
{
    return !c->sorted_by && m->whole->dim[d] % mx_mesh_size(mesh_of(m), mx_cut_axes(c)) != 0;
}

/* Can `at` become `to` by cutting its pieces further? Pieces that were rounded up begin elsewhere
 * than those of a cut by fewer axes. */
static bool extends(const mx_move *m, int d, const mx_cut *to, const mx_cut *at)
{
    mx_axis_set more = mx_cut_axes(to) & ~mx_cut_axes(at);
    mx_cut outer = mx_cut_without(to, more);
    bool fits = !at->n || (mx_cut_equal(&outer, at) && !(more && uneven(m, d, to)));
    for (int f = 0; f < to->n && fits; f++)
        fits = inside(to->axes[f] & more, to->axes[f]);
    return fits;
}

/* Do the pieces of `at` together make those of `then`, which has some of its axes? Where they were
 * rounded up they may be more. */
static bool joins(const mx_move *m, int d, const mx_cut *at, const mx_cut *then)
{
    int64_t size = m->whole->dim[d], all = mx_mesh_size(mesh_of(m), mx_cut_axes(at));
    int64_t some = mx_mesh_size(mesh_of(m), mx_cut_axes(then));
    return some == 1 || !uneven(m, d, at) ||
           (size + all - 1) / all * (all / some) == (size + some - 1) / some;
}

/* A dim whose pieces were rounded up, back to its size. */
static void trim(mx_move *m, int d)
{
    if (!m->at.dim[d].n && m->x->type.dim[d] > m->whole->dim[d])
        m->x = mx_slice(m->p->to, m->x, d, 0, m->whole->dim[d]);
}

void mx_move_gather(mx_move *m, int d, const mx_cut *to, mx_axis_set *vary)
{
    mx_cut *at = &m->at.dim[d];
    if (at->sorted_by && !extends(m, d, to, at)) { /* each rank's are in an order of their own */
        mx_graph_fail(m->p->to, "partition: rows sorted by expert cannot be gathered");
        return;
    }
    while (!extends(m, d, to, at)) {
        int f = at->n - 1;
        mx_axis_set drop = 0;
        mx_cut then = *at;
        while (drop != at->axes[f] &&
               (!drop || !extends(m, d, to, &then) || !joins(m, d, at, &then))) {
            drop |= 1u << (31 - __builtin_clz(at->axes[f] & ~drop));
            then = mx_cut_without(at, drop);
        }
        gather_factor(m, d, f, drop, vary);
        *at = mx_cut_without(at, 0);
    }
    trim(m, d);
}

void mx_move_shard(mx_move *m, int d, const mx_cut *to)
{
    mx_axis_set have = mx_cut_axes(&m->at.dim[d]);
    mx_cut *at = &m->at.dim[d];
    *at = *to; /* the same, seen as the factors that the target has */
    for (int f = 0; f < to->n; f++)
        at->axes[f] &= have;
    for (int f = 0; f < to->n; f++)
        shard_factor(m, d, f, to, to->axes[f] & ~have);
    *at = *to;
}
