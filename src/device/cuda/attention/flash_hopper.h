/* flash_hopper.h - the attention kernels made of Hopper's own instructions, for flash_forward.cu.
 *
 * bf16, head sizes 64 and 128, every mask but lists of keys; tensors whose addresses and strides
 * are multiples of 16 bytes. Results agree with the other kernels to rounding, not bit for bit.
 */
#ifndef MX_DEVICE_CUDA_FLASH_HOPPER_H
#define MX_DEVICE_CUDA_FLASH_HOPPER_H

#include "device/cuda/attention/flash.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether this machine and the kernel can do it. */
bool mx_flash_hopper_can(const mx_flash_shape *s, const mx_flash_args *a);
cudaError_t mx_flash_hopper_forward(const mx_flash_shape *s, const mx_flash_args *a,
                                    cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
