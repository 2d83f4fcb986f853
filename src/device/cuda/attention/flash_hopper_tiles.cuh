/* flash_hopper_tiles.cuh - which tiles of keys and values the groups of a block get, in what order,
 * and the warp that loads them: the half of flash_hopper_forward.cu that does not multiply.
 *
 * A row of tiles belongs to QUERIES queries of one head. Its tiles come from the last to the first,
 * each with a word about it in shared memory. Where positions are indices, the keys a query sees
 * are an interval, and the intervals of its neighbours move with it: what a group sees of a tile
 * follows from its first and last query. Segments (packed documents) narrow that by the tables of
 * flash_segments.cu, and the ids of a tile's keys come to shared memory with them. Where positions
 * or spans are given by arrays too, the warp compares the ranges of the row's queries and of each
 * tile's keys, and leaves the latter in shared memory for those who mask.
 */
#ifndef MX_DEVICE_CUDA_FLASH_HOPPER_TILES_CUH
#define MX_DEVICE_CUDA_FLASH_HOPPER_TILES_CUH

#include "device/cuda/attention/flash.cuh"
#include "device/cuda/core/tma.cuh"

enum { KEYS = 128 };
enum { PASS = 0, MASKED = 1, WHOLE = 2 };
/* What a mask is made of besides indices: nothing; segments, with their tables; any mask tensors.
 * */
enum mask_kind { MASK_PLAIN, MASK_SEGMENTS, MASK_TENSORS };

struct hopper_params {
    mx_flash_shape s;
    mx_flash_args a;
    mask_rule rule;
    float c;      /* scores to log2 units */
    float to_cap; /* scores to the argument of tanh, times 2 log2 e */
    int blocks, heads, section; /* of queries in a row; over the batch; heads in a section */
    int once;                   /* 1; see do_row */
};

/* A form of the kernel and its shared memory. */
template <int D_, int NW_, int STAGES_, bool CAP_, mask_kind MASK_> struct hopper_form {
    enum {
        D = D_, NW = NW_, STAGES = STAGES_, THREADS = 128 * (NW + 1),
        CAP = CAP_,   /* scores are capped */
        BY_TENSORS = MASK_ == MASK_TENSORS, SEGMENTS = MASK_ == MASK_SEGMENTS,
        QUERIES = 64 * NW, Q_RING = D == 64 ? 1 : 2, Q_BYTES = 64 * D * 2, KV_BYTES = KEYS * D * 2,
        IDS_BYTES = SEGMENTS ? KEYS * 4 : 0, INFO_BYTES = BY_TENSORS ? KEYS * 12 : IDS_BYTES,
        K_AT = Q_RING * NW * Q_BYTES, V_AT = K_AT + STAGES * KV_BYTES,
        INFO_AT = V_AT + STAGES * KV_BYTES, WORD_AT = INFO_AT + STAGES * INFO_BYTES,
        BAR_AT = WORD_AT + 8 * STAGES, BYTES = BAR_AT + 8 * (4 * STAGES + 2 * Q_RING * NW) + 1024,
        READER_REGISTERS = NW == 3 ? 160 : 232, LOADER_REGISTERS = NW == 3 ? 32 : 40
    };
    uint32_t at;
    __device__ uint32_t full_k(int i) const { return at + BAR_AT + 8 * i; }
    __device__ uint32_t full_v(int i) const { return at + BAR_AT + 8 * (STAGES + i); }
    __device__ uint32_t empty_k(int i) const { return at + BAR_AT + 8 * (2 * STAGES + i); }
    __device__ uint32_t empty_v(int i) const { return at + BAR_AT + 8 * (3 * STAGES + i); }
    __device__ uint32_t full_q(int i) const { return at + BAR_AT + 8 * (4 * STAGES + i); }
    __device__ uint32_t empty_q(int i) const { return full_q(Q_RING * NW + i); }
    __device__ uint32_t word(int i) const { return at + WORD_AT + 4 * i; }
    __device__ uint32_t info(int i, int what) const
    {
        return at + INFO_AT + i * INFO_BYTES + what * KEYS * 4;
    }
};
/* A row of tiles: QUERIES queries of a head, which counts over the batch. */
struct tile_row {
    int q0, head;
    template <class F> __device__ __forceinline__ bool find(const hopper_params &p, int round)
    {
        int n = gridDim.x, k = blockIdx.x, t = round * n + (round & 1 ? n - 1 - k : k);
        if (t >= p.blocks * p.heads)
            return false;
        int per = p.section * p.blocks, part = t / per, within = t - part * per;
        int heads = min(p.section, p.heads - part * p.section), block = within / heads;
        head = part * p.section + within - block * heads;
        q0 = (p.blocks - 1 - block) * F::QUERIES;
        return true;
    }
};
/* The keys that the query of this index sees, where nothing else says where it is: always one
 * interval [lo, hi). */
