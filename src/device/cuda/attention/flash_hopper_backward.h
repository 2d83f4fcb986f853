/* flash_hopper_backward.h - the gradient of attention on Hopper's own instructions, in one pass.
 *
 * For bf16, head size 64 (flash_hopper_backward.cu) or 128 (flash_hopper_wide.cu), causal or full,
 * with segments, and under the causal mask a window; keys shared by groups of query heads, any
 * strides of whole 16-byte pieces; no other mask. Each score is computed once: 5 GEMMs, where
 * flash.h's backward has 7, so dQ is added up in memory by the blocks that own the keys, in an
 * order that is always the same (flash_hopper_dq.cuh): equal runs give equal bits.
 */
#ifndef MX_DEVICE_CUDA_FLASH_HOPPER_BACKWARD_H
#define MX_DEVICE_CUDA_FLASH_HOPPER_BACKWARD_H

#include "device/cuda/attention/flash.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The current device, the shape and where the tensors lie allow it. */
bool mx_flash_hopper_backward_can(const mx_flash_shape *s, const mx_flash_args *a);
size_t mx_flash_hopper_backward_bytes(const mx_flash_shape *s);
/* `scratch`: that many bytes, at a multiple of 256. Of the arguments it takes q, k, v, o, stats,
 * dout, q_seg, k_seg and dq, dk, dv. */
cudaError_t mx_flash_hopper_backward(const mx_flash_shape *s, const mx_flash_args *a, void *scratch,
                                     cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
