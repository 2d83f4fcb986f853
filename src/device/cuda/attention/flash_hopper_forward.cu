/* flash_hopper_forward.cu - attention forward with Hopper's own instructions. See flash.h for what
 * it computes, tma.cuh and wgmma.cuh for the instructions; flash_forward.cu serves every other
 * machine and head size.
 *
 * A block has NW groups of four warps, which multiply, and one warp, which loads. A group owns 64
 * queries. Tiles of 128 keys and values come through a ring; for each the loader leaves a word that
 * says which tile it is and what each group has to do with it: skip it, mask it, take it whole. So
 * the loader alone knows how rows of tiles begin and end, and leaves out what no query sees. The
 * grid is as large as the chip; a block goes from one row of tiles to the next, and the loader is
 * ahead of it by the length of the ring.
 *
 * Of a tile a group does
 *     S = Q K^T    O += P V (the tile before)    P = exp2(c S - m), m the running maximum
 * the first two on the tensor cores, the last on units that give 16 exp2 a cycle: at head size 64
 * as long as the GEMMs. They overlap within a group (exp of this tile while O of the last is
 * formed) and between groups, which issue their GEMMs in a fixed order (named barriers). Tried and
 * slower: S of the next tile formed ahead in a second set of registers; O and S issued together
 * after the exps; an order that passes on only when a GEMM is done; part of the exps as
 * polynomials; tiles of 64, 80 and 96 keys; two groups at head size 64.
 *
 * The maximum may run ahead of m by LAZY before O is rescaled: exps stay below 2^LAZY, and the
 * quotient is the same. Sums of a row stay with the thread that made them until the row ends.
 *
 * Order of the work: the longest rows first within a section of heads whose keys and values fit L2
 * together, heads of one group side by side, every other round backwards.
 */
#include "device/cuda/attention/flash_hopper.h"
#include "device/cuda/attention/flash_hopper_tiles.cuh"
#include "device/cuda/core/wgmma.cuh"

enum { SECTION_BYTES = 16 << 20 };
#define LAZY 8.f
#define LN2 0.6931471805599453f

