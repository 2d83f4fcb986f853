/* dequant_stream.cu - few vectors times weights of codes, weights read at memory speed.
 *
 *     y_i (m, n_i) = x (m, k) w_i (n_i, k)^T       m <= MX_DEQUANT_STREAM_VECTORS
 * A tile is 16 rows of one weight. Blocks take tiles in turn, the warps of a block pieces of k in
 * turn: 128 bytes of each row, which are two steps. A warp has a ring of pieces in shared memory of
 * its own. Copies to it (cp.async) run ahead over the ends of tiles, so that the memory has work
 * while sums are added up, and go out before x is there (pdl.h): no kernel of a decoding step
 * writes weights. Since a sum may run over k in any order, 16 bytes of two rows in a lane are
 * fragments of mma with no shuffling.
 *
 * Codes become bf16, which holds them exactly. Those of 4 bits are not even shifted: u in the
 * lowest bits of a bf16 is u 2^-133, and u in the four bits above them 16 u 2^-133, even where that
 * is no longer a subnormal number. So x is multiplied by 2^60 and 2^56 beforehand, and the sum by
 * 2^73 at the end. A step's sums start from that of -8 x, since u is a value of -8 to 7 plus 8.
 *
 * One vector is put into shared memory, by each warp the pieces that it multiplies with, in the
 * order in which the fragments take it. More vectors are read through L1. The bits of a row of y
 * depend on neither, nor on the number of blocks. An mma waits for the sum that it adds to: there
 * are CHAINS of them.
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
/* Of a piece: 16-byte vectors of a row, steps; pieces in a warp's ring; blocks on an SM. */
enum { PIECE = 8, STEPS = PIECE / 4, STAGES = 3, BLOCKS = 2, CHAINS = 2 };

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
    unsigned k, vectors, pieces, tiles; /* 16-byte vectors of a row; pieces of it */
    unsigned groups, group_shift;       /* of int4: scales of a row; steps under one, log2 */
    uint16_t *h; /* silu(y_0) y_1: a tile is 8 rows of weight 0 and the same of 1; NULL: none */
};

/* Numbers in a lane's 16 bytes. */
__host__ __device__ constexpr int in_lane(mx_cuda_codes_kind kind)
{
    return kind == MX_CUDA_CODES_INT4 ? 32 : 16;
}

/* The codes of a word of 8 bits in two pairs of bf16. */
template <mx_cuda_codes_kind KIND>
__device__ __forceinline__ void widen_word(uint32_t *to, uint32_t word)
{
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

__device__ __forceinline__ uint32_t times(uint32_t pair, uint32_t by)
{
    __nv_bfloat162 v = __hmul2(*(__nv_bfloat162 *)&pair, *(__nv_bfloat162 *)&by);
    return *(uint32_t *)&v;
}

/* Eight numbers of x in the pairs of the words of codes: of int4 i and i + 4, made larger. */
template <mx_cuda_codes_kind KIND> __device__ __forceinline__ uint4 pair_up(uint4 x)
{
    enum { UP_60 = 0x5d805d80u, UP_56 = 0x5b805b80u };
    if constexpr (KIND != MX_CUDA_CODES_INT4)
        return x;
    return make_uint4(times(__byte_perm(x.x, x.z, 0x5410), UP_60),
                      times(__byte_perm(x.x, x.z, 0x7632), UP_56),
                      times(__byte_perm(x.y, x.w, 0x5410), UP_60),
                      times(__byte_perm(x.y, x.w, 0x7632), UP_56));
}

/* 0 where it is not there. */
template <int BYTES>
__device__ __forceinline__ void copy_ahead(void *to, const void *from, bool there)
{
    unsigned at = (unsigned)__cvta_generic_to_shared(to), bytes = there ? BYTES : 0;
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from),
                     "r"(bytes)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(at), "l"(from),
                     "r"(bytes)
                     : "memory");
}

/* A piece of a tile. Vectors of odd rows are in the other half, so that two rows that are read
 * together lie in all banks. */
template <mx_cuda_codes_kind KIND> struct piece_of {
    uint4 code[ROWS][PIECE];
};
template <> struct piece_of<MX_CUDA_CODES_INT4> {
    uint4 code[ROWS][PIECE];
    float scale[ROWS][STEPS];
};

/* Row i of a tile, and its weight. */
__device__ __forceinline__ const stream_part &find_row(const stream_call &p, unsigned tile,
                                                       unsigned i, unsigned *row)
{
    int k = 0;
    if (p.h) {
        *row = tile * (ROWS / 2) + i % (ROWS / 2);
        return p.one[i / (ROWS / 2)];
    }
    while (k + 1 < p.parts && tile >= p.one[k + 1].first)
        k++;
    *row = (tile - p.one[k].first) * ROWS + i;
    return p.one[k];
}

