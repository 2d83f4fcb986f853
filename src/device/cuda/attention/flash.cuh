/* flash.cuh - what the attention kernels share: the mask, the soft-cap, tensor-core fragments,
 * tiles.
 *
 * Fragments of mma.m16n8k16: lane l holds rows l/4 and l/4 + 8, columns 2 (l%4) + {0, 1} of each 16
 * x 8 accumulator. Two neighbouring accumulators, rounded to bf16, are the A operand of the next
 * GEMM, so probabilities go from one GEMM to the next without touching memory. Tiles in
 * shared memory are 64 rows of D elements with a row stride of D + 8, which keeps ldmatrix free of
 * bank conflicts (an odd number of 16-byte units).
 */
#ifndef MX_DEVICE_CUDA_FLASH_CUH
#define MX_DEVICE_CUDA_FLASH_CUH

#include "device/cuda/attention/flash.h"
#include "device/cuda/core/vec.cuh"

enum { TILE = 64, FLASH_THREADS = 128 };
#define LOG2E 1.4426950408889634f

struct mask_rule {
    bool causal;
    int32_t window, chunk;
    bool indexed; /* positions are indices, no spans: causal, window and chunk hold by index */
    bool plain;   /* and no segments: tiles are classified by index alone */
    const int4 *q_sees; /* of mx_flash_segments; NULL: none */
    const int2 *k_seen;
    int q_tiles, k_tiles;
    const uint32_t *listed; /* bits of the keys in each query's list: no tile is seen whole */
};
struct token_info {
    int32_t pos, seg, span;
    int32_t at; /* of a key its index, of a query where its bits begin */
};

static inline mask_rule make_rule(const mx_flash_shape *s, const mx_flash_args *a)
{
    bool indexed = !a->q_pos && !a->k_pos && !a->q_span && !a->k_span;
    const mx_flash_segments &t = a->segments;
    return {s->causal, (int32_t)s->window, (int32_t)s->chunk, indexed,
            indexed && !a->q_seg && !a->k_seg, (const int4 *)t.q_sees, (const int2 *)t.k_seen,
            t.q_tiles, t.k_tiles, a->listed};
}

