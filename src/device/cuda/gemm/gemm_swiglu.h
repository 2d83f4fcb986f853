/* gemm_swiglu.h - GEMMs with SwiGLU, or its gradient, as their epilogue.
 *
 *     forward     g = A B     u = A B2     h = silu(g) u               all written
 *     backward    d = A B     dg = d u silu'(g)     du = d silu(g)     d is not written
 *
 * A (m, k), B and B2 (n, k) or (k, n), all else (m, n), all dense. The same bits on every run.
 */
#ifndef MX_DEVICE_CUDA_GEMM_SWIGLU_H
#define MX_DEVICE_CUDA_GEMM_SWIGLU_H

#include "device/cuda/gemm/gemm_epilogue.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const void *a, *b, *b2;
    void *g, *u, *h;
} mx_swiglu_forward_args;

typedef struct {
    const void *a, *b, *g, *u;
    void *dg, *du;
} mx_swiglu_backward_args;

/* One kernel, bf16, on Hopper; a few tiles are left to others. */
bool mx_gemm_swiglu_is_possible(const mx_epilogue_gemm *s);
bool mx_gemm_swiglu_grad_is_possible(const mx_epilogue_gemm *s);
cudaError_t mx_gemm_swiglu(const mx_epilogue_gemm *s, const mx_swiglu_forward_args *a,
                           cudaStream_t stream);
cudaError_t mx_gemm_swiglu_grad(const mx_epilogue_gemm *s, const mx_swiglu_backward_args *a,
                                cudaStream_t stream);

/* Kernels after the GEMMs, of n elements: forward h from g and u; backward dg, which holds d,
 * and du. n is a multiple of 4. */
cudaError_t mx_swiglu_launch(const mx_swiglu_forward_args *a, int64_t n, bool f32,
                             cudaStream_t stream);
cudaError_t mx_swiglu_grad_launch(const mx_swiglu_backward_args *a, int64_t n, bool f32,
                                  cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
