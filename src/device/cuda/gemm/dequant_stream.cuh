/* dequant_stream.cuh - few vectors times weights of codes, weights read at memory speed.
 *
 *     y_i (m, n_i) = x (m, k) w_i (n_i, k)^T       up to MX_CODES_MOST weights, m <= 8
 * A tile is 16 rows of one weight. Blocks take tiles in turn, the warps of a block steps of k in
 * turn; a lane loads 16 bytes of two rows at each step. Since a sum may run over k in any order,
 * these are fragments of mma with no shuffling, and codes become bf16, which holds them exactly. A
 * warp has the loads of AHEAD steps in flight, and they run on over the end of a tile, so that the
 * memory has work while the warps' sums are added up. Loads of codes go out before x is there
 * (pdl.h): nobody writes weights in a step of decoding.
 *
 * One vector is put into shared memory once for a block, in the order in which the fragments take
 * it. More vectors are read through L1. The bits of a row of y depend on neither.
 *
 * Scales of whole rows are applied to the sum, those of groups to the sum of each step, which lies
 * in one.
 */
#ifndef MX_DEVICE_CUDA_DEQUANT_STREAM_CUH
#define MX_DEVICE_CUDA_DEQUANT_STREAM_CUH

#include "device/cuda/attention/flash.cuh"
#include "device/cuda/core/pdl.cuh"
#include "device/cuda/gemm/dequant.h"

#include <cuda_fp8.h>

namespace codes_stream {

enum { ROWS = 16, VECTORS = 8, MOST = 4 };

struct part {
    const void *codes;
    const float *scale;
    void *y;
    unsigned n, first; /* rows; the first of its tiles */
    bool f32;
};

struct call {
    part one[MOST];
    int parts, m;
    const uint16_t *x;
    unsigned k, vectors, steps, tiles;   /* 16-byte vectors of a row; steps of four of them */
    unsigned groups, group_shift;        /* of 4 bits: scales of a row; steps under one, log2 */
    /* what the ops beside it do */
    const uint16_t *add, *norm, *residual; /* x + add is normed; y is added to */
    uint16_t *sum;
    float eps;
    bool swiglu; /* y = silu(first) * second, of two weights of as many rows */
};

/* Numbers in a lane's 16 bytes. */
__host__ __device__ constexpr int in_lane(mx_cuda_codes_kind kind)
{
    return kind == MX_CUDA_CODES_INT4 ? 32 : 16;
}

/* The codes of a word in pairs of bf16: two pairs, or, of int4, four: i and i + 4. */
template <mx_cuda_codes_kind KIND>
__device__ __forceinline__ void widen_word(uint32_t *to, uint32_t word)
{
    if constexpr (KIND == MX_CUDA_CODES_INT4) {
#pragma unroll
        for (int i = 0; i < 4; i++) { /* 128 + u, less 136 */
            uint32_t biased = (word >> 4 * i & 0x000f000fu) | 0x43004300u, less = 0x43084308u;
            __nv_bfloat162 v = __hsub2(*(__nv_bfloat162 *)&biased, *(__nv_bfloat162 *)&less);
            to[i] = *(uint32_t *)&v;
        }
    } else {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float2 v;
            if constexpr (KIND == MX_CUDA_CODES_INT8) { /* 2^23 + u, less 2^23 + 128 */
                uint32_t u = word ^ 0x80808080u;
                v.x = __uint_as_float(__byte_perm(u, 0x4b000000u, 0x7440 + 2 * i)) - 8388736.f;
                v.y = __uint_as_float(__byte_perm(u, 0x4b000000u, 0x7441 + 2 * i)) - 8388736.f;
            } else {
                v = __half22float2(__nv_cvt_fp8x2_to_halfraw2(
                    (__nv_fp8x2_storage_t)(word >> 16 * i), __NV_E4M3));
            }
            to[i] = pack2(v.x, v.y);
        }
    }
}

/* Eight numbers of x in the pairs of the words of codes. */
template <mx_cuda_codes_kind KIND> __device__ __forceinline__ uint4 pair_up(uint4 x)
{
    if constexpr (KIND != MX_CUDA_CODES_INT4)
        return x;
    return make_uint4(__byte_perm(x.x, x.z, 0x5410), __byte_perm(x.x, x.z, 0x7632),
                      __byte_perm(x.y, x.w, 0x5410), __byte_perm(x.y, x.w, 0x7632));
}

