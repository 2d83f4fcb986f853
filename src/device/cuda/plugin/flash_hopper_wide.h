/* flash_hopper_wide.h - flash_hopper_backward.h for head size 128. dQ is added up in the order in
 * which blocks come to it: equal runs agree within rounding but not in every bit.
 */
#ifndef MX_DEVICE_CUDA_FLASH_HOPPER_WIDE_H
#define MX_DEVICE_CUDA_FLASH_HOPPER_WIDE_H

#include "device/cuda/plugin/flash.h"

bool mx_flash_wide_can(const mx_flash_shape *s, const mx_flash_args *a);
size_t mx_flash_wide_bytes(const mx_flash_shape *s);
cudaError_t mx_flash_wide(const mx_flash_shape *s, const mx_flash_args *a, void *scratch,
                          cudaStream_t stream);

#endif
