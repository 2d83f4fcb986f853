/* quantize.h - 8-bit numbers and scales (ops/quantize.h) as kernels over device pointers.
 *
 * Rules as in kernels.h. A largest magnitude is found with atomic maxima of its bits, whose result
 * does not depend on their order.
 */
#ifndef MX_DEVICE_CUDA_QUANTIZE_H
#define MX_DEVICE_CUDA_QUANTIZE_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { MX_CUDA_E4M3, MX_CUDA_E5M2, MX_CUDA_I8 } mx_cuda_format;

/* Blocks of 1, 128 or all rows by 1, 128 or all columns. cols: a multiple of 8. */
typedef struct {
    int64_t matrices, rows, cols, block_rows, block_cols;
    mx_cuda_format format;
    bool x_f32; /* else bf16 */
    bool power_of_two, stochastic;
    bool both; /* q transposed as well; rows: a multiple of 4 */
    uint64_t salt;
} mx_cuda_quantize_shape;
typedef struct {
    const void *x;
    const float *given; /* a factor that is used unless it is 0; NULL: none */
    void *q, *transposed;
    float *scale, *amax;
    float *factor; /* scratch, a float for each block */
} mx_cuda_quantize_args;
cudaError_t mx_cuda_quantize(const mx_cuda_quantize_shape *s, const mx_cuda_quantize_args *a,
                             cudaStream_t stream);

/* The factor of a history, and a step's amax into it (ops/amax_factor.c, amax_record.c). */
cudaError_t mx_cuda_amax_factor(float *factor, const float *history, int64_t n, const float *first,
                                mx_cuda_format format, bool power_of_two, cudaStream_t stream);
cudaError_t mx_cuda_amax_record(float *history, int64_t n, const float *amax, const float *first,
                                cudaStream_t stream);

/* y (cols, rows) = x (rows, cols)^T, of bytes; both multiples of 4. */
cudaError_t mx_cuda_transpose_bytes(void *y, const void *x, int64_t rows, int64_t cols,
                                    cudaStream_t stream);

/* Scales (rows, cols) by columns, as gemm_blocks.h takes them. */
cudaError_t mx_cuda_place_scales(float *to, const float *scale, int64_t rows, int64_t cols,
                                 cudaStream_t stream);
/* An operand with scales of blocks, (block_rows: 1 or 128) x 128, as bf16; cols: multiple of 16. */
typedef struct {
    int64_t rows, cols, block_rows;
    mx_cuda_format format; /* a float */
} mx_cuda_widen_shape;
cudaError_t mx_cuda_widen(void *to, const void *q, const float *scale, const mx_cuda_widen_shape *s,
                          cudaStream_t stream);
/* y (m, n) = sums x the scales of rows and columns; one scale where the flag says so. */
typedef struct {
    int64_t m, n;
    bool one_a, one_b, y_f32;
} mx_cuda_dequantize_shape;
cudaError_t mx_cuda_dequantize(void *y, const int32_t *sums, const float *scale_a,
                               const float *scale_b, const mx_cuda_dequantize_shape *s,
                               cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
