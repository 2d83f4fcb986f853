/* op_quantize.c - quantize, histories of largest magnitudes, and matmuls of 8-bit numbers.
 *
 * float8 goes to cuBLASLt with its scales, but for those of blocks (op_scaled_blocks.c). int8 goes
 * there without: its sums come back as int32, a band of rows at a time, and a kernel of ours makes
 * numbers of them.
 */
#include "device/cuda/core/context.h"
#include "device/cuda/gemm/quantize.h"
#include "ops/gpu_work.h"
#include "ops/inputs.h"

#include <string.h>

enum { MX_INPUTS_QUANTIZE };
enum { MX_INPUTS_AMAX_FACTOR };
enum { MX_INPUTS_AMAX_RECORD };
enum { MX_INPUTS_SCALED_MATMUL };

static bool format_of(mx_dtype d, mx_cuda_format *f)
{
    *f = d == MX_F8_E4M3 ? MX_CUDA_E4M3 : d == MX_F8_E5M2 ? MX_CUDA_E5M2 : MX_CUDA_I8;
    return d == MX_F8_E4M3 || d == MX_F8_E5M2 || d == MX_I8;
}

static bool flag(const mx_exec_step *s, const char *name)
{
    return *(const bool *)mx_attr(s, name);
}

/* --- quantize --- */

static mx_cuda_quantize_shape shape_of(const mx_exec_step *s)
{
    const mx_type *x = &s->call.in[QUANTIZE_X].type;
    bool stacked = flag(s, "stacked");
    mx_cuda_quantize_shape q = {.matrices = 1, .rows = 1, .cols = x->dim[x->ndim - 1],
                                .block_rows = mx_attr_int(s, "block_rows"),
                                .block_cols = mx_attr_int(s, "block_cols"),
                                .x_f32 = x->dtype == MX_F32,
                                .power_of_two = flag(s, "power_of_two"),
                                .stochastic = flag(s, "stochastic"), .both = flag(s, "both"),
                                .salt = (uint64_t)mx_attr_int(s, "salt")};
    for (int i = 0; i < x->ndim - 1; i++)
        *(stacked && i == 0 ? &q.matrices : &q.rows) *= x->dim[i];
    q.block_rows = q.block_rows ? q.block_rows : q.rows;
    q.block_cols = q.block_cols ? q.block_cols : q.cols;
    format_of(s->call.out[0].type.dtype, &q.format);
    return q;
}

static bool is_tiled(int64_t block, int64_t all)
{
    return block == 1 || block == 128 || block == all;
}

static mx_status prepare_quantize(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    (void)c, (void)state;
    MX_CUDA_NEEDS(mx_is_float(&s->call.in[QUANTIZE_X]) && s->call.in[QUANTIZE_X].type.ndim > 0,
                  "quantizing this dtype");
    mx_cuda_quantize_shape q = shape_of(s);
    MX_CUDA_NEEDS(is_tiled(q.block_rows, q.rows) && is_tiled(q.block_cols, q.cols) &&
                      q.cols % 8 == 0 && q.rows > 0 && q.cols > 0 && q.matrices > 0 &&
                      q.matrices < 65536 && (!q.both || q.rows % 4 == 0) &&
                      q.rows < (int64_t)65535 * 128,
                  "quantizing in these blocks");
    *work = mx_gpu_quantize_bytes(mx_type_count(&s->call.out[1].type));
    return MX_OK;
}

static mx_status quantize(mx_cuda *c, const mx_exec_step *s, void *state)
{
    (void)state;
    mx_cuda_quantize_shape q = shape_of(s);
    mx_cuda_quantize_args a = {.x = s->call.in[QUANTIZE_X].data,
                               .given = s->call.n_in > 1 ? s->call.in[QUANTIZE_FACTOR].data : NULL,
                               .q = s->call.out[0].data, .transposed = s->call.out[3].data,
                               .scale = s->call.out[1].data,
                               .amax = s->call.out[2].data, .factor = s->call.work};
    return mx_cuda_check(mx_cuda_quantize(&q, &a, c->stream), "quantize");
}

