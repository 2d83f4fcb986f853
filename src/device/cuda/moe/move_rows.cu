/* move_rows.cu - entries and rows by index: gathered, scattered, brought to their experts and back.
 *
 * All of it is bound by memory. Rows move in the widest pieces their size allows, one thread a
 * piece; sums of rows run in the order of a token's choices, in float, and are rounded once.
 */
#include "device/cuda/moe/moe_kernels.h"
#include "device/cuda/core/philox.cuh"
#include "device/cuda/core/vec.cuh"

enum { THREADS = 256, MOST_BLOCKS = 1 << 16 };

#define EACH(i, n)                                                                                 \
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < (n);                         \
         i += (int64_t)gridDim.x * THREADS)

template <typename T>
__global__ void gather_kernel(T *y, const T *x, const int32_t *index, int64_t n, int64_t d,
                              int64_t k)
{
    EACH(i, n)
    {
        int32_t at = index[i];
        y[i] = at >= 0 && at < d ? x[i / k * d + at] : (T)0;
    }
}

cudaError_t mx_cuda_gather_last(void *y, const void *x, const int32_t *index, int64_t n, int64_t d,
                                int64_t k, int item, cudaStream_t stream)
{
    int blocks = grid_for(n, THREADS, MOST_BLOCKS);
    if (item == 2)
        gather_kernel<<<blocks, THREADS, 0, stream>>>((uint16_t *)y, (const uint16_t *)x, index, n,
                                                      d, k);
    else if (item == 4)
        gather_kernel<<<blocks, THREADS, 0, stream>>>((uint32_t *)y, (const uint32_t *)x, index, n,
                                                      d, k);
    else
        return cudaErrorInvalidValue;
    return cudaGetLastError();
}

__device__ __forceinline__ void add_to(float *p, float x)
{
    *p += x;
}
__device__ __forceinline__ void add_to(uint16_t *p, uint16_t x)
{
    put(p, as_float(*p) + as_float(x));
}
__device__ __forceinline__ void add_to(int32_t *p, int32_t x)
{
    *p += x;
}

/* A warp a row. Of the lanes that want the same place the first adds for all, in their order. */
template <typename T>
__global__ void scatter_kernel(T *y, const int32_t *index, const T *v, int64_t rows, int64_t d,
                               int64_t k)
{
    int64_t r = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / 32;
    int lane = threadIdx.x % 32;
    if (r >= rows)
        return;
    T *row = y + r * d;
    for (int64_t c = lane; c < d; c += 32)
        row[c] = (T)0;
    __syncwarp();
    for (int64_t from = 0; from < k; from += 32) {
        const T *value = v + r * k + from;
        int at = from + lane < k ? index[r * k + from + lane] : -1;
        at = at < d ? at : -1;
        unsigned same = __match_any_sync(~0u, at);
        if (at >= 0 && lane == __ffs(same) - 1)
            for (unsigned left = same; left; left &= left - 1)
                add_to(&row[at], value[__ffs(left) - 1]);
        __syncwarp();
    }
}

cudaError_t mx_cuda_scatter_last(void *y, const int32_t *index, const void *v, mx_moe_type type,
                                 int64_t rows, int64_t d, int64_t k, cudaStream_t stream)
{
    unsigned blocks = (unsigned)((rows * 32 + THREADS - 1) / THREADS);
    if (!rows)
        return cudaSuccess;
    if (type == MX_MOE_F32)
        scatter_kernel<<<blocks, THREADS, 0, stream>>>((float *)y, index, (const float *)v, rows, d,
                                                       k);
    else if (type == MX_MOE_BF16)
        scatter_kernel<<<blocks, THREADS, 0, stream>>>((uint16_t *)y, index, (const uint16_t *)v,
                                                       rows, d, k);
    else
        scatter_kernel<<<blocks, THREADS, 0, stream>>>((int32_t *)y, index, (const int32_t *)v,
                                                       rows, d, k);
    return cudaGetLastError();
}

__global__ void one_hot_kernel(float *y, const int32_t *id, int64_t total, int64_t n)
{
    EACH(i, total)
        y[i] = id[i / n] == i % n ? 1.f : 0.f;
}

cudaError_t mx_cuda_one_hot(float *y, const int32_t *id, int64_t rows, int64_t n,
                            cudaStream_t stream)
{
    one_hot_kernel<<<grid_for(rows * n, THREADS, MOST_BLOCKS), THREADS, 0, stream>>>(y, id,
                                                                                     rows * n, n);
    return cudaGetLastError();
}

/* --- rows --- */

/* Rows of 512 bytes and more: a warp each, w pieces of 16 bytes. */
__global__ void permute_wide_kernel(uint4 *y, const uint4 *x, const int32_t *order, int64_t m,
                                    int k, int w)
{
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / 32;
    if (i >= m)
        return;
    int32_t from = order[i];
    bool in = from >= 0 && from < m;
    const uint4 *row = x + (int64_t)(in ? from / k : 0) * w;
    y += i * w;
#pragma unroll 4
    for (int c = threadIdx.x % 32; c < w; c += 32)
        y[c] = in ? row[c] : uint4{};
}

