/* dequant_matmul.c - y = x w^T with a weight of 8 or 4 bits and scales of its rows: decoding.
 *
 *     x (*, k)   w (n, k) int8 or E4M3, or (n, k / 2) uint8 with two 4-bit codes a byte
 *     scale (n, k / group) float32                                  -> y (*, n)
 * (ops/cpu/dequant.h has the codes). Where the CPU multiplies bytes, x is multiplied with the
 * weight as it lies, or, in programs that serve, with panels of it (ops/panels.h). Elsewhere w is
 * widened to the dtype of x, with its scales, and the GEMM multiplies; where a row has one scale it
 * is applied to the sums, and the widened codes are exact. Either way the bits of a row of y do not
 * depend on how many rows there are. No gradient.
 */
#include "base/vmath.h"
#include "ops.h"
#include "ops/copy.h"
#include "ops/cpu/dequant.h"
#include "ops/cpu/dequant_panels.h"
#include "ops/cpu/gemm.h"
#include "ops/dequant_matmul.h"
#include "ops/gpu_work.h"
#include "ops/inputs.h"
#include "ops/load.h"
#include "ops/num.h"
#include <omp.h>
#include <string.h>

enum { MX_INPUTS_DEQUANT_MATMUL };

enum { COLUMNS = 512, ROWS = 64, LEAST_ROWS = 16, RUN = 256, AT_ONCE = 32, FEW = 8 };

typedef struct {
    const mx_call *c;
    mx_codes w;
    int64_t m;
    bool bf16; /* the GEMM's x and w; else float32 */
} job;

static mx_codes_kind kind_of(mx_dtype d)
{
    return d == MX_I8 ? MX_CODES_INT8 : d == MX_U8 ? MX_CODES_INT4 : MX_CODES_FP8;
}

static job job_of(const mx_call *c)
{
    const mx_type *x = &c->in[DEQUANT_X].type, *s = &c->in[DEQUANT_SCALE].type;
    int64_t k = x->dim[x->ndim - 1];
    return (job){.c = c,
                 .m = mx_dims_before(x, x->ndim - 1),
                 .bf16 = x->dtype == MX_BF16,
                 .w = {.kind = kind_of(c->in[DEQUANT_CODES].type.dtype),
                       .codes = c->in[DEQUANT_CODES].data,
                       .scale = c->in[DEQUANT_SCALE].data,
                       .n = s->dim[0],
                       .k = k,
                       .group = k / s->dim[1]}};
}

/* Rows of w that a thread takes at once: so few that every thread gets as many. */
static int64_t rows_at_once(int64_t n)
{
    int64_t each = n / omp_get_max_threads() / 2 / LEAST_ROWS * LEAST_ROWS;
    return each < LEAST_ROWS ? LEAST_ROWS : each < ROWS ? each : ROWS;
}

/* Rows [from, from + n) of w times x, some rows of it at a time. */
static void some_rows(const job *j, const char *prepared, int64_t from, int64_t n)
{
    float y[MX_DEQUANT_MAX_M * ROWS];
    int64_t each = (int64_t)mx_dequant_prepared_bytes(1, j->w.k);
    for (int64_t at = 0; at < j->m; at += MX_DEQUANT_MAX_M) {
        int64_t m = j->m - at < MX_DEQUANT_MAX_M ? j->m - at : MX_DEQUANT_MAX_M;
        mx_dequant_rows r = {m, prepared + at * each, y, ROWS};
        mx_dequant_gemv(&j->w, &r, from, from + n);
        for (int64_t i = 0; i < m; i++)
            mx_store_run_f32(&j->c->out[0], (at + i) * j->w.n + from, n, y + i * ROWS);
    }
}

