/* blend.cu - see blend.h. A block takes a token; its threads take columns, two at a time where rows
 * begin at even ones, and keep a column of every stream in registers. */
#include "device/cuda/fused/blend.h"
#include "device/cuda/recurrent/recurrent.cuh"

enum { THREADS = 128, LANES = 32, WARPS = THREADS / LANES };

/* Columns i and i + 1, or i alone where PAIRS is not set. */
template <class T, bool PAIRS> struct columns;
template <> struct columns<float, true> {
    static __device__ float2 get(const void *p, int64_t i)
    {
        return *(const float2 *)((const float *)p + i);
    }
    static __device__ void put(void *p, int64_t i, float2 v) { *(float2 *)((float *)p + i) = v; }
};
template <> struct columns<uint16_t, true> {
    static __device__ float2 get(const void *p, int64_t i)
    {
        return __bfloat1622float2(*(const __nv_bfloat162 *)((const uint16_t *)p + i));
    }
    static __device__ void put(void *p, int64_t i, float2 v)
    {
        *(__nv_bfloat162 *)((uint16_t *)p + i) = __float22bfloat162_rn(v);
    }
};
template <class T> struct columns<T, false> {
    static __device__ float2 get(const void *p, int64_t i)
    {
        return make_float2(get_any(p, i, sizeof(T) == 4), 0.f);
    }
    static __device__ void put(void *p, int64_t i, float2 v)
    {
        put_any(p, i, v.x, sizeof(T) == 4);
    }
};

template <class T, bool PAIRS, int N, int M>
__global__ void __launch_bounds__(THREADS)
    blend_kernel(const __grid_constant__ mx_cuda_blend s, const void *x, const float *w, void *y)
{
    using col = columns<T, PAIRS>;
    __shared__ float weight[N * M];
    int64_t t = blockIdx.x;
    const int step = PAIRS ? 2 : 1;
    if (threadIdx.x < N * M)
        weight[threadIdx.x] = w[t * N * M + threadIdx.x];
    __syncthreads();
    for (int i = threadIdx.x * step; i < s.d; i += THREADS * step) {
        float2 in[N];
#pragma unroll
        for (int j = 0; j < N; j++)
            in[j] = col::get(x, (t * N + j) * s.d + i);
#pragma unroll
        for (int k = 0; k < M; k++) {
            float2 sum = make_float2(0.f, 0.f);
#pragma unroll
            for (int j = 0; j < N; j++) {
                sum.x += weight[j * M + k] * in[j].x;
                sum.y += weight[j * M + k] * in[j].y;
            }
            col::put(y, (t * M + k) * s.d + i, sum);
        }
    }
}

template <class T, bool PAIRS, int N, int M>
__global__ void __launch_bounds__(THREADS)
    dots_kernel(const __grid_constant__ mx_cuda_blend s, const void *x, const void *y, float *z)
{
    using col = columns<T, PAIRS>;
    __shared__ float part[WARPS][N * M];
    int64_t t = blockIdx.x;
    int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    const int step = PAIRS ? 2 : 1;
    float sum[N * M] = {0};
    for (int i = threadIdx.x * step; i < s.d; i += THREADS * step) {
        float2 in[N];
#pragma unroll
        for (int j = 0; j < N; j++)
            in[j] = col::get(x, (t * N + j) * s.d + i);
#pragma unroll
        for (int k = 0; k < M; k++) {
            float2 v = col::get(y, (t * M + k) * s.d + i);
#pragma unroll
            for (int j = 0; j < N; j++)
                sum[j * M + k] += in[j].x * v.x + in[j].y * v.y;
        }
    }
#pragma unroll
    for (int e = 0; e < N * M; e++) {
        for (int d = LANES / 2; d; d /= 2)
            sum[e] += __shfl_xor_sync(0xffffffffu, sum[e], d);
        if (lane == 0)
            part[warp][e] = sum[e];
    }
    __syncthreads();
    if (threadIdx.x < N * M) {
        float all = 0;
        for (int k = 0; k < WARPS; k++)
            all += part[k][threadIdx.x];
        z[t * N * M + threadIdx.x] = all;
    }
}

/* The pairs of numbers of streams that occur: all to all, all to one, one to all. */
#define FOR_EACH_PAIR(CASE, K)                                                                     \
    CASE(K, 1, 1) CASE(K, 2, 2) CASE(K, 3, 3) CASE(K, 4, 4)                                        \
    CASE(K, 5, 5) CASE(K, 6, 6) CASE(K, 7, 7) CASE(K, 8, 8)                                        \
    CASE(K, 2, 1) CASE(K, 3, 1) CASE(K, 4, 1) CASE(K, 5, 1)                                        \
    CASE(K, 6, 1) CASE(K, 7, 1) CASE(K, 8, 1)                                                      \
    CASE(K, 1, 2) CASE(K, 1, 3) CASE(K, 1, 4) CASE(K, 1, 5)                                        \
    CASE(K, 1, 6) CASE(K, 1, 7) CASE(K, 1, 8)
#define LAUNCH_PAIR(K, N, M)                                                                       \
    if (s->n == N && s->m == M) {                                                                  \
        K<T, PAIRS, N, M><<<(unsigned)s->tokens, THREADS, 0, stream>>>(*s, a, b, c);               \
        return cudaGetLastError();                                                                 \
    }
/* NAME<T, PAIRS>(s, a, b, c, stream) launches the KERNEL for its numbers of streams. */
#define LAUNCHER(NAME, KERNEL, A, B, C)                                                            \
    template <class T, bool PAIRS>                                                                 \
    static cudaError_t NAME(const mx_cuda_blend *s, A a, B b, C c, cudaStream_t stream)            \
    {                                                                                              \
        FOR_EACH_PAIR(LAUNCH_PAIR, KERNEL)                                                         \
        return cudaErrorInvalidValue;                                                              \
    }
LAUNCHER(blend_as, blend_kernel, const void *, const float *, void *)
LAUNCHER(dots_as, dots_kernel, const void *, const void *, float *)

/* The launcher for streams of this dtype and width. */
#define LAUNCHER_FOR(s, NAME)                                                                      \
    ((s)->f32 ? ((s)->d % 2 ? NAME<float, false> : NAME<float, true>)                              \
              : ((s)->d % 2 ? NAME<uint16_t, false> : NAME<uint16_t, true>))

extern "C" cudaError_t mx_cuda_blend_streams(const mx_cuda_blend *s, const void *x, const float *w,
                                             void *y, cudaStream_t stream)
{
    return LAUNCHER_FOR(s, blend_as)(s, x, w, y, stream);
}

extern "C" cudaError_t mx_cuda_stream_dots(const mx_cuda_blend *s, const void *x, const void *y,
                                           float *z, cudaStream_t stream)
{
    return LAUNCHER_FOR(s, dots_as)(s, x, y, z, stream);
}