__device__ __forceinline__ bool visible(const mask_rule &r, const token_info &q,
                                        const token_info &k)
{
    if (k.pos < 0 || q.pos < 0 || q.seg != k.seg)
        return false;
    if (r.listed && !(r.listed[q.at + (k.at >> 5)] >> (k.at & 31) & 1))
        return false;
    if (q.span > 0 && q.span == k.span && (!r.window || q.pos - k.pos < r.window))
        return true;
    return (!r.causal || k.pos <= q.pos) &&
           (!r.window || (q.pos - k.pos < r.window && (r.causal || k.pos - q.pos < r.window))) &&
           (!r.chunk || q.pos / r.chunk == k.pos / r.chunk);
}
/* Index i of a sequence of n; beyond the end the position is -1, so a key there is never seen. */
__device__ __forceinline__ token_info token_at(const int32_t *pos, const int32_t *seg,
                                               const int32_t *span, int64_t base, int i, int n)
{
    if (i >= n)
        return {-1, 0, 0, i};
    return {pos ? pos[base + i] : i, seg ? seg[base + i] : 0, span ? span[base + i] : 0, i};
}
/* Where query i is, if nothing else says so; and the first query that is at p or after it. */
__device__ __forceinline__ int query_place(const mx_flash_shape &s, int i)
{
    return i + s.q_offset + (2 * i < s.seq_q ? 0 : s.q_jump);
}
__device__ __forceinline__ int first_query(const mx_flash_shape &s, int p)
{
    int i = max(p - s.q_offset, 0), middle = (s.seq_q + 1) / 2;
    return i < middle ? i : max(middle, i - s.q_jump);
}
/* Query i of sequence b. */
__device__ __forceinline__ token_info query_at(const mx_flash_args &a, const mx_flash_shape &s,
                                               int b, int i)
{
    token_info q = token_at(a.q_pos, a.q_seg, a.q_span, (int64_t)b * s.seq_q, i, s.seq_q);
    q.at = (b * s.seq_q + i) * ((s.seq_kv + 31) / 32);
    if (!a.q_pos && i < s.seq_q)
        q.pos = query_place(s, i);
    return q;
}
/* Keys [lo, hi) that the tile of queries [q0, q1] of sequence b may see. */
__device__ __forceinline__ void key_range(const mask_rule &r, const mx_flash_shape &s, int b,
                                          int q0, int q1, int &lo, int &hi)
{
    int n = s.seq_kv;
    int4 sees = r.q_sees ? r.q_sees[(int64_t)b * r.q_tiles + q0 / TILE] : int4{0, n, 0, 0};
    lo = sees.x;
    hi = sees.y;
    if (!r.indexed)
        return;
    q0 = query_place(s, q0), q1 = query_place(s, q1);
    if (r.causal)
        hi = min(hi, q1 + 1);
    if (r.window) {
        lo = max(lo, q0 - r.window + 1);
        if (!r.causal)
            hi = min(hi, q1 + r.window);
    }
    if (r.chunk) {
        lo = max(lo, q0 / r.chunk * r.chunk);
        hi = min(hi, (q1 / r.chunk + 1) * r.chunk);
    }
    lo = lo / TILE * TILE;
}
/* Queries [lo, hi) that may see the tile of keys [k0, k1] of sequence b. */
__device__ __forceinline__ void query_range(const mask_rule &r, const mx_flash_shape &s, int b,
                                            int k0, int k1, int &lo, int &hi)
{
    int n = s.seq_q;
    int2 seen = r.k_seen ? r.k_seen[(int64_t)b * r.k_tiles + k0 / TILE] : int2{0, n};
    lo = seen.x;
    hi = seen.y;
    if (!r.indexed)
        return;
    if (r.causal)
        lo = max(lo, first_query(s, k0));
    if (r.window) {
        hi = min(hi, first_query(s, k1 + r.window));
        if (!r.causal)
            lo = max(lo, first_query(s, k0 - r.window + 1));
    }
    if (r.chunk) {
        lo = max(lo, first_query(s, k0 / r.chunk * r.chunk));
        hi = min(hi, first_query(s, (k1 / r.chunk + 1) * r.chunk));
    }
    lo = lo / TILE * TILE;
}
/* Every query of [q0, q0+64) sees every key of [k0, k0+64), all inside the sequences. */
__device__ __forceinline__ bool tile_full(const mask_rule &r, const mx_flash_shape &s, int b,
                                          int q0, int k0)
{
    int p0 = query_place(s, q0), p1 = query_place(s, q0 + TILE - 1);
    if (!r.plain && r.q_sees) {
        int4 sees = r.q_sees[(int64_t)b * r.q_tiles + q0 / TILE];
        if (k0 < sees.z || k0 + TILE > sees.w)
            return false;
    }
    return r.indexed && (r.plain || r.q_sees) && !r.listed && !r.chunk && k0 + TILE <= s.seq_kv &&
           q0 + TILE <= s.seq_q &&
           (!r.causal || k0 + TILE - 1 <= p0) &&
           (!r.window || (p1 - k0 < r.window && (r.causal || k0 + TILE - 1 - p0 < r.window)));
}

/* One instruction; results below 2^-126 become 0, which is what a probability may do. */
__device__ __forceinline__ float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/* tanh to about 1e-7 absolute, which after the multiplication by the cap is all that matters. */
__device__ __forceinline__ float tanh_fast(float x)
{
    return 1.f - __fdividef(2.f, 1.f + __expf(2.f * x));
}
struct score_rule {
    float scale, cap, inv_cap;
};
static inline score_rule make_score(const mx_flash_shape *s)
{
    return {s->scale, s->softcap, s->softcap > 0 ? 1.f / s->softcap : 0.f};
}
/* The score, and its derivative with respect to q.k. */
__device__ __forceinline__ float score(const score_rule &r, float dot, float &derivative)
{
    float x = dot * r.scale;
    derivative = r.scale;
    if (r.cap > 0) {
        float t = tanh_fast(x * r.inv_cap);
        derivative *= 1.f - t * t;
        x = r.cap * t;
    }
    return x;
}

/* --- the tensor cores --- */

__device__ __forceinline__ void mma(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void ldmatrix(uint32_t r[4], const uint16_t *p)
{
    uint32_t s = (uint32_t)__cvta_generic_to_shared(p);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(s));
}
__device__ __forceinline__ void ldmatrix_trans(uint32_t r[4], const uint16_t *p)
{
    uint32_t s = (uint32_t)__cvta_generic_to_shared(p);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(s));
}
/* The 16 x 16 A operand made of accumulators 2k and 2k+1. */
__device__ __forceinline__ void accumulator_as_a(uint32_t a[4], const float lo[4],
                                                 const float hi[4])
{
    a[0] = pack2(lo[0], lo[1]);
    a[1] = pack2(lo[2], lo[3]);
    a[2] = pack2(hi[0], hi[1]);
    a[3] = pack2(hi[2], hi[3]);
}

