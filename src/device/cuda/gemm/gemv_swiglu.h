/* gemv_swiglu.h - gate and up of one vector, and SwiGLU of them (gemv.cu). Rules as in
 * kernels.h. */
#ifndef MX_DEVICE_CUDA_GEMV_SWIGLU_H
#define MX_DEVICE_CUDA_GEMV_SWIGLU_H

#include "device/cuda/core/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* h = silu(y_gate) y_up, y_gate = gate x, y_up = up x: weights (n, k), the rest (n). k % 8 == 0. */
typedef struct {
    const mx_bf16 *gate, *up, *x;
    mx_bf16 *y_gate, *y_up, *h;
    int64_t n, k;
} mx_gemv_swiglu;
cudaError_t mx_cuda_gemv_swiglu(const mx_gemv_swiglu *p, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