/* One panel of w times all rows of x. */
static void one_panel(const job *j, const char *prepared, int64_t panel)
{
    float y[MX_CODE_ROWS * MX_CODE_COLS];
    for (int64_t t = 0; t < mx_code_tiles(j->m); t++) {
        mx_code_multiply(&j->w, prepared, j->m, t, panel, y);
        for (int64_t i = mx_code_tile_row(j->m, t), k = 0; i < mx_code_tile_row(j->m, t + 1); i++)
            mx_store_run_f32(&j->c->out[0], i * j->w.n + panel * MX_CODE_COLS, MX_CODE_COLS,
                             y + k++ * MX_CODE_COLS);
    }
}

/* Weights in panels. The bits of y are the same in whatever tiles its rows go. */
static void by_panels(const job *j)
{
    const mx_codes *w = &j->w;
    char *prepared = j->c->work;
    float *x = (float *)(prepared + j->m * mx_code_row_bytes(w->k));
#pragma omp parallel if (w->n * w->k > 1 << 15)
    {
#pragma omp for schedule(static)
        for (int64_t i = 0; i < j->m; i++) {
            mx_load_run_f32(&j->c->in[DEQUANT_X], i * w->k, w->k, x + i * w->k);
            mx_code_prepare(w, x + i * w->k, i, j->m, prepared);
        }
#pragma omp for schedule(static)
        for (int64_t i = 0; i < w->n / MX_CODE_COLS; i++)
            one_panel(j, prepared, i);
    }
}

static void by_codes(const job *j)
{
    const mx_codes *w = &j->w;
    int64_t step = rows_at_once(w->n), each = (int64_t)mx_dequant_prepared_bytes(1, w->k);
    char *prepared = j->c->work;
    float *x = (float *)(prepared + j->m * each);
#pragma omp parallel if (w->n * w->k > 1 << 15)
    {
#pragma omp for schedule(static)
        for (int64_t i = 0; i < j->m; i++) {
            mx_load_run_f32(&j->c->in[DEQUANT_X], i * w->k, w->k, x + i * w->k);
            mx_dequant_prepare(w, x + i * w->k, 1, prepared + i * each);
        }
#pragma omp for schedule(static)
        for (int64_t from = 0; from < w->n; from += step)
            some_rows(j, prepared, from, w->n - from < step ? w->n - from : step);
    }
}

MX_CLONES static void narrow(const float *x, int64_t n, uint16_t *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = mx_bf16_of_float(x[i]);
}

/* A row of w as the GEMM takes it; one of bfloat16 takes the room of its floats. */
static void widen(const job *j, int64_t r, bool scaled, float *row)
{
    int64_t k = j->w.k;
    mx_dequant_row(&j->w, r, scaled, row);
    for (int64_t i = 0; i < k && j->bf16; i += RUN) {
        uint16_t run[RUN];
        int64_t some = k - i < RUN ? k - i : RUN;
        narrow(row + i, some, run);
        memcpy((uint16_t *)row + i, run, sizeof *run * (size_t)some);
    }
}

/* x as the GEMM takes it. */
static const void *rows_of(const job *j, float *room)
{
    const mx_tensor *x = &j->c->in[DEQUANT_X];
    if (j->bf16 || x->type.dtype == MX_F32)
        return x->data;
    mx_load_run_f32(x, 0, j->m * j->w.k, room);
    return room;
}

/* Columns [from, from + n) of y, from widened rows of w. One path: the bits of a sum do not depend
 * on how many are made at once. */
static void multiply(const job *j, const void *x, const float *wide, int64_t from, int64_t n,
                     float *y)
{
    int threads = j->m > FEW ? 0 : 1;
    mx_num num = j->bf16 ? MX_NUM_BF16 : MX_NUM_F32;
    bool scaled = j->w.group != j->w.k;
    mx_gemm(&(mx_gemm_args){.m = j->m, .n = n, .k = j->w.k, .alpha = 1, .a = x, .b = wide, .c = y,
                            .lda = j->w.k, .ldb = j->bf16 ? 2 * j->w.k : j->w.k, .ldc = n,
                            .trans_b = true, .a_type = num, .b_type = num, .c_type = MX_NUM_F32,
                            .one_path = true, .threads = threads});
#pragma omp parallel for schedule(static) if (threads != 1 && j->m * n > 1 << 15)
    for (int64_t i = 0; i < j->m; i++) {
        for (int64_t k = 0; k < n && !scaled; k++)
            y[i * n + k] *= j->w.scale[from + k];
        mx_store_run_f32(&j->c->out[0], i * j->w.n + from, n, y + i * n);
    }
}

