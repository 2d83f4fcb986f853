/* paged_single.cuh - kernels for paged attention of tokens that stand alone (see paged_mma.cuh): a
 * warp for each leaf and key head, then a warp for each head that merges its leaves. Warps of a
 * block share nothing but the list of tokens; they have neighbouring key heads, whose rows lie side
 * by side. Warps per block and stages per warp are parameters: paged_single.cu chooses them,
 * bench/gpu/paged_bench.cu times others. */
#ifndef MX_DEVICE_CUDA_PAGED_SINGLE_CUH
#define MX_DEVICE_CUDA_PAGED_SINGLE_CUH

#include "device/cuda/attention/paged_mma.cuh"
#include "ops/gpu_work.h"

enum { MERGE_WARPS = 4 };

/* Where leaf i (from the first one it sees) of a head lies: m, l, o (D). */
template <int D>
__device__ __forceinline__ float *part_of(const mx_cuda_paged &p, int place, int head, int i)
{
    return p.parts_at + (((int64_t)place * p.q_heads + head) * p.leaves + i) * (D + 2);
}

template <int D>
__device__ __forceinline__ void store_part(const mx_cuda_paged &p, const softmax_rows<D> &s,
                                           const head_group &h, int place, int leaf)
{
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int r = lane / 4 + 8 * i;
        if (r >= h.n)
            continue;
        float *to = part_of<D>(p, place, h.first + r, leaf);
        if (lane % 4 == 0)
            *(float2 *)to = make_float2(s.m[i], s.l[i]);
#pragma unroll
        for (int c = 0; c < D / 8; c++)
            *(float2 *)(to + 2 + c * 8 + lane % 4 * 2) =
                make_float2(s.o[c][2 * i], s.o[c][2 * i + 1]);
    }
}

/* Leaves of a token at `at` that it sees. */
__device__ __forceinline__ int leaves_seen(const mx_cuda_paged &p, int at)
{
    return at / p.leaf - (int)(first_seen(p, at) / p.leaf) + 1;
}

/* The list of work, by one warp: of token n, units first[n] to first[n + 1]; its place among those
 * alone. The first block leaves the list of places to merge_kernel. */
__device__ __forceinline__ void list_alone(const mx_cuda_paged &p, const token_list &tokens,
                                           int *first, int *place)
{
    alone_places places = {0};
    int total = 0;
    const unsigned lane = threadIdx.x & 31;
    for (int n0 = 0; n0 < p.queries; n0 += 32) {
        int n = n0 + (int)lane, at = places.next(tokens, n), units = 0, x = 0;
        if (at >= 0)
            x = tokens.positions[n], units = leaves_seen(p, x);
        int sum = units;
        for (int step = 1; step < 32; step *= 2) {
            int below = __shfl_up_sync(~0u, sum, step);
            sum += lane >= (unsigned)step ? below : 0;
        }
        if (n < p.queries) {
            first[n] = total + sum - units;
            place[n] = at;
        }
        if (blockIdx.x == 0 && at >= 0)
            p.alone[1 + at] = n;
        total += __shfl_sync(~0u, sum, 31);
    }
    if (lane == 0)
        first[p.queries] = total;
    if (blockIdx.x == 0 && lane == 0)
        p.alone[0] = min(places.taken, p.places);
}

