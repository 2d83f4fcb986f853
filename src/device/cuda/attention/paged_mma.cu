/* paged_mma.cu - paged attention on the tensor cores: bf16, heads of 64 or 128 elements.
 *
 * A warp computes 16 rows: the query heads that share a key head, of one token or of several. Keys
 * come 16 at a time, in leaves of p.leaf positions, counted from position 0; the softmax of a leaf
 * (maximum m, sum l, values o) starts anew, and leaves are merged in order. So there are two ways
 * through the same arithmetic:
 *   - a token that stands alone, as in decoding: a warp for each leaf and key head, whose results
 *     are merged by merge_kernel;
 *   - tokens of a prompt: a block for a tile of them and a key head, which takes all leaves.
 * A row's bits are the same both ways and beside any others: rows of a tile do not mix, and keys
 * that a row does not see change nothing (they weigh 0, and a maximum that stays scales by 1).
 * Where the compiler could choose how to round, the operation is named.
 */
#include "device/cuda/attention/flash.cuh"
#include "device/cuda/attention/paged.cuh"
#include "device/cuda/core/pdl.cuh"
#include "ops/gpu_work.h"

enum { KEYS = 16, ROWS = 16, STAGES = 4, TILE_WARPS = 4, TILE_KEYS = 64, SINGLE_BLOCKS = 792,
       TILE_BLOCKS = 264, MERGE_WARPS = 4 };

/* --- which tokens stand alone --- */

__device__ __forceinline__ bool is_next(const mx_cuda_paged &p, int n)
{
    return n > 0 && n < p.queries && p.row[n] == p.row[n - 1] &&
           p.positions[n] == p.positions[n - 1] + 1 && p.positions[n - 1] >= 0;
}
__device__ __forceinline__ bool sees_any(const mx_cuda_paged &p, int n)
{
    return p.positions[n] >= 0 && p.row[n] >= 0 && p.row[n] < p.rows;
}

/* Of 32 tokens at a time, in order: whether token n, this lane's, has a place among those alone,
 * and which. There are as many places as sequences; who comes later goes with the tiles. */
struct alone_places {
    int taken;
    __device__ __forceinline__ int next(const mx_cuda_paged &p, int n)
    {
        bool alone = n < p.queries && sees_any(p, n) && !is_next(p, n) && !is_next(p, n + 1);
        unsigned all = __ballot_sync(~0u, alone), lane = threadIdx.x & 31;
        int place = taken + __popc(all & ((1u << lane) - 1));
        taken += __popc(all);
        return alone && place < p.places ? place : -1;
    }
};

/* Query heads [first, first + n) that share key head kh, ROWS at most: part `part` of p.parts. */
struct head_group {
    int first, n, kh;
};
__device__ __forceinline__ head_group heads_of(const mx_cuda_paged &p, int kh, int part)
{
    int group = p.q_heads / p.k_heads, each = p.group;
    int n = min(each, group - part * each);
    return {kh * group + part * each, n, kh};
}

/* --- a leaf --- */

/* Of rows lane / 4 and lane / 4 + 8 (i = 0, 1): what they see, and the softmax so far. */
struct limits {
    int lo[2], hi[2];
};
template <int D> struct softmax_rows {
    float o[D / 8][4], m[2], l[2]; /* l: of this lane's columns until sum() */
    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                o[n][i] = 0;
        m[0] = m[1] = -INFINITY;
        l[0] = l[1] = 0;
    }
    __device__ __forceinline__ void sum()
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            l[i] = __fadd_rn(l[i], __shfl_xor_sync(~0u, l[i], 1));
            l[i] = __fadd_rn(l[i], __shfl_xor_sync(~0u, l[i], 2));
        }
    }
};

/* What the maxima of two parts make of them. */
struct merge_scale {
    float top, a, b;
};
__device__ __forceinline__ merge_scale scales_of(float ma, float mb)
{
    float top = fmaxf(ma, mb), base = top == -INFINITY ? 0.f : top;
    return {top, exp2_fast(__fsub_rn(ma, base)), exp2_fast(__fsub_rn(mb, base))};
}
__device__ __forceinline__ float merged(const merge_scale &s, float a, float b)
{
    return __fmaf_rn(a, s.a, __fmul_rn(b, s.b));
}
template <int D>
__device__ __forceinline__ void merge_into(softmax_rows<D> &all, const softmax_rows<D> &leaf)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        merge_scale s = scales_of(all.m[i], leaf.m[i]);
        all.m[i] = s.top;
        all.l[i] = merged(s, all.l[i], leaf.l[i]);
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            all.o[n][2 * i] = merged(s, all.o[n][2 * i], leaf.o[n][2 * i]);
            all.o[n][2 * i + 1] = merged(s, all.o[n][2 * i + 1], leaf.o[n][2 * i + 1]);
        }
    }
}
/* By how much values are multiplied in the end; a sink is one more key, without a value. */
__device__ __forceinline__ float final_scale(const mx_cuda_paged &p, int head, float m, float l)
{
    if (p.sinks) {
        merge_scale s = scales_of(m, __fmul_rn(p.sinks[head], LOG2E));
        return __fdiv_rn(s.a, merged(s, l, 1.f));
    }
    return l > 0 ? __fdiv_rn(1.f, l) : 0.f;
}

