/* update_shard.c - ZeRO-1: each data rank updates its shard of the weights that all have.
 *
 * Every data rank has a slice of the moments, along the first dim that divides. Its gradient
 * arrives by reduce_scatter instead of all_reduce, it updates its slice of the weight, and the
 * slices are gathered: the same traffic as before, and a share of the optimizer's memory. An update
 * of elements is what it was, so the bits are as well.
 */
#include "compile/update_shard.h"

#include "ops.h"

static const mx_axis_set DATA = 1u << MX_AXIS_DATA;

/* The weight's own placement with one dim cut by `data` too; false: no dim divides. */
static bool cut_by_data(const mx_partition *on, const mx_box *box, mx_placement *at)
{
    *at = box->at;
    if (!(mx_mesh_axes(on->mesh) & DATA) || mx_placement_axes(at) & DATA)
        return false;
    for (int pass = 0; pass < 2; pass++) /* a dim that is whole, else one that is cut already */
        for (int d = 0; d < box->whole.ndim; d++) {
            const mx_cut *was = &box->at.dim[d];
            mx_cut now = mx_cut_shared(on->mesh, was, box->whole.dim[d], DATA);
            if (!was->n == !pass && !mx_cut_equal(&now, was)) {
                at->dim[d] = now;
                return true;
            }
        }
    return false;
}

/* The gradient's slice: straight from the sum over data ranks, where that is what it is. */
static mx_node *slice_gradient(mx_graph *g, mx_node *d, const mx_partition *on, const mx_box *box,
                               const mx_placement *to)
{
    const mx_collective_attr *a = d->attr;
    mx_placement at = box->at;
    if (d->op == &mx_op_all_reduce && (mx_axis_set)a->axes == DATA) {
        at.partial = DATA;
        d = d->in[0];
    }
    return mx_partition_bring(g, on, d, &box->whole, &at, to);
}

mx_update_shard mx_update_shard_of(mx_graph *g, mx_node *weight, mx_node *gradient,
                                   const mx_partition *on)
{
    mx_placement at;
    mx_update_shard p = {.weight = weight, .w = weight, .d = gradient, .like = weight};
    if (!on || !on->optimizer_over_data || !weight->box || !mx_type_count(&weight->type))
        return p; /* of another stage's weight there is nothing to cut */
    if (!cut_by_data(on, weight->box, &at))
        return p;
    const mx_type *whole = &weight->box->whole;
    int rank; /* as in the partition pass: a stage has everything of its layers */
    mx_mesh inside = mx_mesh_without(on->mesh, MX_AXIS_STAGE, on->rank, &rank);
    mx_box box = mx_box_of(&inside, rank, whole, &at);
    box.first &= !weight->box->repeated;
    mx_node *like = mx_arena_copy(&g->arena, weight, sizeof *weight);
    p.w = mx_partition_bring(g, on, weight, whole, &weight->box->at, &at);
    p.d = slice_gradient(g, gradient, on, weight->box, &at);
    like->box = mx_arena_copy(&g->arena, &box, sizeof box);
    like->type = p.w->type;
    p.like = like;
    p.cut = true;
    return p;
}

void mx_update_shard_gather(mx_graph *g, const mx_update_shard *p, mx_node *made, mx_node *copy,
                            const mx_partition *on)
{
    const mx_box *from = p->like->box, *to = p->weight->box;
    mx_node *anew = mx_constant(g, MX_SCALAR, MX_F32, 1);
    made = mx_partition_bring(g, on, made, &to->whole, &from->at, &to->at);
    mx_graph_root(g, NULL, mx_accumulate(g, p->weight, made, anew));
    if (copy)
        mx_graph_root(g, NULL, mx_accumulate(g, copy, made, anew));
}
