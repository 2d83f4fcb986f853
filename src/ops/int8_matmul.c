/* int8_matmul.c - y = x w^T with a weight of int8 and a scale for each of its rows: decoding.
 *
 *     x (*, k)   w (n, k) int8   scale (n, 1) float32  ->  y (*, n):   y_n = scale_n (x . w_n)
 * A few rows of x read the weight once, at memory speed, half the bytes of bfloat16: it is widened
 * in registers. Many rows go through the GEMM, some columns at a time: int8 is exact in bfloat16.
 * Bits of a row do not depend on the others. No gradient.
 */
#include "ops.h"
#include "ops/copy.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/lanes.h"
#include "ops/load.h"
#include "ops/num.h"

enum { FEW = MX_GEMV_MAX_M, SUMS = 4, AT_ONCE = 4, COLUMNS = 512 };

typedef int8_t codes_any __attribute__((vector_size(LANES), aligned(1), may_alias));

/* sums[i] = x_i . w for m rows of x; m is a constant where this is inlined. */
MX_INLINE void dots(const float *x, int64_t ldx, const int8_t *w, int64_t k, const int m,
                    float *sums)
{
    lanes acc[AT_ONCE][SUMS];
    int64_t i = 0;
    for (int r = 0; r < m; r++)
        for (int u = 0; u < SUMS; u++)
            acc[r][u] = (lanes){0};
    for (; i + SUMS * LANES <= k; i += SUMS * LANES) {
#pragma GCC unroll 4
        for (int u = 0; u < SUMS; u++) {
            lanes v = __builtin_convertvector(*(const codes_any *)(w + i + u * LANES), lanes);
#pragma GCC unroll 4
            for (int r = 0; r < m; r++)
                acc[r][u] += *(const lanes_any *)(x + r * ldx + i + u * LANES) * v;
        }
    }
    for (int r = 0; r < m; r++) {
        float four[4];
        lanes all[4] = {(acc[r][0] + acc[r][1]) + (acc[r][2] + acc[r][3])};
        all[1] = all[2] = all[3] = all[0];
        fold4(four, all);
        sums[r] = four[0];
        for (int64_t t = i; t < k; t++)
            sums[r] += x[r * ldx + t] * (float)w[t];
    }
}

MX_CLONES static void dots_of_four(const float *x, int64_t ldx, const int8_t *w, int64_t k,
                                   float *sums)
{
    dots(x, ldx, w, k, AT_ONCE, sums);
}

MX_CLONES static void dots_of_one(const float *x, int64_t ldx, const int8_t *w, int64_t k,
                                  float *sums)
{
    dots(x, ldx, w, k, 1, sums);
}

static void few_rows(const mx_call *c, int64_t m, int64_t n, int64_t k, float *x)
{
    const int8_t *w = c->in[1].data;
    const float *scale = c->in[2].data;
    mx_load_run_f32(&c->in[0], 0, m * k, x);
#pragma omp parallel for schedule(static) if (n * k > 1 << 15)
    for (int64_t j = 0; j < n; j++) {
        float sums[FEW];
        int64_t i = 0;
        for (; i + AT_ONCE <= m; i += AT_ONCE)
            dots_of_four(x + i * k, k, w + j * k, k, sums + i);
        for (; i < m; i++)
            dots_of_one(x + i * k, k, w + j * k, k, sums + i);
        for (i = 0; i < m; i++) {
            float y = sums[i] * scale[j];
            mx_store_run_f32(&c->out[0], i * n + j, 1, &y);
        }
    }
}

/* Columns [from, from + cols) of y. */
static void some_columns(const mx_call *c, int64_t m, int64_t k, int64_t from, int64_t cols)
{
    const int8_t *w = (const int8_t *)c->in[1].data + from * k;
    const float *scale = (const float *)c->in[2].data + from;
    float *part = c->work;
    uint16_t *wide = (uint16_t *)(part + m * COLUMNS);
    int64_t n = c->out[0].type.dim[c->out[0].type.ndim - 1];
#pragma omp parallel for schedule(static) if (cols * k > 1 << 15)
    for (int64_t i = 0; i < cols * k; i++)
        wide[i] = mx_bf16_of_float((float)w[i]);
    mx_gemm(&(mx_gemm_args){.m = m, .n = cols, .k = k, .alpha = 1, .a = c->in[0].data, .b = wide,
                            .c = part, .lda = k, .ldb = k, .ldc = cols, .trans_b = true,
                            .a_type = mx_num_of(c->in[0].type.dtype), .b_type = MX_NUM_BF16,
                            .c_type = MX_NUM_F32});
#pragma omp parallel for schedule(static) if (m * cols > 1 << 15)
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < cols; j++)
            part[i * cols + j] *= scale[j];
        mx_store_run_f32(&c->out[0], i * n + from, cols, part + i * cols);
    }
}

