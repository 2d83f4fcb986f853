/* affine.c - y = scale x + shift, with constants. */
#include "ops/affine.h"
#include "ops/tile.h"

/* Written out rather than as a tile expression because it reads attributes. */
static MX_CLONES void affine_f32(const mx_tile *t)
{
    const mx_affine_attr *at = t->attr;
    const float *x = t->in[0];
    float *y = t->out, scale = (float)at->scale, shift = (float)at->shift;
    for (int64_t i = 0; i < t->n; i++)
        y[i] = scale * x[i] + shift;
}

static MX_CLONES void affine_f64(const mx_tile *t)
{
    const mx_affine_attr *at = t->attr;
    const double *x = t->in[0];
    double *y = t->out;
    for (int64_t i = 0; i < t->n; i++)
        y[i] = at->scale * x[i] + at->shift;
}

mx_node *mx_affine(mx_graph *g, mx_node *x, double scale, double shift)
{
    return MX_APPLY(g, &mx_op_affine, (&(mx_affine_attr){scale, shift}), x);
}

static void affine_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    const mx_affine_attr *at = n->attr;
    din[0] = at->scale == 1 ? dout[0] : mx_affine(g, dout[0], at->scale, 0);
}

static bool is_linear(const mx_node *n)
{
    return ((const mx_affine_attr *)n->attr)->shift == 0;
}

const mx_op mx_op_affine = {
    .name = "affine",
    .doc = "scale x + shift, constants",
    .dtypes = MX_NUMBERS,
    .kind = MX_ELEMENTWISE,
    .is_linear = is_linear,
    .tile_f32 = affine_f32,
    .tile_f64 = affine_f64,
    .expr = "(real)$scale * a + (real)$shift",
    .attr_size = sizeof(mx_affine_attr),
    .fields = (const mx_attr_field[]){MX_FIELD(mx_affine_attr, MX_ATTR_F64, scale),
                                      MX_FIELD(mx_affine_attr, MX_ATTR_F64, shift), {0}},
    .grad = affine_vjp,
    .cases = (const mx_case[]){{1, {{2, {3, 8}}}, &(mx_affine_attr){-1.5, 0.25}}, {0}},
};
