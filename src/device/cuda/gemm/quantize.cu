/* quantize.cu - see quantize.h.
 *
 * A thread block has a tile of 128 x 128 numbers: sixteen threads a row, eight numbers each. So a
 * tile's rows, its columns and the tile as a whole are what scales can belong to; larger blocks
 * collect the maxima of their tiles in memory.
 *
 * Steps: maxima of blocks (bits, in `factor`), factors and scales, numbers. Where a factor is
 * given, the first step ends at once unless it is 0, and the last one finds the maximum on its way.
 */
#include "device/cuda/gemm/quantize.h"
#include "device/cuda/gemm/quantize_transpose.cuh"
#include "device/cuda/core/vec.cuh"

#include <cuda_fp8.h>

enum { SIDE = 128, LANE = 8, ACROSS = SIDE / LANE, THREADS = 256, DOWN = THREADS / ACROSS };
enum { WORDS = SIDE / 4 };

struct grid_of {
    int64_t rows, cols; /* of scales in one matrix */
};

__host__ __device__ static grid_of scales_of(const mx_cuda_quantize_shape &s)
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

/* Of the block, known to thread 0. */
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

/* Columns of the tile: their maxima over its rows, then into memory. */
__device__ __forceinline__ void most_of_columns(const uint32_t column[LANE], uint32_t *to,
                                                int64_t col, int64_t cols)
{
    __shared__ uint32_t part[DOWN][SIDE];
    int down = threadIdx.x / ACROSS, across = threadIdx.x % ACROSS;
#pragma unroll
    for (int i = 0; i < LANE; i++)
        part[down][across * LANE + i] = column[i];
    __syncthreads();
    if (threadIdx.x < SIDE && col + threadIdx.x < cols) {
        uint32_t most = 0;
        for (int i = 0; i < DOWN; i++)
            most = max(most, part[i][threadIdx.x]);
        atomicMax(to + col + threadIdx.x, most);
    }
}

template <class T>
__global__ void __launch_bounds__(THREADS) most_kernel(const __grid_constant__
                                                        mx_cuda_quantize_shape s,
                                                        const T *x, const float *given,
                                                        uint32_t *most)
{
    if (given && *given != 0)
        return;
    grid_of g = scales_of(s);
    int64_t row0 = (int64_t)blockIdx.y * SIDE, col0 = (int64_t)blockIdx.x * SIDE;
    int64_t col = col0 + threadIdx.x % ACROSS * LANE, end = min(row0 + SIDE, s.rows);
    x += blockIdx.z * s.rows * s.cols;
    most += blockIdx.z * g.rows * g.cols;
    uint32_t all = 0, column[LANE] = {};
    int64_t in_row = s.block_cols == SIDE ? blockIdx.x : 0;
    for (int64_t r = row0; r < row0 + SIDE; r += DOWN) { /* all lanes stay for the shuffles */
        int64_t row = r + threadIdx.x / ACROSS;
        float f[LANE];
        take8(f, x + (row < end ? row : row0) * s.cols, row < end ? col : s.cols, s.cols);
        if (s.block_cols == 1) {
#pragma unroll
            for (int i = 0; i < LANE; i++)
                column[i] = max(column[i], bits_of(f[i]));
            continue;
        }
        uint32_t here = most8(f);
        if (s.block_rows == 1) {
            here = most_of_row(here);
            if (threadIdx.x % ACROSS == 0 && row < end)
                atomicMax(most + row * g.cols + in_row, here);
        }
        all = max(all, here);
    }
    int64_t above = s.block_rows == SIDE ? blockIdx.y : 0;
    if (s.block_cols == 1)
        most_of_columns(column, most + above * g.cols, col0, s.cols);
    else if (s.block_rows != 1) {
        all = most_of_tile(all);
        if (threadIdx.x == 0)
            atomicMax(most + above * g.cols + in_row, all);
    }
}

__host__ __device__ static float most_in(mx_cuda_format f)
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

__global__ void factor_kernel(const __grid_constant__ mx_cuda_quantize_shape s, int64_t n,
                              const float *given, float *factor, float *scale, float *amax)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    bool own = !given || *given == 0;
    uint32_t bits = i < n && own ? __float_as_uint(factor[i]) : 0;
    uint32_t most = __reduce_max_sync(~0u, bits);
    if (threadIdx.x % 32 == 0 && most)
        atomicMax((uint32_t *)amax, most);
    if (i >= n)
        return;
    float f = own ? factor_of(bits, s.format, s.power_of_two) : *given;
    factor[i] = f;
    scale[i] = __frcp_rn(f);
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

