/* nf4.cu - see nf4.h. A thread makes 32 numbers, half a block, of 16 bytes; what it writes is 64 or
 * 128 bytes, so the time is that of writing the numbers. The values lie in shared memory: lanes
 * that read the same one are served at once, and others read other banks. */
#include "device/cuda/gemm/nf4.h"
#include "device/cuda/core/vec.cuh"
#include "ops/cpu/nf4.h"

enum { THREADS = 256, EACH = 32, BLOCK = 64, NEST = 256, VALUES = 16 };

__constant__ float values[VALUES] = {MX_NF4_LIST};

/* Rounded one by one, as the CPU does. */
__device__ __forceinline__ float absmax_of(const mx_cuda_nf4 &w, int64_t block)
{
    if (w.absmax)
        return w.absmax[block];
    float part = __fmul_rn(w.map[w.absmax_codes[block]], w.nested[block / NEST]);
    return __fadd_rn(part, *w.offset);
}

__device__ __forceinline__ void put8(uint16_t *p, const float f[8])
{
    store8(p, pack8(f));
}
__device__ __forceinline__ void put8(float *p, const float f[8])
{
    store4(p, f);
    store4(p + 4, f + 4);
}

template <typename T> __global__ __launch_bounds__(THREADS) void decode_kernel(T *to, mx_cuda_nf4 w)
{
    __shared__ float value[VALUES];
    if (threadIdx.x < VALUES)
        value[threadIdx.x] = values[threadIdx.x];
    __syncthreads();
    int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * EACH;
    if (at >= w.n)
        return;
    uint4 code = __ldcs((const uint4 *)w.codes + at / EACH);
    uint32_t word[4] = {code.x, code.y, code.z, code.w};
    float most = absmax_of(w, at / BLOCK);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float f[8];
#pragma unroll
        for (int k = 0; k < 8; k++) /* the first of two in a byte's high half */
            f[k] = __fmul_rn(value[word[i] >> (8 * (k / 2) + (k % 2 ? 0 : 4)) & 15], most);
        put8(to + at + 8 * i, f);
    }
}

extern "C" cudaError_t mx_cuda_nf4_decode(void *to, bool f32, const mx_cuda_nf4 *w,
                                          cudaStream_t stream)
{
    unsigned blocks = (unsigned)((w->n / EACH + THREADS - 1) / THREADS);
    if (f32)
        decode_kernel<<<blocks, THREADS, 0, stream>>>((float *)to, *w);
    else
        decode_kernel<<<blocks, THREADS, 0, stream>>>((uint16_t *)to, *w);
    return cudaGetLastError();
}
