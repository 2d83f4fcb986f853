/* cumsum.c - running sums of the last dim: y[i] = x[0] + ... + x[i], or from the right when
 * reversed. The gradient is the running sum the other way. Integers are exact below 2^24. */
#include "ops/tile.h"

typedef struct {
    bool reverse;
} cumsum_attr;

#define CUMSUM(T, name)                                                                            \
    static void name(const mx_tile *t)                                                             \
    {                                                                                              \
        const T *x = t->in[0];                                                                     \
        T *y = t->out, sum = 0;                                                                    \
        bool reverse = ((const cumsum_attr *)t->attr)->reverse;                                    \
        for (int64_t i = 0; i < t->n; i++) {                                                       \
            int64_t at = reverse ? t->n - 1 - i : i;                                               \
            y[at] = sum += x[at];                                                                  \
        }                                                                                          \
    }
CUMSUM(float, cumsum_f32)
CUMSUM(double, cumsum_f64)

mx_node *mx_cumsum(mx_graph *g, mx_node *x, bool reverse)
{
    return MX_APPLY(g, &mx_op_cumsum, &(cumsum_attr){reverse}, x);
}

static void cumsum_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    din[0] = mx_cumsum(g, dout[0], !((const cumsum_attr *)n->attr)->reverse);
}

const mx_op mx_op_cumsum = {
    .name = "cumsum",
    .doc = "running sums of the last dim",
    .dtypes = MX_NUMBERS,
    .kind = MX_ROW_MAP,
    .tile_f32 = cumsum_f32,
    .tile_f64 = cumsum_f64,
    .expr = "running_sum(&x(0), i, LIMIT, $reverse)",
    .attr_size = sizeof(cumsum_attr),
    .fields = (const mx_attr_field[]){MX_FIELD(cumsum_attr, MX_ATTR_BOOL, reverse), {0}},
    .keep_f32 = true,
    .no_cast = true,
    .grad = cumsum_vjp,
    .cases = (const mx_case[]){{1, {{2, {4, 9}}}, &(cumsum_attr){false}},
                               {1, {{2, {4, 9}}}, &(cumsum_attr){true}},
                               {1, {{2, {2, 5}, MX_I32, 0, 9}}, &(cumsum_attr){false}}, {0}},
};
