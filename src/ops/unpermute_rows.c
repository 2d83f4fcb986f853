/* unpermute_rows.c - the rows of each token's choices brought back and added up.
 *
 *     x (N k, d)   order (N k)   place (N k)   also (N k, d), optional
 *         ->  (N, d):   y[n] = sum over j of x[place[n k + j]] (+ also[place[n k + j]])
 * The opposite of permute_rows, and its gradient; permute_rows is the gradient of this. Sums run in
 * the order of j, in float32 (float64 for float64), and are rounded once. `also` is there because a
 * gated MLP's rows have two gradients, the gate's and the other: their sum, which is made first, is
 * never written.
 */
#include "base/simd.h"
#include "ir/partition.h"
#include "ops.h"
#include "ops/copy.h"
#include "ops/inputs.h"
#include "ops/load.h"

#include <string.h>

enum { MX_INPUTS_UNPERMUTE };

typedef struct {
    int64_t rows;
} unpermute_attr;

enum { TILE = 1024, LINE = 64 };

static void infer(mx_graph *g, mx_node *n)
{
    int64_t rows = ((const unpermute_attr *)n->attr)->rows, m = n->in[UNPERMUTE_X]->type.dim[0];
    if (rows < 1 || m % rows)
        mx_graph_fail(g, "unpermute_rows: %lld entries for %lld rows; expected a multiple",
                      (long long)m, (long long)rows);
    n->type.dim[0] = rows;
}

#define ADD(T, name)                                                                               \
    static MX_CLONES void name(T *restrict sum, const T *restrict x, const T *restrict also,       \
                               int64_t n)                                                          \
    {                                                                                              \
        if (also)                                                                                  \
            for (int64_t i = 0; i < n; i++)                                                        \
                sum[i] += x[i] + also[i];                                                          \
        else                                                                                       \
            for (int64_t i = 0; i < n; i++)                                                        \
                sum[i] += x[i];                                                                    \
    }
ADD(float, add_f32)
ADD(double, add_f64)

/* Rows lie anywhere, and each is too short for the hardware's prefetcher: the next one is
 * prefetched while this one is added. */
static void prefetch_row(const mx_tensor *x, int64_t element, int64_t n)
{
    size_t item = mx_dtype_bytes(x->type.dtype);
    const char *p = (const char *)x->data + (size_t)element * item;
    for (size_t i = 0; i < (size_t)n * item; i += LINE)
        __builtin_prefetch(p + i);
}

#define GATHER_ROW(T, suffix, native)                                                              \
    static const T *row_##suffix(const mx_tensor *x, int64_t at, int64_t n, T *tile)               \
    {                                                                                              \
        if (!x)                                                                                    \
            return NULL;                                                                           \
        if (x->type.dtype == native)                                                               \
            return (const T *)x->data + at;                                                        \
        mx_load_run_##suffix(x, at, n, tile);                                                      \
        return tile;                                                                               \
    }                                                                                              \
    static void gather_##suffix(const mx_call *call, int64_t k, int64_t r)                         \
    {                                                                                              \
        const mx_tensor *x = &call->in[UNPERMUTE_X], *y = &call->out[0];                           \
        bool two = call->n_in > UNPERMUTE_ALSO && call->in[UNPERMUTE_ALSO].data;                   \
        const mx_tensor *also = two ? &call->in[UNPERMUTE_ALSO] : NULL;                            \
        const int32_t *place = call->in[UNPERMUTE_PLACE].data;                                     \
        int64_t d = y->type.dim[1], m = x->type.dim[0];                                            \
        for (int64_t c = 0; c < d; c += TILE) {                                                    \
            int64_t n = d - c < TILE ? d - c : TILE;                                               \
            T sum[TILE], tile[2][TILE];                                                            \
            memset(sum, 0, sizeof *sum * (size_t)n);                                               \
            for (int64_t j = r * k; j < (r + 1) * k; j++) {                                        \
                if (place[j] < 0 || place[j] >= m)                                                 \
                    continue;                                                                      \
                int64_t at = place[j] * d + c, next = j + 1 < m ? place[j + 1] : -1;               \
                for (int i = 0; i < (also ? 2 : 1) && next >= 0 && next < m; i++)                  \
                    prefetch_row(i ? also : x, next * d + c, n);                                   \
                add_##suffix(sum, row_##suffix(x, at, n, tile[0]),                                 \
                             row_##suffix(also, at, n, tile[1]), n);                               \
            }                                                                                      \
            mx_store_run_##suffix(y, r * d + c, n, sum);                                           \
        }                                                                                          \
    }
