/* dequant_stream.cu - few vectors times weights of codes, weights read at memory speed.
 *
 *     y_i (m, n_i) = x (m, k) w_i (n_i, k)^T       m <= MX_DEQUANT_STREAM_VECTORS
 * A tile is 16 rows of one weight. Blocks take tiles in turn, the warps of a block steps of k in
 * turn; a lane loads 16 bytes of two rows at each step. Since a sum may run over k in any order,
 * these are fragments of mma with no shuffling, and codes become bf16, which holds them exactly. A
 * warp has the loads of several steps in flight, and they run on over the end of a tile, so that
 * the memory has work while the warps' sums are added up. Loads of codes go out before x is there
 * (pdl.h): nobody writes weights in a step of decoding.
 *
 * One vector is put into shared memory once for a block, in the order in which the fragments take
 * it. More vectors are read through L1. The bits of a row of y depend on neither, nor on the number
 * of blocks.
 *
 * Scales of whole rows are applied to the sum, those of groups to the sum of each step, which lies
 * in one.
 */
#include "device/cuda/attention/flash.cuh"
#include "device/cuda/core/pdl.cuh"
#include "device/cuda/gemm/dequant_stream.cuh"
#include "device/cuda/gemm/silu.cuh"

#include <cuda_fp8.h>

enum { WARPS = 8, ROWS = 16, VECTORS = MX_DEQUANT_STREAM_VECTORS };

struct stream_part {
    const void *codes;
    const float *scale;
    void *y;
    unsigned n, first; /* rows; the first of its tiles */
    bool f32;
};

