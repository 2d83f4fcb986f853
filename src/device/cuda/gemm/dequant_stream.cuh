/* dequant_stream.cuh - of dequant.cu: up to eight vectors times codes on the tensor cores. */
#ifndef MX_DEVICE_CUDA_DEQUANT_STREAM_CUH
#define MX_DEVICE_CUDA_DEQUANT_STREAM_CUH

#include "device/cuda/gemm/dequant.h"

enum { MX_DEQUANT_STREAM_VECTORS = 8 };

/* Scales of whole rows, or of int4 for 128, 256, 512 ... numbers. */
bool mx_cuda_dequant_stream_can(const mx_cuda_codes *w);
/* n weights that mx_cuda_dequant_is_one_launch says of, m vectors. h: of
 * mx_cuda_dequant_swiglu, or NULL. */
cudaError_t mx_cuda_dequant_stream(const mx_cuda_dequant *one, int n, const void *x, int m,
                                   void *h, cudaStream_t stream);

#endif
