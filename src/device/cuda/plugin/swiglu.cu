/* swiglu.cu - y = silu(g) u and its gradient over gu (T, 2F) = [gate | up].
 *     s = sigmoid(g);  y = g s u;  du = dy g s;  dg = dy u s (1 + g (1 - s))
 * Forward reads 2F and writes F a row; backward reads 3F and writes 2F: memory bound. Two vectors a
 * thread keep enough loads in flight. */
#include "device/cuda/plugin/kernels.h"
#include "device/cuda/plugin/vec.cuh"

__device__ __forceinline__ float sigmoid(float x)
{
    return __fdividef(1.f, 1.f + __expf(-x));
}

__global__ void swiglu_forward_kernel(uint16_t *y, const uint16_t *gu, int64_t f8)
{
    int64_t row = blockIdx.y;
    const uint16_t *g = gu + row * 16 * f8, *u = g + 8 * f8;
    y += row * 8 * f8;
    for (int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; c < f8;
         c += (int64_t)gridDim.x * blockDim.x) {
        float a[8], b[8];
        unpack8(a, load8_stream(g + 8 * c));
        unpack8(b, load8_stream(u + 8 * c));
#pragma unroll
        for (int j = 0; j < 8; j++)
            a[j] = a[j] * sigmoid(a[j]) * b[j];
        store8(y + 8 * c, pack8(a));
    }
}

__global__ void swiglu_backward_kernel(uint16_t *dgu, const uint16_t *dy, const uint16_t *gu,
                                       int64_t f8)
{
    int64_t row = blockIdx.y;
    const uint16_t *g = gu + row * 16 * f8, *u = g + 8 * f8;
    uint16_t *dg = dgu + row * 16 * f8, *du = dg + 8 * f8;
    dy += row * 8 * f8;
    for (int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; c < f8;
         c += (int64_t)gridDim.x * blockDim.x) {
        float a[8], b[8], d[8];
        unpack8(a, load8_stream(g + 8 * c));
        unpack8(b, load8_stream(u + 8 * c));
        unpack8(d, load8_stream(dy + 8 * c));
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float s = sigmoid(a[j]), gate = a[j] * s;
            float u_j = b[j];
            b[j] = d[j] * gate;
            a[j] = d[j] * u_j * s * (1.f + a[j] - gate);
        }
        store8(dg + 8 * c, pack8(a));
        store8(du + 8 * c, pack8(b));
    }
}

/* One row a grid line; rows above 65535 go in slices. */
template <class Launch> static cudaError_t by_rows(int64_t rows, int64_t f, Launch launch)
{
    if (f % 8)
        return cudaErrorInvalidValue;
    unsigned bx = (unsigned)grid_for(f / 8, 256, 64);
    for (int64_t r = 0; r < rows; r += 65535)
        launch(dim3(bx, (unsigned)(rows - r < 65535 ? rows - r : 65535)), r);
    return cudaGetLastError();
}

cudaError_t mx_cuda_swiglu_forward(mx_bf16 *y, const mx_bf16 *gu, int64_t rows, int64_t f,
                                   cudaStream_t stream)
{
    return by_rows(rows, f, [&](dim3 grid, int64_t r) {
        swiglu_forward_kernel<<<grid, 256, 0, stream>>>(y + r * f, gu + 2 * r * f, f / 8);
    });
}

cudaError_t mx_cuda_swiglu_backward(mx_bf16 *dgu, const mx_bf16 *dy, const mx_bf16 *gu,
                                    int64_t rows, int64_t f, cudaStream_t stream)
{
    return by_rows(rows, f, [&](dim3 grid, int64_t r) {
        swiglu_backward_kernel<<<grid, 256, 0, stream>>>(dgu + 2 * r * f, dy + r * f,
                                                         gu + 2 * r * f, f / 8);
    });
}
