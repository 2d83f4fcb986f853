/* blend.h - streams mixed into streams (see src/ops/blend.c), on the device.
 *
 *     blend   x (T, n, d)   w (T, n, m)  ->  y (T, m, d)
 *     dots    x (T, n, d)   y (T, m, d)  ->  z (T, n, m)
 * w and z are float, the streams float or bf16. n and m are at most 8.
 */
#ifndef MX_DEVICE_CUDA_BLEND_H
#define MX_DEVICE_CUDA_BLEND_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int64_t tokens;
    int n, m, d;
    bool f32; /* the streams */
} mx_cuda_blend;

cudaError_t mx_cuda_blend_streams(const mx_cuda_blend *s, const void *x, const float *w, void *y,
                                  cudaStream_t stream);
cudaError_t mx_cuda_stream_dots(const mx_cuda_blend *s, const void *x, const void *y, float *z,
                                cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
