/* paged_mma.cuh - paged attention on the tensor cores: bf16, heads of 64 or 128 elements.
 *
 * A warp computes 16 rows: the query heads that share a key head, of one token or of several. Keys
 * come 16 at a time, in leaves of p.leaf positions, counted from position 0; the softmax of a leaf
 * (maximum m, sum l, values o) starts from scratch, and leaves are merged in order. So there are
 * two ways through the same arithmetic:
 *   - a token that stands alone, as in decoding: a warp for each leaf and key head, whose results
 *     are merged after it (paged_single.cu; of a single token in the same launch,
 *     paged_cluster.cu);
 *   - tokens of a prompt: a block for a tile of them and a key head, which takes all leaves
 *     (paged_tile.cu).
 * A row's bits are the same both ways and beside any others: rows of a tile do not mix, and keys
 * that a row does not see change nothing (they weigh 0, and a maximum that stays scales by 1).
 * Where the compiler could choose how to round, the operation is named.
 */
#ifndef MX_DEVICE_CUDA_PAGED_MMA_CUH
#define MX_DEVICE_CUDA_PAGED_MMA_CUH

#include "device/cuda/attention/flash.cuh"
#include "device/cuda/attention/paged.cuh"
#include "device/cuda/core/pdl.cuh"

enum { KEYS = 16, ROWS = 16, PAGED_TILE_WARPS = 4 };

/* --- which tokens stand alone --- */

/* The tokens of a step. */
struct token_list {
    const int *positions, *row;
    int n, rows, places;

    __device__ __forceinline__ bool is_next(int i) const
    {
        return i > 0 && i < n && row[i] == row[i - 1] && positions[i] == positions[i - 1] + 1 &&
               positions[i - 1] >= 0;
    }
    __device__ __forceinline__ bool sees_any(int i) const
    {
        return positions[i] >= 0 && row[i] >= 0 && row[i] < rows;
    }
};

/* To shared memory, since each is read several times by the whole block: 2 * p.queries ints. */
__device__ __forceinline__ token_list list_tokens(const mx_cuda_paged &p, int *to)
{
    for (int i = threadIdx.x; i < p.queries; i += blockDim.x) {
        to[i] = p.positions[i];
        to[p.queries + i] = p.row[i];
    }
    __syncthreads();
    return {to, to + p.queries, p.queries, p.rows, p.places};
}

/* Of 32 tokens at a time, in order: whether token n, this lane's, has a place among those alone,
 * and which. There are as many places as sequences; who comes later goes with the tiles. */
struct alone_places {
    int taken;
    __device__ __forceinline__ int next(const token_list &t, int n)
    {
        bool alone = n < t.n && t.sees_any(n) && !t.is_next(n) && !t.is_next(n + 1);
        unsigned all = __ballot_sync(~0u, alone), lane = threadIdx.x & 31;
        int place = taken + __popc(all & ((1u << lane) - 1));
        taken += __popc(all);
        return alone && place < t.places ? place : -1;
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

/* Tokens that stand alone, a single one in one launch; and those of prompts. */
cudaError_t mx_cuda_paged_singles(const mx_cuda_paged *p, cudaStream_t stream);
bool mx_cuda_paged_cluster_is_possible(const mx_cuda_paged *p);
cudaError_t mx_cuda_paged_cluster(const mx_cuda_paged *p, cudaStream_t stream);
cudaError_t mx_cuda_paged_tiles(const mx_cuda_paged *p, cudaStream_t stream);

#endif
