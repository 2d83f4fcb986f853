/* sample.cu - the next token from a row of logits: greedy, or temperature with top-k and top-p.
 *
 * One block a row, no sorting. Filters are thresholds on the logit itself: the k-th largest logit,
 * or the logit at which the mass of larger ones reaches p, is found three bits at a time from the
 * top of the logit's ordered bits; with top-k, among a few candidates gathered first. Mass is
 * counted in integers (weight times 2^40), so the sums, and with them the token, do not depend on
 * the order of additions. Ties at a threshold are all kept. The draw is the inverse of the
 * cumulative mass in token order. Order of filters: temperature, top-k, top-p (of what top-k left).
 */
#include "device/cuda/core/kernels.h"
#include "device/cuda/core/pdl.cuh"
#include "device/cuda/core/vec.cuh"
#include "ops/inputs.h"

enum { SAMPLE_THREADS = 1024, LIST = 4096 };
enum { MX_SAMPLE_SETTINGS };
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

/* The row's best, and in `mine` the best of this thread's share. */
__device__ best row_best(const float *x, int64_t n, float &mine)
{
    __shared__ best part[32];
    best t = {-INFINITY, n};
#pragma unroll 16
    for (int64_t i = threadIdx.x; i < n; i += SAMPLE_THREADS)
        t = better(t, {x[i], i});
    mine = t.x;
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

/* sum[j] over the block, to every thread. */
__device__ void block_masses(u64 sum[7])
{
    __shared__ u64 part[32][7];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < 7; j++) {
        for (int o = 16; o; o >>= 1)
            sum[j] += __shfl_xor_sync(~0u, sum[j], o);
        if (lane == 0)
            part[warp][j] = sum[j];
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < 7; j++) {
        sum[j] = part[lane][j];
        for (int o = 16; o; o >>= 1)
            sum[j] += __shfl_xor_sync(~0u, sum[j], o);
    }
}

/* The largest key t such that the keys >= max(t, floor) reach `want`, each key counting 1 or
 * (BY_MASS) its mass: from the top, three bits a pass, every thread counting for seven candidates
 * at once. No histogram: logits crowd into few bins, and atomics on those would be slow. */
template <bool BY_MASS> __device__ uint32_t threshold(const row_view &r, uint32_t floor, u64 want)
{
    uint32_t t = 0;
    for (int shift = 30; shift >= 0; shift -= 3) {
        u64 sum[7] = {};
#pragma unroll 8
        for (int64_t i = threadIdx.x; i < r.n; i += SAMPLE_THREADS) {
            float x = r.x[i];
            uint32_t key = ordered(x);
            u64 mass = key < floor || key < t ? 0 : BY_MASS ? r.mass(x) : 1;
#pragma unroll
            for (int j = 0; j < 7;
                 j++) /* the top round has two bits: candidates above 3 overflow */
                sum[j] += key >= (u64)t + ((u64)(j + 1) << shift) ? mass : 0;
        }
        block_masses(sum);
        int step = 0;
#pragma unroll
        for (int j = 0; j < 7; j++)
            if (sum[j] >= want && (u64)t + ((u64)(j + 1) << shift) <= 0xffffffffull)
                step = j + 1;
        t += (uint32_t)step << shift;
    }
    return t > floor ? t : floor;
}

/* A key that at least k logits reach: the k-th largest of the threads' own best, k <= 1024. */
__device__ uint32_t coarse_floor(float mine, int k)
{
    uint32_t t = 0, key = ordered(mine);
    for (int bit = 31; bit >= 0; bit--)
        if (__syncthreads_count(key >= (t | 1u << bit)) >= k)
            t |= 1u << bit;
    return t;
}

/* Logits at or above `floor` into `list`, in no fixed order (counts and masses do not mind);
 * returns how many there are, which may be more than fit. */
__device__ int gather(const float *x, int64_t n, uint32_t floor, float *list)
{
    __shared__ int count;
    if (threadIdx.x == 0)
        count = 0;
    __syncthreads();
#pragma unroll 8
    for (int64_t i = threadIdx.x; i < n; i += SAMPLE_THREADS)
        if (ordered(x[i]) >= floor) {
            int at = atomicAdd(&count, 1);
            if (at < LIST)
                list[at] = x[i];
        }
    __syncthreads();
    return count;
}

/* Warps own contiguous stretches; the warp in which the cumulative mass passes `want` walks its
 * own. */
__device__ int64_t draw(const row_view &r, uint32_t floor, float u)
{
    __shared__ u64 warp_mass[32];
    __shared__ int64_t chosen;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int64_t per = (r.n + 31) / 32, lo = per * warp, hi = lo + per < r.n ? lo + per : r.n;
    u64 x = 0;
#pragma unroll 8
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

__global__ void __launch_bounds__(SAMPLE_THREADS) sample_kernel(const mx_sample_rows s)
{
    __shared__ float list[LIST];
    let_next_start();
    wait_for_previous();
    const float *x = s.logits + (int64_t)blockIdx.x * s.stride;
    const float *how = s.settings + (int64_t)blockIdx.x * N_SETTINGS;
    const float temperature = how[TEMPERATURE], top_p = how[TOP_P];
    const int top_k = how[TOP_K] < (float)s.vocab ? (int)how[TOP_K] : 0;
    float mine;
    best b = row_best(x, s.vocab, mine);
    int64_t pick = b.i < s.vocab ? b.i : -1;
    if (pick >= 0 && temperature > 0) {
        row_view row = {x, s.vocab, b.x, 1.f / temperature}, r = row;
        uint32_t floor = 0;
        if (top_k > 0) {
            if (top_k <= SAMPLE_THREADS) { /* a few candidates stand for the row from here on */
                int n = gather(x, s.vocab, coarse_floor(mine, top_k), list);
                if (n <= LIST)
                    r = {list, n, b.x, row.inv_t};
            }
            floor = threshold<false>(r, floor, (u64)top_k);
        }
        if (top_p < 1.f) {
            u64 kept = 0;
#pragma unroll 8
            for (int64_t i = threadIdx.x; i < r.n; i += SAMPLE_THREADS)
                kept += ordered(r.x[i]) >= floor ? r.mass(r.x[i]) : 0;
            kept = block_mass(kept);
            u64 want = (u64)((double)top_p * (double)kept);
            floor = threshold<true>(r, floor, want ? want : 1);
        }
        uint32_t top = ordered(b.x);
        int64_t c = draw(row, floor < top ? floor : top, how[UNIFORM]);
        pick = c >= 0 ? c : b.i;
    }
    if (threadIdx.x == 0)
        s.token[blockIdx.x] = (int32_t)pick;
}

cudaError_t mx_cuda_sample(const mx_sample_rows *s, cudaStream_t stream)
{
    return launch_pdl(sample_kernel, (unsigned)s->rows, SAMPLE_THREADS, 0, stream, *s);
}

__global__ void feed_kernel(const mx_feed_args f)
{
    let_next_start();
    wait_for_previous();
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= f.n)
        return;
    int32_t from = f.from[i];
    f.out[i] = from >= 0 && from < f.rows ? max(f.sampled[from], 0) : f.tokens[i];
}

cudaError_t mx_cuda_feed_sampled(const mx_feed_args *f, cudaStream_t stream)
{
    return launch_pdl(feed_kernel, (unsigned)((f->n + 255) / 256), 256, 0, stream, *f);
}