/* A group of four warps and its 64 queries. */
template <class F> struct hopper_group {
    enum { D = F::D };
    const hopper_params &p;
    const F smem;
    int group, word;
    ring_at<F::STAGES> k, v;
    float s[KEYS / 2], o[D / 2]; /* (64, KEYS) and (64, D) among 128 threads, as wgmma.cuh says */
    uint32_t pairs[KEYS / 4];    /* P */
    float m[2], l[2];            /* of this thread's two rows; -inf: nothing seen, l its own part */
    token_info query[2];         /* BY_TENSORS: of positions, segments and spans */
    int own[2];                  /* SEGMENTS: their ids */

    __device__ __forceinline__ int lane() const { return threadIdx.x & 31; }
    __device__ __forceinline__ void release(uint32_t bar)
    {
        if (lane() == 0)
            bar_arrive(bar);
    }
    /* The tensor cores serve all groups at once, and all would then wait and all take exps
     * together. So groups issue in order, for each word one after the other. */
    __device__ __forceinline__ void order_wait()
    {
        asm volatile("bar.sync %0, 256;" ::"r"(1 + group) : "memory");
    }
    __device__ __forceinline__ void order_signal()
    {
        asm volatile("bar.arrive %0, 256;" ::"r"(group == F::NW - 1 ? 1 : 2 + group) : "memory");
    }
    /* Waits for the next tile that this group takes. */
    __device__ __forceinline__ void take_first()
    {
        for (;;) {
            bar_wait(smem.full_k(k.slot), k.parity);
            word = load_shared(smem.word(k.slot));
            if (word_kind(word, group) != PASS)
                return;
            pass();
        }
    }
    __device__ __forceinline__ void pass()
    {
        order_wait();
        order_signal();
        release(smem.empty_k(k.slot));
        bar_wait(smem.full_v(v.slot), v.parity);
        release(smem.empty_v(v.slot));
        k.step(), v.step();
    }
    /* What others still need of the row. */
    __device__ __forceinline__ void pass_rest()
    {
        while (!(word & WORD_END)) {
            bar_wait(smem.full_k(k.slot), k.parity);
            word = load_shared(smem.word(k.slot));
            pass();
        }
    }
    __device__ __forceinline__ void issue_scores(uint32_t q_at)
    {
        uint64_t q = describe_slab(q_at, 0);
        uint64_t b = describe_slab(smem.at + F::K_AT + k.slot * F::KV_BYTES, 0);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < D / 16; i++)
            wgmma_n128<false, false>(s, slab_on(q, i / 4 * 8192 + i % 4 * 32),
                                     slab_on(b, i / 4 * (KEYS * 128) + i % 4 * 32), i > 0);
        wgmma_commit();
    }
    __device__ __forceinline__ void issue_values()
    {
        bar_wait(smem.full_v(v.slot), v.parity);
        uint64_t b = describe_slab(smem.at + F::V_AT + v.slot * F::KV_BYTES, KEYS * 128);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < KEYS / 16; i++) {
            if constexpr (D == 64)
                wgmma_held_n64<true>(o, pairs + 4 * i, slab_on(b, i * 2048), 1);
            else
                wgmma_held_n128<true>(o, pairs + 4 * i, slab_on(b, i * 2048), 1);
        }
        wgmma_commit();
    }
    __device__ __forceinline__ void mask_plain(int r0, int k0)
    {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            interval seen = seen_by(p, r0 + sum_row() + 8 * e);
            int skip = k0 + 2 * (lane() & 3), lo = seen.lo - skip, hi = seen.hi - skip;
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
                for (int f = 0; f < 2; f++)
                    if (8 * j + f < lo || 8 * j + f >= hi)
                        s[4 * j + 2 * e + f] = -INFINITY;
        }
    }
    __device__ __forceinline__ void mask_segments(int slot)
    {
        uint32_t ids = smem.info(slot, 0) + 8 * (lane() & 3);
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++) {
            int key[2] = {load_shared(ids + 32 * j), load_shared(ids + 32 * j + 4)};
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (key[i & 1] != own[i >> 1])
                    s[4 * j + i] = -INFINITY;
        }
    }
    __device__ __forceinline__ void mask_by_tensors(int slot)
    {
        mask_rule rule = p.rule;
        rule.listed = nullptr; /* lists are not taken here */
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
            for (int f = 0; f < 2; f++) {
                int at = 4 * (8 * j + 2 * (lane() & 3) + f);
                token_info key = {load_shared(smem.info(slot, 0) + at),
                                  load_shared(smem.info(slot, 1) + at),
                                  load_shared(smem.info(slot, 2) + at), 0};
#pragma unroll
                for (int e = 0; e < 2; e++)
                    if (!visible(rule, query[e], key))
                        s[4 * j + 2 * e + f] = -INFINITY;
            }
    }
    /* Scores that have come: capped and masked; the slot of their keys freed, but with their mask
     * tensors only when all of those are in use. Moves m where the scores ask for it: true, and
     * what O is to be multiplied by. */
    __device__ __forceinline__ bool finish_scores(int r0, float shrink[2])
    {
        bool masked = word_kind(word, group) == MASKED;
        bool late = F::BY_TENSORS || (F::SEGMENTS && masked);
        if (!late)
            release(smem.empty_k(k.slot));
        if (F::CAP)
#pragma unroll
            for (int i = 0; i < KEYS / 2; i++)
                s[i] = 1.f - __fdividef(2.f, 1.f + exp2_fast(s[i] * p.to_cap));
        if (masked) {
            if (F::BY_TENSORS)
                mask_by_tensors(k.slot);
            else
                mask_plain(r0, (word & WORD_TILE) * KEYS);
            if (F::SEGMENTS)
                mask_segments(k.slot);
        }
        bool moved = move_maximum(shrink);
        if (late)
            release(smem.empty_k(k.slot));
        k.step();
        return moved;
    }
    __device__ __forceinline__ bool move_maximum(float shrink[2])
    {
        float top[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float x = s[2 * e], y = s[2 * e + 1];
#pragma unroll
            for (int j = 1; j < KEYS / 8; j++)
                x = fmaxf(x, s[4 * j + 2 * e]), y = fmaxf(y, s[4 * j + 2 * e + 1]);
            top[e] = fmaxf(x, y);
        }
        if (!__any_sync(~0u, fmaf(top[0], p.c, -LAZY) > m[0] || fmaf(top[1], p.c, -LAZY) > m[1]))
            return false;
#pragma unroll
        for (int e = 0; e < 2; e++) {
            top[e] = fmaxf(top[e], __shfl_xor_sync(~0u, top[e], 1));
            top[e] = fmaxf(top[e], __shfl_xor_sync(~0u, top[e], 2));
            float up = fmaxf(m[e], top[e] * p.c);
            shrink[e] = up > m[e] ? exp2_fast(m[e] - up) : 1.f;
            l[e] *= shrink[e];
            m[e] = up;
        }
        return true;
    }
    __device__ __forceinline__ void take_exp()
    {
        float sum[4], base[2];
#pragma unroll
        for (int e = 0; e < 2; e++)
            base[e] = m[e] == -INFINITY ? 0.f : m[e]; /* nothing seen: exps are 0, not NaN */
#pragma unroll
        for (int i = 0; i < KEYS / 2; i++) {
            s[i] = exp2_fast(fmaf(s[i], p.c, -base[i / 2 % 2]));
            sum[i % 4] = i < 4 ? s[i] : sum[i % 4] + s[i];
        }
        l[0] += sum[0] + sum[1];
        l[1] += sum[2] + sum[3];
    }
    __device__ __forceinline__ void pack()
    {
#pragma unroll
        for (int i = 0; i < KEYS / 4; i++)
            pairs[i] = pack2(s[2 * i], s[2 * i + 1]);
    }
    __device__ __forceinline__ void begin_row(const tile_row &row_at);
    __device__ __forceinline__ void do_row(const tile_row &row_at, uint32_t q_at, uint32_t empty_q);
    __device__ __forceinline__ void store_row(const tile_row &row_at);
};

