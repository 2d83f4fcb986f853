/* sinkhorn.h - matrices made doubly stochastic (see src/ops/sinkhorn.c), on the device. */
#ifndef MX_DEVICE_CUDA_SINKHORN_H
#define MX_DEVICE_CUDA_SINKHORN_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int64_t matrices;
    int n, steps; /* n at most 8, steps at most 64 */
    float eps;
} mx_cuda_sinkhorn;

cudaError_t mx_cuda_sinkhorn_forward(const mx_cuda_sinkhorn *s, const float *x, float *y,
                                     cudaStream_t stream);
cudaError_t mx_cuda_sinkhorn_backward(const mx_cuda_sinkhorn *s, const float *x, const float *dy,
                                      float *dx, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