/* A warp's copies: the pieces of its tiles, one after the other. */
template <mx_cuda_codes_kind KIND> struct piece_loader {
    enum { AT_ONCE = 32 / PIECE, LOADS = ROWS / AT_ONCE };
    const stream_call &p;
    piece_of<KIND> *ring;
    int lane, warp;
    unsigned tile, piece;
    const uint4 *w[LOADS];
    const float *scale;

    __device__ __forceinline__ void seek(unsigned t)
    {
        tile = t, piece = warp;
        if (t >= p.tiles)
            return;
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            unsigned row;
            const stream_part &o = find_row(p, t, AT_ONCE * i + lane / PIECE, &row);
            row = min(row, o.n - 1); /* a row past the end is read again, not written */
            w[i] = (const uint4 *)o.codes + (size_t)row * p.vectors + lane % PIECE;
        }
        if constexpr (KIND == MX_CUDA_CODES_INT4) {
            unsigned row;
            const stream_part &o = find_row(p, t, lane / STEPS, &row);
            scale = o.scale + (size_t)min(row, o.n - 1) * p.groups;
        }
    }
    /* The next piece to a slot of the ring. */
    __device__ __forceinline__ void next(unsigned at)
    {
        if (tile < p.tiles && piece < p.pieces) {
            const bool there = piece * PIECE + lane % PIECE < p.vectors;
#pragma unroll
            for (int i = 0; i < LOADS; i++) {
                const int row = AT_ONCE * i + lane / PIECE;
                copy_ahead<16>(&ring[at].code[row][lane % PIECE ^ row % 2 * 4],
                               w[i] + (there ? piece * PIECE : 0), there);
            }
            if constexpr (KIND == MX_CUDA_CODES_INT4) {
                const unsigned step = piece * STEPS + lane % STEPS;
                const bool has = step * 4 < p.vectors;
                copy_ahead<4>(&ring[at].scale[lane / STEPS][lane % STEPS],
                              scale + (has ? step >> p.group_shift : 0), has);
            }
            piece += WARPS;
            if (piece >= p.pieces)
                seek(tile + gridDim.x);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
};

/* The sum of eight numbers, in an order of pairs. */
__device__ __forceinline__ float sum_of8(uint4 v)
{
    return ((low_of(v.x) + high_of(v.x)) + (low_of(v.y) + high_of(v.y))) +
           ((low_of(v.z) + high_of(v.z)) + (low_of(v.w) + high_of(v.w)));
}

template <mx_cuda_codes_kind KIND, bool STAGED> struct tile_sums {
    static constexpr int EIGHTS = in_lane(KIND) / 8; /* vectors of x for one of codes */
    static constexpr float LESS = -0x1p-70f;         /* -8 in the units of the sums of int4 */
    const stream_call &p;
    uint4 *staged;
    float *offset; /* of int4, one vector: what the sums of a step begin with */
    int lane, warp;
    float sum[CHAINS][4];

    /* Eight numbers of x, the e-th for this lane's codes of a step, as they are. */
    __device__ __forceinline__ uint4 read_x(unsigned step, int e) const
    {
        const uint16_t *x = p.x + (size_t)min(lane / 4, p.m - 1) * p.k;
        unsigned v = step * 4 + lane % 4;
        uint4 zero = {};
        return v < p.vectors ? ((const uint4 *)x)[v * EIGHTS + e] : zero;
    }
    /* The same, in pairs. */
    __device__ __forceinline__ uint4 x_of(unsigned step, int e) const
    {
        if constexpr (STAGED)
            return staged[(step * EIGHTS + e) * 4 + lane % 4];
        return pair_up<KIND>(read_x(step, e));
    }
    /* One vector to shared memory, 0 past its end: the warp's pieces, several loads at once. A
     * step's sum has the order of begin(). */
    __device__ __forceinline__ void stage()
    {
        enum { AT_ONCE = 8, EACH = PIECE * EIGHTS, GO = 32 / EACH };
        for (unsigned from = warp; from < p.pieces; from += AT_ONCE * GO * WARPS) {
            uint4 v[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                unsigned at = (from + (i * GO + lane / EACH) * WARPS) * EACH + lane % EACH;
                v[i] = at < p.k / 8 ? ((const uint4 *)p.x)[at] : make_uint4(0, 0, 0, 0);
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                unsigned piece = from + (i * GO + lane / EACH) * WARPS, in = lane % EACH;
                if constexpr (KIND == MX_CUDA_CODES_INT4) {
                    float all = sum_of8(v[i]);
#pragma unroll
                    for (int w = 1; w < 4 * EIGHTS; w *= 2)
                        all += __shfl_xor_sync(~0u, all, w);
                    if (piece < p.pieces && in % (4 * EIGHTS) == 0)
                        offset[piece * STEPS + in / (4 * EIGHTS)] = all * LESS;
                }
                if (piece < p.pieces)
                    staged[piece * EACH + (in / (4 * EIGHTS) * EIGHTS + in % EIGHTS) * 4 +
                           in / EIGHTS % 4] = pair_up<KIND>(v[i]);
            }
        }
        __syncwarp();
    }
    /* What the sums of a step of int4 begin with. */
    __device__ __forceinline__ void begin(float to[4], unsigned step) const
    {
        if constexpr (STAGED) {
            to[0] = to[1] = to[2] = to[3] = offset[step];
            return;
        }
        float all = (sum_of8(read_x(step, 0)) + sum_of8(read_x(step, 1))) +
                    (sum_of8(read_x(step, 2)) + sum_of8(read_x(step, 3)));
        all += __shfl_xor_sync(~0u, all, 1);
        all = (all + __shfl_xor_sync(~0u, all, 2)) * LESS;
        to[0] = to[2] = __shfl_sync(~0u, all, lane % 4 * 8);
        to[1] = to[3] = __shfl_sync(~0u, all, lane % 4 * 8 + 4);
    }
    __device__ __forceinline__ void multiply4(const uint4 code[2], const float f[2], unsigned step)
    {
        const uint32_t *c0 = (const uint32_t *)&code[0], *c1 = (const uint32_t *)&code[1];
        float parts[4], more[4] = {};
        begin(parts, step);
#pragma unroll
        for (int e = 0; e < EIGHTS; e++) {
            const uint32_t low = 0x000f000fu, high = 0x00f000f0u;
            uint4 v = x_of(step, e);
            uint32_t a[4] = {c0[e] & low, c1[e] & low, c0[e] & high, c1[e] & high};
            uint32_t b[4] = {c0[e] >> 8 & low, c1[e] >> 8 & low, c0[e] >> 8 & high,
                             c1[e] >> 8 & high};
            mma(parts, a, v.x, v.y);
            mma(more, b, v.z, v.w);
        }
#pragma unroll
        for (int e = 0; e < 4; e++)
            sum[0][e] = fmaf(parts[e] + more[e], f[e / 2], sum[0][e]);
    }
    __device__ __forceinline__ void multiply8(const uint4 code[2], float (&to)[4], unsigned step)
    {
        const uint32_t *c0 = (const uint32_t *)&code[0], *c1 = (const uint32_t *)&code[1];
#pragma unroll
        for (int e = 0; e < EIGHTS; e++) {
            uint4 v = x_of(step, e);
            const uint32_t *b = (const uint32_t *)&v;
#pragma unroll
            for (int j = 0; j < 2; j++) {
                uint32_t a0[2], a1[2];
                widen_word<KIND>(a0, c0[2 * e + j]), widen_word<KIND>(a1, c1[2 * e + j]);
                uint32_t a[4] = {a0[0], a1[0], a0[1], a1[1]};
                mma(to, a, b[2 * j], b[2 * j + 1]);
            }
        }
    }
    __device__ __forceinline__ void add(const piece_of<KIND> &from, unsigned piece)
    {
        const int row = lane / 4; /* and the one eight further */
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            const int at = (4 * i + lane % 4) ^ row % 2 * 4;
            const uint4 code[2] = {from.code[row][at], from.code[row + 8][at]};
            if constexpr (KIND == MX_CUDA_CODES_INT4) {
                const float f[2] = {from.scale[row][i], from.scale[row + 8][i]};
                multiply4(code, f, piece * STEPS + i);
            } else {
                multiply8(code, sum[i % CHAINS], piece * STEPS + i);
            }
        }
    }
};