/* c (16, 64) += A[row0.., D] . B[64, D]^T, both tiles row-major in shared memory. */
template <int D>
__device__ __forceinline__ void gemm_nt(float c[8][4], const uint16_t *a, int row0,
                                           const uint16_t *b)
{
    int lane = threadIdx.x & 31;
    const uint16_t *ap = a + (row0 + (lane & 15)) * (D + 8) + (lane >> 4) * 8;
    const uint16_t *bp = b + ((lane & 7) + ((lane >> 4) << 3)) * (D + 8) + ((lane >> 3) & 1) * 8;
#pragma unroll
    for (int k = 0; k < D; k += 16) {
        uint32_t af[4];
        ldmatrix(af, ap + k);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            uint32_t bf[4];
            ldmatrix(bf, bp + n * 16 * (D + 8) + k);
            mma(c[2 * n], af, bf[0], bf[1]);
            mma(c[2 * n + 1], af, bf[2], bf[3]);
        }
    }
}
/* c (16, D) += W (16, 64) . B[64, D], W given as accumulators. */
template <int D>
__device__ __forceinline__ void gemm_nn(float (*c)[4], const float w[8][4], const uint16_t *b)
{
    int lane = threadIdx.x & 31;
    const uint16_t *bp = b + (lane & 15) * (D + 8) + (lane >> 4) * 8;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        uint32_t af[4];
        accumulator_as_a(af, w[2 * k], w[2 * k + 1]);
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            uint32_t bf[4];
            ldmatrix_trans(bf, bp + k * 16 * (D + 8) + n * 16);
            mma(c[2 * n], af, bf[0], bf[1]);
            mma(c[2 * n + 1], af, bf[2], bf[3]);
        }
    }
}

/* --- tiles --- */

/* 64 rows of d (<= D) elements into shared memory, zero beyond rows and d. Finish with tile_wait.
 */
template <int D>
__device__ __forceinline__ void tile_load(uint16_t *s, const uint16_t *g, int64_t stride, int rows,
                                          int d)
{
    bool vec = d % 8 == 0 && stride % 8 == 0 && (uintptr_t)g % 16 == 0;
    for (int i = threadIdx.x; i < TILE * (D / 8); i += FLASH_THREADS) {
        int r = i / (D / 8), c = i % (D / 8) * 8;
        uint16_t *dst = s + r * (D + 8) + c;
        bool in = r < rows && c < d;
        if (vec) {
            uint32_t sp = (uint32_t)__cvta_generic_to_shared(dst);
            const uint16_t *src = in ? g + r * stride + c : g;
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(sp), "l"(src),
                         "r"(in ? 16 : 0));
        } else {
            for (int j = 0; j < 8; j++)
                dst[j] = in && c + j < d ? g[r * stride + c + j] : (uint16_t)0;
        }
    }
    asm volatile("cp.async.commit_group;");
}
__device__ __forceinline__ void tile_wait()
{
    asm volatile("cp.async.wait_all;");
    __syncthreads();
}
/* Two neighbouring columns of an output row; the pair may hang over the end of an odd d. */
__device__ __forceinline__ void store_pair(uint16_t *row, int c, int d, float x, float y)
{
    if (c + 1 < d && (uintptr_t)(row + c) % 4 == 0) {
        *(uint32_t *)(row + c) = pack2(x, y);
        return;
    }
    if (c < d)
        row[c] = f32_to_bf16(x);
    if (c + 1 < d)
        row[c + 1] = f32_to_bf16(y);
}
/* Rows row0 + lane/4 (+ 8) of an accumulator (16, D), scaled, to memory. */
template <int D>
__device__ __forceinline__ void store_rows(uint16_t *g, int64_t stride, int row0, int rows, int d,
                                           float (*c)[4], float s0, float s1)
{
    int lane = threadIdx.x & 31, r = row0 + lane / 4;
#pragma unroll
    for (int n = 0; n < D / 8; n++) {
        int col = n * 8 + lane % 4 * 2;
        if (r < rows)
            store_pair(g + r * stride, col, d, c[n][0] * s0, c[n][1] * s0);
        if (r + 8 < rows)
            store_pair(g + (r + 8) * stride, col, d, c[n][2] * s1, c[n][3] * s1);
    }
}

#endif
