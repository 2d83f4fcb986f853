/* dequant_mma.cuh - of dequant.cu: up to eight vectors times codes on the tensor cores. */
#ifndef MX_DEVICE_CUDA_DEQUANT_MMA_CUH
#define MX_DEVICE_CUDA_DEQUANT_MMA_CUH

#include "device/cuda/gemm/dequant.h"

/* Scales of whole rows, or of int4 for multiples of 128. */
bool mx_cuda_dequant_few_can(const mx_cuda_codes *w);
cudaError_t mx_cuda_dequant_few(void *y, bool y_f32, const void *x, int m, const mx_cuda_codes *w,
                                cudaStream_t stream);

#endif
