/* sample.cu - the next token from a row of logits: greedy, or temperature with top-k, top-p, min-p.
 *
 * One block a row, no sorting. Filters are thresholds on the logit itself: the k-th largest logit, or the
 * logit at which the mass of larger ones reaches p, is found three bits at a time from the top of the
 * logit's ordered bits. Mass is counted in integers (weight times 2^40), so the sums, and with them the
 * token, do not depend on the order of additions. Ties at a
 * threshold are all kept. The draw is the inverse of the cumulative mass in token order.
 * Order of filters: temperature, top-k, top-p (of what top-k left), min-p.
 */
#include "device/cuda/plugin/kernels.h"
#include "device/cuda/plugin/vec.cuh"

enum { SAMPLE_THREADS = 1024 };
typedef unsigned long long u64;

/* Larger float, larger integer. */
__device__ __forceinline__ uint32_t ordered(float x)
{
    uint32_t u = __float_as_uint(x);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}
struct row_view {
    const float *x;
    int64_t n;
    float top, inv_t;
    __device__ __forceinline__ u64 mass(float v) const
    {
        return (u64)(__expf((v - top) * inv_t) * 1099511627776.f);
    }
};
struct best {
    float x;
    int64_t i;
};
__device__ __forceinline__ best better(best a, best b)
{
    return b.x > a.x || (b.x == a.x && b.i < a.i) ? b : a;
}

__device__ best row_best(const float *x, int64_t n)
{
    __shared__ best part[32];
    best t = {-INFINITY, n};
    for (int64_t i = threadIdx.x; i < n; i += SAMPLE_THREADS)
        t = better(t, {x[i], i});
    for (int o = 16; o; o >>= 1)
        t = better(t, {__shfl_xor_sync(~0u, t.x, o), __shfl_xor_sync(~0u, t.i, o)});
    if ((threadIdx.x & 31) == 0)
        part[threadIdx.x >> 5] = t;
    __syncthreads();
    t = part[threadIdx.x & 31];
    for (int o = 16; o; o >>= 1)
        t = better(t, {__shfl_xor_sync(~0u, t.x, o), __shfl_xor_sync(~0u, t.i, o)});
    return t;
}

__device__ u64 block_mass(u64 x)
{
    __shared__ u64 part[32];
    for (int o = 16; o; o >>= 1)
        x += __shfl_xor_sync(~0u, x, o);
    __syncthreads();
    if ((threadIdx.x & 31) == 0)
        part[threadIdx.x >> 5] = x;
    __syncthreads();
    x = part[threadIdx.x & 31];
    for (int o = 16; o; o >>= 1)
        x += __shfl_xor_sync(~0u, x, o);
    return x;
}

/* The largest key t such that the keys >= max(t, floor) reach `want`, each key counting 1 or (BY_MASS)
 * its mass: bit by bit from the top, three bits a pass, every thread counting for seven candidates at
 * once. No histogram: logits crowd into few bins, and atomics on those would be slow. */
template <bool BY_MASS> __device__ uint32_t threshold(const row_view &r, uint32_t floor, u64 want)
{
    uint32_t t = 0;
    for (int shift = 30; shift >= 0; shift -= 3) {
        u64 sum[7] = {};
        for (int64_t i = threadIdx.x; i < r.n; i += SAMPLE_THREADS) {
            float x = r.x[i];
            uint32_t key = ordered(x);
            if (key < floor || key < t)
                continue;
            u64 mass = BY_MASS ? r.mass(x) : 1;
#pragma unroll
            for (int j = 0; j < 7; j++) { /* the top round has two bits: candidates above 3 overflow */
                u64 c = (u64)t + ((u64)(j + 1) << shift);
                sum[j] += key >= c ? mass : 0;
            }
        }
        int step = 0;
#pragma unroll
        for (int j = 0; j < 7; j++)
            if (block_mass(sum[j]) >= want && (u64)t + ((u64)(j + 1) << shift) <= 0xffffffffull)
                step = j + 1;
        t += (uint32_t)step << shift;
    }
    return t > floor ? t : floor;
}