template <class F>
__device__ __forceinline__ void hopper_group<F>::begin_row(const tile_row &at)
{
    int batch = at.head / p.s.heads_q;
    float sink = p.a.sinks ? p.a.sinks[at.head - batch * p.s.heads_q] * LOG2E : -INFINITY;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        m[e] = sink;
        l[e] = p.a.sinks && (lane() & 3) == 0 ? 1.f : 0.f; /* exp2(sink - m), in one of four */
        int i = at.q0 + 64 * group + sum_row() + 8 * e;
        if (F::BY_TENSORS)
            query[e] = query_at(p.a, p.s, batch, i);
        if (F::SEGMENTS) {
            i = min(i, p.s.seq_q - 1);
            int tile = batch * p.a.segments.q_tiles + i / TILE;
            own[e] = p.a.segments.q_ids[(int64_t)tile * MX_FLASH_IDS + i % TILE];
        }
    }
#pragma unroll
    for (int i = 0; i < D / 2; i++)
        o[i] = 0;
}
template <class F>
__device__ __forceinline__ void hopper_group<F>::do_row(const tile_row &at, uint32_t q_at,
                                                        uint32_t empty_q)
{
    int r0 = at.q0 + 64 * group;
    float shrink[2];
    take_first();
    order_wait();
    issue_scores(q_at);
    order_signal();
    wgmma_wait<0>();
    finish_scores(r0, shrink); /* O is 0 */
    take_exp();
    pack();
    while (!word_last(word, group)) {
        bar_wait(smem.full_k(k.slot), k.parity);
        word = load_shared(smem.word(k.slot));
        order_wait();
        issue_scores(q_at);
        issue_values();
        order_signal();
        wgmma_wait<1>();
        bool moved = finish_scores(r0, shrink);
        /* A loop of one round, which the compiler cannot know: in one stretch of code with the wait
         * it puts the wait first, and nothing overlaps. */
#pragma unroll 1
        for (int i = 0; i < p.once; i++)
            take_exp();
        wgmma_wait<0>();
        release(smem.empty_v(v.slot));
        v.step();
        if (moved)
#pragma unroll
            for (int i = 0; i < D / 2; i++)
                o[i] *= shrink[i / 2 % 2];
        pack();
    }
    release(empty_q);
    issue_values();
    wgmma_wait<0>();
    release(smem.empty_v(v.slot));
    v.step();
}
template <class F>
__device__ __forceinline__ void hopper_group<F>::store_row(const tile_row &at)
{
    int i0 = at.q0 + 64 * group + sum_row(), batch = at.head / p.s.heads_q, quad = lane() & 3;
    uint16_t *to = (uint16_t *)p.a.o + batch * p.s.o.batch +
                   (at.head - batch * p.s.heads_q) * p.s.o.head + 8 * quad;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        int i = i0 + 8 * e;
        l[e] += __shfl_xor_sync(~0u, l[e], 1);
        l[e] += __shfl_xor_sync(~0u, l[e], 2);
        float inv = l[e] > 0 ? 1.f / l[e] : 0.f;
        if (p.a.stats && quad == 0 && i < p.s.seq_q)
            p.a.stats[(int64_t)at.head * p.s.seq_q + i] =
                l[e] > 0 ? (m[e] + log2f(l[e])) * LN2 : -INFINITY;
#pragma unroll
        for (int g = 0; g < D / 32; g++) { /* 32 columns: 8 of each lane's row to each lane */
            uint32_t x[4];
#pragma unroll
            for (int j = 0; j < 4; j++)
                x[j] = pack2(o[16 * g + 4 * j + 2 * e] * inv, o[16 * g + 4 * j + 2 * e + 1] * inv);
            exchange(x);
            if (i < p.s.seq_q)
                *(uint4 *)(to + i * p.s.o.seq + 32 * g) = make_uint4(x[0], x[1], x[2], x[3]);
        }
    }
}