__device__ __forceinline__ float scored(const mx_cuda_paged &p, float dot, bool seen)
{
    float x = __fmul_rn(dot, p.scale);
    if (p.softcap > 0)
        x = __fmul_rn(p.softcap, tanh_fast(__fdividef(x, p.softcap)));
    return seen ? __fmul_rn(x, LOG2E) : -INFINITY;
}

/* 16 keys from position x on, which lie in shared memory with a row stride of D + 8. */
template <int D>
__device__ __forceinline__ void take_keys(const mx_cuda_paged &p, softmax_rows<D> &s,
                                          const uint32_t q[D / 16][4], const uint16_t *k,
                                          const uint16_t *v, int x, const limits &see)
{
    const int lane = threadIdx.x & 31;
    const uint16_t *kp = k + ((lane & 7) + ((lane >> 4) << 3)) * (D + 8) + ((lane >> 3) & 1) * 8;
    const uint16_t *vp = v + (lane & 15) * (D + 8) + (lane >> 4) * 8;
    float c[2][4] = {};
#pragma unroll
    for (int d = 0; d < D / 16; d++) {
        uint32_t b[4];
        ldmatrix(b, kp + d * 16);
        mma(c[0], q[d], b[0], b[1]);
        mma(c[1], q[d], b[2], b[3]);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float up = -INFINITY, sum = 0;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int at = x + (e >> 1) * 8 + lane % 4 * 2 + (e & 1);
            float &y = c[e >> 1][2 * i + (e & 1)];
            y = scored(p, y, at >= see.lo[i] && at <= see.hi[i]);
            up = fmaxf(up, y);
        }
        up = fmaxf(up, __shfl_xor_sync(~0u, up, 1));
        up = fmaxf(s.m[i], fmaxf(up, __shfl_xor_sync(~0u, up, 2)));
        float base = up == -INFINITY ? 0.f : up, shrink = exp2_fast(__fsub_rn(s.m[i], base));
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float &y = c[e >> 1][2 * i + (e & 1)];
            y = exp2_fast(__fsub_rn(y, base));
            sum = __fadd_rn(sum, y);
        }
        s.m[i] = up;
        s.l[i] = __fmaf_rn(s.l[i], shrink, sum);
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            s.o[n][2 * i] = __fmul_rn(s.o[n][2 * i], shrink);
            s.o[n][2 * i + 1] = __fmul_rn(s.o[n][2 * i + 1], shrink);
        }
    }
    uint32_t a[4];
    accumulator_as_a(a, c[0], c[1]);
#pragma unroll
    for (int n = 0; n < D / 16; n++) {
        uint32_t b[4];
        ldmatrix_trans(b, vp + n * 16);
        mma(s.o[2 * n], a, b[0], b[1]);
        mma(s.o[2 * n + 1], a, b[2], b[3]);
    }
}

/* --- memory --- */

__device__ __forceinline__ void copy16(uint16_t *to, const uint16_t *from, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(there ? 16 : 0));
}
__device__ __forceinline__ void commit_copies()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N> __device__ __forceinline__ void wait_copies()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* The rows of queries as the left operand: row r is head r % n of token r / n. */
template <int D>
__device__ __forceinline__ void load_queries(const mx_cuda_paged &p, uint32_t q[D / 16][4],
                                             const head_group &h, int n, int tokens)
{
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int r = lane / 4 + 8 * i, t = r / h.n;
        const uint16_t *row = (const uint16_t *)p.q +
                              ((int64_t)(n + t) * p.q_heads + h.first + r % h.n) * D + lane % 4 * 2;
#pragma unroll
        for (int d = 0; d < D / 16; d++) {
            q[d][i] = t < tokens ? *(const uint32_t *)(row + d * 16) : 0;
            q[d][2 + i] = t < tokens ? *(const uint32_t *)(row + d * 16 + 8) : 0;
        }
    }
}

