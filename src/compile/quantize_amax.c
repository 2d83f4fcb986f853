/* quantize_amax.c - see quantize_amax.h. */
#include "compile/quantize_amax.h"

#include "compile/norms.h"
#include "ops.h"
#include "ops/collective.h"

void mx_pass_quantize_amax(mx_graph *g, const mx_partition *on)
{
    mx_axis_set axes = on ? mx_mesh_axes(on->mesh) & ~(1u << MX_AXIS_STAGE) : 0;
    mx_node **record = MX_NEW_N(&g->arena, mx_node *, g->n_nodes);
    mx_node **amax = MX_NEW_N(&g->arena, mx_node *, g->n_nodes);
    int n = 0;
    for (int i = 0; axes && i < g->n_nodes; i++)
        if (g->node[i]->op == &mx_op_amax_record && !g->node[i]->forward) {
            record[n] = g->node[i];
            amax[n++] = g->node[i]->in[1];
        }
    if (!n)
        return;
    mx_collective_attr most = {.axes = axes, .to = MX_REDUCE_MAX,
                               .size = mx_mesh_size(on->mesh, axes),
                               .index = mx_mesh_index(on->mesh, on->rank, axes)};
    mx_node *all = mx_all_reduce(g, mx_vector_of(g, amax, n, MX_F32), most);
    for (int i = 0; i < n; i++) {
        mx_node *of_all = mx_reshape(g, mx_slice(g, all, 0, i, 1), MX_SCALAR), *r = record[i];
        mx_node_forward(r, mx_amax_record(g, r->in[0], of_all, r->in[2]));
    }
    mx_graph_resolve(g);
}