/* A tile's sums over the warps, to y. */
template <mx_cuda_codes_kind KIND, bool STAGED>
__device__ __forceinline__ void finish(const tile_sums<KIND, STAGED> &t, unsigned tile,
                                       float (*part)[ROWS][VECTORS + 1], float row_scale)
{
#pragma unroll
    for (int e = 0; e < 4; e++)
        part[t.warp][t.lane / 4 + e / 2 * 8][t.lane % 4 * 2 + e % 2] = t.sum[0][e] + t.sum[1][e];
    __syncthreads();
    const int i = threadIdx.x % ROWS, m = threadIdx.x / ROWS;
    unsigned row;
    const stream_part &o = find_row(t.p, tile, i, &row);
    if (m / (32 / ROWS) * (32 / ROWS) >= t.p.m) /* whole warps: see below */
        return;
    const bool ours = m < t.p.m && row < o.n;
    float y = 0;
#pragma unroll
    for (int j = 0; j < WARPS; j++)
        y += part[j][i][m];
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

/* What the sum that this thread ends is multiplied by. */
template <mx_cuda_codes_kind KIND>
__device__ __forceinline__ float scale_of_row(const stream_call &p, unsigned tile)
{
    unsigned row;
    if (KIND == MX_CUDA_CODES_INT4)
        return 0x1p73f;
    if (tile >= p.tiles || (int)threadIdx.x >= ROWS * p.m)
        return 0;
    const stream_part &o = find_row(p, tile, threadIdx.x % ROWS, &row);
    return row < o.n ? __ldg(o.scale + row) : 0;
}

/* Rings, the vector, and offsets of its steps. */
template <mx_cuda_codes_kind KIND>
__host__ __device__ constexpr unsigned ring_bytes()
{
    return WARPS * STAGES * sizeof(piece_of<KIND>);
}
template <mx_cuda_codes_kind KIND>
__host__ __device__ constexpr unsigned staged_bytes(unsigned pieces)
{
    return pieces * PIECE * in_lane(KIND) * 2;
}

template <mx_cuda_codes_kind KIND, bool STAGED>
__global__ void __launch_bounds__(32 * WARPS, BLOCKS)
    stream_kernel(const __grid_constant__ stream_call p)
{
    extern __shared__ uint4 room[];
    __shared__ float part[2][WARPS][ROWS][VECTORS + 1]; /* in turn: one barrier a tile is enough */
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    piece_of<KIND> *ring = (piece_of<KIND> *)room + warp * STAGES;
    uint4 *staged = room + ring_bytes<KIND>() / sizeof(uint4);
    float *offset = (float *)(staged + staged_bytes<KIND>(p.pieces) / sizeof(uint4));
    piece_loader<KIND> ahead = {p, ring, lane, warp};
    tile_sums<KIND, STAGED> t = {p, staged, offset, lane, warp};
    let_next_start();
    ahead.seek(warp < (int)p.pieces ? blockIdx.x : p.tiles);
#pragma unroll
    for (int i = 0; i < STAGES; i++)
        ahead.next(i);
    float row_scale = scale_of_row<KIND>(p, blockIdx.x);
    wait_for_previous();
    if constexpr (STAGED)
        t.stage();
    unsigned turn = 0, at = 0;
    for (unsigned tile = blockIdx.x; tile < p.tiles; tile += gridDim.x, turn ^= 1) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            t.sum[0][e] = t.sum[1][e] = 0;
#pragma unroll 1
        for (unsigned piece = warp; piece < p.pieces; piece += WARPS) {
            asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1) : "memory");
            __syncwarp();
            t.add(ring[at], piece);
            __syncwarp();
            ahead.next(at);
            at = at + 1 == STAGES ? 0 : at + 1;
        }
        finish(t, tile, part[turn], row_scale);
        row_scale = scale_of_row<KIND>(p, tile + gridDim.x);
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