template <int D>
__device__ __forceinline__ void store_results(const mx_cuda_paged &p, const softmax_rows<D> &s,
                                              const head_group &h, int n, int tokens)
{
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int r = lane / 4 + 8 * i, t = r / h.n, head = h.first + r % h.n;
        if (t >= tokens)
            continue;
        float f = final_scale(p, head, s.m[i], s.l[i]);
        uint16_t *out =
            (uint16_t *)p.out + ((int64_t)(n + t) * p.q_heads + head) * D + lane % 4 * 2;
#pragma unroll
        for (int c = 0; c < D / 8; c++)
            *(uint32_t *)(out + c * 8) =
                pack2(__fmul_rn(s.o[c][2 * i], f), __fmul_rn(s.o[c][2 * i + 1], f));
    }
}

/* --- tokens that stand alone --- */

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

/* The warp's list of work: of token n, units first[n] to first[n + 1]; its place among those
 * alone. The first block leaves the list of places to merge_kernel. */
__device__ __forceinline__ int list_alone(const mx_cuda_paged &p, int *first, int *place)
{
    alone_places places = {0};
    int total = 0;
    const unsigned lane = threadIdx.x & 31;
    for (int n0 = 0; n0 < p.queries; n0 += 32) {
        int n = n0 + (int)lane, at = places.next(p, n), units = 0;
        if (at >= 0)
            units = (int)(p.positions[n] / p.leaf - first_seen(p, p.positions[n]) / p.leaf) + 1;
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
    __syncwarp();
    return total;
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

    __device__ __forceinline__ void open(const mx_cuda_paged &p, const int *first, int units)
    {
        const int each = p.k_heads * p.parts;
        n = u < units ? token_of(first, p.queries, u / each) : -1;
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

template <int D>
__global__ void __launch_bounds__(32) single_kernel(const __grid_constant__ mx_cuda_paged p)
{
    constexpr int TILE_SIZE = 2 * KEYS * (D + 8);
    extern __shared__ __align__(16) uint16_t tiles[];
    int *first = (int *)(tiles + STAGES * TILE_SIZE), *place = first + p.queries + 1;
    let_next_start();
    wait_for_previous();
    const int each = p.k_heads * p.parts, units = list_alone(p, first, place) * each;
    unit_walk ahead = {(int)blockIdx.x}, now = {(int)blockIdx.x};
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
                ahead.u += gridDim.x;
                ahead.open(p, first, units);
            }
        }
        commit_copies();
    };
    ahead.open(p, first, units);
    for (int i = 0; i < STAGES - 1; i++)
        copy();
    for (now.open(p, first, units); now.n >= 0;
         now.u += gridDim.x, now.open(p, first, units)) {
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
    for (int n = blockIdx.x; n < p.queries; n += gridDim.x) /* 0 where nothing is seen */
        for (int d = threadIdx.x; d < p.q_heads * D / 2 && !sees_any(p, n); d += 32)
            ((uint32_t *)p.out)[(int64_t)n * p.q_heads * D / 2 + d] = 0;
}

/* A warp merges the leaves of one head of one token, in order. */
template <int D>
__global__ void __launch_bounds__(MERGE_WARPS * 32)
    merge_kernel(const __grid_constant__ mx_cuda_paged p)
{
    let_next_start();
    wait_for_previous();
    const int place = blockIdx.x, head = blockIdx.y * MERGE_WARPS + threadIdx.x / 32;
    const int lane = threadIdx.x & 31;
    if (place >= p.alone[0] || head >= p.q_heads)
        return;
    const int n = p.alone[1 + place], at = p.positions[n];
    const int leaves = at / p.leaf - (int)(first_seen(p, at) / p.leaf) + 1;
    if (leaves < 2)
        return;
    float m = -INFINITY, l = 0;
    float2 o[D / 64] = {};
    const float *part = part_of<D>(p, place, head, 0);
#pragma unroll 4
    for (int i = 0; i < leaves; i++, part += D + 2) {
        float2 ml = *(const float2 *)part, y[D / 64];
#pragma unroll
        for (int c = 0; c < D / 64; c++)
            y[c] = *(const float2 *)(part + 2 + 64 * c + 2 * lane);
        merge_scale s = scales_of(m, ml.x);
        m = s.top;
        l = merged(s, l, ml.y);
#pragma unroll
        for (int c = 0; c < D / 64; c++)
            o[c] = make_float2(merged(s, o[c].x, y[c].x), merged(s, o[c].y, y[c].y));
    }
    float f = final_scale(p, head, m, l);
    uint16_t *out = (uint16_t *)p.out + ((int64_t)n * p.q_heads + head) * D + 2 * lane;
#pragma unroll
    for (int c = 0; c < D / 64; c++)
        *(uint32_t *)(out + 64 * c) = pack2(__fmul_rn(o[c].x, f), __fmul_rn(o[c].y, f));
}

/* --- tokens of prompts --- */

/* The tokens at which tiles begin: tiles lie by position, so that where one begins needs no look
 * back. Gives their number. */
__device__ __forceinline__ int list_tiles(const mx_cuda_paged &p, int *start)
{
    alone_places places = {0};
    int total = 0;
    for (int n0 = 0; n0 < p.queries; n0 += 32) {
        int n = n0 + (int)(threadIdx.x & 31), at = places.next(p, n);
        bool begins = n < p.queries && at < 0 && sees_any(p, n) &&
                      (!is_next(p, n) || p.positions[n] % p.tile == 0);
        unsigned all = __ballot_sync(~0u, begins);
        if (begins)
            start[total + __popc(all & ((1u << (threadIdx.x & 31)) - 1))] = n;
        total += __popc(all);
    }
    return total;
}

/* Keys and values from position x on; gives which of the four pages are the pool's, as bits. */
template <int D>
__device__ __forceinline__ unsigned copy_tile(const mx_cuda_paged &p, uint16_t *tile,
                                              const int32_t *table, int kh, int x, int last)
{
    constexpr int CHUNKS = D / 8, EACH = TILE_WARPS * 32 / CHUNKS; /* keys of a round */
    const uint16_t *k = (const uint16_t *)p.k + kh * D, *v = (const uint16_t *)p.v + kh * D;
    const int lane = threadIdx.x & 31, c = (int)threadIdx.x % CHUNKS * 8;
    const int mine = lane < TILE_KEYS / KEYS && x + lane * KEYS <= last
                         ? (int)slot_of(p, table, x + lane * KEYS) : -1;
#pragma unroll
    for (int j = 0; j < TILE_KEYS / EACH; j++) {
        const int r = j * EACH + (int)threadIdx.x / CHUNKS, slot = __shfl_sync(~0u, mine, r / KEYS);
        const bool there = slot >= 0 && x + r <= last;
        const int64_t s = there ? slot + r % KEYS : 0;
        copy16(tile + r * (D + 8) + c, k + s * p.k_row + c, there);
        copy16(tile + (TILE_KEYS + r) * (D + 8) + c, v + s * p.v_row + c, there);
    }
    commit_copies();
    return __ballot_sync(~0u, mine >= 0);
}

/* What the rows of this warp see: tokens n to n + tokens - 1, the first at position `at`. */
__device__ __forceinline__ limits limits_of(const mx_cuda_paged &p, const head_group &h, int at,
                                            int tokens)
{
    limits see;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int t = ((threadIdx.x & 31) / 4 + 8 * i) / h.n;
        see.lo[i] = t < tokens ? (int)first_seen(p, at + t) : 0;
        see.hi[i] = t < tokens ? at + t : -1;
    }
    return see;
}

