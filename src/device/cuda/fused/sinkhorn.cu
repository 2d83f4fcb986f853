/* sinkhorn.cu - see sinkhorn.h. A thread takes a matrix: x, the factors of its rows and columns
 * and, for the gradient, the divisors of every step. */
#include "device/cuda/fused/sinkhorn.h"

enum { MOST_STEPS = 64, THREADS = 128 };

/* by[i] = the sum of row or column i of x r c, with eps; the factors take it in. */
template <int N>
__device__ __forceinline__ void divide(const float *x, float *r, float *c, bool rows, float eps,
                                       float *by)
{
    float d[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        d[i] = eps;
#pragma unroll
        for (int j = 0; j < N; j++)
            d[i] += rows ? x[i * N + j] * r[i] * c[j] : x[j * N + i] * r[j] * c[i];
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        if (rows)
            r[i] /= d[i];
        else
            c[i] /= d[i];
        if (by)
            by[i] = d[i];
    }
}

template <int N>
__device__ __forceinline__ void iterate(const mx_cuda_sinkhorn &s, const float *x, float *r,
                                        float *c, float (*by)[N])
{
    for (int i = 0; i < N; i++)
        r[i] = c[i] = 1;
    for (int k = 0; k < 2 * s.steps - 1; k++)
        divide<N>(x, r, c, k % 2 == 1, s.eps, by ? by[k] : nullptr);
}

template <int N>
__global__ void __launch_bounds__(THREADS)
    sinkhorn_kernel(const __grid_constant__ mx_cuda_sinkhorn s, const float *x, float *y)
{
    int64_t m = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    float own[N * N], r[N], c[N];
    if (m >= s.matrices)
        return;
    for (int i = 0; i < N * N; i++)
        own[i] = x[m * N * N + i];
    iterate<N>(s, own, r, c, nullptr);
    for (int i = 0; i < N * N; i++)
        y[m * N * N + i] = own[i] * r[i / N] * c[i % N];
}

template <int N>
__global__ void __launch_bounds__(THREADS)
    sinkhorn_grad_kernel(const __grid_constant__ mx_cuda_sinkhorn s, const float *x,
                         const float *dy, float *dx)
{
    int64_t m = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    float own[N * N], d[N * N], r[N], c[N], by[2 * MOST_STEPS][N];
    if (m >= s.matrices)
        return;
    for (int i = 0; i < N * N; i++) {
        own[i] = x[m * N * N + i];
        d[i] = dy[m * N * N + i];
    }
    iterate<N>(s, own, r, c, by);
    for (int k = 2 * s.steps - 2; k >= 0; k--) {
        bool rows = k % 2 == 1;
#pragma unroll
        for (int i = 0; i < N; i++) {
            float sum = 0;
#pragma unroll
            for (int j = 0; j < N; j++) {
                int at = rows ? i * N + j : j * N + i;
                sum += d[at] * own[at] * r[at / N] * c[at % N];
            }
#pragma unroll
            for (int j = 0; j < N; j++) {
                int at = rows ? i * N + j : j * N + i;
                d[at] = (d[at] - sum) / by[k][i];
            }
        }
#pragma unroll
        for (int i = 0; i < N; i++)
            if (rows)
                r[i] *= by[k][i];
            else
                c[i] *= by[k][i];
    }
    for (int i = 0; i < N * N; i++)
        dx[m * N * N + i] = d[i];
}

static unsigned blocks_of(const mx_cuda_sinkhorn *s)
{
    return (unsigned)((s->matrices + THREADS - 1) / THREADS);
}

#define LAUNCH_SIZE(N, KERNEL, ...)                                                                \
    case N:                                                                                        \
        KERNEL<N><<<blocks_of(s), THREADS, 0, stream>>>(*s, __VA_ARGS__);                          \
        return cudaGetLastError();
/* Launches the KERNEL for matrices of this size. */
#define LAUNCH(KERNEL, ...)                                                                        \
    switch (s->n) {                                                                                \
        LAUNCH_SIZE(1, KERNEL, __VA_ARGS__)                                                        \
        LAUNCH_SIZE(2, KERNEL, __VA_ARGS__)                                                        \
        LAUNCH_SIZE(3, KERNEL, __VA_ARGS__)                                                        \
        LAUNCH_SIZE(4, KERNEL, __VA_ARGS__)                                                        \
        LAUNCH_SIZE(5, KERNEL, __VA_ARGS__)                                                        \
        LAUNCH_SIZE(6, KERNEL, __VA_ARGS__)                                                        \
        LAUNCH_SIZE(7, KERNEL, __VA_ARGS__)                                                        \
        LAUNCH_SIZE(8, KERNEL, __VA_ARGS__)                                                        \
    }                                                                                              \
    return cudaErrorInvalidValue

extern "C" cudaError_t mx_cuda_sinkhorn_forward(const mx_cuda_sinkhorn *s, const float *x, float *y,
                                                cudaStream_t stream)
{
    LAUNCH(sinkhorn_kernel, x, y);
}

extern "C" cudaError_t mx_cuda_sinkhorn_backward(const mx_cuda_sinkhorn *s, const float *x,
                                                 const float *dy, float *dx, cudaStream_t stream)
{
    LAUNCH(sinkhorn_grad_kernel, x, dy, dx);
}
