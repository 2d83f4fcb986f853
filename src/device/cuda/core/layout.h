/* layout.h - dims in another order (layout_kernels.cu) and rows elsewhere (strided_kernels.cu), as
 * plain functions over device pointers. Dims are the caller's, outermost first; strides count
 * elements. */
#ifndef MX_DEVICE_CUDA_LAYOUT_H
#define MX_DEVICE_CUDA_LAYOUT_H

#include <cuda_runtime_api.h>
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

/* `rows` rows of `width` bytes, `pitch` bytes apart. */
typedef struct {
    void *dst;
    const void *src;
    int64_t dst_pitch, src_pitch, width, rows;
} mx_cuda_rows;
cudaError_t mx_cuda_copy_rows(const mx_cuda_rows *r, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