/* T: a piece of a row; w pieces make one. */
template <typename T>
__global__ void permute_kernel(T *y, const T *x, const int32_t *order, int64_t m, int64_t k,
                               int64_t w)
{
    EACH(i, m * w)
    {
        int32_t from = order[i / w];
        y[i] = from >= 0 && from < m ? x[from / k * w + i % w] : T{};
    }
}

template <typename T>
static void permute(void *y, const void *x, const int32_t *order, int64_t m, int64_t k, int64_t w,
                    cudaStream_t stream)
{
    permute_kernel<<<grid_for(m * w, THREADS, MOST_BLOCKS), THREADS, 0, stream>>>(
        (T *)y, (const T *)x, order, m, k, w);
}

static bool divides(size_t piece, size_t row_bytes, const void *x, const void *y)
{
    return row_bytes % piece == 0 && (uintptr_t)x % piece == 0 && (uintptr_t)y % piece == 0;
}

cudaError_t mx_cuda_permute_rows(void *y, const void *x, const int32_t *order, int64_t m, int64_t k,
                                 size_t row_bytes, cudaStream_t stream)
{
    if (!m)
        return cudaSuccess;
    if (divides(16, row_bytes, x, y) && row_bytes >= 512)
        permute_wide_kernel<<<(unsigned)((m * 32 + THREADS - 1) / THREADS), THREADS, 0, stream>>>(
            (uint4 *)y, (const uint4 *)x, order, m, (int)k, (int)(row_bytes / 16));
    else if (divides(16, row_bytes, x, y))
        permute<uint4>(y, x, order, m, k, (int64_t)row_bytes / 16, stream);
    else if (divides(4, row_bytes, x, y))
        permute<uint32_t>(y, x, order, m, k, (int64_t)row_bytes / 4, stream);
    else
        permute<uint8_t>(y, x, order, m, k, (int64_t)row_bytes, stream);
    return cudaGetLastError();
}

/* sum += W neighbours of x. */
template <typename T, int W> static __device__ void add_piece(float *sum, const T *x)
{
    float f[W];
    if (W == 4)
        load4(f, x);
    else
        f[0] = as_float(x[0]);
#pragma unroll
    for (int q = 0; q < W; q++)
        sum[q] += f[q];
}

/* Four neighbours at a time where d allows it. `also` may be NULL. */
template <typename T, int W>
__global__ void unpermute_kernel(T *y, const T *x, const T *also, const int32_t *place,
                                 int64_t pieces, int64_t k, int64_t m, int64_t d)
{
    int64_t w = d / W;
    EACH(i, pieces)
    {
        int64_t r = i / w, c = i % w * W;
        float sum[W] = {0};
        for (int64_t j = 0; j < k; j++) {
            int32_t from = place[r * k + j];
            if (from < 0 || from >= m)
                continue;
            add_piece<T, W>(sum, x + from * d + c);
            if (also)
                add_piece<T, W>(sum, also + from * d + c);
        }
        if (W == 4)
            store4(y + r * d + c, sum);
        else
            put(y + r * d + c, sum[0]);
    }
}

template <typename T>
static void unpermute(void *y, const void *x, const void *also, const int32_t *place, int64_t rows,
                      int64_t m, int64_t d, cudaStream_t stream)
{
    int64_t k = m / rows;
    const size_t row = (size_t)d * sizeof(T);
    if (divides(4 * sizeof(T), row, x, y) && divides(4 * sizeof(T), row, also, y))
        unpermute_kernel<T, 4><<<grid_for(rows * d / 4, THREADS, MOST_BLOCKS), THREADS, 0,
                                 stream>>>((T *)y, (const T *)x, (const T *)also, place,
                                           rows * d / 4, k, m, d);
    else
        unpermute_kernel<T, 1><<<grid_for(rows * d, THREADS, MOST_BLOCKS), THREADS, 0, stream>>>(
            (T *)y, (const T *)x, (const T *)also, place, rows * d, k, m, d);
}

cudaError_t mx_cuda_unpermute_rows(void *y, const void *x, const void *also, bool f32,
                                   const int32_t *place, int64_t rows, int64_t m, int64_t d,
                                   cudaStream_t stream)
{
    (f32 ? unpermute<float> : unpermute<uint16_t>)(y, x, also, place, rows, m, d, stream);
    return cudaGetLastError();
}

/* --- random numbers --- */

__global__ void random_kernel(float *y, const int64_t *seed, uint64_t stream, int64_t n)
{
    EACH(q, (n + 3) / 4)
    {
        mx_random4 r = philox((uint64_t)*seed, stream, (uint64_t)q);
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (4 * q + j < n)
                y[4 * q + j] = (float)(r.v[j] >> 8) * 0x1p-24f;
    }
}

cudaError_t mx_cuda_random_uniform(float *y, const int64_t *seed, uint64_t stream_id, int64_t n,
                                   cudaStream_t stream)
{
    random_kernel<<<grid_for((n + 3) / 4, THREADS, MOST_BLOCKS), THREADS, 0, stream>>>(
        y, seed, stream_id, n);
    return cudaGetLastError();
}