struct interval {
    int lo, hi;
};
__device__ __forceinline__ interval seen_by(const hopper_params &p, int index)
{
    const mask_rule &r = p.rule;
    int i = query_place(p.s, index);
    interval x = {0, p.s.seq_kv};
    if (r.causal)
        x.hi = min(x.hi, i + 1);
    if (r.window) {
        x.lo = max(x.lo, i - r.window + 1);
        if (!r.causal)
            x.hi = min(x.hi, i + r.window);
    }
    if (r.chunk) {
        int first = i / r.chunk * r.chunk;
        x.lo = max(x.lo, first);
        x.hi = min(x.hi, first + r.chunk);
    }
    return x;
}

/* The word of a tile: its number, then three bits for each group (what to do, and whether it is the
 * group's last of the row), then whether it is the row's last. */
__device__ __forceinline__ int word_kind(int word, int group)
{
    return word >> (20 + 3 * group) & 3;
}
__device__ __forceinline__ bool word_last(int word, int group)
{
    return word >> (22 + 3 * group) & 1;
}
enum { WORD_TILE = (1 << 20) - 1, WORD_END = 1 << 30 };

/* The loading warp. */
template <class F> struct hopper_loader {
    const hopper_params &p;
    const F smem;
    const CUtensorMap *map_k, *map_v;
    ring_at<F::STAGES> k, v;
    int batch, kv_head, due; /* due: the tile whose values come next; -1: none */

    __device__ __forceinline__ void send(int tile, int word)
    {
        int lane = threadIdx.x & 31;
        bar_wait(smem.empty_k(k.slot), k.parity);
        if (F::BY_TENSORS)
            for (int i = lane; i < KEYS; i += 32) {
                token_info x = token_at(p.a.k_pos, p.a.k_seg, p.a.k_span,
                                        (int64_t)batch * p.s.seq_kv, tile * KEYS + i, p.s.seq_kv);
                store_shared(smem.info(k.slot, 0) + 4 * i, x.pos);
                store_shared(smem.info(k.slot, 1) + 4 * i, x.seg);
                store_shared(smem.info(k.slot, 2) + 4 * i, x.span);
            }
        __syncwarp();
        if (lane == 0) {
            store_shared(smem.word(k.slot), word | tile);
            bar_expect(smem.full_k(k.slot), F::KV_BYTES + F::IDS_BYTES);
            if (F::SEGMENTS)
                load_bytes(smem.info(k.slot, 0),
                           p.a.segments.k_ids + (int64_t)batch * p.a.segments.k_tiles * TILE +
                               tile * KEYS, F::IDS_BYTES, smem.full_k(k.slot));
            for (int d = 0; d < F::D; d += 64)
                tma_load(smem.at + F::K_AT + k.slot * F::KV_BYTES + d * KEYS * 2, map_k, d,
                         tile * KEYS, kv_head, batch, smem.full_k(k.slot));
        }
        k.step();
        send_values();
        due = tile;
    }
    /* Values come a tile behind keys, as they are used. */
    __device__ __forceinline__ void send_values()
    {
        if (due < 0)
            return;
        bar_wait(smem.empty_v(v.slot), v.parity);
        if ((threadIdx.x & 31) == 0) {
            bar_expect(smem.full_v(v.slot), F::KV_BYTES);
            for (int d = 0; d < F::D; d += 64)
                tma_load(smem.at + F::V_AT + v.slot * F::KV_BYTES + d * KEYS * 2, map_v, d,
                         due * KEYS, kv_head, batch, smem.full_v(v.slot));
        }
        v.step();
        due = -1;
    }
    /* A row whose queries' positions are their indices. Every group gets at least one tile. */
    __device__ __forceinline__ void send_plain(int q0)
    {
        int lo[F::NW], hi[F::NW], whole_lo[F::NW], whole_hi[F::NW], first = 1 << 30, end = 0;
        for (int g = 0; g < F::NW; g++) {
            int r0 = q0 + 64 * g;
            interval a = seen_by(p, r0), b = seen_by(p, min(r0 + 63, p.s.seq_q - 1));
            if (F::SEGMENTS) {
                int tile = min(r0 / TILE, p.a.segments.q_tiles - 1);
                int4 x = p.rule.q_sees[(int64_t)batch * p.a.segments.q_tiles + tile];
                a.lo = max(a.lo, x.x), b.hi = min(b.hi, x.y);
                b.lo = max(b.lo, x.z), a.hi = min(a.hi, x.w);
            }
            bool none = r0 >= p.s.seq_q || a.lo >= b.hi;
            lo[g] = none ? -1 : a.lo / KEYS, hi[g] = none ? -1 : (b.hi + KEYS - 1) / KEYS;
            whole_lo[g] = (b.lo + KEYS - 1) / KEYS, whole_hi[g] = a.hi / KEYS;
            if (!none)
                first = min(first, lo[g]), end = max(end, hi[g]);
        }
        if (end == 0)
            first = 0, end = 1;
        for (int g = 0; g < F::NW; g++)
            if (lo[g] < 0)
                lo[g] = first, hi[g] = first + 1, whole_hi[g] = 0;
        for (int t = end - 1; t >= first; t--) {
            int word = t == first ? WORD_END : 0;
            for (int g = 0; g < F::NW; g++) {
                if (t < lo[g] || t >= hi[g])
                    continue; /* PASS */
                int kind = t >= whole_lo[g] && t < whole_hi[g] ? WHOLE : MASKED;
                word |= (kind | (t == lo[g]) << 2) << (20 + 3 * g);
            }
            send(t, word);
        }
    }
    __device__ __forceinline__ void send_by_tensors(const tile_row &row);
};

