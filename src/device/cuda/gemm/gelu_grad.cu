/* gelu_grad.cu - a GEMM's result times the derivative of GELU, in place, with sums over rows: where
 * it cannot be the GEMM's epilogue. A thread has four columns of some rows. */
#include "device/cuda/gemm/gemm_gelu_grad.h"
#include "device/cuda/core/vec.cuh"
#include "ops/gpu_work.h"

enum { THREADS = 128, ROWS = 256 };

/* s + s (1 - s) x (A + 3 A B x^2), s a sigmoid of A (x + B x^3). */
__device__ __forceinline__ float gelu_grad_of(float x)
{
    const float A = 1.5957691216057308f, B = 0.044715f;
    float s = __fdividef(1.f, 1.f + __expf(-A * (x + B * x * x * x)));
    return s + s * (1 - s) * x * (A + 3 * A * B * x * x);
}

template <class T>
__global__ __launch_bounds__(THREADS) void gelu_grad_kernel(T *du, const T *u, float *parts,
                                                            int64_t rows, int64_t n)
{
    int64_t col = 4 * ((int64_t)blockIdx.y * THREADS + threadIdx.x), from = blockIdx.x * ROWS;
    if (col >= n)
        return;
    float sum[4] = {};
#pragma unroll 4
    for (int64_t r = from; r < min(from + ROWS, rows); r++) {
        float x[4], d[4];
        load4(x, u + r * n + col);
        load4(d, du + r * n + col);
#pragma unroll
        for (int i = 0; i < 4; i++)
            d[i] *= gelu_grad_of(x[i]), sum[i] += d[i];
        store4(du + r * n + col, d);
    }
    store4(parts + blockIdx.x * n + col, sum);
}

static_assert((int)ROWS >= (int)MX_GPU_GELU_GRAD_ROWS, "no more than planned");
int64_t mx_gelu_grad_rows(int64_t m)
{
    return mx_gpu_parts(m, ROWS);
}

cudaError_t mx_gelu_grad_launch(const mx_epilogue_gemm *s, const mx_gemm_gelu_grad_args *a,
                                bool f32, cudaStream_t stream)
{
    const int64_t wide = 4 * THREADS;
    dim3 grid((unsigned)mx_gelu_grad_rows(s->m), (unsigned)((s->n + wide - 1) / wide));
    if (f32)
        gelu_grad_kernel<<<grid, THREADS, 0, stream>>>((float *)a->du, (const float *)a->u,
                                                       a->parts, s->m, s->n);
    else
        gelu_grad_kernel<<<grid, THREADS, 0, stream>>>((uint16_t *)a->du, (const uint16_t *)a->u,
                                                       a->parts, s->m, s->n);
    return cudaGetLastError();
}
