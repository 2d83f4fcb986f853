/* gemm_gelu.h - a GEMM with bias and GELU as its epilogue; bf16, on Hopper.
 *
 *     u = A B + bias     y = gelu_tanh(u)     both written
 *
 * A (m, k), B (n, k) or (k, n), u and y (m, n), bias (n), all dense.
 */
#ifndef MX_DEVICE_CUDA_GEMM_GELU_H
#define MX_DEVICE_CUDA_GEMM_GELU_H

#include "device/cuda/gemm/gemm_epilogue.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const uint16_t *a, *b, *bias;
    uint16_t *y, *u;
} mx_gemm_gelu_args;

/* On this device and of this shape; a few tiles are left to others, which split them better. */
bool mx_gemm_gelu_is_possible(const mx_epilogue_gemm *s);
cudaError_t mx_gemm_gelu_launch(const mx_epilogue_gemm *s, const mx_gemm_gelu_args *a,
                                cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
