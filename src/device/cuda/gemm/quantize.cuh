/* quantize.cuh - what the kernels that quantize share: tiles, maxima, factors, codes.
 *
 * A thread block has a tile of 128 x 128 numbers: sixteen threads a row, eight numbers each. So a
 * tile's rows, its columns and the tile as a whole are what scales can belong to. */
#ifndef MX_DEVICE_CUDA_QUANTIZE_CUH
#define MX_DEVICE_CUDA_QUANTIZE_CUH

#include "device/cuda/gemm/quantize.h"
#include "device/cuda/gemm/quantize_transpose.cuh"
#include "device/cuda/core/vec.cuh"

#include <cuda_fp8.h>

enum { SIDE = 128, LANE = 8, ACROSS = SIDE / LANE, THREADS = 256, DOWN = THREADS / ACROSS };
enum { WORDS = SIDE / 4 };

struct grid_of {
    int64_t rows, cols; /* of scales in one matrix */
};

__host__ __device__ static inline grid_of scales_of(const mx_cuda_quantize_shape &s)
{
    return {(s.rows + s.block_rows - 1) / s.block_rows, (s.cols + s.block_cols - 1) / s.block_cols};
}

/* Eight neighbours; zeros beyond the last column. */
template <class T>
__device__ __forceinline__ void take8(float f[LANE], const T *row, int64_t col, int64_t cols)
{
    if (col < cols) {
        load4(f, row + col);
        load4(f + 4, row + col + 4);
        return;
    }
#pragma unroll
    for (int i = 0; i < LANE; i++)
        f[i] = 0;
}

__device__ __forceinline__ uint32_t bits_of(float x)
{
    return __float_as_uint(x) & 0x7fffffff;
}

__device__ __forceinline__ uint32_t most8(const float f[LANE])
{
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < LANE; i++)
        most = max(most, bits_of(f[i]));
    return most;
}

/* Of the sixteen threads of a row. */
__device__ __forceinline__ uint32_t most_of_row(uint32_t most)
{
#pragma unroll
    for (int o = ACROSS / 2; o; o >>= 1)
        most = max(most, __shfl_xor_sync(~0u, most, o));
    return most;
}

/* Of the block. */
__device__ __forceinline__ uint32_t most_of_tile(uint32_t most)
{
    __shared__ uint32_t part[THREADS / 32];
    most = __reduce_max_sync(~0u, most);
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = most;
    __syncthreads();
    for (int i = 0; i < THREADS / 32; i++)
        most = max(most, part[i]);
    return most;
}

__host__ __device__ static inline float most_in(mx_cuda_format f)
{
    return f == MX_CUDA_E4M3 ? 448.f : f == MX_CUDA_E5M2 ? 57344.f : 127.f;
}

/* mx_quant_factor */
__device__ __forceinline__ float factor_of(uint32_t bits, mx_cuda_format format, bool power_of_two)
{
    if (bits == 0)
        return 1;
    if (bits >= 0x7f800000u)
        return __uint_as_float(0x7fc00000u);
    float f = fminf(__fdiv_rn(most_in(format), __uint_as_float(bits)), 0x1p126f);
    return power_of_two ? __uint_as_float(__float_as_uint(f) & 0x7f800000u) : f;
}

/* Saturates numbers; infinity becomes NaN, as inf * 0 is. */
template <int FORMAT> __device__ __forceinline__ uint32_t pair_of(float a, float b)
{
    a = __fmaf_rn(a, 0.f, a);
    b = __fmaf_rn(b, 0.f, b);
    return __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE,
                                    FORMAT == MX_CUDA_E4M3 ? __NV_E4M3 : __NV_E5M2);
}

__device__ __forceinline__ uint32_t byte_of(float v)
{
    v = fminf(fmaxf(v, -127.f), 127.f);
    return (uint32_t)(int)v & 0xff; /* NaN is 0 */
}

template <int FORMAT>
__device__ __forceinline__ uint2 codes_of(const float v[LANE], const float f[LANE],
                                          const mx_cuda_quantize_shape &s, uint64_t at)
{
    uint32_t w[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < LANE; i += 2) {
        float a = __fmul_rn(v[i], f[i]), b = __fmul_rn(v[i + 1], f[i + 1]);
        uint32_t two;
        if (FORMAT != MX_CUDA_I8) {
            two = pair_of<FORMAT>(a, b);
        } else if (s.stochastic) { /* `at` is even: the two share their bits where f is the same */
            uint64_t ra = random_bits64(s.salt ^ (uint64_t)__float_as_uint(f[i]) << 32,
                                        (at + i) / 2);
            uint64_t rb = random_bits64(s.salt ^ (uint64_t)__float_as_uint(f[i + 1]) << 32,
                                        (at + i) / 2);
            a = floorf(__fadd_rn(a, (float)((uint32_t)ra >> 8) * 0x1p-24f));
            b = floorf(__fadd_rn(b, (float)((uint32_t)(rb >> 32) >> 8) * 0x1p-24f));
            two = byte_of(a == a ? a : 0) | byte_of(b == b ? b : 0) << 8;
        } else {
            a = rintf(a), b = rintf(b);
            two = byte_of(a == a ? a : 0) | byte_of(b == b ? b : 0) << 8;
        }
        w[i / 4] |= two << (i % 4 * 8);
    }
    return make_uint2(w[0], w[1]);
}

/* y (cols, rows): a tile of codes, as it lies in shared memory, by columns. */
__device__ __forceinline__ void store_transposed(uint8_t *y, const uint32_t *flat,
                                                 uint32_t *transposed,
                                                 const mx_cuda_quantize_shape &s)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t row0 = (int64_t)blockIdx.y * SIDE, col0 = (int64_t)blockIdx.x * SIDE;
    __syncthreads();
#pragma unroll
    for (int r4 = warp; r4 < WORDS; r4 += THREADS / 32) {
        uint32_t w[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            w[j] = flat[(4 * r4 + j) * WORDS + lane];
        transpose_bytes(w);
#pragma unroll
        for (int j = 0; j < 4; j++)
            transposed[(4 * lane + j) * WORDS + (r4 ^ lane)] = w[j];
    }
    __syncthreads();
    int64_t row = row0 + 4 * lane;
    for (int c = warp; c < SIDE; c += THREADS / 32)
        if (row < s.rows && col0 + c < s.cols)
            *(uint32_t *)(y + (col0 + c) * s.rows + row) = transposed[c * WORDS + (lane ^ c / 4)];
}

/* Where every block lies in a tile (quantize_tile.cu): x is read once. */
bool mx_cuda_quantize_tile_can(const mx_cuda_quantize_shape *s, const mx_cuda_quantize_args *a);
cudaError_t mx_cuda_quantize_tile(const mx_cuda_quantize_shape *s, const mx_cuda_quantize_args *a,
                                  cudaStream_t stream);

#endif