/* Warps own contiguous stretches; the warp in which the cumulative mass passes `want` walks its own. */
__device__ int64_t draw(const row_view &r, uint32_t floor, float u)
{
    __shared__ u64 warp_mass[32];
    __shared__ int64_t chosen;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int64_t per = (r.n + 31) / 32, lo = per * warp, hi = lo + per < r.n ? lo + per : r.n;
    u64 x = 0;
    for (int64_t i = lo + lane; i < hi; i += 32)
        if (ordered(r.x[i]) >= floor)
            x += r.mass(r.x[i]);
    for (int o = 16; o; o >>= 1)
        x += __shfl_xor_sync(~0u, x, o);
    if (lane == 0)
        warp_mass[warp] = x;
    if (threadIdx.x == 0)
        chosen = -1;
    __syncthreads();
    u64 total = 0, before = 0;
    for (int w = 0; w < 32; w++) {
        before += w < warp ? warp_mass[w] : 0;
        total += warp_mass[w];
    }
    u64 want = (u64)((double)u * (double)total);
    if (want >= total)
        want = total - 1;
    if (want >= before && want < before + x) {
        u64 at = before;
        for (int64_t i0 = lo; i0 < hi; i0 += 32) {
            int64_t i = i0 + lane;
            u64 mine = i < hi && ordered(r.x[i]) >= floor ? r.mass(r.x[i]) : 0, sum = mine;
            for (int o = 1; o < 32; o <<= 1) {
                u64 t = __shfl_up_sync(~0u, sum, o);
                if (lane >= o)
                    sum += t;
            }
            if (mine && want >= at + sum - mine && want < at + sum)
                chosen = i;
            at += __shfl_sync(~0u, sum, 31);
            if (at > want)
                break;
        }
    }
    __syncthreads();
    return chosen;
}

__global__ void __launch_bounds__(SAMPLE_THREADS)
    sample_kernel(int32_t *token, float *logprob, const float *logits, int64_t vocab, mx_sample_shape s,
                  const float *uniform)
{
    const float *x = logits + (int64_t)blockIdx.x * vocab;
    best b = row_best(x, vocab);
    int64_t pick = b.i;
    if (s.temperature > 0) {
        row_view r = {x, vocab, b.x, 1.f / s.temperature};
        uint32_t floor = 0;
        if (s.top_k > 0 && s.top_k < vocab)
            floor = threshold<false>(r, floor, (u64)s.top_k);
        if (s.top_p < 1.f) {
            u64 kept = 0;
            for (int64_t i = threadIdx.x; i < vocab; i += SAMPLE_THREADS)
                kept += ordered(x[i]) >= floor ? r.mass(x[i]) : 0;
            kept = block_mass(kept);
            u64 want = (u64)((double)s.top_p * (double)kept);
            floor = threshold<true>(r, floor, want ? want : 1);
        }
        if (s.min_p > 0.f) { /* weight >= min_p of the best one's: a floor on the logit itself */
            uint32_t f = ordered(b.x + logf(s.min_p) * s.temperature);
            floor = f > floor ? f : floor;
        }
        uint32_t top = ordered(b.x);
        int64_t c = draw(r, floor < top ? floor : top, uniform[blockIdx.x]);
        pick = c >= 0 ? c : b.i;
    }
    if (logprob) {
        row_view one = {x, vocab, b.x, 1.f};
        u64 sum = 0;
        for (int64_t i = threadIdx.x; i < vocab; i += SAMPLE_THREADS)
            sum += one.mass(x[i]);
        sum = block_mass(sum);
        if (threadIdx.x == 0)
            logprob[blockIdx.x] = x[pick] - b.x - (float)log((double)sum / 1099511627776.0);
    }
    if (threadIdx.x == 0)
        token[blockIdx.x] = (int32_t)pick;
}

cudaError_t mx_cuda_sample(int32_t *token, float *logprob, const float *logits, int batch, int64_t vocab,
                           const mx_sample_shape *s, const float *uniform, cudaStream_t stream)
{
    sample_kernel<<<(unsigned)batch, SAMPLE_THREADS, 0, stream>>>(token, logprob, logits, vocab, *s,
                                                                  uniform);
    return cudaGetLastError();
}
