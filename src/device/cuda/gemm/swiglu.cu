/* swiglu.cu - SwiGLU and its gradient over the results of GEMMs that cannot have them as epilogues.
 * A thread has four elements. */
#include "device/cuda/gemm/gemm_swiglu.h"
#include "device/cuda/core/vec.cuh"

enum { THREADS = 256 };

__device__ __forceinline__ float sigmoid(float x)
{
    return __fdividef(1.f, 1.f + __expf(-x));
}

template <class T>
__global__ __launch_bounds__(THREADS) void forward_kernel(T *h, const T *g, const T *u, int64_t n)
{
    int64_t at = 4 * ((int64_t)blockIdx.x * THREADS + threadIdx.x);
    if (at >= n)
        return;
    float x[4], y[4];
    load4(x, g + at);
    load4(y, u + at);
#pragma unroll
    for (int i = 0; i < 4; i++)
        y[i] *= x[i] * sigmoid(x[i]);
    store4(h + at, y);
}

template <class T>
__global__ __launch_bounds__(THREADS) void backward_kernel(T *dg, T *du, const T *g, const T *u,
                                                           int64_t n)
{
    int64_t at = 4 * ((int64_t)blockIdx.x * THREADS + threadIdx.x);
    if (at >= n)
        return;
    float x[4], y[4], d[4], e[4];
    load4(x, g + at);
    load4(y, u + at);
    load4(d, dg + at);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float s = sigmoid(x[i]);
        e[i] = d[i] * x[i] * s;
        d[i] *= y[i] * s * (1 + x[i] * (1 - s));
    }
    store4(dg + at, d);
    store4(du + at, e);
}

static unsigned blocks(int64_t n)
{
    return (unsigned)((n / 4 + THREADS - 1) / THREADS);
}

cudaError_t mx_swiglu_launch(const mx_swiglu_forward_args *a, int64_t n, bool f32,
                             cudaStream_t stream)
{
    if (f32)
        forward_kernel<<<blocks(n), THREADS, 0, stream>>>((float *)a->h, (const float *)a->g,
                                                          (const float *)a->u, n);
    else
        forward_kernel<<<blocks(n), THREADS, 0, stream>>>(
            (uint16_t *)a->h, (const uint16_t *)a->g, (const uint16_t *)a->u, n);
    return cudaGetLastError();
}

cudaError_t mx_swiglu_grad_launch(const mx_swiglu_backward_args *a, int64_t n, bool f32,
                                   cudaStream_t stream)
{
    if (f32)
        backward_kernel<<<blocks(n), THREADS, 0, stream>>>(
            (float *)a->dg, (float *)a->du, (const float *)a->g, (const float *)a->u, n);
    else
        backward_kernel<<<blocks(n), THREADS, 0, stream>>>((uint16_t *)a->dg, (uint16_t *)a->du,
                                                           (const uint16_t *)a->g,
                                                           (const uint16_t *)a->u, n);
    return cudaGetLastError();
}
