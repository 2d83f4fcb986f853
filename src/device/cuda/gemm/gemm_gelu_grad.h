/* gemm_gelu_grad.h - a GEMM with the derivative of GELU as its epilogue, and sums over its rows.
 *
 *     du = (A B) gelu_tanh'(u)     parts = the sum of du's rows from ROWS i to ROWS (i + 1)
 *
 * A (m, k), B (n, k) or (k, n), u and du (m, n), parts (rows, n) float, all dense. The same bits on
 * every run.
 */
#ifndef MX_DEVICE_CUDA_GEMM_GELU_GRAD_H
#define MX_DEVICE_CUDA_GEMM_GELU_GRAD_H

#include "device/cuda/gemm/gemm_epilogue.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const void *a, *b, *u;
    void *du;
    float *parts;
} mx_gemm_gelu_grad_args;

/* One kernel, bf16, on Hopper; a few tiles are left to others. */
bool mx_gemm_gelu_grad_is_possible(const mx_epilogue_gemm *s);
int64_t mx_gemm_gelu_grad_rows(int64_t m); /* of parts */
cudaError_t mx_gemm_gelu_grad_launch(const mx_epilogue_gemm *s, const mx_gemm_gelu_grad_args *a,
                                     cudaStream_t stream);

/* A kernel after the GEMM: du holds A B, and is replaced. n is a multiple of 4. */
int64_t mx_gelu_grad_rows(int64_t m);
cudaError_t mx_gelu_grad_launch(const mx_epilogue_gemm *s, const mx_gemm_gelu_grad_args *a,
                                bool f32, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