static mx_status amax_factor(mx_cuda *c, const mx_exec_step *s, void *state)
{
    (void)state;
    mx_cuda_format format;
    format_of(*(const mx_dtype *)mx_attr(s, "dtype"), &format);
    const mx_tensor *in = s->call.in;
    return mx_cuda_check(mx_cuda_amax_factor(s->call.out[0].data, in[AMAX_HISTORY].data,
                                             mx_type_count(&in[AMAX_HISTORY].type),
                                             in[AMAX_FIRST].data, format, flag(s, "power_of_two"),
                                             c->stream),
                         "amax_factor");
}

static mx_status amax_record(mx_cuda *c, const mx_exec_step *s, void *state)
{
    (void)state;
    const mx_tensor *in = s->call.in;
    return mx_cuda_check(
        mx_cuda_amax_record(in[RECORD_HISTORY].data, mx_type_count(&in[RECORD_HISTORY].type),
                            in[RECORD_AMAX].data, in[RECORD_FIRST].data, c->stream),
        "amax_record");
}

static mx_status prepare_amax(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    (void)c, (void)s, (void)state, (void)work;
    return MX_OK;
}

/* --- scaled_matmul --- */

typedef struct {
    int64_t m, n, k;
    mx_gemm_scale a, b;
    int64_t band;          /* rows at a time */
    mx_gemm_plan *plan[2]; /* of a band, and of the last one if that is lower */
} scaled;

static mx_gemm_type type_of(mx_dtype d)
{
    return d == MX_F8_E4M3 ? MX_GEMM_E4M3 : d == MX_F8_E5M2 ? MX_GEMM_E5M2 : MX_GEMM_I8;
}

/* What the scales of an operand with `rows` rows belong to; none: to blocks. */
static mx_gemm_scale scale_of(const mx_type *scale, int64_t rows)
{
    if (scale->dim[1] != 1)
        return MX_SCALE_NONE;
    if (scale->dim[0] == 1)
        return MX_SCALE_ALL;
    return scale->dim[0] == rows ? MX_SCALE_ROWS : MX_SCALE_NONE;
}

static scaled sizes_of(const mx_exec_step *s)
{
    const mx_tensor *in = s->call.in;
    const mx_type *a = &in[SCALED_A].type, *b = &in[SCALED_B].type;
    scaled m = {.m = mx_type_count(a) / a->dim[a->ndim - 1], .n = b->dim[0], .k = b->dim[1]};
    m.a = scale_of(&in[SCALED_SA].type, m.m);
    m.b = scale_of(&in[SCALED_SB].type, m.n);
    return m;
}

static bool takes_scaled(const mx_exec_step *s)
{
    scaled m = sizes_of(s);
    return s->call.in[SCALED_A].type.dtype == MX_I8 || (m.a == m.b && m.a != MX_SCALE_NONE);
}

static void drop_scaled(mx_cuda *c, void *state)
{
    (void)c;
    scaled *m = state;
    for (int i = 0; m && i < 2; i++)
        mx_gemm_plan_free(m->plan[i]);
    mx_free(m);
}

static mx_status plan_band(mx_cuda *c, const mx_exec_step *s, scaled *m, int64_t rows,
                           mx_gemm_plan **out)
{
    bool whole = s->call.in[SCALED_A].type.dtype == MX_I8, f32 = mx_is_f32(&s->call.out[0]);
    mx_gemm_shape g = {.m = rows, .n = m->n, .k = m->k, .trans_b = true, .alpha = 1,
                       .in = type_of(s->call.in[SCALED_A].type.dtype),
                       .in_b = type_of(s->call.in[SCALED_B].type.dtype),
                       .out = whole ? MX_GEMM_I32 : f32 ? MX_GEMM_F32 : MX_GEMM_BF16,
                       .scale_a = whole ? MX_SCALE_NONE : m->a,
                       .scale_b = whole ? MX_SCALE_NONE : m->b,
                       .fast = !whole && flag(s, "fast")};
    return mx_cuda_plan_gemm(c, &g, out);
}

