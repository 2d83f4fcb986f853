/* xent_slice.cu - see xent_slice.h. A block a row; logits are float32, four at a time: ld is a
 * multiple of 8. */
#include "device/cuda/core/vec.cuh"
#include "device/cuda/train/xent_slice.h"

enum { THREADS = 512 };

__device__ __forceinline__ float capped(float l, float cap)
{
    return cap > 0 ? cap * tanhf(l / cap) : l;
}

struct most_sum {
    float m, s; /* s = sum of e^(z - m) */
};
__device__ __forceinline__ most_sum merge(most_sum a, most_sum b)
{
    float m = fmaxf(a.m, b.m);
    if (m == -INFINITY)
        return {m, 0.f};
    return {m, a.s * __expf(a.m - m) + b.s * __expf(b.m - m)};
}

/* Merged in a fixed order: lanes, then warps. */
__device__ most_sum over_block(most_sum t)
{
    __shared__ most_sum part[THREADS / 32];
    int lane = threadIdx.x & 31;
#pragma unroll
    for (int o = 16; o; o >>= 1)
        t = merge(t, {__shfl_xor_sync(~0u, t.m, o), __shfl_xor_sync(~0u, t.s, o)});
    if (lane == 0)
        part[threadIdx.x / 32] = t;
    __syncthreads();
    t = lane < THREADS / 32 ? part[lane] : most_sum{-INFINITY, 0.f};
#pragma unroll
    for (int o = 16; o; o >>= 1)
        t = merge(t, {__shfl_xor_sync(~0u, t.m, o), __shfl_xor_sync(~0u, t.s, o)});
    return t;
}

/* Columns [4 c, 4 c + 4) of a row, -inf beyond the last word. */
__device__ __forceinline__ void load_words(float (&z)[4], const mx_xent_slice_rows &s,
                                           const float *row, int64_t c)
{
    load4(z, row + 4 * c);
#pragma unroll
    for (int j = 0; j < 4; j++)
        z[j] = 4 * c + j < s.vocab ? capped(z[j], s.softcap) : -INFINITY;
}

__global__ void __launch_bounds__(THREADS)
    slice_kernel(mx_xent_slice_rows s, float *lse, float *picked)
{
    const float *row = s.logits + (int64_t)blockIdx.x * s.ld;
    int64_t label = s.labels[blockIdx.x], here = label - s.first;
    most_sum t = {-INFINITY, 0.f};
#pragma unroll 4
    for (int64_t c = threadIdx.x; 4 * c < s.vocab; c += THREADS) {
        float z[4];
        load_words(z, s, row, c);
        float m = fmaxf(fmaxf(z[0], z[1]), fmaxf(z[2], z[3]));
        t = merge(t, {m, m == -INFINITY ? 0.f
                                        : (__expf(z[0] - m) + __expf(z[1] - m)) +
                                              (__expf(z[2] - m) + __expf(z[3] - m))});
    }
    t = over_block(t);
    if (threadIdx.x)
        return;
    bool is_here = label >= 0 && here >= 0 && here < s.vocab;
    lse[blockIdx.x] = label < 0 ? 0.f : t.m + logf(t.s);
    picked[blockIdx.x] = is_here ? capped(row[here], s.softcap) : 0.f;
}

template <class T>
__global__ void __launch_bounds__(THREADS)
    slice_grad_kernel(mx_xent_slice_rows s, mx_xent_slice_back g)
{
    const float *row = s.logits + (int64_t)blockIdx.x * s.ld;
    T *out = (T *)g.out + (int64_t)blockIdx.x * s.ld;
    int64_t label = s.labels[blockIdx.x], here = label - s.first;
    float lse = g.lse[blockIdx.x], dlse = label < 0 ? 0.f : g.dlse[blockIdx.x];
    float own = label < 0 ? 0.f : g.dpicked[blockIdx.x];
#pragma unroll 4
    for (int64_t c = threadIdx.x; 4 * c < s.ld; c += THREADS) {
        float z[4], d[4];
        load_words(z, s, row, c);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            bool word = 4 * c + j < s.vocab && label >= 0;
            float t = s.softcap > 0 ? z[j] / s.softcap : 0.f;
            d[j] = word ? ((dlse != 0.f ? __expf(z[j] - lse) * dlse : 0.f) +
                           (4 * c + j == here ? own : 0.f)) *
                              (1.f - t * t)
                        : 0.f;
        }
        store4(out + 4 * c, d);
    }
}

cudaError_t mx_cuda_xent_slice(const mx_xent_slice_rows *s, float *lse, float *picked,
                               cudaStream_t stream)
{
    slice_kernel<<<(unsigned)s->rows, THREADS, 0, stream>>>(*s, lse, picked);
    return cudaGetLastError();
}

cudaError_t mx_cuda_xent_slice_grad(const mx_xent_slice_rows *s, const mx_xent_slice_back *g,
                                    cudaStream_t stream)
{
    auto *kernel = g->f32 ? slice_grad_kernel<float> : slice_grad_kernel<uint16_t>;
    kernel<<<(unsigned)s->rows, THREADS, 0, stream>>>(*s, *g);
    return cudaGetLastError();
}
