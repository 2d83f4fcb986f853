/* row_sum.c - the sum of the last dim, which becomes 1.
 *
 * Sixteen running sums, added in pairs at the end: the order is fixed, so the result does not
 * depend on the machine's vector width, and the error grows with n/16 + 4.
 */
#include "ops/tile.h"

#define ROW_SUM(T, name)                                                                           \
    static MX_CLONES void name(const mx_tile *t)                                                   \
    {                                                                                              \
        const T *x = t->in[0];                                                                     \
        T lane[16] = {0};                                                                          \
        int64_t i = 0;                                                                             \
        for (; i + 16 <= t->n; i += 16)                                                            \
            for (int j = 0; j < 16; j++)                                                           \
                lane[j] += x[i + j];                                                               \
        for (int j = 0; i < t->n; i++, j++)                                                        \
            lane[j] += x[i];                                                                       \
        for (int w = 8; w; w /= 2)                                                                 \
            for (int j = 0; j < w; j++)                                                            \
                lane[j] += lane[j + w];                                                            \
        *(T *)t->out = lane[0];                                                                    \
    }
ROW_SUM(float, row_sum_f32)
ROW_SUM(double, row_sum_f64)

mx_node *mx_row_sum(mx_graph *g, mx_node *x)
{
    return MX_APPLY(g, &mx_op_row_sum, NULL, x);
}

/* (*, 1) stands for (*, d) in a gradient: see compile/autodiff.c. */
static void row_sum_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    (void)g, (void)n;
    din[0] = dout[0];
}

const mx_op mx_op_row_sum = {
    .name = "row_sum",
    .doc = "sum of the last dim",
    .dtypes = MX_NUMBERS,
    .linear = true,
    .kind = MX_ROW_REDUCE,
    .tile_f32 = row_sum_f32,
    .tile_f64 = row_sum_f64,
    .expr = "a + b",
    .keep_f32 = true,
    .no_cast = true,
    .grad = row_sum_vjp,
    .cases = (const mx_case[]){{1, {{2, {3, 37}}}}, {1, {{1, {5}}}}, {0}},
};

mx_node *mx_row_mean(mx_graph *g, mx_node *x)
{
    int64_t d = x->type.ndim ? x->type.dim[x->type.ndim - 1] : 1;
    return mx_affine(g, mx_row_sum(g, x), 1.0 / (double)d, 0);
}