template <mx_cuda_codes_kind KIND, int WARPS, bool STAGED> struct rows {
    static constexpr int EIGHTS = in_lane(KIND) / 8; /* vectors of x for one of codes */
    const call &p;
    const uint4 *staged;
    int lane, warp;
    unsigned tile; /* of the next load */
    const uint4 *w[2];
    const float *scale[2];
    float sum[4];

    /* The row of the tile that this lane has as its r-th, 0 or 1, and its weight. */
    __device__ __forceinline__ const part &find(unsigned t, int r, unsigned i, unsigned *row) const
    {
        if (p.swiglu) {
            *row = min(t * 8 + i, p.one[0].n - 1);
            return p.one[r];
        }
        int k = 0;
        while (k + 1 < p.parts && t >= p.one[k + 1].first)
            k++;
        /* a row past the end is read again, not written */
        *row = min((t - p.one[k].first) * ROWS + r * 8 + i, p.one[k].n - 1);
        return p.one[k];
    }
    __device__ __forceinline__ void seek(unsigned t)
    {
        tile = t;
        if (t >= p.tiles)
            return;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            unsigned row;
            const part &o = find(t, r, lane / 4, &row);
            w[r] = (const uint4 *)o.codes + (size_t)row * p.vectors + lane % 4;
            scale[r] = o.scale + (size_t)row * p.groups;
        }
    }
    __device__ __forceinline__ void load(uint4 code[2], float f[2], unsigned step) const
    {
        bool there = tile < p.tiles && step * 4 + lane % 4 < p.vectors;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            code[r] = there ? __ldcs(w[r] + step * 4) : make_uint4(0, 0, 0, 0);
            if (KIND == MX_CUDA_CODES_INT4)
                f[r] = there ? __ldg(scale[r] + (step >> p.group_shift)) : 0;
        }
    }
    /* Eight numbers of x, the e-th for this lane's codes of a step. */
    __device__ __forceinline__ uint4 x_of(unsigned at, int e) const
    {
        if constexpr (STAGED)
            return staged[(at * EIGHTS + e) * 4 + lane % 4];
        const uint16_t *x = p.x + (size_t)min(lane / 4, p.m - 1) * p.k;
        unsigned v = at * 4 + lane % 4;
        uint4 zero = {};
        return v < p.vectors ? pair_up<KIND>(((const uint4 *)x)[v * EIGHTS + e]) : zero;
    }
    __device__ __forceinline__ void multiply(const uint4 code[2], const float f[2], unsigned at)
    {
        const uint32_t *c0 = (const uint32_t *)&code[0], *c1 = (const uint32_t *)&code[1];
        float parts[4] = {};
        float *to = KIND == MX_CUDA_CODES_INT4 ? parts : sum;
#pragma unroll
        for (int e = 0; e < EIGHTS; e++) {
            uint4 v = x_of(at, e);
            const uint32_t *b = (const uint32_t *)&v;
            uint32_t a0[4], a1[4];
            if constexpr (KIND == MX_CUDA_CODES_INT4) {
                widen_word<KIND>(a0, c0[e]), widen_word<KIND>(a1, c1[e]);
            } else {
                widen_word<KIND>(a0, c0[2 * e]), widen_word<KIND>(a0 + 2, c0[2 * e + 1]);
                widen_word<KIND>(a1, c1[2 * e]), widen_word<KIND>(a1 + 2, c1[2 * e + 1]);
            }
#pragma unroll
            for (int j = 0; j < 4; j += 2) {
                uint32_t a[4] = {a0[j], a1[j], a0[j + 1], a1[j + 1]};
                mma(to, a, b[j], b[j + 1]);
            }
        }
        if constexpr (KIND == MX_CUDA_CODES_INT4)
#pragma unroll
            for (int e = 0; e < 4; e++)
                sum[e] = fmaf(parts[e], f[e / 2], sum[e]);
    }
};

/* The vector in shared memory, where asked with what an RMS norm does before it: V vectors of eight
 * a thread at most. The norm's weight may be loaded before x is there. */
template <mx_cuda_codes_kind KIND, int WARPS, int V> struct stage {
    static constexpr int EIGHTS = in_lane(KIND) / 8, THREADS = 32 * WARPS;
    const call &p;
    uint4 *to;
    uint4 weight[V];

    static __device__ __forceinline__ unsigned place(unsigned i)
    {
        return (i / (4 * EIGHTS) * EIGHTS + i % EIGHTS) * 4 + i / EIGHTS % 4;
    }
    __device__ __forceinline__ void prefetch()
    {
#pragma unroll
        for (int u = 0; u < V && p.norm; u++)
            if (threadIdx.x + u * THREADS < p.k / 8)
                weight[u] = ((const uint4 *)p.norm)[threadIdx.x + u * THREADS];
    }
    __device__ __forceinline__ uint4 sum_at(unsigned i) const
    {
        uint4 v = ((const uint4 *)p.x)[i];
        if (!p.add)
            return v;
        float f[8], g[8];
        unpack8(f, v), unpack8(g, ((const uint4 *)p.add)[i]);
#pragma unroll
        for (int j = 0; j < 8; j++)
            f[j] += g[j];
        v = pack8(f);
        if (p.sum && blockIdx.x == 0)
            ((uint4 *)p.sum)[i] = v;
        return v;
    }
    __device__ __forceinline__ void run(float *scratch)
    {
        const unsigned eights = p.k / 8, all = p.steps * 4 * EIGHTS;
        float squares = 0, f[8];
#pragma unroll 2
        for (unsigned i = threadIdx.x; i < all; i += THREADS) {
            uint4 v = {};
            if (i < eights)
                v = sum_at(i);
            unpack8(f, v);
#pragma unroll
            for (int j = 0; j < 8; j++)
                squares += f[j] * f[j];
            to[place(i)] = pair_up<KIND>(v);
        }
        if (!p.norm)
            return;
        float factor = rsqrtf(block_sum(squares, scratch) / (float)p.k + p.eps);
#pragma unroll
        for (int u = 0; u < V; u++) {
            unsigned i = threadIdx.x + u * THREADS;
            float g[8];
            if (i >= eights)
                break;
            unpack8(f, to[place(i)]), unpack8(g, pair_up<KIND>(weight[u]));
#pragma unroll
            for (int j = 0; j < 8; j++)
                f[j] *= factor * g[j];
            to[place(i)] = pack8(f);
        }
    }
};

