/* quantize.c - a tensor as 8-bit numbers and scales (quantize.h).
 *
 *     x (*, d)   f: a factor () float32, optional
 *     -> q (*, d) 8 bits    scale (grid rows, grid cols) float32    amax () float32
 *        q^T (d, rows), where it is asked for: a matrix unit sums over the last dim alone, and the
 *        backward pass sums over the other one
 * For each block: f = most / amax(block), q = x f, scale = 1 / f; f as it is given where it is and
 * is not 0. float8 is rounded to nearest even and saturates; int8 is rounded to nearest even, or
 * stochastically: floor(x f + u) with u uniform in [0, 1). The random bits are a function of the
 * salt, the block's factor and the element: fresh in every step, since factors follow the data, and
 * the same when a value is computed again or a run is resumed.
 *
 * A block of zeros has the factor 1. One with a number that is not finite has the factor NaN. With
 * a given factor such a number becomes NaN by itself (float8), and amax says what was seen.
 *
 * The gradient passes straight through to x.
 */
#include "ops.h"
#include "base/fp8.h"
#include "base/rng.h"
#include "base/simd.h"
#include "ops/gpu_work.h"
#include "ops/inputs.h"
#include "ops/load.h"
#include "ops/quantize.h"

#include <math.h>
#include <string.h>

enum { MX_INPUTS_QUANTIZE };

float mx_quant_most(mx_dtype d)
{
    return d == MX_F8_E4M3 ? MX_E4M3_MAX : d == MX_F8_E5M2 ? MX_E5M2_MAX : 127.f;
}

float mx_quant_factor(float amax, mx_dtype d, bool power_of_two)
{
    if (amax == 0)
        return 1;
    if (!isfinite(amax))
        return NAN;
    float f = mx_quant_most(d) / amax;
    f = f < 0x1p126f ? f : 0x1p126f; /* so that 1 / f is a normal number */
    return power_of_two ? mx_float_of_bits(mx_bits_of_float(f) & 0x7f800000) : f;
}

typedef struct {
    int64_t matrices, rows, cols, block_rows, block_cols, grid_rows, grid_cols;
} layout;

static layout layout_of(const mx_quantize_attr *a, const mx_type *x)
{
    layout l = {.matrices = 1, .cols = x->ndim ? x->dim[x->ndim - 1] : 1, .rows = 1};
    for (int i = 0; i < x->ndim - 1; i++)
        *(a->stacked && i == 0 ? &l.matrices : &l.rows) *= x->dim[i];
    l.block_rows = a->block_rows ? a->block_rows : l.rows ? l.rows : 1;
    l.block_cols = a->block_cols ? a->block_cols : l.cols ? l.cols : 1;
    l.grid_rows = (l.rows + l.block_rows - 1) / l.block_rows;
    l.grid_cols = (l.cols + l.block_cols - 1) / l.block_cols;
    return l;
}

static void infer(mx_graph *g, mx_node *n)
{
    const mx_quantize_attr *a = n->attr;
    layout l = layout_of(a, &n->in[QUANTIZE_X]->type);
    if (a->dtype != MX_F8_E4M3 && a->dtype != MX_F8_E5M2 && a->dtype != MX_I8)
        mx_graph_fail_inputs(g, n, "quantizing to %s, expected float8_e4m3fn, float8_e5m2 or int8",
                             mx_dtype_name(a->dtype));
    if (a->stochastic && a->dtype != MX_I8)
        mx_graph_fail_inputs(g, n, "only int8 has stochastic rounding");
    if (!mx_dtype_is_computed(n->in[QUANTIZE_X]->type.dtype))
        mx_graph_fail_inputs(g, n, "expected float32, bfloat16 or float64");
    n->type = n->in[QUANTIZE_X]->type;
    n->type.dtype = a->dtype;
    n->more[0] = a->stacked
                     ? mx_type_of(MX_F32, MX_SHAPE(l.matrices, l.grid_rows, l.grid_cols))
                     : mx_type_of(MX_F32, MX_SHAPE(l.grid_rows, l.grid_cols));
    n->more[1] = mx_type_of(MX_F32, MX_SCALAR);
    n->more[2] = mx_type_of(a->dtype, !a->both    ? MX_SHAPE(0)
                                      : a->stacked ? MX_SHAPE(l.matrices, l.cols, l.rows)
                                                   : MX_SHAPE(l.cols, l.rows));
}

