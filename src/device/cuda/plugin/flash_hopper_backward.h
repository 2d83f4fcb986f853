/* flash_hopper_backward.h - the gradient of attention on Hopper's own instructions, in one pass.
 *
 * For bf16, head size 64 or 128 (flash_hopper_wide.h), causal or full, keys shared by groups of
 * query heads, any strides of whole 16-byte pieces; no other mask. Each score is computed once: 5
 * products, where flash.h's backward has 7, so dQ is added up in memory by the blocks that own the
 * keys. At head size 64 they do it in turns (flash_hopper_dq.cuh): equal runs give equal bits, at
 * no cost that was seen. At 128 they add in the order in which they come, and equal runs agree
 * within rounding; for equal bits there are cuDNN's deterministic form and flash.h.
 */
#ifndef MX_DEVICE_CUDA_FLASH_HOPPER_BACKWARD_H
#define MX_DEVICE_CUDA_FLASH_HOPPER_BACKWARD_H

#include "device/cuda/plugin/flash.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The current device, the shape and where the tensors lie allow it. */
bool mx_flash_hopper_backward_can(const mx_flash_shape *s, const mx_flash_args *a);
/* Equal runs give equal bits. */
bool mx_flash_hopper_backward_repeats(const mx_flash_shape *s);
size_t mx_flash_hopper_backward_bytes(const mx_flash_shape *s);
/* `scratch`: so many bytes, at a multiple of 256. Of the arguments it takes q, k, v, o, stats, dout
 * and dq, dk, dv. */
cudaError_t mx_flash_hopper_backward(const mx_flash_shape *s, const mx_flash_args *a, void *scratch,
                                     cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