__device__ __forceinline__ int token_of(const int *first, int n, int unit)
{
    int lo = 0, hi = n - 1; /* the last token whose units begin at `unit` or before */
    while (lo < hi) {
        int mid = (lo + hi + 1) / 2;
        if (first[mid] <= unit)
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}

/* One step of keys and values of a warp on their way into `tile`. */
template <int D>
__device__ __forceinline__ void copy_step(const mx_cuda_paged &p, uint16_t *tile, int slot, int kh,
                                          int x, int last)
{
    constexpr int CHUNKS = D / 8;
    const uint16_t *k = (const uint16_t *)p.k + kh * D, *v = (const uint16_t *)p.v + kh * D;
#pragma unroll
    for (int j = 0; j < KEYS * CHUNKS / 32; j++) {
        int i = j * 32 + (threadIdx.x & 31), r = i / CHUNKS, c = i % CHUNKS * 8;
        bool there = slot >= 0 && x + r <= last;
        int64_t s = there ? slot + r : 0;
        copy16(tile + r * (D + 8) + c, k + s * p.k_row + c, there);
        copy16(tile + (KEYS + r) * (D + 8) + c, v + s * p.v_row + c, there);
    }
}

/* A walk over the steps of this warp's units: the one that copies goes ahead of the one that
 * computes, over the ends of units, so that a unit's first keys are there when it begins. */
struct unit_walk {
    int u, n, i; /* unit, its token, its leaf from the first that is seen; n < 0: none is left */
    head_group h;
    int begin, end, x; /* positions of the leaf that are seen, and of this step */
    int slot;          /* of the step that this lane looked up; -1: its page is not in the pool */

    __device__ __forceinline__ void open(const mx_cuda_paged &p, const int *first)
    {
        const int each = p.k_heads * p.parts;
        n = u < first[p.queries] * each ? token_of(first, p.queries, u / each) : -1;
        if (n < 0)
            return;
        const int at = p.positions[n], lo = (int)first_seen(p, at);
        i = u / each - first[n];
        h = heads_of(p, u % each / p.parts, u % p.parts);
        begin = max(lo, (lo / p.leaf + i) * p.leaf);
        end = min(at, (lo / p.leaf + i) * p.leaf + p.leaf - 1);
        x = begin / KEYS * KEYS;
    }
    /* Every 32 steps from the first one: a page for each lane. */
    __device__ __forceinline__ void look_up(const mx_cuda_paged &p)
    {
        const int32_t *table = p.table + (int64_t)p.row[n] * p.columns;
        if ((x - begin / KEYS * KEYS) % (32 * KEYS) == 0)
            slot = (int)slot_of(p, table, x + (threadIdx.x & 31) * KEYS);
    }
    __device__ __forceinline__ int slot_here() const
    {
        return __shfl_sync(~0u, slot, (x - begin / KEYS * KEYS) / KEYS % 32);
    }
};

/* The tiles, and before them the tokens of the step in their place. */
template <int D, int WARPS, int STAGES>
__host__ __device__ __forceinline__ size_t tiles_bytes(const mx_cuda_paged &p)
{
    size_t tiles = sizeof(uint16_t) * WARPS * STAGES * 2 * KEYS * (D + 8);
    size_t tokens = (2 * sizeof(int) * (size_t)p.queries + 15) / 16 * 16;
    return tiles > tokens ? tiles : tokens;
}

template <int D, int WARPS, int STAGES>
__global__ void __launch_bounds__(32 * WARPS) single_kernel(const __grid_constant__ mx_cuda_paged p)
{
    constexpr int TILE_SIZE = 2 * KEYS * (D + 8);
    extern __shared__ __align__(16) uint16_t all_tiles[];
    const int warp = threadIdx.x / 32, at_once = gridDim.x * WARPS;
    uint16_t *tiles = all_tiles + warp * STAGES * TILE_SIZE;
    int *first = (int *)((char *)all_tiles + tiles_bytes<D, WARPS, STAGES>(p)),
        *place = first + p.queries + 1;
    let_next_start();
    wait_for_previous();
    const token_list tokens = list_tokens(p, (int *)all_tiles);
    if (warp == 0)
        list_alone(p, tokens, first, place);
    __syncthreads();
    unit_walk ahead = {(int)blockIdx.x * WARPS + warp}, now = {ahead.u};
    unsigned there = 0; /* bit of a stage: its page is one of the pool's */
    int copied = 0, done = 0;
    auto copy = [&] {
        if (ahead.n >= 0) {
            const int stage = copied++ % STAGES;
            ahead.look_up(p);
            const int slot = ahead.slot_here();
            there = (there & ~(1u << stage)) | (unsigned)(slot >= 0) << stage;
            copy_step<D>(p, tiles + stage * TILE_SIZE, slot, ahead.h.kh, ahead.x, ahead.end);
            ahead.x += KEYS;
            if (ahead.x > ahead.end) {
                ahead.u += at_once;
                ahead.open(p, first);
            }
        }
        commit_copies();
    };
    ahead.open(p, first);
    for (int i = 0; i < STAGES - 1; i++)
        copy();
    for (now.open(p, first); now.n >= 0; now.u += at_once, now.open(p, first)) {
        const limits see = {{now.begin, now.begin}, {now.end, now.end}};
        softmax_rows<D> s, all;
        uint32_t q[D / 16][4];
        load_queries<D>(p, q, now.h, now.n, 1);
        s.clear();
        for (; now.x <= now.end; now.x += KEYS, done++) {
            const uint16_t *k = tiles + done % STAGES * TILE_SIZE;
            wait_copies<STAGES - 2>();
            __syncwarp();
            if (there >> done % STAGES & 1)
                take_keys<D>(p, s, q, k, k + KEYS * (D + 8), now.x, see);
            __syncwarp();
            copy();
        }
        s.sum();
        if (first[now.n + 1] - first[now.n] > 1) {
            store_part<D>(p, s, now.h, place[now.n], now.i);
            continue;
        }
        all.clear();
        merge_into<D>(all, s);
        store_results<D>(p, all, now.h, now.n, 1);
    }
    wait_copies<0>();
    const token_list all = {p.positions, p.row, p.queries, p.rows, p.places};
    for (int n = blockIdx.x; n < p.queries; n += gridDim.x) /* 0 where nothing is seen */
        for (int d = threadIdx.x; d < p.q_heads * D / 2 && !all.sees_any(n); d += 32 * WARPS)
            ((uint32_t *)p.out)[(int64_t)n * p.q_heads * D / 2 + d] = 0;
}

/* By one warp: the leaves of a head of token n, in order; of its result N times 64 elements, from
 * element `first` on. */
template <int D, int N>
__device__ __forceinline__ void merge_leaves(const mx_cuda_paged &p, int place, int n, int head,
                                             int leaves, int first)
{
    const int at = first + 2 * ((int)threadIdx.x & 31);
    constexpr int MANY = 16 / N; /* leaves on their way at a time */
    float m = -INFINITY, l = 0;
    float2 o[N] = {};
    for (int from = 0; from < leaves; from += MANY) {
        const float *part = part_of<D>(p, place, head, from);
        float2 ml[MANY], y[MANY][N];
#pragma unroll
        for (int i = 0; i < MANY; i++, part += D + 2) {
            const bool there = from + i < leaves;
            ml[i] = there ? __ldcg((const float2 *)part) : make_float2(0, 0);
#pragma unroll
            for (int c = 0; c < N; c++)
                y[i][c] =
                    there ? __ldcg((const float2 *)(part + 2 + 64 * c + at)) : make_float2(0, 0);
        }
#pragma unroll
        for (int i = 0; i < MANY; i++) {
            if (from + i >= leaves)
                break;
            merge_scale s = scales_of(m, ml[i].x);
            m = s.top;
            l = merged(s, l, ml[i].y);
#pragma unroll
            for (int c = 0; c < N; c++)
                o[c] = make_float2(merged(s, o[c].x, y[i][c].x), merged(s, o[c].y, y[i][c].y));
        }
    }
    float f = final_scale(p, head, m, l);
    uint16_t *out = (uint16_t *)p.out + ((int64_t)n * p.q_heads + head) * D + at;
#pragma unroll
    for (int c = 0; c < N; c++)
        *(uint32_t *)(out + 64 * c) = pack2(__fmul_rn(o[c].x, f), __fmul_rn(o[c].y, f));
}

/* A warp merges one head of one token. */
template <int D>
__global__ void __launch_bounds__(MERGE_WARPS * 32)
    merge_kernel(const __grid_constant__ mx_cuda_paged p)
{
    let_next_start();
    wait_for_previous();
    const int place = blockIdx.x, head = blockIdx.y * MERGE_WARPS + threadIdx.x / 32;
    if (place >= p.alone[0] || head >= p.q_heads)
        return;
    const int n = p.alone[1 + place], leaves = leaves_seen(p, p.positions[n]);
    if (leaves > 1)
        merge_leaves<D, D / 64>(p, place, n, head, leaves, 0);
}

template <int D, int WARPS, int STAGES>
static cudaError_t launch_single(const mx_cuda_paged &p, int most, cudaStream_t stream)
{
    const int work = mx_gpu_parts(p.queries * p.leaves * p.k_heads * p.parts, WARPS);
    const size_t bytes =
        tiles_bytes<D, WARPS, STAGES>(p) + sizeof(int) * (size_t)(2 * p.queries + 1);
    cudaError_t e = allow_shared(single_kernel<D, WARPS, STAGES>, bytes);
    if (e == cudaSuccess)
        e = launch_pdl(single_kernel<D, WARPS, STAGES>, work < most ? work : most, 32 * WARPS,
                       bytes, stream, p);
    return e;
}

template <int D> static cudaError_t launch_merge(const mx_cuda_paged &p, cudaStream_t stream)
{
    const dim3 heads((unsigned)p.places, (unsigned)mx_gpu_parts(p.q_heads, MERGE_WARPS));
    return launch_pdl(merge_kernel<D>, heads, MERGE_WARPS * 32, 0, stream, p);
}

#endif
