/* silu.cuh - as generated kernels have it where results are rounded to bf16 (fused_source.c). */
#ifndef MX_DEVICE_CUDA_SILU_CUH
#define MX_DEVICE_CUDA_SILU_CUH

__device__ __forceinline__ float silu_fast(float x)
{
    return x * __fdividef(1.f, 1.f + __expf(-x));
}

#endif