static mx_status plan_scaled(mx_cuda *c, const mx_exec_step *s, scaled *m)
{
    const mx_tensor *in = s->call.in;
    bool whole = in[SCALED_A].type.dtype == MX_I8;
    MX_CUDA_NEEDS(mx_is_float(&s->call.out[0]) && m->m > 0 && m->m % 16 == 0 && m->n % 16 == 0 &&
                      m->k % 16 == 0, "8-bit matmuls of these sizes");
    MX_CUDA_NEEDS(m->a != MX_SCALE_NONE && m->b != MX_SCALE_NONE, "blocks of int8");
    m->band = whole ? mx_gpu_int8_band(m->m, m->n) : m->m;
    MX_TRY(plan_band(c, s, m, m->band, &m->plan[0]));
    return m->m % m->band ? plan_band(c, s, m, m->m % m->band, &m->plan[1]) : MX_OK;
}

static mx_status prepare_scaled(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    scaled *m = mx_realloc(NULL, sizeof *m);
    *m = sizes_of(s);
    mx_status st = plan_scaled(c, s, m);
    *work = s->call.in[SCALED_A].type.dtype == MX_I8 ? mx_gpu_int8_bytes(m->m, m->n) : 0;
    if (st)
        drop_scaled(c, m);
    else
        *state = m;
    return st;
}

static mx_status launch_floats(mx_cuda *c, const mx_exec_step *s, scaled *m)
{
    const mx_tensor *in = s->call.in;
    MX_TRY(mx_gemm_plan_scales(m->plan[0], in[SCALED_SA].data, in[SCALED_SB].data));
    return mx_gemm_plan_launch(m->plan[0], in[SCALED_A].data, in[SCALED_B].data,
                               s->call.out[0].data, c->gemm_work, c->stream);
}

static mx_status launch_band(mx_cuda *c, const mx_exec_step *s, const scaled *m, int64_t row)
{
    const mx_tensor *in = s->call.in, *y = &s->call.out[0];
    bool last = m->m - row < m->band;
    mx_cuda_dequantize_shape d = {.m = last ? m->m - row : m->band, .n = m->n,
                                  .one_a = m->a == MX_SCALE_ALL, .one_b = m->b == MX_SCALE_ALL,
                                  .y_f32 = mx_is_f32(y)};
    MX_TRY(mx_gemm_plan_launch(m->plan[last], (const char *)in[SCALED_A].data + row * m->k,
                               in[SCALED_B].data, s->call.work, c->gemm_work, c->stream));
    return mx_cuda_check(
        mx_cuda_dequantize((char *)y->data + row * m->n * (int64_t)mx_dtype_bytes(y->type.dtype),
                           s->call.work, (const float *)in[SCALED_SA].data + (d.one_a ? 0 : row),
                           in[SCALED_SB].data, &d, c->stream), "int8 sums");
}

static mx_status scaled_matmul(mx_cuda *c, const mx_exec_step *s, void *state)
{
    scaled *m = state;
    if (s->call.in[SCALED_A].type.dtype != MX_I8)
        return launch_floats(c, s, m);
    for (int64_t row = 0; row < m->m; row += m->band)
        MX_TRY(launch_band(c, s, m, row));
    return MX_OK;
}

const mx_cuda_op mx_cuda_op_quantize = {"quantize", prepare_quantize, quantize, NULL};
const mx_cuda_op mx_cuda_op_amax_factor = {"amax_factor", prepare_amax, amax_factor, NULL};
const mx_cuda_op mx_cuda_op_amax_record = {"amax_record", prepare_amax, amax_record, NULL};
const mx_cuda_op mx_cuda_op_scaled_matmul = {"scaled_matmul", prepare_scaled, scaled_matmul,
                                             drop_scaled, .takes = takes_scaled};
