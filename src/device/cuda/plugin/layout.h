/* layout.h - dims in another order, and sums over any of them, as plain functions over device
 * pointers (layout_kernels.cu). Dims are the caller's, outermost first; strides count elements. */
#ifndef MX_DEVICE_CUDA_LAYOUT_H
#define MX_DEVICE_CUDA_LAYOUT_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { MX_CUDA_LAYOUT_DIMS = 8 };
typedef struct {
    int n;
    int64_t size[MX_CUDA_LAYOUT_DIMS], step[MX_CUDA_LAYOUT_DIMS]; /* step: in x */
} mx_cuda_layout;

/* y, packed, of shape `l`: its elements are x's at the strides of `l`. item: 2 or 4 bytes. */
cudaError_t mx_cuda_transpose(void *y, const void *x, const mx_cuda_layout *l, int item,
                              cudaStream_t stream);
/* y, packed, of shape `kept`: each the sum of x over `summed`, in its order. */
cudaError_t mx_cuda_sum_over(float *y, const void *x, bool x_f32, const mx_cuda_layout *kept,
                             const mx_cuda_layout *summed, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
