/* quantize_tile.cu - numbers quantized in one pass over them, where blocks are rows, columns or all
 * of a tile (quantize.cuh): a tile stays in registers from its maxima to its codes. */
#include "device/cuda/gemm/quantize.cuh"

enum { STEPS = SIDE / DOWN };

/* Of each column of the tile, from what each thread found in its rows. */
__device__ __forceinline__ void most_of_columns(uint32_t most[SIDE], const uint32_t column[LANE])
{
    __shared__ uint32_t part[DOWN][SIDE];
    int down = threadIdx.x / ACROSS, across = threadIdx.x % ACROSS;
#pragma unroll
    for (int i = 0; i < LANE; i++)
        part[down][across * LANE + i] = column[i];
    __syncthreads();
    if (threadIdx.x < SIDE) {
        uint32_t all = 0;
        for (int i = 0; i < DOWN; i++)
            all = max(all, part[i][threadIdx.x]);
        most[threadIdx.x] = all;
    }
    __syncthreads();
}

template <class T> struct tile_of {
    const mx_cuda_quantize_shape &s;
    const mx_cuda_quantize_args &a;
    grid_of g;
    int64_t row0, col0, col, base; /* col: of this thread's eight */
    float v[STEPS][LANE], f[LANE];
    float *scale; /* of this matrix */

    __device__ __forceinline__ int64_t row_of(int i) const
    {
        return row0 + i * DOWN + threadIdx.x / ACROSS;
    }
    __device__ __forceinline__ void load()
    {
        const T *x = (const T *)a.x + base;
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            int64_t row = row_of(i);
            take8(v[i], x + (row < s.rows ? row : row0) * s.cols, row < s.rows ? col : s.cols,
                  s.cols);
        }
    }
    __device__ __forceinline__ float keep(float *at, uint32_t bits, bool first)
    {
        float factor = factor_of(bits, s.format, s.power_of_two);
        if (first)
            *at = __frcp_rn(factor);
        return factor;
    }
    __device__ __forceinline__ void set(float factor)
    {
#pragma unroll
        for (int i = 0; i < LANE; i++)
            f[i] = factor;
    }
    /* Factors of columns, or of the whole tile; gives the tile's maximum to thread 0. */
    __device__ __forceinline__ uint32_t find_factors()
    {
        __shared__ uint32_t most[SIDE];
        uint32_t all = 0, column[LANE] = {};
#pragma unroll
        for (int i = 0; i < STEPS; i++)
#pragma unroll
            for (int j = 0; j < LANE; j++)
                column[j] = max(column[j], bits_of(v[i][j]));
#pragma unroll
        for (int j = 0; j < LANE; j++)
            all = max(all, column[j]);
        all = most_of_tile(all);
        if (s.block_cols == 1) {
            most_of_columns(most, column);
            int64_t from = blockIdx.y * g.cols + col0;
            if (threadIdx.x < SIDE && col0 + threadIdx.x < s.cols)
                keep(scale + from + threadIdx.x, most[threadIdx.x], true);
#pragma unroll
            for (int j = 0; j < LANE; j++)
                f[j] = factor_of(most[threadIdx.x % ACROSS * LANE + j], s.format, s.power_of_two);
        } else if (s.block_rows == SIDE) {
            set(keep(scale + blockIdx.y * g.cols + blockIdx.x, all, threadIdx.x == 0));
        }
        return all;
    }
    template <int FORMAT, bool BOTH> __device__ __forceinline__ void store(uint32_t *flat)
    {
        uint8_t *q = (uint8_t *)a.q + base;
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            int64_t row = row_of(i), at = row * s.cols + col;
            if (s.block_rows == 1) {
                uint32_t most = most_of_row(most8(v[i]));
                set(keep(scale + row * g.cols + blockIdx.x, most,
                         threadIdx.x % ACROSS == 0 && row < s.rows));
            }
            uint2 codes = codes_of<FORMAT>(v[i], f, s, (uint64_t)(base + at));
            if (row < s.rows && col < s.cols)
                *(uint2 *)(q + at) = codes;
            if (BOTH)
                *(uint2 *)&flat[(row - row0) * WORDS + threadIdx.x % ACROSS * 2] = codes;
        }
    }
};

template <int FORMAT, bool BOTH, class T>
__global__ void __launch_bounds__(THREADS, 2)
    tile_kernel(const __grid_constant__ mx_cuda_quantize_shape s,
                const __grid_constant__ mx_cuda_quantize_args a)
{
    __shared__ uint32_t flat[BOTH ? SIDE * WORDS : 1], transposed[BOTH ? SIDE * WORDS : 1];
    grid_of g = scales_of(s);
    int64_t col0 = (int64_t)blockIdx.x * SIDE;
    tile_of<T> t = {s, a, g, (int64_t)blockIdx.y * SIDE, col0,
                    col0 + threadIdx.x % ACROSS * LANE, blockIdx.z * s.rows * s.cols};
    t.scale = a.scale + blockIdx.z * g.rows * g.cols;
    t.load();
    uint32_t all = t.find_factors();
    if (threadIdx.x == 0)
        atomicMax((uint32_t *)a.amax, all);
    t.template store<FORMAT, BOTH>(flat);
    if (BOTH)
        store_transposed((uint8_t *)a.transposed + t.base, flat, transposed, s);
}

bool mx_cuda_quantize_tile_can(const mx_cuda_quantize_shape *s, const mx_cuda_quantize_args *a)
{
    return !a->given && s->format != MX_CUDA_I8 && (s->block_rows == 1 || s->block_rows == SIDE) &&
           (s->block_cols == 1 || s->block_cols == SIDE) && s->block_rows * s->block_cols > 1;
}

template <int FORMAT, class T>
static void launch_tile(const mx_cuda_quantize_shape *s, const mx_cuda_quantize_args *a, dim3 grid,
                        cudaStream_t stream)
{
    if (s->both)
        tile_kernel<FORMAT, true, T><<<grid, THREADS, 0, stream>>>(*s, *a);
    else
        tile_kernel<FORMAT, false, T><<<grid, THREADS, 0, stream>>>(*s, *a);
}

cudaError_t mx_cuda_quantize_tile(const mx_cuda_quantize_shape *s, const mx_cuda_quantize_args *a,
                                  cudaStream_t stream)
{
    dim3 grid((unsigned)((s->cols + SIDE - 1) / SIDE), (unsigned)((s->rows + SIDE - 1) / SIDE),
              (unsigned)s->matrices);
    cudaError_t e = cudaMemsetAsync(a->amax, 0, sizeof(float), stream);
    if (e != cudaSuccess)
        return e;
    if (s->format == MX_CUDA_E4M3)
        s->x_f32 ? launch_tile<MX_CUDA_E4M3, float>(s, a, grid, stream)
                 : launch_tile<MX_CUDA_E4M3, uint16_t>(s, a, grid, stream);
    else
        s->x_f32 ? launch_tile<MX_CUDA_E5M2, float>(s, a, grid, stream)
                 : launch_tile<MX_CUDA_E5M2, uint16_t>(s, a, grid, stream);
    return cudaGetLastError();
}
