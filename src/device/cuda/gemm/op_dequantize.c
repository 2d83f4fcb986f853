/* op_dequantize.c - weights that lie in codes, as numbers. */
#include "device/cuda/core/context.h"
#include "device/cuda/gemm/dequant.h"
#include "device/cuda/gemm/nf4.h"

enum { EACH = 32 }; /* numbers of NF4 that a thread makes */

static mx_status prepare(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    (void)c, (void)state, (void)work;
    const mx_type *w = &s->call.out[0].type;
    bool nf4 = s->call.in[0].type.dtype == MX_U8;
    int64_t k = w->ndim ? w->dim[w->ndim - 1] : 0;
    MX_CUDA_NEEDS(mx_is_float(&s->call.out[0]), "dequantizing to this dtype");
    MX_CUDA_NEEDS(nf4 || w->dtype == MX_BF16, "dequantizing 8-bit numbers to this dtype");
    MX_CUDA_NEEDS(k > 0 && (nf4 ? mx_type_count(w) % EACH : k % 16) == 0,
                  "dequantizing a weight of this size");
    return MX_OK;
}

static mx_status launch(mx_cuda *c, const mx_exec_step *s, void *state)
{
    (void)state;
    const mx_tensor *in = s->call.in, *out = &s->call.out[0];
    int64_t n = mx_type_count(&out->type), k = out->type.dim[out->type.ndim - 1];
    if (in[0].type.dtype == MX_U8) {
        bool nested = in[1].type.dtype == MX_U8;
        mx_cuda_nf4 w = {.codes = in[0].data, .n = n, .absmax = nested ? NULL : in[1].data,
                         .absmax_codes = in[1].data, .nested = nested ? in[2].data : NULL,
                         .offset = nested ? in[3].data : NULL, .map = nested ? in[4].data : NULL};
        return mx_cuda_check(mx_cuda_nf4_decode(out->data, mx_is_f32(out), &w, c->stream),
                             "dequantize");
    }
    mx_cuda_codes w = {.kind = in[0].type.dtype == MX_I8 ? MX_CUDA_CODES_INT8 : MX_CUDA_CODES_FP8,
                       .codes = in[0].data, .scale = in[1].data, .n = n / k, .k = k, .group = k};
    return mx_cuda_check(mx_cuda_dequant_rows(out->data, &w, 0, w.n, c->stream), "dequantize");
}

const mx_cuda_op mx_cuda_op_dequantize = {"dequantize", prepare, launch, NULL};
