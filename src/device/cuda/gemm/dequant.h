/* dequant.h - matmuls with weights of 8 or 4 bits and scales (ops/dequant_matmul.c) as kernels over
 * device pointers. Rules as in kernels.h. */
#ifndef MX_DEVICE_CUDA_DEQUANT_H
#define MX_DEVICE_CUDA_DEQUANT_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { MX_CUDA_CODES_INT8, MX_CUDA_CODES_FP8, MX_CUDA_CODES_INT4 } mx_cuda_codes_kind;

/* w (n, k), scale (n, k / group). k: a multiple of 16, of int4 of 32; group: one too, or k. */
typedef struct {
    mx_cuda_codes_kind kind;
    const void *codes;
    const float *scale;
    int64_t n, k, group;
} mx_cuda_codes;

/* Of up to MX_CUDA_DEQUANT_MOST matmuls of the same x: y (m, n) = x (m, k) w^T, of bf16 or f32. */
typedef struct {
    mx_cuda_codes w;
    void *y;
    bool y_f32;
} mx_cuda_dequant;

enum { MX_CUDA_DEQUANT_MAX_M = 16, MX_CUDA_DEQUANT_MOST = 4 };

/* Can both be read by one launch? */
bool mx_cuda_dequant_is_one_launch(const mx_cuda_codes *a, const mx_cuda_codes *b);
/* x of bf16, m <= MX_CUDA_DEQUANT_MAX_M: w is read once for each eight rows of x. The bits of a row
 * depend neither on m nor on the matmuls beside it. n > 1: each goes with the first. */
cudaError_t mx_cuda_dequant_gemv(const mx_cuda_dequant *one, int n, const void *x, int64_t m,
                                 cudaStream_t stream);
/* Two of the same n that can be one launch, to bf16, and h (m, n) = silu(y_0) y_1. */
cudaError_t mx_cuda_dequant_swiglu(const mx_cuda_dequant pair[2], const void *x, int64_t m,
                                   void *h, cudaStream_t stream);
/* Rows [from, from + rows) of w as bf16 (rows, k). */
cudaError_t mx_cuda_dequant_rows(void *to, const mx_cuda_codes *w, int64_t from, int64_t rows,
                                 cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