/* --- the kernel --- */

template <class F>
__device__ __forceinline__ void load_rows(const hopper_params &p, F smem, const CUtensorMap *map_q,
                                          const CUtensorMap *map_k, const CUtensorMap *map_v)
{
    hopper_loader<F> load = {p, smem, map_k, map_v, {0, 1}, {0, 1}, 0, 0, -1};
    ring_at<F::Q_RING> q = {0, 1};
    tile_row row;
#pragma unroll 1
    for (int round = 0; row.find<F>(p, round); round++) {
        int batch = row.head / p.s.heads_q, head = row.head - batch * p.s.heads_q;
        for (int g = 0; g < F::NW; g++) {
            int i = q.slot * F::NW + g;
            bar_wait(smem.empty_q(i), q.parity);
            if ((threadIdx.x & 31) == 0) {
                bar_expect(smem.full_q(i), F::Q_BYTES);
                for (int d = 0; d < F::D; d += 64)
                    tma_load(smem.at + i * F::Q_BYTES + d * 128, map_q, d, row.q0 + 64 * g, head,
                             batch, smem.full_q(i));
            }
        }
        q.step();
        load.batch = batch, load.kv_head = head / (p.s.heads_q / p.s.heads_kv);
        if (F::BY_TENSORS)
            load.send_by_tensors(row);
        else
            load.send_plain(row.q0);
        load.send_values();
    }
}
template <class F>
__device__ __forceinline__ void multiply_rows(const hopper_params &p, F smem, int group)
{
    hopper_group<F> g = {p, smem, group, WORD_END, {0, 0}, {0, 0}};
    ring_at<F::Q_RING> q = {0, 0};
    tile_row row;
    if (group == F::NW - 1)
        g.order_signal(); /* the first begins */
#pragma unroll 1
    for (int round = 0; row.find<F>(p, round); round++) {
        int i = q.slot * F::NW + group;
        g.begin_row(row);
        bar_wait(smem.full_q(i), q.parity);
        g.do_row(row, smem.at + i * F::Q_BYTES, smem.empty_q(i));
        q.step();
        g.store_row(row);
        g.pass_rest();
    }
}

template <class F>
__global__ __launch_bounds__(F::THREADS, 1) void flash_hopper_kernel(
    const __grid_constant__ CUtensorMap map_q, const __grid_constant__ CUtensorMap map_k,
    const __grid_constant__ CUtensorMap map_v, const __grid_constant__ hopper_params p)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ char shared_any[];
    F smem = {((uint32_t)__cvta_generic_to_shared(shared_any) + 1023) & ~1023u};
    if (threadIdx.x == 0) {
        for (int i = 0; i < F::STAGES; i++) {
            bar_init(smem.full_k(i), 1), bar_init(smem.full_v(i), 1);
            bar_init(smem.empty_k(i), 4 * F::NW), bar_init(smem.empty_v(i), 4 * F::NW);
        }
        for (int i = 0; i < F::Q_RING * F::NW; i++)
            bar_init(smem.full_q(i), 1), bar_init(smem.empty_q(i), 4);
        bar_ready();
    }
    __syncthreads();
    int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
    if (group == F::NW) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"((int)F::LOADER_REGISTERS));
        if (threadIdx.x < F::NW * 128 + 32)
            load_rows(p, smem, &map_q, &map_k, &map_v);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"((int)F::READER_REGISTERS));
        multiply_rows(p, smem, group);
    }
#endif
}