struct stream_call {
    stream_part one[MX_CUDA_DEQUANT_MOST];
    int parts, m;
    const uint16_t *x;
    unsigned k, vectors, steps, tiles; /* 16-byte vectors of a row; steps of four of them */
    unsigned groups, group_shift;      /* of int4: scales of a row; steps under one, log2 */
    uint16_t *h; /* silu(y_0) y_1: a tile is 8 rows of weight 0 and the same of 1; NULL: none */
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

template <mx_cuda_codes_kind KIND, bool STAGED> struct tile_rows {
    static constexpr int EIGHTS = in_lane(KIND) / 8; /* vectors of x for one of codes */
    const stream_call &p;
    const uint4 *staged;
    int lane, warp;
    unsigned tile; /* of the next load */
    const uint4 *w[2];
    const float *scale[2];
    float sum[4];

    /* Row i of a tile, and its weight. */
    __device__ __forceinline__ const stream_part &find(unsigned t, unsigned i, unsigned *row) const
    {
        int k = 0;
        if (p.h) {
            *row = t * (ROWS / 2) + i % (ROWS / 2);
            return p.one[i / (ROWS / 2)];
        }
        while (k + 1 < p.parts && t >= p.one[k + 1].first)
            k++;
        *row = (t - p.one[k].first) * ROWS + i;
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
            const stream_part &o = find(t, lane / 4 + 8 * r, &row);
            row = min(row, o.n - 1); /* a row past the end is read again, not written */
            w[r] = (const uint4 *)o.codes + (size_t)row * p.vectors + lane % 4;
            scale[r] = o.scale + (size_t)row * p.groups;
        }
    }
    __device__ __forceinline__ void load(uint4 code[2], float f[2], unsigned step) const
    {
        bool here = tile < p.tiles && step < p.steps;
        bool there = here && step * 4 + lane % 4 < p.vectors;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            code[r] = there ? __ldcs(w[r] + step * 4) : make_uint4(0, 0, 0, 0);
            if (KIND == MX_CUDA_CODES_INT4) /* of a row: lanes without codes have its sums too */
                f[r] = here ? __ldg(scale[r] + (step >> p.group_shift)) : 0;
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

/* The vector in shared memory, 0 past its end. */
template <mx_cuda_codes_kind KIND>
__device__ __forceinline__ void stage(const stream_call &p, uint4 *to)
{
    constexpr unsigned EIGHTS = in_lane(KIND) / 8;
#pragma unroll 2
    for (unsigned i = threadIdx.x; i < p.steps * 4 * EIGHTS; i += 32 * WARPS) {
        uint4 v = {};
        if (i < p.k / 8)
            v = ((const uint4 *)p.x)[i];
        to[(i / (4 * EIGHTS) * EIGHTS + i % EIGHTS) * 4 + i / EIGHTS % 4] = pair_up<KIND>(v);
    }
}

/* A tile's sums over the warps, to y. */
template <mx_cuda_codes_kind KIND, bool STAGED>
__device__ __forceinline__ void finish(const tile_rows<KIND, STAGED> &t, unsigned tile,
                                       float (*part)[ROWS][VECTORS + 1], float row_scale)
{
#pragma unroll
    for (int e = 0; e < 4; e++)
        part[t.warp][t.lane / 4 + e / 2 * 8][t.lane % 4 * 2 + e % 2] = t.sum[e];
    __syncthreads();
    const int i = threadIdx.x % ROWS, m = threadIdx.x / ROWS;
    unsigned row;
    const stream_part &o = t.find(tile, i, &row);
    if (m / (32 / ROWS) * (32 / ROWS) >= t.p.m) /* whole warps: see below */
        return;
    const bool ours = m < t.p.m && row < o.n;
    float y = 0;
#pragma unroll
    for (int j = 0; j < WARPS; j++)
        y += part[j][i][m];
    if (KIND != MX_CUDA_CODES_INT4)
        y *= row_scale;
    if (t.p.h) { /* the other factor is in the lane eight further */
        const float other = __shfl_xor_sync(~0u, y, ROWS / 2);
        if (ours && i < ROWS / 2)
            t.p.h[(size_t)m * o.n + row] =
                f32_to_bf16(silu_fast(bf16_to_f32(f32_to_bf16(y))) *
                            bf16_to_f32(f32_to_bf16(other)));
    }
    if (!ours)
        return;
    if (o.f32)
        ((float *)o.y)[(size_t)m * o.n + row] = y;
    else
        ((uint16_t *)o.y)[(size_t)m * o.n + row] = f32_to_bf16(y);
}

/* The scale of the row whose sum this thread ends. */
template <mx_cuda_codes_kind KIND, bool STAGED>
__device__ __forceinline__ float scale_of_row(const tile_rows<KIND, STAGED> &t, unsigned tile)
{
    unsigned row;
    if (KIND == MX_CUDA_CODES_INT4 || tile >= t.p.tiles || (int)threadIdx.x >= ROWS * t.p.m)
        return 0;
    const stream_part &o = t.find(tile, threadIdx.x % ROWS, &row);
    return row < o.n ? __ldg(o.scale + row) : 0;
}

/* Steps whose loads are in flight. Their registers decide how many blocks fit on an SM, and that
 * must be what choose() counts on: blocks start as those of the launch before end, so that where
 * more fit than are meant to be there, some SMs get more of them than others. */
__host__ __device__ constexpr int steps_ahead(mx_cuda_codes_kind kind, int blocks)
{
    return blocks == 2 && kind != MX_CUDA_CODES_INT4 ? 6 : 4;
}

/* BLOCKS: how many of them fit on an SM, 2 to 4. */
template <mx_cuda_codes_kind KIND, bool STAGED, int BLOCKS>
__global__ void __launch_bounds__(32 * WARPS, BLOCKS)
    stream_kernel(const __grid_constant__ stream_call p)
{
    constexpr int AHEAD = steps_ahead(KIND, BLOCKS);
    extern __shared__ uint4 staged[];
    __shared__ float part[2][WARPS][ROWS][VECTORS + 1]; /* in turn: one barrier a tile is enough */
    tile_rows<KIND, STAGED> t = {p, staged, (int)threadIdx.x % 32, (int)threadIdx.x / 32};
    uint4 code[AHEAD][2];
    float f[AHEAD][2];
    let_next_start();
    t.seek(blockIdx.x);
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        t.load(code[i], f[i], i * WARPS + t.warp);
    float row_scale = scale_of_row(t, blockIdx.x);
    wait_for_previous();
    if constexpr (STAGED) {
        stage<KIND>(p, staged);
        __syncthreads();
    }
    const unsigned rounds = (p.steps + WARPS * AHEAD - 1) / (WARPS * AHEAD);
    unsigned turn = 0;
    for (unsigned tile = blockIdx.x; tile < p.tiles; tile += gridDim.x, turn ^= 1) {
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
        finish(t, tile, part[turn], row_scale);
        row_scale = scale_of_row(t, tile + gridDim.x);
    }
}

/* --- launches --- */

bool mx_cuda_dequant_stream_can(const mx_cuda_codes *w)
{
    const int64_t g = w->group / (4 * in_lane(MX_CUDA_CODES_INT4));
    bool whole = w->group == w->k;
    if (w->kind == MX_CUDA_CODES_INT4 && !whole) /* steps of a group: a power of two */
        whole = w->group % (4 * in_lane(MX_CUDA_CODES_INT4)) == 0 && (g & (g - 1)) == 0;
    return whole && w->k % in_lane(w->kind) == 0 && ((uintptr_t)w->codes & 15) == 0;
}

static unsigned shift_of_group(const mx_cuda_codes *w)
{
    unsigned shift = 0;
    while (shift < 31 && (int64_t)4 * in_lane(MX_CUDA_CODES_INT4) << shift < w->group)
        shift++;
    return w->group == w->k ? 31 : shift;
}

/* More shared memory than that would keep blocks off an SM. */
enum { MOST_STAGED = 48 << 10 };

template <mx_cuda_codes_kind KIND, bool STAGED, int BLOCKS>
static cudaError_t go(const stream_call &p, unsigned blocks, cudaStream_t stream)
{
    const unsigned room = STAGED ? p.steps * 64 * in_lane(KIND) / 8 : 0;
    auto *kernel = stream_kernel<KIND, STAGED, BLOCKS>;
    cudaError_t e = cudaSuccess;
    if (STAGED)
        e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, MOST_STAGED);
    return e == cudaSuccess ? launch_pdl(kernel, blocks, 32 * WARPS, room, stream, p) : e;
}

/* A block for each tile where two on each SM can have them all; else three on each, which go on
 * from tile to tile. Very many tiles of 8 bits are read a little faster by a block for each, four
 * on an SM, which have nothing to set up. */
template <mx_cuda_codes_kind KIND>
static cudaError_t choose(const stream_call &p, unsigned sms, cudaStream_t stream)
{
    enum { LONG = 8 };
    const bool staged = p.m == 1 && p.steps * 64 * in_lane(KIND) / 8 <= MOST_STAGED;
    if (p.tiles <= 2 * sms)
        return staged ? go<KIND, true, 2>(p, p.tiles, stream)
                      : go<KIND, false, 2>(p, p.tiles, stream);
    if constexpr (KIND != MX_CUDA_CODES_INT4)
        if (p.tiles >= LONG * 4 * sms)
            return go<KIND, false, 4>(p, p.tiles, stream);
    const unsigned blocks = min(p.tiles, 3 * sms);
    return staged ? go<KIND, true, 3>(p, blocks, stream) : go<KIND, false, 3>(p, blocks, stream);
}

cudaError_t mx_cuda_dequant_stream(const mx_cuda_dequant *one, int n, const void *x, int m,
                                   void *h, cudaStream_t stream)
{
    stream_call p = {};
    int device = 0, sms = 0;
    const mx_cuda_codes &w = one->w;
    p.parts = n, p.m = m, p.x = (const uint16_t *)x, p.k = (unsigned)w.k;
    p.vectors = p.k / in_lane(w.kind), p.steps = (p.vectors + 3) / 4;
    p.groups = (unsigned)(w.k / w.group), p.group_shift = shift_of_group(&w);
    for (int i = 0; i < n; i++) {
        p.one[i] = {one[i].w.codes, one[i].w.scale, one[i].y, (unsigned)one[i].w.n, p.tiles,
                    one[i].y_f32};
        p.tiles += (unsigned)((one[i].w.n + ROWS - 1) / ROWS);
    }
    p.h = (uint16_t *)h;
    if (h) /* eight rows of both */
        p.tiles = (unsigned)((2 * one->w.n + ROWS - 1) / ROWS);
    cudaError_t e = cudaGetDevice(&device);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    if (e != cudaSuccess)
        return e;
    if (w.kind == MX_CUDA_CODES_INT8)
        return choose<MX_CUDA_CODES_INT8>(p, (unsigned)sms, stream);
    if (w.kind == MX_CUDA_CODES_FP8)
        return choose<MX_CUDA_CODES_FP8>(p, (unsigned)sms, stream);
    return choose<MX_CUDA_CODES_INT4>(p, (unsigned)sms, stream);
}