template <int D>
__device__ __forceinline__ void do_tile(const mx_cuda_paged &p, uint16_t *tiles,
                                        const head_group &h, int n)
{
    constexpr int TILE_SIZE = 2 * TILE_KEYS * (D + 8);
    const int at = p.positions[n], room = p.tile - at % p.tile, t = (int)threadIdx.x;
    const int all_tokens = __syncthreads_count(
        t < room && n + t < p.queries && p.row[n + t] == p.row[n] && p.positions[n + t] == at + t);
    const int mine = (int)threadIdx.x / 32 * (ROWS / h.n); /* this warp's first token */
    const int tokens = min(all_tokens - mine, ROWS / h.n), end = at + all_tokens - 1;
    const int32_t *table = p.table + (int64_t)p.row[n] * p.columns;
    const limits see = limits_of(p, h, at + mine, tokens);
    softmax_rows<D> s, all;
    uint32_t q[D / 16][4];
    load_queries<D>(p, q, h, n + mine, tokens);
    s.clear();
    all.clear();
    int x = (int)first_seen(p, at) / TILE_KEYS * TILE_KEYS;
    unsigned there, next = copy_tile<D>(p, tiles, table, h.kh, x, end);
    for (int i = 0; x <= end; x += TILE_KEYS, i ^= 1) {
        wait_copies<0>();
        __syncthreads();
        there = next;
        if (x + TILE_KEYS <= end)
            next = copy_tile<D>(p, tiles + (i ^ 1) * TILE_SIZE, table, h.kh, x + TILE_KEYS, end);
        const uint16_t *k = tiles + i * TILE_SIZE;
        for (int y = 0; y < TILE_KEYS && x + y <= at + mine + tokens - 1; y += KEYS) {
            if (there >> y / KEYS & 1)
                take_keys<D>(p, s, q, k + y * (D + 8), k + (TILE_KEYS + y) * (D + 8), x + y, see);
        }
        if ((x + TILE_KEYS) % p.leaf == 0 || x + TILE_KEYS > end) {
            s.sum();
            merge_into<D>(all, s);
            s.clear();
        }
    }
    if (tokens > 0)
        store_results<D>(p, all, h, n + mine, tokens);
    __syncthreads();
}

