/* reshard.c - a value from one placement to another, by as little communication as there is.
 *
 *   1. partial sums: reduce_scatter where the target cuts a dim by the axis, else all_reduce
 *   2. vary, on what is still small
 *   3. an axis that moves from one dim to another: all_to_all
 *   4. dim by dim: all_gather what is cut and should not be, shard what should and is not
 *
 * The pieces of a dim are in the order of the mesh, so an axis is gathered together with those that
 * are inside it. A dim of several factors is seen as (outer, factor, inner) for the purpose.
 */
#include "compile/partition_impl.h"

#include "ops.h"

typedef struct {
    mx_partitioner *p;
    mx_node *x;
    const mx_type *whole;
    mx_placement at;
} move;

static const mx_mesh *mesh_of(const move *m)
{
    return m->p->how->mesh;
}

static mx_collective_attr group(const move *m, mx_axis_set axes, int dim)
{
    return (mx_collective_attr){.axes = axes, .size = mx_mesh_size(mesh_of(m), axes), .dim = dim,
                                .index = mx_mesh_index(mesh_of(m), m->p->how->rank, axes)};
}

/* Axes of `of` that lie inside (after) every axis outside of it that `beside` has. */
static bool innermost(mx_axis_set of, mx_axis_set beside)
{
    return !of || (beside & ~of) < (of & -of);
}

/* --- sequences in chunks of equal work --- */

static int context_ranks(const move *m)
{
    return mx_mesh_degree(mesh_of(m), MX_AXIS_CONTEXT);
}

/* Before dim d, whole as far as `context` goes, is cut by axes with that one among them; and after
 * it has been gathered. */
static void zigzag(move *m, int d, mx_axis_set axes, bool chunks, bool back)
{
    if (chunks && axes >> MX_AXIS_CONTEXT & 1)
        m->x = mx_zigzag(m->p->to, m->x, d, context_ranks(m), back);
}

/* --- partial sums --- */

/* Can a sum over `axes` be scattered along dim d on the way to `to`? */
static bool scatters(const move *m, int d, mx_axis_set axes, const mx_cut *to)
{
    mx_axis_set have = mx_cut_axes(&m->at.dim[d]);
    int64_t pieces = mx_mesh_size(mesh_of(m), axes);
    return axes && to->n == 1 && m->at.dim[d].n <= 1 && to->axes[0] == (have | axes) &&
           innermost(axes, to->axes[0]) && m->x->type.dim[d] % pieces == 0;
}

static void reduce(move *m, const mx_placement *to)
{
    mx_axis_set sum = m->at.partial & ~to->partial;
    for (int d = 0; d < m->whole->ndim; d++) {
        mx_axis_set axes = sum & mx_cut_axes(&to->dim[d]);
        if (!scatters(m, d, axes, &to->dim[d]))
            continue;
        zigzag(m, d, axes, to->dim[d].zigzag[0], false);
        m->x = mx_reduce_scatter(m->p->to, m->x, group(m, axes, d));
        m->at.dim[d] = to->dim[d];
        m->at.partial &= ~axes;
        sum &= ~axes;
    }
    if (sum)
        m->x = mx_all_reduce(m->p->to, m->x, group(m, sum, 0));
    m->at.partial &= ~sum;
}

/* --- from one dim to another --- */

static void exchange(move *m, const mx_placement *to)
{
    for (int i = 0; i < m->whole->ndim; i++)
        for (int j = 0; j < m->whole->ndim; j++) {
            const mx_cut *a = &m->at.dim[i], *b = &to->dim[j];
            mx_axis_set leaves = mx_cut_axes(a) & ~mx_cut_axes(&to->dim[i]);
            mx_axis_set comes = mx_cut_axes(b) & ~mx_cut_axes(&m->at.dim[j]);
            int64_t pieces = mx_mesh_size(mesh_of(m), leaves);
            if (i == j || !leaves || leaves != comes || a->n != 1 || b->n != 1 ||
                m->at.dim[j].n > 1 || (b->axes[0] & ~leaves) != mx_cut_axes(&m->at.dim[j]) ||
                !innermost(leaves, a->axes[0]) ||
                !innermost(leaves, b->axes[0]) || m->x->type.dim[j] % pieces)
                continue;
            mx_collective_attr g = group(m, leaves, i);
            g.to = j;
            zigzag(m, j, leaves, b->zigzag[0], false);
            m->x = mx_all_to_all(m->p->to, m->x, g);
            zigzag(m, i, leaves, a->zigzag[0], true);
            m->at.dim[i] = mx_cut_without(a, leaves);
            m->at.dim[j] = *b;
        }
}

