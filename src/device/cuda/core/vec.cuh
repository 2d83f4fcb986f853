/* vec.cuh - 16-byte vectors of bf16, warp and block sums, and the counter-based random bits that
 * the kernels share. Sums have a fixed order (lanes, then warps), so results do not depend on
 * timing. */
#ifndef MX_DEVICE_CUDA_VEC_CUH
#define MX_DEVICE_CUDA_VEC_CUH

#include <cuda_bf16.h>
#include <stdint.h>

/* Eight neighbours. A struct of four pairs would be copied pair by pair, four bytes at a time. */
typedef uint4 vec8;

__device__ __forceinline__ vec8 load8(const uint16_t *p)
{
    return *reinterpret_cast<const vec8 *>(p);
}
/* Read once and never again: keep it out of L1. */
__device__ __forceinline__ vec8 load8_stream(const uint16_t *p)
{
    return __ldcs(reinterpret_cast<const vec8 *>(p));
}
__device__ __forceinline__ void store8(uint16_t *p, const vec8 &x)
{
    *reinterpret_cast<vec8 *>(p) = x;
}
__device__ __forceinline__ void store8_stream(uint16_t *p, const vec8 &x)
{
    __stcs(reinterpret_cast<vec8 *>(p), x);
}
/* The bf16 in a word's halves. */
__device__ __forceinline__ float low_of(uint32_t w)
{
    return __uint_as_float(w << 16);
}
__device__ __forceinline__ float high_of(uint32_t w)
{
    return __uint_as_float(w & 0xffff0000u);
}
__device__ __forceinline__ void unpack8(float f[8], const vec8 &x)
{
    uint32_t pair[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        f[2 * i] = low_of(pair[i]);
        f[2 * i + 1] = high_of(pair[i]);
    }
}
/* a in the low half. */
__device__ __forceinline__ uint32_t pack2(float a, float b)
{
    __nv_bfloat162 t = __floats2bfloat162_rn(a, b);
    return *reinterpret_cast<uint32_t *>(&t);
}
__device__ __forceinline__ vec8 pack8(const float f[8])
{
    return make_uint4(pack2(f[0], f[1]), pack2(f[2], f[3]), pack2(f[4], f[5]),
                      pack2(f[6], f[7]));
}
__device__ __forceinline__ float bf16_to_f32(uint16_t x)
{
    return __uint_as_float((uint32_t)x << 16);
}
__device__ __forceinline__ uint16_t f32_to_bf16(float x)
{
    return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}

__device__ __forceinline__ float as_float(uint16_t x)
{
    return bf16_to_f32(x);
}
__device__ __forceinline__ float as_float(float x)
{
    return x;
}
__device__ __forceinline__ void put(uint16_t *p, float x)
{
    *p = f32_to_bf16(x);
}
__device__ __forceinline__ void put(float *p, float x)
{
    *p = x;
}

/* Four neighbours at a time, 8- or 16-byte accesses. */
__device__ __forceinline__ void load4(float f[4], const float *p)
{
    float4 v = *(const float4 *)p;
    f[0] = v.x, f[1] = v.y, f[2] = v.z, f[3] = v.w;
}
__device__ __forceinline__ void load4(float f[4], const uint16_t *p)
{
    ushort4 v = *(const ushort4 *)p;
    f[0] = bf16_to_f32(v.x), f[1] = bf16_to_f32(v.y), f[2] = bf16_to_f32(v.z),
    f[3] = bf16_to_f32(v.w);
}
__device__ __forceinline__ void store4(float *p, const float f[4])
{
    *(float4 *)p = make_float4(f[0], f[1], f[2], f[3]);
}
__device__ __forceinline__ void store4(uint16_t *p, const float f[4])
{
    *(ushort4 *)p = make_ushort4(f32_to_bf16(f[0]), f32_to_bf16(f[1]), f32_to_bf16(f[2]),
                                 f32_to_bf16(f[3]));
}

__device__ __forceinline__ float warp_sum(float x)
{
#pragma unroll
    for (int o = 16; o; o >>= 1)
        x += __shfl_xor_sync(~0u, x, o);
    return x;
}
__device__ __forceinline__ float warp_max(float x)
{
#pragma unroll
    for (int o = 16; o; o >>= 1)
        x = fmaxf(x, __shfl_xor_sync(~0u, x, o));
    return x;
}
/* Sum over the block, given to every thread. scratch: 32 floats, free again after the next barrier.
 */
__device__ __forceinline__ float block_sum(float x, float *scratch)
{
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, n = (blockDim.x + 31) >> 5;
    x = warp_sum(x);
    if (lane == 0)
        scratch[warp] = x;
    __syncthreads();
    return warp_sum(lane < n ? scratch[lane] : 0.f);
}

/* 64 well-mixed bits from a key and a counter (two rounds of a 64-bit finaliser). */
__device__ __forceinline__ uint64_t random_bits64(uint64_t seed, uint64_t index)
{
    uint64_t z = seed + index * 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}
__device__ __forceinline__ uint32_t random_bits(uint64_t seed, uint64_t index)
{
    return (uint32_t)(random_bits64(seed, index) >> 32);
}
/* Adds 16 random bits below the kept mantissa and truncates: up with probability = the fraction. */
__device__ __forceinline__ uint16_t bf16_stochastic(float x, uint32_t bits)
{
    uint32_t u = __float_as_uint(x);
    if ((u & 0x7f800000u) == 0x7f800000u)
        return (uint16_t)(u >> 16) | ((u & 0x7fffffu) ? 0x40 : 0);
    return (uint16_t)((u + (bits & 0xffffu)) >> 16);
}

static inline int grid_for(int64_t work, int block, int64_t cap)
{
    int64_t g = (work + block - 1) / block;
    return (int)(g < 1 ? 1 : g > cap ? cap : g);
}

#endif