static void int8_cpu(const mx_call *c)
{
    const mx_type *x = &c->in[0].type;
    int64_t k = x->dim[x->ndim - 1], m = mx_dims_before(x, x->ndim - 1), n = c->in[1].type.dim[0];
    if (m <= FEW || x->dtype == MX_F64) {
        for (int64_t i = 0; i < m; i += FEW) {
            mx_call some = *c;
            mx_tensor in[3] = {c->in[0], c->in[1], c->in[2]}, out = c->out[0];
            in[0].data = (char *)in[0].data + (size_t)(i * k) * mx_dtype_bytes(x->dtype);
            out.data = (char *)out.data + (size_t)(i * n) * mx_dtype_bytes(out.type.dtype);
            some.in = in;
            some.out = &out;
            few_rows(&some, m - i < FEW ? m - i : FEW, n, k, c->work);
        }
        return;
    }
    for (int64_t j = 0; j < n; j += COLUMNS)
        some_columns(c, m, k, j, n - j < COLUMNS ? n - j : COLUMNS);
}

static size_t work_bytes(const mx_node *n, int n_threads)
{
    (void)n_threads;
    const mx_type *x = &n->in[0]->type;
    int64_t k = x->dim[x->ndim - 1], m = mx_dims_before(x, x->ndim - 1);
    size_t few = sizeof(float) * (size_t)(FEW * k);
    size_t many = sizeof(float) * (size_t)(m * COLUMNS) + sizeof(uint16_t) * (size_t)(COLUMNS * k);
    return few > many ? few : many;
}

static void infer(mx_graph *g, mx_node *n)
{
    const mx_type *x = &n->in[0]->type, *w = &n->in[1]->type, *s = &n->in[2]->type;
    if (w->ndim != 2 || x->ndim < 1 || x->dim[x->ndim - 1] != w->dim[1] || s->ndim != 2 ||
        s->dim[0] != w->dim[0] || s->dim[1] != 1)
        mx_graph_fail_inputs(g, n, "expected (*, k), (n, k) and (n, 1)");
    n->type = *x;
    if (x->ndim && w->ndim)
        n->type.dim[x->ndim - 1] = w->dim[0];
}

static mx_cost cost(const mx_node *n)
{
    return (mx_cost){.flops = 2.0 * (double)mx_type_count(&n->in[0]->type) *
                              (double)n->in[1]->type.dim[0],
                     .bytes = (double)mx_type_bytes(&n->in[1]->type)};
}

mx_node *mx_int8_matmul(mx_graph *g, mx_node *x, mx_node *w, mx_node *scale)
{
    return MX_APPLY(g, &mx_op_int8_matmul, NULL, x, w, scale);
}

#define W(n, k) {2, {n, k}, MX_I8, -127, 128}
#define S(n) {2, {n, 1}, .lo = 0.001, .hi = 0.01, .no_grad = true, .fixed = true}
#define X(...) {__VA_ARGS__, .no_grad = true}
const mx_op mx_op_int8_matmul = {
    .name = "int8_matmul",
    .doc = "matmul with a weight of int8 and a scale a row",
    .dtypes = MX_REALS,
    .dtypes_at = {[1] = 1u << MX_I8, [2] = MX_F32_ONLY},
    .no_cast = true,
    .infer = infer,
    .cost = cost,
    .cpu = int8_cpu,
    .work_bytes = work_bytes,
    .cases = (const mx_case[]){{3, {X(3, {2, 3, 130}), W(20, 130), S(20)}},
                               {3, {X(2, {1, 64}), W(7, 64), S(7)}},
                               {3, {X(2, {33, 96}), W(600, 96), S(600)}}, {0}},
};