GATHER_ROW(float, f32, MX_F32)
GATHER_ROW(double, f64, MX_F64)

static void unpermute_rows_cpu(const mx_call *c)
{
    const mx_tensor *x = &c->in[UNPERMUTE_X], *y = &c->out[0];
    int64_t rows = y->type.dim[0], k = x->type.dim[0] / rows;
#pragma omp parallel for schedule(static) if (mx_type_count(&x->type) > 1 << 14)
    for (int64_t r = 0; r < rows; r++)
        (x->type.dtype == MX_F64 ? gather_f64 : gather_f32)(c, k, r);
}

mx_node *mx_unpermute_rows(mx_graph *g, mx_node *x, mx_node *order, mx_node *place, int64_t rows)
{
    return MX_APPLY(g, &mx_op_unpermute_rows, &(unpermute_attr){rows}, x, order, place, NULL);
}

/* The same of x + also, which may be NULL. */
mx_node *mx_unpermute_sum(mx_graph *g, mx_node *const in[4], int64_t rows)
{
    return mx_apply(g, &mx_op_unpermute_rows, &(unpermute_attr){rows}, 4, in);
}

static void unpermute_rows_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    din[UNPERMUTE_X] = mx_permute_rows(g, dout[0], n->in[UNPERMUTE_ORDER], n->in[UNPERMUTE_PLACE]);
    if (n->in[UNPERMUTE_ALSO])
        din[UNPERMUTE_ALSO] = din[UNPERMUTE_X];
}

/* Back to where the tokens are that were sorted. */
static void place(const mx_node *n, mx_partition_call *p)
{
    mx_cut entries = p->have[UNPERMUTE_ORDER].dim[0], tokens = entries;
    if (tokens.n)
        tokens.size[tokens.n - 1] /= n->in[UNPERMUTE_ORDER]->type.dim[0] / n->type.dim[0];
    tokens.sorted_by = 0;
    mx_cut width = mx_cut_without(&p->have[UNPERMUTE_X].dim[1], mx_cut_axes(&entries));
    mx_axis_set sum = p->have[UNPERMUTE_X].partial & ~mx_cut_axes(&entries);
    p->in[UNPERMUTE_X] = p->in[UNPERMUTE_ALSO] =
        (mx_placement){{entries, width}, .partial = n->in[UNPERMUTE_ALSO] ? 0 : sum};
    p->in[UNPERMUTE_ORDER] = p->in[UNPERMUTE_PLACE] = (mx_placement){{entries}};
    p->out[0] = (mx_placement){{tokens, width}, .partial = n->in[UNPERMUTE_ALSO] ? 0 : sum};
}

static mx_node *local(mx_graph *g, const mx_node *n, mx_node *const *in, mx_partition_call *p)
{
    return mx_unpermute_sum(g, in, mx_placement_local(p->mesh, &n->type, &p->out[0]).dim[0]);
}

const mx_op mx_op_unpermute_rows = {
    .name = "unpermute_rows",
    .doc = "the rows of each token's choices added up",
    .dtypes = MX_REALS,
    .dtypes_at = {[UNPERMUTE_ORDER] = MX_INDICES, [UNPERMUTE_PLACE] = MX_INDICES},
    .dims = "!md,!m,!m,!md->!nd",
    .attr_size = sizeof(unpermute_attr),
    .fields = (const mx_attr_field[]){MX_FIELD(unpermute_attr, MX_ATTR_INT, rows), {0}},
    .no_cast = true,
    .place = place,
    .local = local,
    .infer = infer,
    .grad = unpermute_rows_vjp,
    .cost = mx_cost_move,
    .cpu = unpermute_rows_cpu,
    .cases = (const mx_case[]){{4, {{2, {1, 4}}, {1, {1}, MX_I32, 0, 1}, {1, {1}, MX_I32, 0, 1},
                                     {.absent = true}}, &(unpermute_attr){1}},
                               {4, {{2, {1, 4}}, {1, {1}, MX_I32, 0, 1}, {1, {1}, MX_I32, 0, 1},
                                     {2, {1, 4}}}, &(unpermute_attr){1}},
                               {4, {{2, {15, 16}, .no_grad = true}, {1, {15}, MX_I32, -1, 16},
                                    {1, {15}, MX_I32, -1, 16}, {.absent = true}},
                                &(unpermute_attr){5}},
                               {4, {{2, {10, 6}, .no_grad = true}, {1, {10}, MX_I32, -1, 11},
                                    {1, {10}, MX_I32, -1, 11}, {2, {10, 6}, .no_grad = true}},
                                &(unpermute_attr){5}}, {0}},
};
