/* grouped_few.cu - one GEMM per expert for a few rows, as in decoding: every row reads its
 * expert's weights once, at memory speed, without the tensor cores.
 *
 *     NT   a warp has two outputs of a row: two rows of w_e times x
 *     NN   a block has 64 outputs of a row: eight threads side by side, 32 of them down k, whose
 *          sums are added in order
 * A row's expert is the last one that starts at or before it: the first start beyond the row, less
 * one, whatever the order of the starts.
 */
#include "device/cuda/moe/moe_kernels.h"
#include "device/cuda/core/vec.cuh"

enum { THREADS = 256, COLS = 64, DOWN = 32 };

struct few_call {
    const uint16_t *x, *w;
    void *y;
    const int32_t *start;
    int experts;
    int64_t n, k;
    bool out_f32;
};

/* The expert of a row, or -1; one whole warp. */
__device__ __forceinline__ int expert_of(const few_call &p, int row)
{
    int lane = threadIdx.x % 32;
#pragma unroll 4
    for (int first = 0; first <= p.experts; first += 32) {
        bool beyond = first + lane <= p.experts && p.start[first + lane] > row;
        unsigned any = __ballot_sync(~0u, beyond);
        if (any)
            return first + __ffs(any) - 2;
    }
    return -1;
}
__device__ __forceinline__ void write(const few_call &p, int64_t at, float x)
{
    if (p.out_f32)
        ((float *)p.y)[at] = x;
    else
        ((uint16_t *)p.y)[at] = f32_to_bf16(x);
}
__device__ __forceinline__ float dot8(const vec8 &a, const float x[8], float sum)
{
    float f[8];
    unpack8(f, a);
#pragma unroll
    for (int i = 0; i < 8; i++)
        sum = fmaf(f[i], x[i], sum);
    return sum;
}

__global__ __launch_bounds__(THREADS) void few_nt_kernel(few_call p)
{
    int lane = threadIdx.x % 32, row = blockIdx.y;
    int64_t c = 2 * ((int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32);
    int e = expert_of(p, row);
    if (c >= p.n)
        return;
    const uint16_t *x = p.x + row * p.k, *w = p.w + (max(e, 0) * p.n + c) * p.k;
    float s0 = 0, s1 = 0;
#pragma unroll 4
    for (int64_t i = lane * 8; i < p.k && e >= 0; i += 256) {
        float f[8];
        vec8 w0 = load8_stream(w + i), w1 = load8_stream(w + p.k + i);
        unpack8(f, load8(x + i));
        s0 = dot8(w0, f, s0);
        s1 = dot8(w1, f, s1);
    }
    s0 = warp_sum(s0), s1 = warp_sum(s1);
    if (lane < 2)
        write(p, row * p.n + c + lane, lane ? s1 : s0);
}

__global__ __launch_bounds__(THREADS) void few_nn_kernel(few_call p)
{
    __shared__ float part[DOWN][COLS];
    int row = blockIdx.y, down = threadIdx.x / 8;
    int64_t c = (int64_t)blockIdx.x * COLS + threadIdx.x % 8 * 8;
    int e = expert_of(p, row);
    const uint16_t *x = p.x + row * p.k, *w = p.w + max(e, 0) * p.n * p.k + c;
    float sum[8] = {0};
#pragma unroll 4
    for (int64_t i = down; i < p.k && e >= 0 && c < p.n; i += DOWN) {
        float f[8], v = as_float(x[i]);
        unpack8(f, load8_stream(w + i * p.n));
#pragma unroll
        for (int q = 0; q < 8; q++)
            sum[q] = fmaf(f[q], v, sum[q]);
    }
#pragma unroll
    for (int q = 0; q < 8; q++)
        part[down][threadIdx.x % 8 * 8 + q] = sum[q];
    __syncthreads();
    int64_t out = (int64_t)blockIdx.x * COLS + threadIdx.x;
    if (threadIdx.x < COLS && out < p.n) {
        float all = 0;
        for (int i = 0; i < DOWN; i++)
            all += part[i][threadIdx.x];
        write(p, row * p.n + out, all);
    }
}

cudaError_t mx_cuda_grouped_few(const mx_grouped_call *g, cudaStream_t stream)
{
    few_call p = {(const uint16_t *)g->a, (const uint16_t *)g->b, g->y, g->start, (int)g->experts,
                  g->n, g->k, g->out_f32};
    if (g->kind == MX_GROUPED_TN)
        return cudaErrorInvalidValue;
    if (g->kind == MX_GROUPED_NT)
        few_nt_kernel<<<dim3((unsigned)((g->n + 15) / 16), (unsigned)g->rows), THREADS, 0,
                        stream>>>(p);
    else
        few_nn_kernel<<<dim3((unsigned)((g->n + COLS - 1) / COLS), (unsigned)g->rows), THREADS, 0,
                        stream>>>(p);
    return cudaGetLastError();
}