/* Least and greatest of what a set of tokens has, those of no position left out. */
struct token_range {
    int pos_lo, pos_hi, seg_lo, seg_hi;
    bool spans, unused;
};
/* Of tokens [i0, i1) of a sequence of n, by a whole warp. */
__device__ __forceinline__ token_range range_of(const int32_t *pos, const int32_t *seg,
                                                const int32_t *span, int64_t base, int i0, int i1,
                                                int n)
{
    token_range r = {INT32_MAX, -1, INT32_MAX, INT32_MIN, false, false};
    for (int i = i0 + (threadIdx.x & 31); i < i1; i += 32) {
        token_info x = token_at(pos, seg, span, base, i, n);
        if (x.pos < 0) {
            r.unused = true;
            continue;
        }
        r.pos_lo = min(r.pos_lo, x.pos), r.pos_hi = max(r.pos_hi, x.pos);
        r.seg_lo = min(r.seg_lo, x.seg), r.seg_hi = max(r.seg_hi, x.seg);
        r.spans |= x.span > 0;
    }
    r.pos_lo = __reduce_min_sync(~0u, r.pos_lo), r.pos_hi = __reduce_max_sync(~0u, r.pos_hi);
    r.seg_lo = __reduce_min_sync(~0u, r.seg_lo), r.seg_hi = __reduce_max_sync(~0u, r.seg_hi);
    r.spans = __any_sync(~0u, r.spans), r.unused = __any_sync(~0u, r.unused);
    return r;
}
/* What queries q have to do with keys k. */
__device__ __forceinline__ int kind_of(const mask_rule &r, const token_range &q,
                                       const token_range &k)
{
    if (q.pos_hi < 0 || k.pos_hi < 0 || k.seg_lo > q.seg_hi || k.seg_hi < q.seg_lo)
        return PASS;
    bool spans = q.spans && k.spans;
    if (r.window && (q.pos_lo - k.pos_hi >= r.window ||
                     (!r.causal && !spans && k.pos_lo - q.pos_hi >= r.window)))
        return PASS;
    if (!spans && ((r.causal && k.pos_lo > q.pos_hi) ||
                   (r.chunk && (k.pos_lo / r.chunk > q.pos_hi / r.chunk ||
                                k.pos_hi / r.chunk < q.pos_lo / r.chunk))))
        return PASS;
    bool whole = !k.unused && !q.unused && q.seg_lo == q.seg_hi && k.seg_lo == q.seg_lo &&
                 k.seg_hi == q.seg_lo && (!r.causal || k.pos_hi <= q.pos_lo) &&
                 (!r.window || (q.pos_hi - k.pos_lo < r.window &&
                                (r.causal || k.pos_hi - q.pos_lo < r.window))) &&
                 (!r.chunk || (k.pos_lo / r.chunk == q.pos_hi / r.chunk &&
                               k.pos_hi / r.chunk == q.pos_lo / r.chunk &&
                               k.pos_lo / r.chunk == k.pos_hi / r.chunk));
    return whole ? WHOLE : MASKED;
}
/* A row whose mask is given by tensors: all groups take the tiles that any of them needs. */
template <class F>
__device__ __forceinline__ void hopper_loader<F>::send_by_tensors(const tile_row &row)
{
    token_range q = range_of(p.a.q_pos, p.a.q_seg, p.a.q_span, (int64_t)batch * p.s.seq_q, row.q0,
                             min(row.q0 + F::QUERIES, p.s.seq_q), p.s.seq_q);
    int held = 0, held_kind = MASKED; /* the tile found before: whether it is the last shows late */
    bool found = false;
    for (int t = (p.s.seq_kv + KEYS - 1) / KEYS; t >= 0; t--) {
        int kind = PASS;
        if (t > 0)
            kind = kind_of(p.rule, q, range_of(p.a.k_pos, p.a.k_seg, p.a.k_span,
                                               (int64_t)batch * p.s.seq_kv, (t - 1) * KEYS,
                                               t * KEYS, p.s.seq_kv));
        if (t > 0 && kind == PASS)
            continue;
        if (t == 0 || found) {
            int word = t == 0 ? WORD_END : 0;
            for (int g = 0; g < F::NW; g++)
                word |= (held_kind | (t == 0) << 2) << (20 + 3 * g);
            send(held, word);
        }
        found = true, held = t - 1, held_kind = kind;
    }
}

#endif