/* A few rows of x: each thread widens some rows of w, which are in its cache when they are
 * multiplied. */
static void few_rows_widened(const job *j)
{
    const mx_codes *w = &j->w;
    float *room = j->c->work, *panels = room + j->m * w->k;
    const void *x = rows_of(j, room);
#pragma omp parallel for schedule(static) if (w->n * w->k > 1 << 15)
    for (int64_t from = 0; from < w->n; from += AT_ONCE) {
        float y[FEW * AT_ONCE], *wide = panels + omp_get_thread_num() * AT_ONCE * w->k;
        int64_t n = w->n - from < AT_ONCE ? w->n - from : AT_ONCE;
        for (int64_t r = 0; r < n; r++)
            widen(j, from + r, w->group != w->k, wide + r * w->k);
        multiply(j, x, wide, from, n, y);
    }
}

/* Columns [from, from + n) of y, for many rows of x. */
static void some_columns(const job *j, int64_t from, int64_t n)
{
    float *part = j->c->work, *room = part + j->m * COLUMNS, *wide = room + j->m * j->w.k;
#pragma omp parallel for schedule(static) if (n * j->w.k > 1 << 15)
    for (int64_t r = 0; r < n; r++)
        widen(j, from + r, j->w.group != j->w.k, wide + r * j->w.k);
    multiply(j, rows_of(j, room), wide, from, n, part);
}

static void dequant_cpu(const mx_call *c)
{
    job j = job_of(c);
    if (((const mx_dequant_attr *)c->attr)->panels)
        by_panels(&j);
    /* 16 bits of x are enough for whole numbers of 8; bfloat16 is not enough for float32 */
    else if ((j.bf16 || j.w.kind != MX_CODES_FP8) && mx_dequant_can_prepare(&j.w))
        by_codes(&j);
    else if (j.m <= FEW)
        few_rows_widened(&j);
    else
        for (int64_t from = 0; from < j.w.n; from += COLUMNS)
            some_columns(&j, from, j.w.n - from < COLUMNS ? j.w.n - from : COLUMNS);
}

static size_t work_bytes(const mx_node *n, int n_threads)
{
    const mx_type *x = &n->in[DEQUANT_X]->type;
    int64_t k = x->dim[x->ndim - 1], m = mx_dims_before(x, x->ndim - 1);
    size_t rows = mx_dequant_prepared_bytes(m, k), panels = (size_t)(m * mx_code_row_bytes(k));
    size_t prepared = (rows > panels ? rows : panels) + sizeof(float) * (size_t)(m * k);
    size_t widened = sizeof(float) * (size_t)(m * k + n_threads * AT_ONCE * k);
    if (m > FEW)
        widened = sizeof(float) * (size_t)(m * COLUMNS + COLUMNS * k + m * k);
    return prepared > widened ? prepared : widened;
}

static size_t gpu_work_bytes(const mx_node *n, size_t most)
{
    (void)most;
    const mx_type *x = &n->in[DEQUANT_X]->type;
    return mx_gpu_dequant_bytes(n->in[DEQUANT_SCALE]->type.dim[0], x->dim[x->ndim - 1]);
}

static void infer(mx_graph *g, mx_node *n)
{
    const mx_type *x = &n->in[DEQUANT_X]->type, *w = &n->in[DEQUANT_CODES]->type,
                  *s = &n->in[DEQUANT_SCALE]->type;
    int64_t k = x->ndim ? x->dim[x->ndim - 1] : 0, a_byte = w->dtype == MX_U8 ? 2 : 1;
    if (w->ndim != 2 || x->ndim < 1 || k != a_byte * w->dim[1] || s->ndim != 2 ||
        s->dim[0] != w->dim[0] || s->dim[1] < 1 || k % s->dim[1] ||
        (a_byte == 2 && k / s->dim[1] % 2))
        mx_graph_fail_inputs(g, n, "expected (*, k), (n, k) or of bytes (n, k / 2), and (n, a "
                             "divisor of k)");
    n->type = *x;
    if (x->ndim && w->ndim)
        n->type.dim[x->ndim - 1] = w->dim[0];
    if (((const mx_dequant_attr *)n->attr)->wide)
        n->type.dtype = MX_F32;
}

