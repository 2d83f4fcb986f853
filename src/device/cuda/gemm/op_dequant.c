/* op_dequant.c - matmuls with weights of 8 or 4 bits: a few rows of x by a kernel that reads codes,
 * which takes several weights at once; many by the library, from bands of the weight's rows as
 * bf16. */
#include "device/cuda/core/context.h"
#include "device/cuda/gemm/op_dequant.h"
#include "ops/gpu_work.h"
#include "ops/inputs.h"

enum { MX_INPUTS_DEQUANT_MATMUL };

typedef struct {
    mx_cuda_codes w;
    int64_t m, band;
    mx_gemm_plan *plan[2]; /* of a band, and of the last one if that is smaller */
} dequant;

mx_cuda_codes mx_cuda_codes_of(const mx_exec_step *s)
{
    const mx_tensor *in = s->call.in;
    mx_dtype d = in[DEQUANT_CODES].type.dtype;
    int64_t k = in[DEQUANT_X].type.dim[in[DEQUANT_X].type.ndim - 1];
    return (mx_cuda_codes){.kind = d == MX_I8   ? MX_CUDA_CODES_INT8
                                   : d == MX_U8 ? MX_CUDA_CODES_INT4
                                                : MX_CUDA_CODES_FP8,
                           .codes = in[DEQUANT_CODES].data,
                           .scale = in[DEQUANT_SCALE].data, .n = in[DEQUANT_SCALE].type.dim[0],
                           .k = k, .group = k / in[DEQUANT_SCALE].type.dim[1]};
}

static void drop(mx_cuda *c, void *state)
{
    (void)c;
    dequant *d = state;
    for (int i = 0; d && i < 2; i++)
        mx_gemm_plan_free(d->plan[i]);
    mx_free(d);
}

static mx_status plan(mx_cuda *c, const mx_exec_step *s, dequant *d)
{
    if (d->m <= MX_CUDA_DEQUANT_MAX_M)
        return MX_OK;
    int64_t rest = d->w.n % d->band;
    mx_gemm_shape g = {.m = d->m, .n = d->band, .k = d->w.k, .trans_b = true, .ldc = d->w.n,
                       .in = MX_GEMM_BF16, .alpha = 1,
                       .out = mx_is_f32(&s->call.out[0]) ? MX_GEMM_F32 : MX_GEMM_BF16};
    MX_TRY(mx_cuda_plan_gemm(c, &g, &d->plan[0]));
    g.n = rest;
    return rest ? mx_cuda_plan_gemm(c, &g, &d->plan[1]) : MX_OK;
}

static mx_status prepare(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    mx_cuda_codes w = mx_cuda_codes_of(s);
    int64_t each = w.kind == MX_CUDA_CODES_INT4 ? 32 : 16;
    MX_CUDA_NEEDS(s->call.in[DEQUANT_X].type.dtype == MX_BF16 && w.n > 0 && w.k > 0,
                  "dequantizing for this dtype");
    MX_CUDA_NEEDS(w.k % each == 0 && w.group % each == 0, "dequantizing rows of this length");
    dequant *d = mx_realloc(NULL, sizeof *d);
    *d = (dequant){.w = w, .m = mx_type_count(&s->call.in[DEQUANT_X].type) / w.k,
                   .band = mx_gpu_dequant_band(w.n, w.k)};
    mx_status st = plan(c, s, d);
    *work = d->m > MX_CUDA_DEQUANT_MAX_M ? mx_gpu_dequant_bytes(w.n, w.k) : 0;
    if (st)
        drop(c, d);
    else
        *state = d;
    return st;
}

/* Neighbours that multiply the same few rows: q, k and v; gate and up. */
static int together(const mx_exec_step *s, void *const *state, int n)
{
    const dequant *first = state[0];
    mx_cuda_codes w = mx_cuda_codes_of(s);
    int i = 1;
    for (; first->m <= MX_CUDA_DEQUANT_MAX_M && i < n && i < MX_CUDA_DEQUANT_MOST; i++) {
        mx_cuda_codes other = mx_cuda_codes_of(&s[i]);
        if (((const dequant *)state[i])->m != first->m ||
            s[i].call.in[DEQUANT_X].data != s->call.in[DEQUANT_X].data ||
            !mx_cuda_dequant_is_one_launch(&w, &other))
            break;
    }
    return i;
}

static mx_status launch_many(mx_cuda *c, const mx_exec_step *s, int n)
{
    mx_cuda_dequant one[MX_CUDA_DEQUANT_MOST];
    const mx_tensor *x = &s->call.in[DEQUANT_X];
    for (int i = 0; i < n; i++) {
        const mx_tensor *y = &s[i].call.out[0];
        one[i] = (mx_cuda_dequant){mx_cuda_codes_of(&s[i]), y->data, mx_is_f32(y)};
    }
    return mx_cuda_check(mx_cuda_dequant_gemv(one, n, x->data,
                                              mx_type_count(&x->type) / one->w.k, c->stream),
                         "dequant_matmul");
}

static mx_status launch(mx_cuda *c, const mx_exec_step *s, void *state)
{
    const dequant *d = state;
    mx_cuda_codes w = mx_cuda_codes_of(s);
    const mx_tensor *y = &s->call.out[0];
    const void *x = s->call.in[DEQUANT_X].data;
    if (d->m <= MX_CUDA_DEQUANT_MAX_M)
        return launch_many(c, s, 1);
    for (int64_t from = 0; from < w.n; from += d->band) {
        int64_t rows = w.n - from < d->band ? w.n - from : d->band;
        char *to = (char *)y->data + from * (int64_t)mx_dtype_bytes(y->type.dtype);
        MX_TRY(mx_cuda_check(mx_cuda_dequant_rows(s->call.work, &w, from, rows, c->stream),
                             "dequantize"));
        MX_TRY(mx_gemm_plan_launch(d->plan[rows < d->band], x, s->call.work, to, c->gemm_work,
                                   c->stream));
    }
    return MX_OK;
}

const mx_cuda_op mx_cuda_op_dequant_matmul = {"dequant_matmul", prepare,  launch, drop,
                                              together,         launch_many};