static tensor_place place_of(const void *at, int dim, int seq, int heads, int batch,
                             const mx_flash_stride &st)
{
    return {at, {dim, seq, heads, batch}, {st.seq, st.head, st.batch}};
}
template <class F>
static cudaError_t launch(hopper_params &p, const tensor_place &q, const tensor_place &k,
                          const tensor_place &v, cudaStream_t stream)
{
    auto *kernel = flash_hopper_kernel<F>;
    CUtensorMap map_q, map_k, map_v;
    int device = 0, units = 0;
    cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         (int)F::BYTES);
    if (e == cudaSuccess)
        e = tma_map(&map_q, q, 64);
    if (e == cudaSuccess)
        e = tma_map(&map_k, k, KEYS);
    if (e == cudaSuccess)
        e = tma_map(&map_v, v, KEYS);
    if (e == cudaSuccess)
        e = cudaGetDevice(&device);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, device);
    if (e != cudaSuccess)
        return e;
    p.blocks = (p.s.seq_q + F::QUERIES - 1) / F::QUERIES;
    int rows = p.blocks * p.heads;
    kernel<<<rows < units ? rows : units, F::THREADS, F::BYTES, stream>>>(map_q, map_k, map_v, p);
    return cudaGetLastError();
}
/* Three groups at head size 64, where their registers suffice for the mask. */
template <mask_kind MASK>
static cudaError_t launch_masked(hopper_params &p, const tensor_place &q, const tensor_place &k,
                                 const tensor_place &v, cudaStream_t stream)
{
    enum { GROUPS = MASK == MASK_TENSORS ? 2 : 3 };
    bool cap = p.s.softcap > 0;
    if (p.s.dim_qk == 64)
        return cap ? launch<hopper_form<64, GROUPS, 4, true, MASK>>(p, q, k, v, stream)
                   : launch<hopper_form<64, GROUPS, 4, false, MASK>>(p, q, k, v, stream);
    return cap ? launch<hopper_form<128, 2, 2, true, MASK>>(p, q, k, v, stream)
               : launch<hopper_form<128, 2, 2, false, MASK>>(p, q, k, v, stream);
}
bool mx_flash_hopper_can(const mx_flash_shape *s, const mx_flash_args *a)
{
    static const bool hopper = /* of the machine, not of the call */
        made_for_hopper(flash_hopper_kernel<hopper_form<64, 3, 4, false, MASK_PLAIN>>);
    int d = s->dim_qk;
    bool by_tensors = a->q_pos || a->k_pos || a->q_span || a->k_span;
    if ((s->q_offset || s->q_jump) && by_tensors)
        return false;
    return hopper && (d == 64 || d == 128) && s->dim_v == d && !a->listed && s->scale > 0 &&
           s->seq_q > 0 && s->seq_kv > 0 && s->seq_kv < 1 << 26 &&
           tma_can(place_of(a->q, d, s->seq_q, s->heads_q, s->batch, s->q)) &&
           tma_can(place_of(a->k, d, s->seq_kv, s->heads_kv, s->batch, s->k)) &&
           tma_can(place_of(a->v, d, s->seq_kv, s->heads_kv, s->batch, s->v)) &&
           tma_can(place_of(a->o, d, s->seq_q, s->heads_q, s->batch, s->o));
}

cudaError_t mx_flash_hopper_forward(const mx_flash_shape *s, const mx_flash_args *a,
                                    cudaStream_t stream)
{
    int d = s->dim_qk;
    bool cap = s->softcap > 0;
    hopper_params p = {*s, *a, make_rule(s, a), (cap ? s->softcap : s->scale) * LOG2E,
                       cap ? 2 * LOG2E * s->scale / s->softcap : 0, 0, s->batch * s->heads_q, 0, 1};
    int64_t pair_bytes = (int64_t)s->seq_kv * d * 4; /* keys and values of a head */
    int64_t n = SECTION_BYTES / pair_bytes * (s->heads_q / s->heads_kv);
    p.section = n < 1 ? s->heads_q / s->heads_kv : n < p.heads ? (int)n : p.heads;
    tensor_place q = place_of(a->q, d, s->seq_q, s->heads_q, s->batch, s->q);
    tensor_place k = place_of(a->k, d, s->seq_kv, s->heads_kv, s->batch, s->k);
    tensor_place v = place_of(a->v, d, s->seq_kv, s->heads_kv, s->batch, s->v);
    if (p.rule.plain)
        return launch_masked<MASK_PLAIN>(p, q, k, v, stream);
    return p.rule.indexed && p.rule.q_sees ? launch_masked<MASK_SEGMENTS>(p, q, k, v, stream)
                                           : launch_masked<MASK_TENSORS>(p, q, k, v, stream);
}
