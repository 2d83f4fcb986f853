/* unpermute_rows.c - the rows of each token's choices brought back and added up.
 *
 *     x (N k, d)   order (N k)   place (N k)  ->  (N, d):   y[n] = sum over j of x[place[n k + j]]
 * The opposite of permute_rows, and its gradient; permute_rows is the gradient of this. Sums run in
 * the order of j, in float32 (float64 for float64), and are rounded once.
 */
#include "base/simd.h"
#include "ops.h"
#include "ops/copy.h"
#include "ops/load.h"

typedef struct {
    int64_t rows;
} unpermute_attr;

enum { TILE = 256 };

static void infer(mx_graph *g, mx_node *n)
{
    int64_t rows = ((const unpermute_attr *)n->attr)->rows, m = n->in[0]->type.dim[0];
    if (rows < 1 || m % rows || n->in[1]->type.dtype != MX_I32 || n->in[2]->type.dtype != MX_I32)
        mx_graph_fail(g, "unpermute_rows: %lld entries for %lld rows; expected int32, a multiple",
                      (long long)m, (long long)rows);
    n->type.dim[0] = rows;
}

#define ADD(T, name)                                                                               \
    static MX_CLONES void name(T *restrict sum, const T *restrict x, int64_t n)                    \
    {                                                                                              \
        for (int64_t i = 0; i < n; i++)                                                            \
            sum[i] += x[i];                                                                        \
    }
ADD(float, add_f32)
ADD(double, add_f64)

#define GATHER_ROW(T, suffix)                                                                      \
    static void gather_##suffix(const mx_tensor *x, const int32_t *place, int64_t k,               \
                                const mx_tensor *y, int64_t r)                                     \
    {                                                                                              \
        int64_t d = y->type.dim[1], m = x->type.dim[0];                                            \
        for (int64_t c = 0; c < d; c += TILE) {                                                    \
            int64_t n = d - c < TILE ? d - c : TILE;                                               \
            T sum[TILE] = {0}, tile[TILE];                                                         \
            for (int64_t j = r * k; j < (r + 1) * k; j++)                                          \
                if (place[j] >= 0 && place[j] < m) {                                               \
                    mx_load_run_##suffix(x, place[j] * d + c, n, tile);                            \
                    add_##suffix(sum, tile, n);                                                    \
                }                                                                                  \
            mx_store_run_##suffix(y, r * d + c, n, sum);                                           \
        }                                                                                          \
    }
GATHER_ROW(float, f32)
GATHER_ROW(double, f64)

static void unpermute_rows_cpu(const mx_call *c)
{
    const mx_tensor *x = &c->in[0], *y = &c->out[0];
    int64_t rows = y->type.dim[0], k = x->type.dim[0] / rows;
#pragma omp parallel for schedule(static) if (mx_type_count(&x->type) > 1 << 14)
    for (int64_t r = 0; r < rows; r++)
        (x->type.dtype == MX_F64 ? gather_f64 : gather_f32)(x, c->in[2].data, k, y, r);
}

mx_node *mx_unpermute_rows(mx_graph *g, mx_node *x, mx_node *order, mx_node *place, int64_t rows)
{
    return MX_APPLY(g, &mx_op_unpermute_rows, &(unpermute_attr){rows}, x, order, place);
}

static void unpermute_rows_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    din[0] = mx_permute_rows(g, dout[0], n->in[1], n->in[2]);
}

const mx_op mx_op_unpermute_rows = {
    .name = "unpermute_rows",
    .doc = "the rows of each token's choices added up",
    .dims = "!md,!m,!m->!nd",
    .attr_size = sizeof(unpermute_attr),
    .fields = (const mx_attr_field[]){MX_FIELD(unpermute_attr, MX_ATTR_INT, rows), {0}},
    .no_cast = true,
    .infer = infer,
    .grad = unpermute_rows_vjp,
    .cost = mx_cost_move,
    .cpu = unpermute_rows_cpu,
    .cases = (const mx_case[]){{3, {{2, {1, 4}}, {1, {1}, MX_I32, 0, 1}, {1, {1}, MX_I32, 0, 1}},
                                &(unpermute_attr){1}},
                               {3, {{2, {15, 16}, .no_grad = true}, {1, {15}, MX_I32, -1, 16},
                                    {1, {15}, MX_I32, -1, 16}}, &(unpermute_attr){5}},
                               {3, {{2, {10, 6}, .no_grad = true}, {1, {10}, MX_I32, -1, 11},
                                    {1, {10}, MX_I32, -1, 11}}, &(unpermute_attr){5}}, {0}},
};
