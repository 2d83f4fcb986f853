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

enum { MX_CUDA_DEQUANT_MAX_M = 16 };

/* y (m, n) = x (m, k) w^T, x of bf16, for m <= MX_CUDA_DEQUANT_MAX_M: w is read once for each eight
 * rows of x. The bits of a row do not depend on m. */
cudaError_t mx_cuda_dequant_gemv(void *y, bool y_f32, const void *x, int64_t m,
                                 const mx_cuda_codes *w, cudaStream_t stream);
/* Rows [from, from + rows) of w as bf16 (rows, k). */
cudaError_t mx_cuda_dequant_rows(void *to, const mx_cuda_codes *w, int64_t from, int64_t rows,
                                 cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
