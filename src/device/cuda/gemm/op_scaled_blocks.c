/* op_scaled_blocks.c - scaled_matmul of floats with scales of blocks: on Hopper by a kernel of
 * ours, elsewhere by the library from bands of both operands as bf16. Scales that are powers of two
 * make that exact but for the order of sums.
 */
#include "device/cuda/core/context.h"
#include "device/cuda/gemm/gemm_blocks.h"
#include "device/cuda/gemm/quantize.h"
#include "ops/gpu_work.h"
#include "ops/inputs.h"
#include "ops/quantize.h"

enum { MX_INPUTS_SCALED_MATMUL };

typedef struct {
    mx_gemm_blocks_shape shape;
    int64_t grid_k; /* scales along k */
    bool own;
    struct {
        int64_t rows, band, block; /* rows in all, at a time, and of one scale */
    } a, b;
    mx_gemm_plan *plan[2][2]; /* of bands of a and of b: the last one, if that is lower? */
} blocks;

static bool is_8_bit_float(mx_dtype d)
{
    return d == MX_F8_E4M3 || d == MX_F8_E5M2;
}

static blocks blocks_of(const mx_exec_step *s)
{
    const mx_tensor *in = s->call.in;
    const mx_type *a = &in[SCALED_A].type, *b = &in[SCALED_B].type;
    blocks o = {.shape = {.m = mx_type_count(a) / a->dim[a->ndim - 1], .n = b->dim[0],
                          .k = b->dim[1], .a_e5m2 = a->dtype == MX_F8_E5M2,
                          .y_f32 = mx_is_f32(&s->call.out[0])},
                .grid_k = in[SCALED_SB].type.dim[1]};
    o.shape.runs_b = in[SCALED_SB].type.dim[0] == o.shape.n;
    o.a.rows = o.shape.m, o.b.rows = o.shape.n;
    o.a.block = in[SCALED_SA].type.dim[0] == o.shape.m ? 1 : MX_QUANT_BLOCK;
    o.b.block = o.shape.runs_b ? 1 : MX_QUANT_BLOCK;
    o.a.band = mx_gpu_widen_band(o.a.rows, o.shape.k);
    o.b.band = mx_gpu_widen_band(o.b.rows, o.shape.k);
    return o;
}

static bool has_blocks(const mx_type *scale, int64_t rows, int64_t k)
{
    int64_t tall = (rows + MX_QUANT_BLOCK - 1) / MX_QUANT_BLOCK;
    return scale->dim[1] == (k + MX_QUANT_BLOCK - 1) / MX_QUANT_BLOCK &&
           (scale->dim[0] == rows || scale->dim[0] == tall);
}

static bool takes(const mx_exec_step *s)
{
    const mx_tensor *in = s->call.in;
    const int64_t *a = in[SCALED_SA].type.dim, *b = in[SCALED_SB].type.dim;
    blocks o = blocks_of(s);
    bool rows = a[0] == o.shape.m && b[0] == o.shape.n;
    if (a[1] == 1 && b[1] == 1 && (rows || (a[0] == 1 && b[0] == 1)))
        return false; /* op_quantize.c's */
    return is_8_bit_float(in[SCALED_A].type.dtype) && is_8_bit_float(in[SCALED_B].type.dtype) &&
           has_blocks(&in[SCALED_SA].type, o.shape.m, o.shape.k) &&
           has_blocks(&in[SCALED_SB].type, o.shape.n, o.shape.k);
}

static void drop(mx_cuda *c, void *state)
{
    (void)c;
    blocks *o = state;
    for (int i = 0; o && i < 4; i++)
        mx_gemm_plan_free(o->plan[i / 2][i % 2]);
    mx_free(o);
}

static mx_status plan(mx_cuda *c, blocks *o)
{
    int64_t high[2] = {o->a.band, o->a.rows % o->a.band};
    int64_t wide[2] = {o->b.band, o->b.rows % o->b.band};
    for (int i = 0; i < 4; i++) {
        mx_gemm_shape g = {.m = high[i / 2], .n = wide[i % 2], .k = o->shape.k, .trans_b = true,
                           .ldc = o->shape.n, .in = MX_GEMM_BF16, .alpha = 1,
                           .out = o->shape.y_f32 ? MX_GEMM_F32 : MX_GEMM_BF16};
        if (g.m && g.n)
            MX_TRY(mx_cuda_plan_gemm(c, &g, &o->plan[i / 2][i % 2]));
    }
    return MX_OK;
}

