/* quantize_move.cu - 8-bit tensors transposed, scales where the library wants them, sums of int8 as
 * numbers: see quantize.h. */
#include "device/cuda/gemm/quantize.h"
#include "device/cuda/gemm/quantize_transpose.cuh"
#include "device/cuda/core/vec.cuh"

#include <cuda_fp8.h>

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

__global__ void place_kernel(float *to, const float *scale, int64_t rows, int64_t cols)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < rows * cols)
        to[i] = scale[i % rows * cols + i / rows];
}

cudaError_t mx_cuda_place_scales(float *to, const float *scale, int64_t rows, int64_t cols,
                                 cudaStream_t stream)
{
    place_kernel<<<(unsigned)((rows * cols + 255) / 256), 256, 0, stream>>>(to, scale, rows, cols);
    return cudaGetLastError();
}

/* Sixteen numbers a thread: they have one scale. */
__global__ void widen_kernel(uint4 *to, const uint4 *q, const float *scale,
                             const __grid_constant__ mx_cuda_widen_shape s)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, across = s.cols / 16;
    if (i >= s.rows * across)
        return;
    int64_t row = i / across, col = i % across * 16;
    float f = scale[row / s.block_rows * ((s.cols + SIDE - 1) / SIDE) + col / SIDE];
    uint4 codes = q[i];
    uint32_t in[4] = {codes.x, codes.y, codes.z, codes.w}, out[8];
#pragma unroll
    for (int j = 0; j < 8; j++) {
        __nv_fp8x2_storage_t two = (__nv_fp8x2_storage_t)(in[j / 2] >> j % 2 * 16);
        float2 v = __half22float2(__nv_cvt_fp8x2_to_halfraw2(
            two, s.format == MX_CUDA_E4M3 ? __NV_E4M3 : __NV_E5M2));
        out[j] = pack2(v.x * f, v.y * f);
    }
    to[2 * i] = make_uint4(out[0], out[1], out[2], out[3]);
    to[2 * i + 1] = make_uint4(out[4], out[5], out[6], out[7]);
}

cudaError_t mx_cuda_widen(void *to, const void *q, const float *scale, const mx_cuda_widen_shape *s,
                          cudaStream_t stream)
{
    int64_t n = s->rows * s->cols / 16;
    widen_kernel<<<(unsigned)((n + 255) / 256), 256, 0, stream>>>((uint4 *)to, (const uint4 *)q,
                                                                  scale, *s);
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
