/* quantize.cu - see quantize.h. Blocks larger than a tile (quantize.cuh) collect the maxima of
 * their tiles in memory.
 *
 * Steps: maxima of blocks (bits, in `factor`), factors and scales, numbers. Where a factor is
 * given, the first step ends at once unless it is 0, and the last one finds the maximum on its way.
 */
#include "device/cuda/gemm/quantize.cuh"

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
    if (mx_cuda_quantize_tile_can(s, a))
        return mx_cuda_quantize_tile(s, a, stream);
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