template <int FORMAT, bool BOTH, class T>
__global__ void __launch_bounds__(THREADS) codes_kernel(const __grid_constant__
                                                         mx_cuda_quantize_shape s,
                                                         const __grid_constant__
                                                         mx_cuda_quantize_args a)
{
    __shared__ uint32_t flat[BOTH ? SIDE * WORDS : 1], transposed[BOTH ? SIDE * WORDS : 1];
    grid_of g = scales_of(s);
    int64_t row0 = (int64_t)blockIdx.y * SIDE;
    int64_t col = (int64_t)blockIdx.x * SIDE + threadIdx.x % ACROSS * LANE;
    int64_t end = min(row0 + SIDE, s.rows), base = blockIdx.z * s.rows * s.cols;
    int64_t in_row = s.block_cols == 1 ? col : s.block_cols == SIDE ? blockIdx.x : 0;
    const T *x = (const T *)a.x + base;
    const float *factor = a.factor + blockIdx.z * g.rows * g.cols;
    uint8_t *q = (uint8_t *)a.q + base;
    uint32_t all = 0;
    for (int64_t row = row0 + threadIdx.x / ACROSS; row < end && col < s.cols; row += DOWN) {
        int64_t above = s.block_rows == 1 ? row : s.block_rows == SIDE ? blockIdx.y : 0;
        int64_t at = row * s.cols + col;
        float v[LANE], f[LANE];
        take8(v, x + row * s.cols, col, s.cols);
        if (s.block_cols == 1) {
            load4(f, factor + above * g.cols + in_row);
            load4(f + 4, factor + above * g.cols + in_row + 4);
        } else {
#pragma unroll
            for (int i = 0; i < LANE; i++)
                f[i] = factor[above * g.cols + in_row];
        }
        uint2 codes = codes_of<FORMAT>(v, f, s, (uint64_t)(base + at));
        *(uint2 *)(q + at) = codes;
        if (BOTH)
            *(uint2 *)&flat[(row - row0) * WORDS + threadIdx.x % ACROSS * 2] = codes;
        all = max(all, most8(v));
    }
    if (BOTH)
        store_transposed((uint8_t *)a.transposed + base, flat, transposed, s);
    if (!a.given)
        return;
    all = most_of_tile(all);
    if (threadIdx.x == 0)
        atomicMax((uint32_t *)a.amax, all);
}

template <int FORMAT, class T>
static void launch_format(const mx_cuda_quantize_shape *s, const mx_cuda_quantize_args *a,
                          dim3 grid, cudaStream_t stream)
{
    if (s->both)
        codes_kernel<FORMAT, true, T><<<grid, THREADS, 0, stream>>>(*s, *a);
    else
        codes_kernel<FORMAT, false, T><<<grid, THREADS, 0, stream>>>(*s, *a);
}

template <class T>
static void launch_codes(const mx_cuda_quantize_shape *s, const mx_cuda_quantize_args *a, dim3 grid,
                         cudaStream_t stream)
{
    if (s->format == MX_CUDA_E4M3)
        launch_format<MX_CUDA_E4M3, T>(s, a, grid, stream);
    else if (s->format == MX_CUDA_E5M2)
        launch_format<MX_CUDA_E5M2, T>(s, a, grid, stream);
    else
        launch_format<MX_CUDA_I8, T>(s, a, grid, stream);
}

cudaError_t mx_cuda_quantize(const mx_cuda_quantize_shape *s, const mx_cuda_quantize_args *a,
                             cudaStream_t stream)
{
    grid_of g = scales_of(*s);
    int64_t n = s->matrices * g.rows * g.cols;
    dim3 grid((unsigned)((s->cols + SIDE - 1) / SIDE), (unsigned)((s->rows + SIDE - 1) / SIDE),
              (unsigned)s->matrices);
    cudaError_t e = cudaMemsetAsync(a->factor, 0, sizeof(float) * (size_t)n, stream);
    if (e == cudaSuccess)
        e = cudaMemsetAsync(a->amax, 0, sizeof(float), stream);
    if (e != cudaSuccess)
        return e;
    uint32_t *most = (uint32_t *)a->factor;
    if (s->x_f32)
        most_kernel<<<grid, THREADS, 0, stream>>>(*s, (const float *)a->x, a->given, most);
    else
        most_kernel<<<grid, THREADS, 0, stream>>>(*s, (const uint16_t *)a->x, a->given, most);
    factor_kernel<<<(unsigned)((n + 255) / 256), 256, 0, stream>>>(*s, n, a->given, a->factor,
                                                                   a->scale, a->amax);
    if (s->x_f32)
        launch_codes<float>(s, a, grid, stream);
    else
        launch_codes<uint16_t>(s, a, grid, stream);
    return cudaGetLastError();
}

/* --- histories --- */

__global__ void amax_factor_kernel(float *factor, const float *history, int64_t n,
                                   const float *first, mx_cuda_format format, bool power_of_two)
{
    __shared__ uint32_t part[THREADS / 32];
    int64_t skip = *first == 0;
    uint32_t most = 0;
    for (int64_t i = skip + threadIdx.x; i < n - 1 + skip; i += THREADS)
        most = max(most, __float_as_uint(fmaxf(history[i], 0.f)));
    most = __reduce_max_sync(~0u, most);
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = most;
    __syncthreads();
    for (int i = 0; i < THREADS / 32; i++)
        most = max(most, part[i]);
    if (threadIdx.x == 0)
        *factor = most ? factor_of(most, format, power_of_two) : 0;
}

cudaError_t mx_cuda_amax_factor(float *factor, const float *history, int64_t n, const float *first,
                                mx_cuda_format format, bool power_of_two, cudaStream_t stream)
{
    amax_factor_kernel<<<1, THREADS, 0, stream>>>(factor, history, n, first, format, power_of_two);
    return cudaGetLastError();
}

/* One block goes from the back to the front, so that nothing is overwritten before it is read. */
__global__ void amax_record_kernel(float *history, int64_t n, const float *amax, const float *first)
{
    float a = isfinite(*amax) ? *amax : 0.f;
    if (*first == 0) {
        if (threadIdx.x == 0)
            history[0] = fmaxf(history[0], a);
        return;
    }
    for (int64_t end = n; end > 1; end -= THREADS) {
        int64_t i = end - 1 - threadIdx.x;
        float v = i > 0 ? history[i - 1] : 0.f;
        __syncthreads();
        if (i > 0)
            history[i] = v;
        __syncthreads();
    }
    if (threadIdx.x == 0)
        history[0] = a;
}

cudaError_t mx_cuda_amax_record(float *history, int64_t n, const float *amax, const float *first,
                                cudaStream_t stream)
{
    amax_record_kernel<<<1, THREADS, 0, stream>>>(history, n, amax, first);
    return cudaGetLastError();
}
