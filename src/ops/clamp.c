/* clamp.c - x limited to [low, high]; the gradient passes inside the interval. */
#include "ops/tile.h"

typedef struct {
    double low, high;
} clamp_attr;

#define CLAMP_LOOP(T, name)                                                                        \
    static MX_CLONES void name(const mx_tile *t)                                                   \
    {                                                                                              \
        const clamp_attr *at = t->attr;                                                            \
        const T *x = t->in[0];                                                                     \
        T *y = t->out, low = (T)at->low, high = (T)at->high;                                       \
        for (int64_t i = 0; i < t->n; i++)                                                         \
            y[i] = x[i] < low ? low : x[i] > high ? high : x[i];                                   \
    }
CLAMP_LOOP(float, clamp_f32)
CLAMP_LOOP(double, clamp_f64)

mx_node *mx_clamp(mx_graph *g, mx_node *x, double low, double high)
{
    return MX_APPLY(g, &mx_op_clamp, (&(clamp_attr){low, high}), x);
}

static void clamp_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    din[0] = mx_mul(g, dout[0], mx_equal(g, n, n->in[0]));
}

const mx_op mx_op_clamp = {
    .name = "clamp",
    .doc = "x limited to [low, high]",
    .dtypes = MX_NUMBERS,
    .kind = MX_ELEMENTWISE,
    .tile_f32 = clamp_f32,
    .tile_f64 = clamp_f64,
    .expr = "a < (real)$low ? (real)$low : a > (real)$high ? (real)$high : a",
    .attr_size = sizeof(clamp_attr),
    .fields = (const mx_attr_field[]){MX_FIELD(clamp_attr, MX_ATTR_F64, low),
                                      MX_FIELD(clamp_attr, MX_ATTR_F64, high), {0}},
    .grad = clamp_vjp,
    .cases = (const mx_case[]){{1, {{2, {3, 8}}}, &(clamp_attr){-0.5, 0.25}}, {0}},
};
