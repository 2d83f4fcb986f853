/* quantize_move.cu - 8-bit tensors transposed, scales where the library wants them, sums of int8 as
 * numbers: see quantize.h. */
#include "device/cuda/gemm/quantize.h"
#include "device/cuda/gemm/quantize_transpose.cuh"
#include "device/cuda/core/vec.cuh"

enum { SIDE = 128, WORDS = SIDE / 4, THREADS = 256, WARPS = THREADS / 32 };

/* A tile of 128 x 128: a lane has four columns and, at a time, four rows, which it transposes in
 * registers. Words change places by exclusive or, so that lanes meet in no bank of shared memory
 * either way. */
__global__ void __launch_bounds__(THREADS) transpose_bytes_kernel(uint8_t *y, const uint8_t *x,
                                                             int64_t rows, int64_t cols)
{
    __shared__ uint32_t tile[SIDE * WORDS];
    int64_t row0 = (int64_t)blockIdx.y * SIDE, col0 = (int64_t)blockIdx.x * SIDE;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t col = col0 + 4 * lane;
#pragma unroll
    for (int i = 0; i < WORDS / WARPS; i++) {
        int r4 = warp + i * WARPS;
        uint32_t w[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int64_t row = row0 + 4 * r4 + j;
            w[j] = row < rows && col < cols ? *(const uint32_t *)(x + row * cols + col) : 0;
        }
        transpose_bytes(w);
#pragma unroll
        for (int j = 0; j < 4; j++)
            tile[(4 * lane + j) * WORDS + (r4 ^ lane)] = w[j];
    }
    __syncthreads();
    int64_t row = row0 + 4 * lane;
#pragma unroll
    for (int i = 0; i < SIDE / WARPS; i++) {
        int c = warp + i * WARPS;
        if (row < rows && col0 + c < cols)
            *(uint32_t *)(y + (col0 + c) * rows + row) = tile[c * WORDS + (lane ^ c / 4)];
    }
}

cudaError_t mx_cuda_transpose_bytes(void *y, const void *x, int64_t rows, int64_t cols,
                                    cudaStream_t stream)
{
    dim3 grid((unsigned)((cols + SIDE - 1) / SIDE), (unsigned)((rows + SIDE - 1) / SIDE));
    if (rows && cols)
        transpose_bytes_kernel<<<grid, THREADS, 0, stream>>>((uint8_t *)y, (const uint8_t *)x, rows,
                                                        cols);
    return cudaGetLastError();
}

__global__ void place_kernel(float *to, const float *scale, int64_t rows, int64_t cols,
                             int64_t pitch, bool by_columns)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int64_t wide = by_columns ? rows : pitch;
    if (i >= (by_columns ? cols : rows) * wide)
        return;
    int64_t row = by_columns ? i % rows : i / pitch, col = by_columns ? i / rows : i % pitch;
    to[i] = col < cols ? scale[row * cols + col] : 0.f;
}

cudaError_t mx_cuda_place_scales(float *to, const float *scale, int64_t rows, int64_t cols,
                                 int64_t pitch, bool by_columns, cudaStream_t stream)
{
    int64_t n = by_columns ? rows * cols : rows * pitch;
    place_kernel<<<(unsigned)((n + 255) / 256), 256, 0, stream>>>(to, scale, rows, cols, pitch,
                                                                  by_columns);
    return cudaGetLastError();
}

template <class T>
__global__ void dequantize_kernel(T *y, const int32_t *sums, const float *scale_a,
                                  const float *scale_b,
                                  const __grid_constant__ mx_cuda_dequantize_shape s)
{
    int64_t i = 4 * ((int64_t)blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= s.m * s.n)
        return;
    int64_t row = i / s.n, col = i % s.n;
    int4 v = *(const int4 *)(sums + i);
    float a = scale_a[s.one_a ? 0 : row], b[4], f[4];
    if (s.one_b)
        b[0] = b[1] = b[2] = b[3] = scale_b[0];
    else
        load4(b, scale_b + col);
    f[0] = (float)v.x * (a * b[0]), f[1] = (float)v.y * (a * b[1]);
    f[2] = (float)v.z * (a * b[2]), f[3] = (float)v.w * (a * b[3]);
    store4(y + i, f);
}

cudaError_t mx_cuda_dequantize(void *y, const int32_t *sums, const float *scale_a,
                               const float *scale_b, const mx_cuda_dequantize_shape *s,
                               cudaStream_t stream)
{
    unsigned blocks = (unsigned)((s->m * s->n / 4 + 255) / 256);
    if (s->y_f32)
        dequantize_kernel<<<blocks, 256, 0, stream>>>((float *)y, sums, scale_a, scale_b, *s);
    else
        dequantize_kernel<<<blocks, 256, 0, stream>>>((uint16_t *)y, sums, scale_a, scale_b, *s);
    return cudaGetLastError();
}