static mx_cost cost(const mx_node *n)
{
    return (mx_cost){.flops = 2.0 * (double)mx_type_count(&n->in[DEQUANT_X]->type) *
                              (double)n->in[DEQUANT_CODES]->type.dim[0],
                     .bytes = (double)mx_type_bytes(&n->in[DEQUANT_CODES]->type) +
                              (double)mx_type_bytes(&n->in[DEQUANT_SCALE]->type)};
}

mx_node *mx_dequant_matmul(mx_graph *g, mx_node *x, mx_node *w, mx_node *scale, bool wide)
{
    return MX_APPLY(g, &mx_op_dequant_matmul, &(mx_dequant_attr){.wide = wide}, x, w, scale);
}

#define W8(n, k) {2, {n, k}, MX_I8, -127, 128}
#define W4(n, k) {2, {n, (k) / 2}, MX_U8, 0, 256}
#define F8(n, k) {2, {n, k}, MX_F8_E4M3, -3, 3, .no_grad = true, .fixed = true}
#define S(n, groups) {2, {n, groups}, .lo = 0.001, .hi = 0.01, .no_grad = true, .fixed = true}
#define X(...) {__VA_ARGS__, .no_grad = true}
const mx_op mx_op_dequant_matmul = {
    .name = "dequant_matmul",
    .doc = "matmul with a weight of 8 or 4 bits and scales",
    .dtypes = MX_REALS,
    .dtypes_at = {[DEQUANT_CODES] = 1u << MX_I8 | 1u << MX_U8 | 1u << MX_F8_E4M3,
                  [DEQUANT_SCALE] = MX_F32_ONLY},
    .attr_size = sizeof(mx_dequant_attr),
    .fields = (const mx_attr_field[]){MX_QUIET_FIELD(mx_dequant_attr, MX_ATTR_BOOL, wide),
                                      MX_QUIET_FIELD(mx_dequant_attr, MX_ATTR_BOOL, panels), {0}},
    .no_cast = true,
    .infer = infer,
    .cost = cost,
    .cpu = dequant_cpu,
    .work_bytes = work_bytes,
    .gpu_work_bytes = gpu_work_bytes,
    .cases = (const mx_case[]){{3, {X(3, {2, 3, 130}), W8(20, 130), S(20, 1)}},
                               {3, {X(2, {1, 64}), W8(7, 64), S(7, 1)}},
                               {3, {X(2, {5, 256}), W8(9, 256), S(9, 2)}},
                               {3, {X(2, {33, 96}), W8(600, 96), S(600, 1)}},
                               {3, {X(2, {1, 320}), W4(13, 320), S(13, 10)}},
                               {3, {X(2, {6, 192}), W4(66, 192), S(66, 3)}},
                               {3, {X(2, {2, 256}), W4(5, 256), S(5, 2)}},
                               {3, {X(2, {2, 72}), W4(5, 72), S(5, 3)}},
                               {3, {X(2, {20, 64}), W4(40, 64), S(40, 2)}},
                               {3, {X(2, {1, 200}), F8(11, 200), S(11, 1)}},
                               {3, {X(2, {7, 256}), F8(70, 256), S(70, 2)}},
                               {3, {X(2, {17, 48}), F8(30, 48), S(30, 1)}},
                               {3, {X(2, {3, 4352}), W8(24, 4352), S(24, 1)}},
                               {3, {X(2, {1, 4352}), F8(20, 4352), S(20, 1)}},
                               {3, {X(2, {9, 4352}), W4(40, 4352), S(40, 34)}}, {0}},
};