template <int D>
__global__ void __launch_bounds__(TILE_WARPS * 32)
    tile_kernel(const __grid_constant__ mx_cuda_paged p)
{
    extern __shared__ __align__(16) uint16_t tiles[];
    int *start = (int *)(tiles + 4 * TILE_KEYS * (D + 8));
    __shared__ int count;
    let_next_start();
    wait_for_previous();
    if (threadIdx.x < 32) {
        int total = list_tiles(p, start);
        if (threadIdx.x == 0)
            count = total;
    }
    __syncthreads();
    const int each = p.k_heads * p.parts;
    for (int u = blockIdx.x; u < count * each; u += gridDim.x)
        do_tile<D>(p, tiles, heads_of(p, u % each / p.parts, u % p.parts), start[u / each]);
}

/* --- launches --- */

/* So much shared memory for a block, and room for as many blocks as a multiprocessor can have. */
template <class K> static cudaError_t allow_shared(K kernel, size_t bytes)
{
    cudaError_t e =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    return e != cudaSuccess ? e
                            : cudaFuncSetAttribute(kernel,
                                                   cudaFuncAttributePreferredSharedMemoryCarveout,
                                                   cudaSharedmemCarveoutMaxShared);
}

template <int D> static cudaError_t launch_all(const mx_cuda_paged &p, cudaStream_t stream)
{
    const int each = p.k_heads * p.parts, work = p.queries * p.leaves * each;
    const size_t singles = sizeof(uint16_t) * STAGES * 2 * KEYS * (D + 8) +
                           sizeof(int) * (size_t)(2 * p.queries + 1);
    const size_t tiles =
        sizeof(uint16_t) * 4 * TILE_KEYS * (D + 8) + sizeof(int) * (size_t)p.queries;
    cudaError_t e = allow_shared(single_kernel<D>, singles);
    if (e == cudaSuccess)
        e = allow_shared(tile_kernel<D>, tiles);
    if (e == cudaSuccess)
        e = launch_pdl(single_kernel<D>, work < SINGLE_BLOCKS ? work : SINGLE_BLOCKS, 32, singles,
                       stream, p);
    const int blocks = p.queries * each < TILE_BLOCKS ? p.queries * each : TILE_BLOCKS;
    if (e == cudaSuccess && p.queries > 1)
        e = launch_pdl(tile_kernel<D>, blocks, TILE_WARPS * 32, tiles, stream, p);
    const dim3 heads((unsigned)p.places, (unsigned)mx_gpu_parts(p.q_heads, MERGE_WARPS));
    if (e == cudaSuccess)
        e = launch_pdl(merge_kernel<D>, heads, MERGE_WARPS * 32, 0, stream, p);
    return e;
}

extern "C" bool mx_cuda_paged_mma_is_possible(const mx_cuda_paged *p)
{
    return p->bf16 && p->qk_dim == p->v_dim && (p->qk_dim == 64 || p->qk_dim == 128) &&
           p->page % KEYS == 0 && !p->selected && p->k_row % 8 == 0 && p->v_row % 8 == 0 &&
           p->queries <= MX_CUDA_PAGED_QUERIES;
}

extern "C" cudaError_t mx_cuda_paged_mma(const mx_cuda_paged *shape, void *work,
                                         cudaStream_t stream)
{
    mx_cuda_paged p = *shape;
    const int64_t span = (int64_t)p.page * p.columns;
    const int group = p.q_heads / p.k_heads;
    p.parts = (group + ROWS - 1) / ROWS;
    p.group = (group + p.parts - 1) / p.parts;
    p.tile = TILE_WARPS * (ROWS / p.group);
    p.leaf = (int)mx_gpu_paged_leaf(span);
    p.leaves = (int)mx_gpu_paged_leaves(span);
    p.places = p.queries < p.rows ? p.queries : p.rows;
    p.alone = (int32_t *)work;
    p.parts_at = (float *)((char *)work + mx_gpu_aligned_bytes(p.places + 1, sizeof(int32_t)));
    return p.qk_dim == 64 ? launch_all<64>(p, stream) : launch_all<128>(p, stream);
}
