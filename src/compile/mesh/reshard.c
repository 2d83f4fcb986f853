/* reshard.c - a value from one placement to another, by as little communication as there is.
 *
 *   1. rows that were exchanged with other experts' ranks come back, or go (reshard_rows.c)
 *   2. partial sums: reduce_scatter where the target cuts a dim by the axis, else all_reduce
 *   3. vary, on what is still small
 *   4. an axis that moves from one dim to another: all_to_all
 *   5. dim by dim: all_gather what is cut and should not be, shard what should and is not
 *      (reshard_dim.c)
 */
#include "compile/mesh/partition_impl.h"

#include "ops.h"

mx_collective_attr mx_move_group(const mx_move *m, mx_axis_set axes, int dim)
{
    const mx_mesh *mesh = m->p->how->mesh;
    return (mx_collective_attr){.axes = axes, .size = mx_mesh_size(mesh, axes), .dim = dim,
                                .index = mx_mesh_index(mesh, m->p->how->rank, axes)};
}

/* Does cutting what `at` left by `axes` once more, in equal pieces, give `to`? */
static bool cuts_further(const mx_move *m, const mx_cut *at, mx_axis_set axes, const mx_cut *to,
                         int64_t local)
{
    mx_cut outer = mx_cut_without(to, axes);
    return axes && mx_cut_equal(&outer, at) && mx_move_innermost(m, to, axes) &&
           local % mx_mesh_size(m->p->how->mesh, axes) == 0;
}

static void reduce(mx_move *m, const mx_placement *to)
{
    mx_axis_set sum = m->at.partial & ~to->partial;
    for (int d = 0; d < m->whole->ndim; d++) {
        mx_axis_set axes = sum & mx_cut_axes(&to->dim[d]);
        if (!cuts_further(m, &m->at.dim[d], axes, &to->dim[d], m->x->type.dim[d]))
            continue;
        mx_move_reorder(m, d, &to->dim[d], axes, false);
        m->x = mx_reduce_scatter(m->p->to, m->x, mx_move_group(m, axes, d));
        m->at.dim[d] = to->dim[d];
        m->at.partial &= ~axes;
        sum &= ~axes;
    }
    if (sum)
        m->x = mx_all_reduce(m->p->to, m->x, mx_move_group(m, sum, 0));
    m->at.partial &= ~sum;
}

/* The axes that leave dim i, where they come to dim j and one all_to_all does it; else none. */
static mx_axis_set moves_over(const mx_move *m, const mx_placement *to, int i, int j)
{
    const mx_cut *a = &m->at.dim[i], *b = &to->dim[j], *now = &m->at.dim[j];
    mx_axis_set leaves = mx_cut_axes(a) & ~mx_cut_axes(&to->dim[i]);
    mx_axis_set comes = mx_cut_axes(b) & ~mx_cut_axes(now);
    bool can = i != j && leaves && leaves == comes && !a->sorted_by && !b->sorted_by &&
               mx_move_innermost(m, a, leaves) &&
               cuts_further(m, now, leaves, b, m->x->type.dim[j]);
    return can ? leaves : 0;
}

static void exchange(mx_move *m, const mx_placement *to)
{
    for (int i = 0; i < m->whole->ndim; i++)
        for (int j = 0; j < m->whole->ndim; j++) {
            mx_axis_set axes = moves_over(m, to, i, j);
            if (!axes)
                continue;
            mx_cut was = m->at.dim[i];
            mx_collective_attr g = mx_move_group(m, axes, i);
            g.to = j;
            mx_move_reorder(m, j, &to->dim[j], axes, false);
            m->x = mx_all_to_all(m->p->to, m->x, g);
            mx_move_reorder(m, i, &was, axes, true);
            m->at.dim[i] = mx_cut_without(&was, axes);
            m->at.dim[j] = to->dim[j];
        }
}

mx_node *mx_reshard(mx_partitioner *p, mx_node *x, const mx_type *whole, const mx_placement *at,
                    const mx_placement *to, mx_axis_set vary)
{
    mx_move m = {p, x, whole, *at};
    const mx_cut *rows = &to->dim[0];
    if (rows->exchanged && !rows->n)
        return mx_move_row_starts(&m, rows);
    if (m.at.dim[0].exchanged && !mx_cut_equal(&m.at.dim[0], rows))
        mx_move_return_rows(&m);
    if (rows->exchanged && !m.at.dim[0].exchanged) {
        mx_placement before = *to;
        before.dim[0].exchanged = 0;
        m.x = mx_reshard(p, m.x, whole, &m.at, &before, vary);
        m.at = before;
        mx_move_send_rows(&m, rows);
        return m.x;
    }
    reduce(&m, to);
    mx_axis_set cut = mx_placement_axes(&m.at);
    mx_axis_set plain = vary & ~cut & ~mx_placement_axes(to);
    if (plain)
        m.x = mx_vary(p->to, m.x, mx_move_group(&m, plain, 0));
    vary &= ~plain;
    exchange(&m, to);
    /* First everything that is gathered: an axis may come back in another dim. */
    for (int d = 0; d < whole->ndim; d++)
        if (!mx_cut_equal(&m.at.dim[d], &to->dim[d]))
            mx_move_gather(&m, d, &to->dim[d], &vary);
    for (int d = 0; d < whole->ndim; d++)
        if (!mx_cut_equal(&m.at.dim[d], &to->dim[d]))
            mx_move_shard(&m, d, &to->dim[d]);
    return m.x;
}

mx_node *mx_partition_bring(mx_graph *g, const mx_partition *how, mx_node *x, const mx_type *whole,
                            const mx_placement *at, const mx_placement *to)
{
    mx_partitioner p = {.how = how, .to = g};
    return mx_reshard(&p, x, whole, at, to, 0);
}