enum { RUN = 1024 };

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The largest bits of a magnitude: NaN is above infinity, infinity above every number. */
static MX_CLONES uint32_t most_bits(const float *x, int64_t n, uint32_t most)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t u = mx_bits_of_float(x[i]) & 0x7fffffff;
        most = u > most ? u : most;
    }
    return most;
}

/* The same of each column. */
static MX_CLONES void most_bits_of_columns(const float *x, int64_t n, uint32_t *most)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t u = mx_bits_of_float(x[i]) & 0x7fffffff;
        most[i] = u > most[i] ? u : most[i];
    }
}

/* Columns [from, to) of one row, from a first column of a block on: into the blocks' entries. */
static void most_of_row(const layout *l, const mx_tensor *x, int64_t row, int64_t from, int64_t to,
                        uint32_t *most)
{
    float buf[RUN];
    for (int64_t i = from, end; i < to; i = end) {
        int64_t b = i / l->block_cols;
        end = l->block_cols == 1 ? to : least(to, (b + 1) * l->block_cols);
        end = least(end, i + RUN);
        mx_load_run_f32(x, row * l->cols + i, end - i, buf);
        if (l->block_cols == 1)
            most_bits_of_columns(buf, end - i, most + b);
        else
            most[b] = most_bits(buf, end - i, most[b]);
    }
}

/* The largest magnitude of each block, as bits. A thread has rows of blocks and some columns of
 * them; a matrix that is one block is cut by its rows, into partial results in `work`. */
static void find_most(const layout *l, const mx_tensor *x, uint32_t *most, uint32_t *work)
{
    int64_t strips = l->matrices * l->rows, tall = l->matrices * l->grid_rows;
    bool large = strips * l->cols > 1 << 15;
    if (l->grid_rows == 1 && l->grid_cols == 1) {
#pragma omp parallel for schedule(static) if (large)
        for (int64_t r = 0; r < strips; r++) {
            work[r] = 0;
            most_of_row(l, x, r, 0, l->cols, &work[r]);
        }
        for (int64_t r = 0; r < strips; r++)
            most[r / l->rows] = work[r] > most[r / l->rows] ? work[r] : most[r / l->rows];
        return;
    }
    int64_t width = l->block_cols < RUN ? RUN / l->block_cols * l->block_cols : l->block_cols;
    int64_t chunks = (l->cols + width - 1) / width;
#pragma omp parallel for collapse(2) schedule(static) if (large)
    for (int64_t t = 0; t < tall; t++)
        for (int64_t c = 0; c < chunks; c++) {
            int64_t first = t / l->grid_rows * l->rows + t % l->grid_rows * l->block_rows;
            int64_t end = least(first + l->block_rows, (t / l->grid_rows + 1) * l->rows);
            for (int64_t r = first; r < end; r++)
                most_of_row(l, x, r, c * width, least((c + 1) * width, l->cols),
                            most + t * l->grid_cols);
        }
}

static MX_CLONES void to_e4m3(const float *x, int64_t n, const float *f, uint8_t *q)
{
    for (int64_t i = 0; i < n; i++) {
        float v = x[i] * f[i];
        q[i] = fabsf(v) == INFINITY ? 0x7f : mx_e4m3_of_float(v);
    }
}

static MX_CLONES void to_e5m2(const float *x, int64_t n, const float *f, uint8_t *q)
{
    for (int64_t i = 0; i < n; i++) {
        float v = x[i] * f[i], most = MX_E5M2_MAX;
        v = v > most && v < INFINITY ? most : v < -most && v > -INFINITY ? -most : v;
        q[i] = fabsf(v) == INFINITY ? 0x7f : mx_e5m2_of_float(v);
    }
}

static MX_CLONES void to_int8(const float *x, int64_t n, const float *f, int8_t *q)
{
    for (int64_t i = 0; i < n; i++) {
        float v = rintf(x[i] * f[i]);
        v = v > 127 ? 127 : v < -127 ? -127 : v;
        q[i] = v == v ? (int8_t)v : 0;
    }
}

/* Two elements share 64 random bits. */
static void to_int8_stochastic(const float *x, int64_t n, const float *f, uint64_t salt, int64_t at,
                              int8_t *q)
{
    for (int64_t i = 0; i < n; i++) {
        uint64_t key = salt ^ (uint64_t)mx_bits_of_float(f[i]) << 32, k = (uint64_t)(at + i);
        uint64_t bits = mx_hash64(key, k / 2) >> 32 * (k % 2);
        float v = x[i] * f[i];
        v = floorf(v + mx_uniform_f32((uint32_t)bits));
        v = v > 127 ? 127 : v < -127 ? -127 : v;
        q[i] = v == v ? (int8_t)v : 0;
    }
}

