/* reshape.c - the same elements in the same order under another shape. Costs nothing. */
#include "ops.h"

typedef struct {
    mx_shape shape;
} reshape_attr;

static void check(mx_graph *g, mx_node *n)
{
    const reshape_attr *at = n->attr;
    mx_type t = mx_type_of(n->type.dtype, at->shape);
    if (mx_type_count(&t) != mx_type_count(&n->in[0]->type)) {
        mx_str s = {0};
        mx_type_print(&s, &n->in[0]->type);
        mx_str_add(&s, " to ");
        mx_type_print(&s, &t);
        mx_graph_fail(g, "reshape changes the number of elements: %s", mx_str_text(&s));
        mx_str_fini(&s);
    }
    n->type = t;
}

mx_node *mx_reshape(mx_graph *g, mx_node *x, mx_shape shape)
{
    return MX_APPLY(g, &mx_op_reshape, &(reshape_attr){shape}, x);
}

static void reshape_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    din[0] = mx_reshape(g, dout[0], mx_shape_of(&n->in[0]->type));
}

const mx_op mx_op_reshape = {
    .name = "reshape",
    .doc = "the same elements under another shape",
    .dtypes = MX_ANY_DTYPE,
    .kind = MX_VIEW,
    .attr_size = sizeof(reshape_attr),
    .fields = (const mx_attr_field[]){MX_FIELD(reshape_attr, MX_ATTR_DIMS, shape), {0}},
    .infer = check,
    .grad = reshape_vjp,
    .cases = (const mx_case[]){{1, {{2, {4, 6}}}, &(reshape_attr){{3, {2, 3, 4}}}}, {0}},
};
