/* norms.c - the norm of all gradients, or of all weights, on one device or on a mesh.
 *
 * On one device the squares of each tensor are summed in float64 and rounded to float32, and these
 * are added in the order of the variables. On a mesh every rank sums its part of each tensor in
 * float64; of the ranks that have the same part, one counts. One all_reduce of a number per tensor
 * gives the sums of whole tensors, which are rounded and added as on one device: clip, and with it
 * every weight, does not depend on the mesh.
 */
#include "compile/norms.h"

#include "ops.h"

mx_node *mx_squares(mx_graph *g, mx_node *x, const mx_partition *on)
{
    return on ? mx_sum_squares_wide(g, x) : mx_sum_squares(g, x);
}

mx_node *mx_vector_of(mx_graph *g, mx_node *const *x, int n, mx_dtype dtype)
{
    mx_node **part = MX_NEW_N(&g->arena, mx_node *, n);
    for (int i = 0; i < n; i++)
        part[i] = mx_reshape(g, mx_cast(g, x[i], dtype), MX_SHAPE(1));
    while (n > 1) {
        int joined = 0;
        for (int i = 0; i < n; i += MX_MAX_IN)
            part[joined++] = mx_concat(g, n - i < MX_MAX_IN ? n - i : MX_MAX_IN, &part[i], 0);
        n = joined;
    }
    return part[0];
}

/* 1 where this rank's part counts: it is the first of those that have the same. */
static mx_node *counted(mx_graph *g, const mx_node *const *of, int n, const mx_partition *on)
{
    double *one = MX_NEW_N(&g->arena, double, n);
    int everybody = mx_mesh_index(on->mesh, on->rank, mx_mesh_axes(on->mesh));
    for (int i = 0; i < n; i++)
        one[i] = of[i]->box ? of[i]->box->first : everybody == 0;
    return mx_table(g, MX_SHAPE(n), MX_F64, one);
}

mx_node *mx_norm_of(mx_graph *g, mx_node *const *squares, const mx_node *const *of, int n,
                    const mx_partition *on)
{
    mx_node *sum = mx_constant(g, MX_SCALAR, MX_F32, 0);
    /* On one device they are all made before the first is added: it can make many at once. */
    for (int i = 0; i < n && !on; i++)
        sum = mx_add(g, sum, squares[i]);
    if (on && n) {
        mx_axis_set axes = mx_mesh_axes(on->mesh);
        mx_collective_attr all = {.axes = axes, .size = mx_mesh_size(on->mesh, axes),
                                  .index = mx_mesh_index(on->mesh, on->rank, axes)};
        mx_node *mine = mx_mul(g, mx_vector_of(g, squares, n, MX_F64), counted(g, of, n, on));
        sum = mx_sum_in_order(g, mx_all_reduce(g, mine, all));
    }
    return mx_sqrt(g, sum);
}