static void quantize_row(const mx_quantize_attr *a, const layout *l, const mx_call *c, int64_t row,
                         const float *factor)
{
    float x[RUN], f[RUN];
    for (int64_t i = 0; i < l->cols; i += RUN) {
        int64_t n = least(l->cols - i, RUN), at = row * l->cols + i;
        uint8_t *q = (uint8_t *)c->out[0].data + at;
        for (int64_t k = 0; k < n; k++)
            f[k] = factor[(i + k) / l->block_cols];
        mx_load_run_f32(&c->in[QUANTIZE_X], at, n, x);
        if (a->dtype == MX_F8_E4M3)
            to_e4m3(x, n, f, q);
        else if (a->dtype == MX_F8_E5M2)
            to_e5m2(x, n, f, q);
        else if (a->stochastic)
            to_int8_stochastic(x, n, f, (uint64_t)a->salt, at, (int8_t *)q);
        else
            to_int8(x, n, f, (int8_t *)q);
    }
}

/* y (cols, rows) = x (rows, cols)^T, by squares that fit the cache. */
static void transpose(const uint8_t *x, int64_t rows, int64_t cols, uint8_t *y)
{
    enum { SIDE = 64 };
#pragma omp parallel for schedule(static) if (rows * cols > 1 << 15)
    for (int64_t c0 = 0; c0 < cols; c0 += SIDE)
        for (int64_t r0 = 0; r0 < rows; r0 += SIDE)
            for (int64_t c = c0; c < least(c0 + SIDE, cols); c++)
                for (int64_t r = r0; r < least(r0 + SIDE, rows); r++)
                    y[c * rows + r] = x[r * cols + c];
}

static void quantize_cpu(const mx_call *c)
{
    const mx_quantize_attr *a = c->attr;
    layout l = layout_of(a, &c->in[QUANTIZE_X].type);
    float given = c->n_in > 1 ? *(const float *)c->in[QUANTIZE_FACTOR].data : 0;
    int64_t n_blocks = l.matrices * l.grid_rows * l.grid_cols;
    float *scale = c->out[1].data, *factor = c->work;
    uint32_t *most = (uint32_t *)(factor + n_blocks), all = 0;
    memset(most, 0, sizeof *most * (size_t)n_blocks);
    find_most(&l, &c->in[QUANTIZE_X], most, most + n_blocks);
    for (int64_t i = 0; i < n_blocks; i++) {
        all = most[i] > all ? most[i] : all;
        factor[i] = given != 0 ? given
                               : mx_quant_factor(mx_float_of_bits(most[i]), a->dtype,
                                                 a->power_of_two);
        scale[i] = 1 / factor[i];
    }
    *(float *)c->out[2].data = mx_float_of_bits(all);
#pragma omp parallel for schedule(static) if (l.matrices * l.rows * l.cols > 1 << 15)
    for (int64_t r = 0; r < l.matrices * l.rows; r++) {
        int64_t t = r / l.rows * l.grid_rows + r % l.rows / l.block_rows;
        quantize_row(a, &l, c, r, factor + t * l.grid_cols);
    }
    for (int64_t m = 0; a->both && m < l.matrices; m++) {
        int64_t at = m * l.rows * l.cols;
        transpose((uint8_t *)c->out[0].data + at, l.rows, l.cols, (uint8_t *)c->out[3].data + at);
    }
}

static size_t work_bytes(const mx_node *n, int n_threads)
{
    (void)n_threads;
    layout l = layout_of(n->attr, &n->in[QUANTIZE_X]->type);
    return sizeof(float) * (size_t)(l.matrices * (2 * l.grid_rows * l.grid_cols + l.rows));
}

static size_t gpu_work_bytes(const mx_node *n, size_t most)
{
    (void)most;
    return mx_gpu_quantize_bytes(mx_type_count(&n->more[0]));
}

/* factor: () float32, used instead of the tensor's own unless it is 0; NULL: none. */
mx_node *mx_quantize(mx_graph *g, mx_node *x, mx_node *factor, const mx_quantize_attr *a)
{
    return factor ? MX_APPLY(g, &mx_op_quantize, a, x, factor)
                  : MX_APPLY(g, &mx_op_quantize, a, x);
}

static void quantize_vjp(mx_graph *g, mx_node *n, mx_node *const *dout, mx_node **din)
{
    (void)n;
    din[QUANTIZE_X] = dout[0];
    if (!dout[3])
        return;
    mx_node *transposed = mx_transpose(g, dout[3], "ab->ba");
    din[QUANTIZE_X] = din[QUANTIZE_X] ? mx_add(g, din[QUANTIZE_X], transposed) : transposed;
}

