/* broadcast_to.c - x repeated up to a larger shape. Elementwise, so it fuses; used where an op that
 * is not elementwise needs the full tensor. */
#include "ir/partition.h"
#include "ops/tile.h"

typedef struct {
    mx_shape shape;
} broadcast_attr;

MX_TILE1(broadcast_to, a)

static void check(mx_graph *g, mx_node *n)
{
    const broadcast_attr *at = n->attr;
    mx_type t = mx_type_of(n->type.dtype, at->shape);
    bool fits = t.ndim >= n->in[0]->type.ndim;
    for (int i = 0; fits && i < n->in[0]->type.ndim; i++) {
        int64_t have = n->in[0]->type.dim[i];
        fits = have == 1 || have == t.dim[t.ndim - n->in[0]->type.ndim + i];
    }
    if (!fits) {
        mx_str s = {0};
        mx_type_print(&s, &t);
        mx_graph_fail_inputs(g, n, "cannot be repeated to %s", mx_str_text(&s));
        mx_str_fini(&s);
    }
    n->type = t;
}

mx_node *mx_broadcast_to(mx_graph *g, mx_node *x, mx_shape shape)
{
    mx_type t = mx_type_of(x->type.dtype, shape);
    return mx_shape_equal(&t, &x->type)
               ? x
               : MX_APPLY(g, &mx_op_broadcast_to, &(broadcast_attr){shape}, x);
}

static void broadcast_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    din[0] = mx_sum_like(g, dout[0], n, n->in[0]);
}

/* A dim that is repeated is cut where the node's logical axes want it. */
static void place(const mx_node *n, mx_partition_call *p)
{
    const mx_type *x = &n->in[0]->type;
    int lead = n->type.ndim - x->ndim;
    p->in[0] = p->have[0];
    p->out[0] = (mx_placement){.partial = p->have[0].partial};
    for (int d = 0; d < n->type.ndim; d++) {
        bool same = d >= lead && x->dim[d - lead] == n->type.dim[d];
        if (same)
            p->out[0].dim[d] = p->in[0].dim[d - lead];
        else if (p->has_want)
            p->out[0].dim[d] = mx_cut_without(&p->want.dim[d], mx_placement_axes(&p->have[0]) |
                                                                   p->have[0].partial);
    }
}

static mx_node *local(mx_graph *g, const mx_node *n, mx_node *const *in, mx_partition_call *p)
{
    mx_type t = mx_placement_local(p->mesh, &n->type, &p->out[0]);
    return mx_broadcast_to(g, in[0], mx_shape_of(&t));
}

const mx_op mx_op_broadcast_to = {
    MX_ELEMENTWISE_FIELDS(broadcast_to),
    .doc = "x repeated up to a larger shape",
    .linear = true,
    .place = place,
    .local = local,
    .attr_size = sizeof(broadcast_attr),
    .fields = (const mx_attr_field[]){MX_FIELD(broadcast_attr, MX_ATTR_DIMS, shape), {0}},
    .infer = check,
    .grad = broadcast_vjp,
    .cases = (const mx_case[]){{1, {{2, {3, 1}}}, &(broadcast_attr){{3, {2, 3, 4}}}}, {0}},
};
