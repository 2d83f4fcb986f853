/* rotate_half.c - the quarter turn of rotary embeddings, over the first `dims` of the last dim.
 *
 * x (*, d). Pairs are (x1, x2) = (x[i], x[i + dims/2]), or (x[2i], x[2i+1]) when interleaved; the
 * result holds (-x2, x1) and is 0 beyond `dims`. With tables of cosines and sines that are 1 and 0
 * beyond `dims`, rope(x) = x cos + rotate_half(x) sin. The gradient is the turn the other way.
 */
#include "ops/tile.h"

typedef struct {
    int64_t dims;
    bool interleaved;
} rotate_attr;

#define ROTATE(T, name)                                                                            \
    static MX_CLONES void name(const mx_tile *t)                                                   \
    {                                                                                              \
        const rotate_attr *at = t->attr;                                                           \
        const T *restrict x = t->in[0];                                                            \
        T *restrict y = t->out;                                                                    \
        const int64_t half = at->dims / 2;                                                         \
        if (at->interleaved)                                                                       \
            for (int64_t i = 0; i < half; i++) {                                                   \
                y[2 * i] = -x[2 * i + 1];                                                          \
                y[2 * i + 1] = x[2 * i];                                                           \
            }                                                                                      \
        else                                                                                       \
            for (int64_t i = 0; i < half; i++) {                                                   \
                y[i] = -x[i + half];                                                               \
                y[i + half] = x[i];                                                                \
            }                                                                                      \
        for (int64_t i = at->dims; i < t->n; i++)                                                  \
            y[i] = 0;                                                                              \
    }
ROTATE(float, rotate_f32)
ROTATE(double, rotate_f64)

static void check(mx_graph *g, mx_node *n)
{
    const rotate_attr *at = n->attr;
    if (at->dims < 0 || at->dims % 2 || at->dims > n->type.dim[n->type.ndim - 1])
        mx_graph_fail(g, "rotate_half: %lld rotary dims in a head of %lld; the number must be even "
                      "and fit", (long long)at->dims, (long long)n->type.dim[n->type.ndim - 1]);
}

mx_node *mx_rotate_half(mx_graph *g, mx_node *x, int64_t dims, bool interleaved)
{
    return MX_APPLY(g, &mx_op_rotate_half, (&(rotate_attr){dims, interleaved}), x);
}

static void rotate_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    const rotate_attr *at = n->attr;
    din[0] = mx_affine(g, mx_rotate_half(g, dout[0], at->dims, at->interleaved), -1, 0);
}

const mx_op mx_op_rotate_half = {
    .name = "rotate_half",
    .doc = "(x1, x2) -> (-x2, x1) over pairs of the last dim",
    .dtypes = MX_NUMBERS,
    .kind = MX_ROW_MAP,
    .tile_f32 = rotate_f32,
    .tile_f64 = rotate_f64,
    .expr = "i >= $dims ? 0.f"
            " : $interleaved ? (i % 2 ? x(i - 1) : -x(i + 1))"
            " : i < $dims / 2 ? -x(i + $dims / 2) : x(i - $dims / 2)",
    .attr_size = sizeof(rotate_attr),
    .fields = (const mx_attr_field[]){MX_FIELD(rotate_attr, MX_ATTR_INT, dims),
                                      MX_FIELD(rotate_attr, MX_ATTR_BOOL, interleaved), {0}},
    .infer = check,
    .grad = rotate_vjp,
    .cases = (const mx_case[]){{1, {{2, {3, 8}}}, &(rotate_attr){8, false}},
                               {1, {{2, {3, 10}}}, &(rotate_attr){6, true}}, {0}},
};