/* Are the scales found on the way? Where a factor is given they are there, and where a block lies
 * in a tile of a GPU's kernel the tile waits in registers (quantize_tile.cu); otherwise the largest
 * magnitudes come first, in a pass of their own. */
static bool is_read_once(const mx_node *n)
{
    const mx_quantize_attr *a = n->attr;
    bool rows = a->block_rows == 1 || a->block_rows == MX_QUANT_BLOCK;
    bool cols = a->block_cols == 1 || a->block_cols == MX_QUANT_BLOCK;
    return n->n_in > 1 || (a->dtype != MX_I8 && rows && cols && a->block_rows * a->block_cols > 1);
}

static mx_cost cost(const mx_node *n)
{
    double reads = is_read_once(n) ? 1 : 2;
    return (mx_cost){.bytes = reads * (double)mx_type_bytes(&n->in[QUANTIZE_X]->type) +
                              (double)mx_type_bytes(&n->type) +
                              (double)mx_type_bytes(&n->more[2])};
}

#define IN(...) {__VA_ARGS__, .lo = -3, .hi = 5, .no_grad = true}
#define CASE(d, rows, cols, ...)                                                                   \
    {1, {IN(3, {2, 3, 20})}, &(mx_quantize_attr){d, rows, cols, __VA_ARGS__}}
const mx_op mx_op_quantize = {
    .name = "quantize",
    .doc = "8-bit numbers and their scales",
    .attr_size = sizeof(mx_quantize_attr),
    .fields = (const mx_attr_field[]){MX_FIELD(mx_quantize_attr, MX_ATTR_DTYPE, dtype),
                                      MX_FIELD(mx_quantize_attr, MX_ATTR_INT, block_rows),
                                      MX_FIELD(mx_quantize_attr, MX_ATTR_INT, block_cols),
                                      MX_FIELD(mx_quantize_attr, MX_ATTR_BOOL, power_of_two),
                                      MX_FIELD(mx_quantize_attr, MX_ATTR_BOOL, stochastic),
                                      MX_FIELD(mx_quantize_attr, MX_ATTR_BOOL, stacked),
                                      MX_FIELD(mx_quantize_attr, MX_ATTR_BOOL, both),
                                      MX_FIELD(mx_quantize_attr, MX_ATTR_INT, salt), {0}},
    .n_out = 4,
    .saved = 1 << 1 | 1 << 2 | 1 << 3,
    .dtypes = MX_REALS,
    .dtypes_at = {[QUANTIZE_FACTOR] = MX_F32_ONLY},
    .gives = MX_CODES,
    .no_cast = true,
    .infer = infer,
    .grad = quantize_vjp,
    .cost = cost,
    .cpu = quantize_cpu,
    .work_bytes = work_bytes,
    .gpu_work_bytes = gpu_work_bytes,
    .cases = (const mx_case[]){
        CASE(MX_F8_E4M3, 0, 0), CASE(MX_F8_E5M2, 1, 0), CASE(MX_F8_E4M3, 0, 1),
        CASE(MX_F8_E4M3, 1, 8, .power_of_two = true), CASE(MX_F8_E4M3, 4, 8, .power_of_two = true),
        CASE(MX_F8_E4M3, 4, 1), CASE(MX_I8, 1, 0), CASE(MX_I8, 1, 0, .stochastic = true, .salt = 7),
        CASE(MX_F8_E4M3, 2, 8, .stacked = true), CASE(MX_I8, 0, 0, .stacked = true),
        {2, {IN(2, {300, 136}), {0, {0}, .lo = 60, .hi = 90, .no_grad = true, .fixed = true}},
         &(mx_quantize_attr){MX_F8_E4M3}},
        {1, {IN(2, {300, 260})}, &(mx_quantize_attr){MX_F8_E4M3, 1, 128, true}},
        {1, {IN(2, {300, 260})}, &(mx_quantize_attr){MX_F8_E4M3, 128, 128, true}},
        {1, {IN(2, {300, 260})}, &(mx_quantize_attr){MX_F8_E5M2, 128, 1, false}},
        {1, {IN(2, {300, 264})}, &(mx_quantize_attr){MX_F8_E4M3, .both = true}},
        {1, {IN(3, {3, 40, 264})}, &(mx_quantize_attr){MX_I8, .both = true, .stacked = true}},
        {1, {IN(2, {300, 264})}, &(mx_quantize_attr){MX_I8, 0, 1}}, {0}},
};
