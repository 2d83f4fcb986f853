/* op_dequantize.c - weights that lie in codes, as numbers. */
#include "device/cuda/core/context.h"
#include "device/cuda/gemm/dequant.h"
#include "device/cuda/gemm/nf4.h"
#include "ops/inputs.h"

enum { MX_INPUTS_DEQUANTIZE };

enum { EACH = 32 }; /* numbers of NF4 that a thread makes */

static mx_status prepare(mx_cuda *c, const mx_exec_step *s, void **state, size_t *work)
{
    (void)c, (void)state, (void)work;
    const mx_type *w = &s->call.out[0].type;
    bool nf4 = s->call.in[CODES].type.dtype == MX_U8;
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
    if (in[CODES].type.dtype == MX_U8) {
        bool nested = in[CODES_SCALE].type.dtype == MX_U8;
        mx_cuda_nf4 w = {.codes = in[CODES].data,
                         .n = n,
                         .absmax = nested ? NULL : in[CODES_SCALE].data,
                         .absmax_codes = in[CODES_SCALE].data,
                         .nested = nested ? in[CODES_NESTED].data : NULL,
                         .offset = nested ? in[CODES_OFFSET].data : NULL,
                         .map = nested ? in[CODES_MAP].data : NULL};
        return mx_cuda_check(mx_cuda_nf4_decode(out->data, mx_is_f32(out), &w, c->stream),
                             "dequantize");
    }
    mx_cuda_codes w = {.codes = in[CODES].data, .scale = in[CODES_SCALE].data, .n = n / k, .k = k,
                       .group = k,
                       .kind = in[CODES].type.dtype == MX_I8 ? MX_CUDA_CODES_INT8
                                                             : MX_CUDA_CODES_FP8};
    return mx_cuda_check(mx_cuda_dequant_rows(out->data, &w, 0, w.n, c->stream), "dequantize");
}

const mx_cuda_op mx_cuda_op_dequantize = {"dequantize", prepare, launch, NULL};
