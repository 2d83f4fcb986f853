/* row_max.c - the largest value of the last dim, which becomes 1. NaN anywhere gives NaN.
 *
 * It has no gradient: it is used to shift a softmax, whose value does not depend on the shift. */
#include "ops/tile.h"

#define ROW_MAX(T, name)                                                                           \
    static MX_CLONES void name(const mx_tile *t)                                                   \
    {                                                                                              \
        const T *x = t->in[0];                                                                     \
        T lane[16], top = x[0];                                                                    \
        int64_t i = 0;                                                                             \
        for (int j = 0; j < 16; j++)                                                               \
            lane[j] = x[0];                                                                        \
        for (; i + 16 <= t->n; i += 16)                                                            \
            for (int j = 0; j < 16; j++)                                                           \
                lane[j] = x[i + j] > lane[j] || x[i + j] != x[i + j] ? x[i + j] : lane[j];         \
        for (; i < t->n; i++)                                                                      \
            top = x[i] > top || x[i] != x[i] ? x[i] : top;                                         \
        for (int j = 0; j < 16; j++)                                                               \
            top = lane[j] > top || lane[j] != lane[j] ? lane[j] : top;                             \
        *(T *)t->out = top;                                                                        \
    }
ROW_MAX(float, row_max_f32)
ROW_MAX(double, row_max_f64)

mx_node *mx_row_max(mx_graph *g, mx_node *x)
{
    return MX_APPLY(g, &mx_op_row_max, NULL, x);
}

const mx_op mx_op_row_max = {
    .name = "row_max",
    .doc = "largest value of the last dim",
    .dtypes = MX_NUMBERS,
    .kind = MX_ROW_REDUCE,
    .tile_f32 = row_max_f32,
    .tile_f64 = row_max_f64,
    .expr = "a > b ? a : b",
    .identity = -INFINITY,
    .keep_f32 = true,
    .no_cast = true,
    .cases = (const mx_case[]){{1, {{2, {3, 37}, .no_grad = true}}}, {0}},
};

/* e^(x - max) / sum, over the last dim. The shift is a constant for the gradient. */
mx_node *mx_softmax(mx_graph *g, mx_node *x)
{
    mx_node *e = mx_exp(g, mx_sub(g, x, mx_row_max(g, x)));
    return mx_div(g, e, mx_row_sum(g, e));
}