/* More shared memory than that would keep blocks off an SM; with less, of which more than BLOCKS
 * would fit, some SMs get more blocks than others: they start as those of the launch before end. */
enum { MOST_STAGED = 48 << 10, MOST_OFFSETS = 4 << 10, LEAST = (228 << 10) / (BLOCKS + 1) - 9216 };

template <mx_cuda_codes_kind KIND, bool STAGED>
static cudaError_t go(const stream_call &p, unsigned blocks, cudaStream_t stream)
{
    const unsigned vector = STAGED ? staged_bytes<KIND>(p.pieces) + p.pieces * STEPS * 4 : 0;
    auto *kernel = stream_kernel<KIND, STAGED>;
    cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         ring_bytes<KIND>() + MOST_STAGED + MOST_OFFSETS);
    const unsigned room = max(ring_bytes<KIND>() + vector, (unsigned)LEAST);
    return e == cudaSuccess ? launch_pdl(kernel, blocks, 32 * WARPS, room, stream, p) : e;
}

/* As many blocks as are on the chip at once, which go on from tile to tile. */
template <mx_cuda_codes_kind KIND>
static cudaError_t choose(const stream_call &p, unsigned sms, cudaStream_t stream)
{
    const unsigned blocks = min(p.tiles, BLOCKS * sms);
    return p.m == 1 && staged_bytes<KIND>(p.pieces) <= MOST_STAGED
               ? go<KIND, true>(p, blocks, stream)
               : go<KIND, false>(p, blocks, stream);
}

cudaError_t mx_cuda_dequant_stream(const mx_cuda_dequant *one, int n, const void *x, int m,
                                   void *h, cudaStream_t stream)
{
    stream_call p = {};
    int device = 0, sms = 0;
    const mx_cuda_codes &w = one->w;
    p.parts = n, p.m = m, p.x = (const uint16_t *)x, p.k = (unsigned)w.k;
    p.vectors = p.k / in_lane(w.kind), p.pieces = (p.vectors + PIECE - 1) / PIECE;
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