/* --- dim by dim --- */

/* The value seen as (outer, n, inner) around factor f of dim d; n is the factor's local size. */
static mx_shape around(const move *m, int d, int f)
{
    const mx_cut *c = &m->at.dim[d];
    const mx_type *t = &m->x->type;
    mx_shape s = {3, {1, t->dim[d], 1}};
    for (int i = 0; i < t->ndim; i++)
        s.dim[i < d ? 0 : 2] *= i == d ? 1 : t->dim[i];
    for (int i = 0; i < c->n && c->n > 1; i++) {
        int64_t local = c->size[i] / mx_mesh_size(mesh_of(m), c->axes[i]);
        if (i != f) {
            s.dim[i < f ? 0 : 2] *= local;
            s.dim[1] /= local;
        }
    }
    return s;
}

typedef mx_node *(*collective)(mx_graph *g, mx_node *x, mx_collective_attr a);

/* Applies a collective along factor f of dim d; `chunks`: in the order of zigzag, which is made
 * before a shard and undone after a gather. */
static void along(move *m, int d, int f, mx_collective_attr g, collective op, bool chunks)
{
    bool gathers = op == mx_all_gather;
    bool views = m->at.dim[d].n > 1;
    mx_shape after = mx_shape_of(&m->x->type);
    int at = views ? 1 : d;
    if (views)
        m->x = mx_reshape(m->p->to, m->x, around(m, d, f));
    int64_t before = m->x->type.dim[at];
    g.dim = at;
    if (!gathers)
        zigzag(m, at, (mx_axis_set)g.axes, chunks, false);
    m->x = op(m->p->to, m->x, g);
    if (gathers)
        zigzag(m, at, (mx_axis_set)g.axes, chunks, true);
    after.dim[d] = after.dim[d] / before * m->x->type.dim[at];
    if (views)
        m->x = mx_reshape(m->p->to, m->x, after);
}

/* A dim whose pieces were rounded up, back to its size. */
static void trim(move *m, int d)
{
    if (!mx_cut_axes(&m->at.dim[d]) && m->x->type.dim[d] > m->whole->dim[d])
        m->x = mx_slice(m->p->to, m->x, d, 0, m->whole->dim[d]);
}

static void gather(move *m, int d, int f, mx_axis_set axes, mx_axis_set *vary)
{
    bool all = (axes & ~*vary) == 0, none = (axes & *vary) == 0;
    while (axes) {
        mx_axis_set now = axes;
        if (!all && !none) /* some of both: one at a time, from the inside */
            now = 1u << (31 - __builtin_clz(axes));
        mx_collective_attr g = group(m, now, d);
        g.varying = (now & *vary) != 0;
        along(m, d, f, g, mx_all_gather, m->at.dim[d].zigzag[f]);
        m->at.dim[d].axes[f] &= ~now;
        *vary &= ~now;
        axes &= ~now;
    }
}

static void shard(move *m, int d, int f, mx_axis_set axes, bool chunks)
{
    if (!axes)
        return;
    int64_t n = mx_mesh_size(mesh_of(m), axes), rest = m->x->type.dim[d] % n;
    if (rest && m->at.dim[d].n <= 1)
        m->x = mx_pad(m->p->to, m->x, d, 0, n - rest);
    along(m, d, f, group(m, axes, d), mx_shard, chunks);
    m->at.dim[d].axes[f] |= axes;
}

/* Axes of `of` that are not in the outermost part which `of` and `with` have in common. */
static mx_axis_set beyond(mx_axis_set of, mx_axis_set with)
{
    mx_axis_set differ = of ^ with;
    return differ ? of & ~((differ & -differ) - 1) : 0;
}

static bool same_factors(const mx_cut *a, const mx_cut *b)
{
    bool same = a->n == b->n;
    for (int i = 0; i < a->n && same; i++) /* an order that stays must be the same */
        same = a->size[i] == b->size[i] &&
               (a->zigzag[i] == b->zigzag[i] || !(a->axes[i] & b->axes[i] & 1u << MX_AXIS_CONTEXT));
    return same;
}

