/* gemm_blocks.h - y (m, n) = a b^T of 8-bit floats with a scale for each 128 of k, on Hopper.
 *
 *     y_ij = sum over blocks of k: sa sb (sum of a_ik b_jk)
 *
 * a (m, k) has scales of 1 x 128 numbers, b (n, k) of as many (`runs_b`) or of 128 x 128. Sums of a
 * block are the tensor cores', those of blocks float32. */
#ifndef MX_DEVICE_CUDA_GEMM_BLOCKS_H
#define MX_DEVICE_CUDA_GEMM_BLOCKS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int64_t m, n, k; /* multiples of 16 */
    bool a_e5m2;     /* else E4M3, as b is */
    bool runs_b;
    bool y_f32;      /* else bf16 */
} mx_gemm_blocks_shape;

/* Scales by columns, (k / 128, m) and (k / 128, n), but for those of squares: (n / 128, k / 128).
 * Addresses are multiples of 16 bytes. */
typedef struct {
    const void *a, *b;
    const float *scale_a, *scale_b;
    void *y;
} mx_gemm_blocks_args;

/* Is this device one, and the shape one that its addresses reach? To be asked before the first
 * launch, which may be into a graph. */
bool mx_gemm_blocks_is_possible(const mx_gemm_blocks_shape *s);
cudaError_t mx_gemm_blocks_launch(const mx_gemm_blocks_shape *s, const mx_gemm_blocks_args *a,
                                  cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
