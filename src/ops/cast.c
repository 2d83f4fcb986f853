/* cast.c - the same values in another dtype.
 *
 * Conversion happens when a tile is loaded and stored, so the tile itself is a copy. Inside a fused
 * group arithmetic is float32 throughout: a cast there costs nothing and does not round.
 */
#include "ops/tile.h"

typedef struct {
    mx_dtype dtype;
} cast_attr;

MX_TILE1(cast, a)

static void set_dtype(mx_graph *g, mx_node *n)
{
    (void)g;
    n->type.dtype = ((const cast_attr *)n->attr)->dtype;
}

mx_node *mx_cast(mx_graph *g, mx_node *x, mx_dtype dtype)
{
    return x->type.dtype == dtype ? x : MX_APPLY(g, &mx_op_cast, &(cast_attr){dtype}, x);
}

/* A gradient in the dtype in which the input's is summed passes as it is: it may be wider than the
 * value it belongs to (a weight's float32 gradient under a bfloat16 copy), or narrower. */
static void cast_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    const mx_node *x = n->in[0];
    if (dout[0]->type.dtype == mx_node_grad_dtype(x))
        din[0] = dout[0];
    else if (mx_dtype_is_float(x->type.dtype))
        din[0] = mx_cast(g, dout[0], x->type.dtype);
}

const mx_op mx_op_cast = {
    MX_ELEMENTWISE_OF(cast, MX_ANY_DTYPE),
    .doc = "the same values in another dtype",
    .linear = true,
    .attr_size = sizeof(cast_attr),
    .fields = (const mx_attr_field[]){MX_FIELD(cast_attr, MX_ATTR_DTYPE, dtype), {0}},
    .infer = set_dtype,
    .no_cast = true,
    .same_value = true,
    .grad = cast_vjp,
    .cases = (const mx_case[]){{1, {{2, {3, 8}, MX_I32, 0, 100}}, &(cast_attr){MX_F32}}, {0}},
};