/* What is cut and should not be is gathered; what is left is cut by outer axes of the target. */
static void gather_dim(move *m, int d, const mx_cut *to, mx_axis_set *vary)
{
    mx_cut *at = &m->at.dim[d];
    bool same = same_factors(at, to);
    for (int f = at->n - 1; f >= 0; f--) {
        mx_axis_set keep = same ? to->axes[f] : 0;
        gather(m, d, f, beyond(at->axes[f], keep), vary);
    }
    *at = mx_cut_without(at, 0);
    trim(m, d);
}

static void shard_dim(move *m, int d, const mx_cut *to)
{
    mx_cut *at = &m->at.dim[d];
    if (!at->n) /* whole: it is a product of whatever factors the target has */
        for (int f = 0; f < to->n; f++)
            at->n = to->n, at->size[f] = to->size[f], at->axes[f] = 0;
    for (int f = 0; f < to->n; f++)
        shard(m, d, f, to->axes[f] & ~at->axes[f], to->zigzag[f]);
    *at = *to;
}

/* --- rows of experts --- */

static mx_node *plan_of(move *m, const mx_cut *c)
{
    mx_partitioner *p = m->p;
    for (mx_exchange_plan *q = p->plans; q; q = q->next)
        if (q->sorted_by == c->sorted_by && q->axes == c->exchanged)
            return q->plan;
    mx_node *starts = mx_output(p->to, p->value[c->sorted_by - 1].node, 1);
    mx_exchange_plan *q = MX_NEW(&p->to->arena, mx_exchange_plan);
    *q = (mx_exchange_plan){c->sorted_by, c->exchanged, NULL, p->plans};
    q->plan = mx_exchange_plan_rows(p->to, starts, group(m, c->exchanged, 0));
    p->plans = q;
    return q->plan;
}

/* To the ranks of the experts, in a buffer of c->rows. */
static void send_rows(move *m, const mx_cut *c)
{
    mx_collective_attr g = group(m, c->exchanged, 0);
    g.to = c->rows;
    m->x = mx_exchange_rows(m->p->to, m->x, plan_of(m, c), g);
    m->at.dim[0] = *c;
}

static void bring_back(move *m)
{
    mx_cut *c = &m->at.dim[0];
    mx_collective_attr g = group(m, c->exchanged, 0);
    mx_cut own = *c;
    own.exchanged = 0;
    mx_placement p = {{own}};
    g.to = mx_placement_local(mesh_of(m), m->whole, &p).dim[0];
    m->x = mx_return_rows(m->p->to, m->x, plan_of(m, c), g);
    *c = own;
}

mx_node *mx_reshard(mx_partitioner *p, mx_node *x, const mx_type *whole, const mx_placement *at,
                    const mx_placement *to, mx_axis_set vary)
{
    move m = {p, x, whole, *at};
    const mx_cut *rows = &to->dim[0];
    if (rows->exchanged && !rows->n) /* where each expert's rows begin in the buffer */
        return mx_output(p->to, plan_of(&m, rows), 1);
    if (m.at.dim[0].exchanged && !mx_cut_equal(&m.at.dim[0], rows))
        bring_back(&m);
    if (rows->exchanged && !m.at.dim[0].exchanged) {
        mx_placement before = *to;
        before.dim[0].exchanged = 0;
        m.x = mx_reshard(p, m.x, whole, &m.at, &before, vary);
        m.at = before;
        send_rows(&m, rows);
        return m.x;
    }
    reduce(&m, to);
    mx_axis_set cut = mx_placement_axes(&m.at);
    mx_axis_set plain = vary & ~cut & ~mx_placement_axes(to);
    if (plain)
        m.x = mx_vary(p->to, m.x, group(&m, plain, 0));
    vary &= ~plain;
    exchange(&m, to);
    /* First everything that is gathered: an axis may come back in another dim. */
    for (int d = 0; d < whole->ndim; d++)
        if (!mx_cut_equal(&m.at.dim[d], &to->dim[d]))
            gather_dim(&m, d, &to->dim[d], &vary);
    for (int d = 0; d < whole->ndim; d++)
        if (!mx_cut_equal(&m.at.dim[d], &to->dim[d]))
            shard_dim(&m, d, &to->dim[d]);
    return m.x;
}