/* A tile's sums over the warps, to y. */
template <mx_cuda_codes_kind KIND, int WARPS, bool STAGED>
__device__ __forceinline__ void finish(const call &p, const rows<KIND, WARPS, STAGED> &t,
                                       unsigned tile, float (*part)[ROWS][VECTORS + 1],
                                       const float row_scale[2])
{
    const int lane = t.lane;
#pragma unroll
    for (int e = 0; e < 4; e++)
        part[t.warp][lane / 4 + e / 2 * 8][lane % 4 * 2 + e % 2] = t.sum[e];
    __syncthreads();
    const int half = p.swiglu ? 8 : ROWS;
    const int i = threadIdx.x % half, m = threadIdx.x / half;
    if (m >= p.m)
        return;
    float y = 0, up = 0;
#pragma unroll
    for (int j = 0; j < WARPS; j++)
        y += part[j][i][m];
    if (KIND != MX_CUDA_CODES_INT4)
        y *= row_scale[0];
    if (p.swiglu) {
#pragma unroll
        for (int j = 0; j < WARPS; j++)
            up += part[j][i + 8][m];
        if (KIND != MX_CUDA_CODES_INT4)
            up *= row_scale[1];
        y = as_float(f32_to_bf16(y)), up = as_float(f32_to_bf16(up));
        y = __fdividef(y, 1 + __expf(-y)) * up;
    }
    unsigned row;
    const auto &o = t.find(tile, p.swiglu ? 0 : i / 8, i % 8, &row);
    if ((p.swiglu ? tile * 8 : (tile - o.first) * ROWS) + i >= o.n)
        return;
    if (p.residual)
        y += as_float(p.residual[(size_t)m * o.n + row]);
    if (o.f32)
        ((float *)o.y)[(size_t)m * o.n + row] = y;
    else
        ((uint16_t *)o.y)[(size_t)m * o.n + row] = f32_to_bf16(y);
}

template <mx_cuda_codes_kind KIND, int WARPS, int AHEAD, bool STAGED, int BLOCKS, int V>
__global__ void __launch_bounds__(32 * WARPS, BLOCKS) kernel(const __grid_constant__ call p)
{
    extern __shared__ uint4 staged[];
    __shared__ float part[2][WARPS][ROWS][VECTORS + 1], scratch[32];
    rows<KIND, WARPS, STAGED> t = {p, staged, (int)threadIdx.x % 32, (int)threadIdx.x / 32};
    uint4 code[AHEAD][2];
    float f[AHEAD][2], row_scale[2] = {};
    const int half = p.swiglu ? 8 : ROWS, mine = threadIdx.x % half;
    auto load_scales = [&](unsigned tile) {
        unsigned row;
        if (KIND == MX_CUDA_CODES_INT4 || tile >= p.tiles || (int)threadIdx.x >= half * p.m)
            return;
        const codes_stream::part &o = t.find(tile, p.swiglu ? 0 : mine / 8, mine % 8, &row);
        row_scale[0] = __ldg(o.scale + row);
        if (p.swiglu)
            row_scale[1] = __ldg(p.one[1].scale + row);
    };
    let_next_start();
    t.seek(blockIdx.x);
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        t.load(code[i], f[i], i * WARPS + t.warp);
    load_scales(blockIdx.x);
    if constexpr (STAGED) {
        stage<KIND, WARPS, V> x = {p, staged};
        x.prefetch();
        wait_for_previous();
        x.run(scratch);
        __syncthreads();
    } else {
        wait_for_previous();
    }
    const unsigned rounds = (p.steps + WARPS * AHEAD - 1) / (WARPS * AHEAD);
    unsigned buffer = 0;
    for (unsigned tile = blockIdx.x; tile < p.tiles; tile += gridDim.x, buffer ^= 1) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            t.sum[e] = 0;
#pragma unroll 1
        for (unsigned r = 0, next; r < rounds; r++) {
            next = r + 1;
            if (next == rounds) { /* the loads go on with the next tile */
                next = 0;
                t.seek(tile + gridDim.x);
            }
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                const unsigned at = (r * AHEAD + i) * WARPS + t.warp;
                if (at < p.steps)
                    t.multiply(code[i], f[i], at);
                t.load(code[i], f[i], (next * AHEAD + i) * WARPS + t.warp);
            }
        }
        finish<KIND, WARPS, STAGED>(p, t, tile, part[buffer], row_scale);
        load_scales(tile + gridDim.x);
    }
}

} // namespace codes_stream

#endif