static mx_status prepare(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    blocks b = blocks_of(s);
    const mx_gemm_blocks_shape *g = &b.shape;
    MX_CUDA_NEEDS(mx_is_float(&s->call.out[0]) && g->m > 0 && g->m % 16 == 0 && g->n % 16 == 0 &&
                      g->k % 16 == 0, "8-bit matmuls of these sizes");
    b.own = b.a.block == 1 && s->call.in[SCALED_B].type.dtype == MX_F8_E4M3 &&
            mx_gemm_blocks_is_possible(g);
    blocks *o = mx_realloc(NULL, sizeof *o);
    *o = b;
    mx_status st = o->own ? MX_OK : plan(c, o);
    *work = o->own ? mx_gpu_runs_bytes(g->m, o->grid_k) +
                         (g->runs_b ? mx_gpu_runs_bytes(g->n, o->grid_k) : 0)
                   : mx_gpu_widen_bytes(g->m, g->k) + mx_gpu_widen_bytes(g->n, g->k);
    if (st)
        drop(c, o);
    else
        *state = o;
    return st;
}

static mx_status launch_own(mx_cuda *c, const mx_exec_step *s, const blocks *o)
{
    const mx_tensor *in = s->call.in;
    const mx_gemm_blocks_shape *g = &o->shape;
    float *at = s->call.work;
    mx_gemm_blocks_args a = {in[SCALED_A].data, in[SCALED_B].data, at, in[SCALED_SB].data,
                             s->call.out[0].data};
    MX_TRY(mx_cuda_check(mx_cuda_place_scales(at, in[SCALED_SA].data, g->m, o->grid_k, c->stream),
                         "scales"));
    if (g->runs_b) {
        at += mx_gpu_runs_bytes(g->m, o->grid_k) / sizeof *at;
        a.scale_b = at;
        MX_TRY(mx_cuda_check(
            mx_cuda_place_scales(at, in[SCALED_SB].data, g->n, o->grid_k, c->stream), "scales"));
    }
    return mx_cuda_check(mx_gemm_blocks_launch(g, &a, c->stream), "a matmul of float8 blocks");
}

/* Rows [from, from + rows) of operand `which`, whose scales are the input after it, as bf16. */
static mx_status widen(mx_cuda *c, const mx_exec_step *s, int which, const mx_cuda_widen_shape *w,
                       int64_t from, void *to)
{
    const mx_tensor *q = &s->call.in[which], *scale = &s->call.in[which + 1];
    mx_cuda_widen_shape shape = *w;
    shape.format = q->type.dtype == MX_F8_E5M2 ? MX_CUDA_E5M2 : MX_CUDA_E4M3;
    return mx_cuda_check(
        mx_cuda_widen(to, (const char *)q->data + from * w->cols,
                      (const float *)scale->data + from / w->block_rows * scale->type.dim[1],
                      &shape, c->stream), "float8 as bfloat16");
}

static mx_status launch_wide(mx_cuda *c, const mx_exec_step *s, const blocks *o)
{
    char *wide_a = s->call.work, *wide_b = wide_a + mx_gpu_widen_bytes(o->a.rows, o->shape.k);
    int64_t each = o->shape.y_f32 ? 4 : 2;
    for (int64_t j = 0; j < o->b.rows; j += o->b.band) {
        int64_t cols = o->b.rows - j < o->b.band ? o->b.rows - j : o->b.band;
        mx_cuda_widen_shape b = {cols, o->shape.k, o->b.block};
        MX_TRY(widen(c, s, SCALED_B, &b, j, wide_b));
        for (int64_t i = 0; i < o->a.rows; i += o->a.band) {
            int64_t rows = o->a.rows - i < o->a.band ? o->a.rows - i : o->a.band;
            mx_cuda_widen_shape a = {rows, o->shape.k, o->a.block};
            MX_TRY(widen(c, s, SCALED_A, &a, i, wide_a));
            MX_TRY(mx_gemm_plan_launch(o->plan[rows < o->a.band][cols < o->b.band], wide_a, wide_b,
                                       (char *)s->call.out[0].data + (i * o->shape.n + j) * each,
                                       c->gemm_work, c->stream));
        }
    }
    return MX_OK;
}

static mx_status launch(mx_cuda *c, const mx_exec_step *s, void *state)
{
    const blocks *o = state;
    return o->own ? launch_own(c, s, o) : launch_wide(c, s, o);
}

const mx_cuda_op mx_cuda_op_scaled_blocks = {"scaled_matmul", prepare, launch, drop,
                                             .takes = takes};
