/* flash_hopper_wide.cu - the gradient of attention on Hopper, head size 128. For the formulas see
 * flash_hopper_backward.cu, which serves head size 64 with other roles.
 *
 * A pair of blocks (a cluster of two) takes 256 keys of a key head, 128 each, and walks all tiles
 * of 64 queries that see them, of all heads of the group. A block has three warpgroups:
 *   0     one thread loads: K and V of its keys, half the columns of the other block's K, and of
 *         every tile half of Q and of dO, which TMA multicasts to both blocks
 *   1, 2  64 keys each: S = K Q^T, P, dP = V dO^T, dS, and 64 x 128 sums of dV and of dK
 * dS goes to shared memory of both blocks, and dQ of a tile is dS K over all 256 keys, half of its
 * columns in each block, by group 1 for even tiles and by group 2 for odd ones, a tile behind. Its
 * sums are written where the other block's dS lay, and two threads beside the loader (adders, one
 * for even and one for odd tiles) add them to the float32 dQ by TMA (reduce): for 64 queries
 * two pieces of 64 columns, in the order in which lanes hold sums (wgmma.cuh). Pairs add to a tile
 * in an order that is the same in every run, and so are the bits (flash_hopper_dq.cuh); the first
 * stores. A pass over dQ rounds it afterwards.
 * These additions in L2 are what bounds a kernel of single blocks; the pair halves them.
 *
 * Registers decide the order: sums of dV and dK take 128 of 240, S and dP 32 each. P is rounded as
 * soon as it is there and S's place then holds dQ; dS is made of the rounded P and lies over dP.
 * Each GEMM is issued as soon as its operands are there and is waited for as late as can be:
 *   S | dP, when dV and dK of the tile before are done | exps | dV | dQ of the tile before | dS |
 *   dK | dQ on its way to memory
 *
 * Timings, and what was tried: docs/log/gpu-kernels.md.
 *
 * What a block may do to the other's memory: write dS where ds_empty says that both blocks are done
 * with a slot, load tiles where rows_empty says so; each arrives at the barriers of both.
 */
#include "device/cuda/attention/flash_hopper_grad.cuh"

enum {
    WIDE = 128, THREADS = 384, STAGES = 2, DS_SLOTS = 2, /* slots of the rings of tiles and of dS */
    SLAB = GRAD_KEYS * 128, ROWS_SLAB = GRAD_ROWS * 128, /* bytes of 64 columns */
    KEYS_BYTES = 2 * SLAB, ROWS_BYTES = 2 * ROWS_SLAB, STATS_BYTES = GRAD_ROWS * 8,
    PART_BYTES = GRAD_KEYS * GRAD_ROWS * 2, DS_BYTES = 2 * PART_BYTES, /* dS of both blocks */
    AT_VALUES = KEYS_BYTES, AT_OTHER = 2 * KEYS_BYTES, AT_ROWS = AT_OTHER + SLAB,
    AT_DS = AT_ROWS + STAGES * 2 * ROWS_BYTES, AT_STATS = AT_DS + DS_SLOTS * DS_BYTES,
    AT_RECORD = AT_STATS + STAGES * STATS_BYTES, AT_IDS = AT_RECORD + RECORD_BYTES,
    AT_KEY_IDS = AT_IDS + STAGES * IDS_BYTES, AT_BARS = AT_KEY_IDS + KEY_IDS_BYTES,
    BARS = 1 + 2 * (1 + STAGES + DS_SLOTS) + DS_SLOTS, AT_ITEM = AT_BARS + BARS * 8,
    SMEM_BYTES = AT_ITEM + 8 + 1024
};

/* Addresses in shared memory; which of the two blocks this is. */
struct wide_smem {
    uint32_t at, announced, item_full, item_empty, rows_full, rows_empty, ds_full, ds_empty,
        out_full;
    int rank;
};

/* The item of a round, -1: none. The first block takes it and leaves it in both; two slots, as the
 * other block may still be at the end of the round before. */
__device__ __forceinline__ int take_item(const grad_args &p, const wide_smem &r, int round)
{
    uint32_t at = r.at + AT_ITEM + 4 * (round & 1);
    if (r.rank == 1) {
        bar_wait(r.announced, round & 1);
        asm volatile("fence.acq_rel.cluster;" ::: "memory");
        return load_shared(at);
    }
    int i = atomicAdd(p.taken, 1);
    i = i < p.items ? i : -1;
    asm volatile("{\n.reg .b32 to;\nst.shared.b32 [%0], %1;\n"
                 "mapa.shared::cluster.u32 to, %0, 1;\nst.shared::cluster.b32 [to], %1;\n"
                 "mapa.shared::cluster.u32 to, %2, 1;\n"
                 "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [to];\n}" ::"r"(at),
                 "r"(i), "r"(r.announced)
                 : "memory");
    return i;
}

/* The item that take_item left here; with segments what store_record did. */
template <bool SEGS>
__device__ __forceinline__ grad_item item_of(const grad_args &p, const wide_smem &r, int i)
{
    grad_item t = find_item<WIDE_TILES>(p, i);
    if (SEGS)
        load_record(t, r.at + AT_RECORD);
    return t;
}

/* A thread of group 0. */
template <bool SEGS>
__device__ __forceinline__ void load_all(const grad_args &p, const grad_maps &m, const wide_smem &r)
{
    int group = p.s.heads_q / p.s.heads_kv;
    ring_at<STAGES> stage = {0, 1};
#pragma unroll 1
    for (int round = 0;; round++) {
        bar_wait(r.item_empty, (round & 1) ^ 1);
        int i = take_item(p, r, round);
        if (i < 0) {
            bar_arrive(r.item_full);
            return;
        }
        grad_item t = find_item<WIDE_TILES>(p, i);
        const int block = 2 * t.block + r.rank;
        if (SEGS)
            store_record(p, r.at + AT_RECORD, i, t, block);
        bar_expect(r.item_full, 2 * KEYS_BYTES + SLAB + (SEGS ? KEY_IDS_BYTES : 0));
        if (SEGS)
            load_bytes(r.at + AT_KEY_IDS,
                       p.seg.k_ids + ((int64_t)t.batch * p.seg.k_tiles + 2 * block) * 64,
                       KEY_IDS_BYTES, r.item_full);
        for (int x = 0; x < 2; x++) {
            tma_load(r.at + x * SLAB, &m.k, 64 * x, block * GRAD_KEYS, t.head, t.batch,
                     r.item_full);
            tma_load(r.at + AT_VALUES + x * SLAB, &m.v, 64 * x, block * GRAD_KEYS, t.head, t.batch,
                     r.item_full);
        }
        tma_load(r.at + AT_OTHER, &m.k, 64 * r.rank, (block ^ 1) * GRAD_KEYS, t.head, t.batch,
                 r.item_full);
#pragma unroll 1
        for (int h = t.head * group; h < (t.head + 1) * group; h++)
#pragma unroll 1
            for (int q = t.first; q < t.end; q++, stage.step()) {
                int64_t tile = (int64_t)(t.batch * p.s.heads_q + h) * p.tiles + q;
                uint32_t full = r.rows_full + 8 * stage.slot;
                uint32_t to = r.at + AT_ROWS + stage.slot * 2 * ROWS_BYTES + r.rank * ROWS_SLAB;
                bar_wait(r.rows_empty + 8 * stage.slot, stage.parity);
                bar_expect(full, 2 * ROWS_BYTES + STATS_BYTES + (SEGS ? IDS_BYTES : 0));
                tma_load_to_all(to, &m.q, 64 * r.rank, q * GRAD_ROWS, h, t.batch, full, 3);
                tma_load_to_all(to + ROWS_BYTES, &m.dout, 64 * r.rank, q * GRAD_ROWS, h, t.batch,
                                full, 3);
                load_bytes(r.at + AT_STATS + stage.slot * STATS_BYTES,
                           p.stats + tile * (2 * GRAD_ROWS), STATS_BYTES, full);
                if (SEGS)
                    load_bytes(r.at + AT_IDS + stage.slot * IDS_BYTES,
                               p.seg.q_ids + ((int64_t)t.batch * p.tiles + q) * MX_FLASH_IDS,
                               IDS_BYTES, full);
            }
    }
}
/* Another, for every second tile: dQ that group `mine` left where the other block's dS was. */
template <bool SEGS>
__device__ __forceinline__ void add_tiles(const grad_args &p, const wide_smem &r, int mine)
{
    const int group = p.s.heads_q / p.s.heads_kv;
    const uint32_t from = r.at + AT_DS + mine * DS_BYTES + (r.rank ^ 1) * PART_BYTES;
    int n = 0, parity = 0;
#pragma unroll 1
    for (int round = 0;; round++) {
        bar_wait(r.item_full, round & 1);
        int i = load_shared(r.at + AT_ITEM + 4 * (round & 1));
        if (i < 0)
            return;
        grad_item t = item_of<SEGS>(p, r, i);
        arrive_behind(t, r.item_empty);
#pragma unroll 1
        for (int h = t.head * group; h < (t.head + 1) * group; h++)
#pragma unroll 1
            for (int q = t.first; q < t.end; q++) {
                if ((n++ & 1) != mine)
                    continue;
                dq_order x = order_of<WIDE_TILES, SEGS>(p, t, q);
                int64_t at = ((int64_t)(t.batch * p.s.heads_q + h) * p.tiles + q) * 2 + r.rank;
                if (x.order > 0)
                    wait_order(p.added + at, x.order);
                bar_wait(r.out_full + 8 * mine, parity);
                parity ^= 1;
                send_part(p.dq_sums + at * GRAD_TILE, from, x.order);
                bar_arrive(r.ds_empty + 8 * mine);
                bar_arrive_at(r.ds_empty + 8 * mine, r.rank ^ 1);
                count_part(p.added + at, x.order + 1);
            }
    }
}

/* Groups 1 and 2 (w = 0, 1). */
template <bool SEGS> struct wide_group {
    const grad_args &p;
    const wide_smem &r;
    const int w, warp, lane;
    float dk[64], dv[64], s[32], dp[32];
    uint32_t pf[16], df[16];
    ring_at<STAGES> stage, was;  /* of this tile and of the one before */
    ring_at<DS_SLOTS> ds_at, last;
    uint64_t keys, values, columns[2]; /* the last: of K, of the two blocks */
    bool held; /* the slot of the tile before is in use */

    __device__ __forceinline__ uint32_t rows() const
    {
        return r.at + AT_ROWS + stage.slot * 2 * ROWS_BYTES;
    }
    __device__ __forceinline__ void arrive_at_both(uint32_t bar)
    {
        if (lane == 0) {
            bar_arrive(bar);
            bar_arrive_at(bar, r.rank ^ 1);
        }
    }
    __device__ __forceinline__ void release_rows()
    {
        if (held)
            arrive_at_both(r.rows_empty + 8 * was.slot);
        held = false;
    }
    /* d (64 keys, 64 queries) = A B^T. */
    __device__ __forceinline__ void issue_scores(float d[32], uint64_t a, uint32_t b_at)
    {
        uint64_t b = describe_slab(b_at, 0);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < WIDE / 16; i++)
            wgmma_n64<false, false>(d, slab_on(a, i / 4 * SLAB + i % 4 * 32),
                                    slab_on(b, i / 4 * ROWS_SLAB + i % 4 * 32), i > 0);
        wgmma_commit();
    }
    /* d (64 keys, 128) += A B. */
    __device__ __forceinline__ void issue_sums(float d[64], const uint32_t a[16], uint32_t b_at)
    {
        uint64_t b = describe_slab(b_at, ROWS_SLAB);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < GRAD_ROWS / 16; i++)
            wgmma_held_n128<true>(d, a + 4 * i, slab_on(b, i * 2048), 1);
        wgmma_commit();
    }
    /* s (64 queries, 64 columns) = dS K of the tile before. */
    __device__ __forceinline__ void issue_dq()
    {
        bar_wait(r.ds_full + 8 * last.slot, last.parity);
        uint64_t ds = describe_slab(r.at + AT_DS + last.slot * DS_BYTES, 0);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 16; i++)
            wgmma_n64<true, true>(s, slab_on(ds, i * 2048), slab_on(columns[i / 8], i % 8 * 2048),
                                  i > 0);
    }
    /* It has come: to an adder, which frees the slot. */
    __device__ __forceinline__ void leave_dq()
    {
        uint32_t part = r.at + AT_DS + last.slot * DS_BYTES + (r.rank ^ 1) * PART_BYTES;
        settle(s);
        put_sums(part + warp * 4096 + lane * 16, s);
        if (lane == 0)
            bar_arrive(r.out_full + 8 * w);
    }
    __device__ __forceinline__ uint32_t ids() const
    {
        return r.at + AT_IDS + stage.slot * IDS_BYTES;
    }
    template <bool SOME> __device__ __forceinline__ void exps(uint32_t logs, int q, int k0);
    __device__ __forceinline__ void score_grads(uint32_t dots);
    __device__ __forceinline__ void hand_over();
    __device__ __forceinline__ void do_tile(int q, int k0, bool masked, bool makes);
    __device__ __forceinline__ void skip_tile(bool makes);
    __device__ __forceinline__ void do_item(const grad_item &t);
};

/* P of S, rounded. SOME: of these keys and queries not all see each other. */
template <bool SEGS>
template <bool SOME>
__device__ __forceinline__ void wide_group<SEGS>::exps(uint32_t logs, int q, int k0)
{
    auto each = [&](auto seen) {
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float2 x = load_two(logs + j * 32);
            float v[4];
            bool see[4] = {true, true, true, true};
            seen(see, j);
#pragma unroll
            for (int e = 0; e < 4; e++)
                v[e] = see[e] ? exp2_fast(s[4 * j + e] * p.scale2 - (e & 1 ? x.y : x.x)) : 0.f;
            pf[2 * j] = pack2(v[0], v[1]), pf[2 * j + 1] = pack2(v[2], v[3]);
        }
    };
    if constexpr (SOME) {
        const score_mask<SEGS> mask(p, q, k0, r.at + AT_KEY_IDS + 256 * w, ids());
        each([&](bool see[4], int j) { mask.seen(see, j); });
    } else {
        each([](bool *, int) {});
    }
    settle_pairs(pf);
}
/* dS of P and dP. */
template <bool SEGS>
__device__ __forceinline__ void wide_group<SEGS>::score_grads(uint32_t dots)
{
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float2 x = load_two(dots + j * 32);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t both = pf[2 * j + h];
            float a = __uint_as_float(both << 16), b = __uint_as_float(both & 0xffff0000u);
            df[2 * j + h] =
                pack2(a * (dp[4 * j + 2 * h] - x.x), b * (dp[4 * j + 2 * h + 1] - x.y));
        }
    }
    settle_pairs(df);
}
/* This warp's 2 KB of dS^T to both blocks; the other's barrier counts them as bytes. */
template <bool SEGS>
__device__ __forceinline__ void wide_group<SEGS>::hand_over()
{
    uint32_t slab = r.at + AT_DS + ds_at.slot * DS_BYTES + r.rank * PART_BYTES + w * 8192;
    uint32_t full = r.ds_full + 8 * ds_at.slot;
    bar_wait(r.ds_empty + 8 * ds_at.slot, ds_at.parity ^ 1);
    store_pairs(slab, df);
    if (lane == 0) {
        if (w == 0 && warp == 0)
            bar_expect(full, PART_BYTES);
        else
            bar_arrive(full);
        asm volatile("{\n.reg .b32 to, bar;\nmapa.shared::cluster.u32 to, %0, %2;\n"
                     "mapa.shared::cluster.u32 bar, %1, %2;\n"
                     "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes "
                     "[to], [%0], 2048, [bar];\n}" ::"r"(slab + warp * 2048),
                     "r"(full), "r"(r.rank ^ 1)
                     : "memory");
    }
}

/* `makes`: dQ of the tile before is this group's. */
template <bool SEGS>
__device__ __forceinline__ void wide_group<SEGS>::do_tile(int q, int k0, bool masked, bool makes)
{
    const uint32_t logs = r.at + AT_STATS + stage.slot * STATS_BYTES + (lane & 3) * 8;
    issue_scores(s, keys, rows());
    wgmma_wait<1>(); /* dV and dK of the tile before */
    release_rows();
    issue_scores(dp, values, rows() + ROWS_BYTES);
    wgmma_wait<1>();
    settle(s);
    if (masked)
        exps<true>(logs, q, k0);
    else
        exps<false>(logs, q, k0);
    issue_sums(dv, pf, rows() + ROWS_BYTES);
    wgmma_wait<1>();
    settle(dp);
    if (makes)
        issue_dq();
    wgmma_commit(); /* outside: waits are counted alike on both ways */
    score_grads(logs + GRAD_ROWS * 4);
    hand_over();
    issue_sums(dk, df, rows());
    wgmma_wait<1>();
    if (makes)
        leave_dq();
    held = true;
}
/* No key of this group is seen by a query of this tile. */
template <bool SEGS>
__device__ __forceinline__ void wide_group<SEGS>::skip_tile(bool makes)
{
    wgmma_wait<0>();
    release_rows();
    arrive_at_both(r.rows_empty + 8 * stage.slot);
    if (makes) {
        issue_dq();
        wgmma_commit();
        wgmma_wait<0>();
        leave_dq();
    }
#pragma unroll
    for (int j = 0; j < 16; j++)
        df[j] = 0;
    hand_over();
}

template <bool SEGS>
__device__ __forceinline__ void wide_group<SEGS>::do_item(const grad_item &t)
{
    const int group = p.s.heads_q / p.s.heads_kv;
    const int k0 = (2 * t.block + r.rank) * GRAD_KEYS + 64 * w, first = t.first, end = t.end;
    int left = group * (end - first), q = first;
    bool begun = false;
#pragma unroll
    for (int i = 0; i < 64; i++)
        dk[i] = dv[i] = 0;
#pragma unroll 1
    for (; left > 0; left--) {
        bool makes = begun && last.slot == w;
        bar_wait(r.rows_full + 8 * stage.slot, stage.parity);
        tile_kind kind = kind_of_tile<SEGS>(p, q, k0, ids(), r.at + AT_RECORD + 16 + 8 * w);
        if (kind == TILE_UNSEEN)
            skip_tile(makes);
        else
            do_tile(q, k0, kind == TILE_MASKED, makes);
        begun = true, last = ds_at, was = stage;
        ds_at.step(), stage.step();
        if (++q == end)
            q = first;
    }
    wgmma_wait<0>();
    release_rows();
    if (begun && last.slot == w) {
        issue_dq();
        wgmma_commit();
        wgmma_wait<0>();
        leave_dq();
    }
    settle(dk), settle(dv);
}

template <bool SEGS>
__device__ __forceinline__ void make_grads(const grad_args &p, const wide_smem &r, int w)
{
    wide_group<SEGS> g = {p, r, w, (int)(threadIdx.x / 32 & 3), (int)(threadIdx.x & 31)};
    g.stage = g.was = {0, 0}, g.ds_at = {0, 0}, g.last = {DS_SLOTS - 1, 1};
    g.held = false;
    g.keys = describe_slab(r.at + w * 8192, 0);
    g.values = describe_slab(r.at + AT_VALUES + w * 8192, 0);
    uint64_t own = describe_slab(r.at + r.rank * SLAB, 0);
    uint64_t other = describe_slab(r.at + AT_OTHER, 0);
    g.columns[0] = r.rank ? other : own, g.columns[1] = r.rank ? own : other;
#pragma unroll 1
    for (int round = 0;; round++) {
        bar_wait(r.item_full, round & 1);
        int i = load_shared(r.at + AT_ITEM + 4 * (round & 1));
        if (i < 0)
            break;
        g.do_item(item_of<SEGS>(p, r, i));
        if (g.lane == 0)
            bar_arrive(r.item_empty);
        asm volatile("" : "+r"(i)); /* found again rather than kept in registers */
        grad_item t = find_item<WIDE_TILES>(p, i);
        int64_t row = (2 * t.block + r.rank) * GRAD_KEYS + 64 * w;
        const mx_flash_stride &sv = p.s.dv, &sk = p.s.dk;
        uint16_t *dv = p.dv + t.batch * sv.batch + t.head * sv.head + row * sv.seq;
        uint16_t *dk = p.dk + t.batch * sk.batch + t.head * sk.head + row * sk.seq;
#pragma unroll
        for (int x = 0; x < 2; x++) {
            store_sums(dv + 64 * x, sv.seq, p.s.seq_kv - (int)row, g.dv + 32 * x, 1.f);
            store_sums(dk + 64 * x, sk.seq, p.s.seq_kv - (int)row, g.dk + 32 * x, p.s.scale);
        }
    }
}

template <bool SEGS>
__global__ __launch_bounds__(THREADS, 1) void flash_wide_kernel(
    const __grid_constant__ grad_maps m, const __grid_constant__ grad_args p)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ char shared_bytes[];
    wide_smem r;
    r.at = (shared_at(shared_bytes) + 1023) & ~1023u;
    r.rank = cluster_rank();
    r.announced = r.at + AT_BARS, r.item_full = r.announced + 8, r.item_empty = r.item_full + 8;
    r.rows_full = r.item_empty + 8, r.rows_empty = r.rows_full + 8 * STAGES;
    r.ds_full = r.rows_empty + 8 * STAGES, r.ds_empty = r.ds_full + 8 * DS_SLOTS;
    r.out_full = r.ds_empty + 8 * DS_SLOTS;
    if (threadIdx.x == 0) {
        bar_init(r.announced, 1), bar_init(r.item_full, 1), bar_init(r.item_empty, 8 + 2);
        for (int i = 0; i < STAGES; i++)
            bar_init(r.rows_full + 8 * i, 1), bar_init(r.rows_empty + 8 * i, 16);
        for (int i = 0; i < DS_SLOTS; i++) {
            bar_init(r.ds_full + 8 * i, 8), bar_init(r.ds_empty + 8 * i, 2);
            bar_init(r.out_full + 8 * i, 4);
        }
        bar_ready();
    }
    cluster_sync();
    const int role = __shfl_sync(~0u, threadIdx.x / 128, 0);
    if (role == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == 0)
            load_all<SEGS>(p, m, r);
        else if (threadIdx.x == 32 || threadIdx.x == 64)
            add_tiles<SEGS>(p, r, threadIdx.x / 64);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        make_grads<SEGS>(p, r, role - 1);
    }
    cluster_sync(); /* no block exits while the other writes to its memory */
#endif
}

bool flash_wide_made()
{
    static const bool hopper = made_for_hopper(flash_wide_kernel<false>); /* of the machine */
    return hopper;
}
cudaError_t flash_wide(const grad_args &p, const grad_maps &m, int sms, cudaStream_t stream)
{
    auto *kernel = p.seg.order ? flash_wide_kernel<true> : flash_wide_kernel<false>;
    cudaError_t e =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_BYTES);
    if (e != cudaSuccess)
        return e;
    cudaLaunchAttribute cluster;
    cluster.id = cudaLaunchAttributeClusterDimension, cluster.val.clusterDim = {2, 1, 1};
    cudaLaunchConfig_t c = {};
    c.gridDim = dim3(2 * (unsigned)min(sms / 2, p.items));
    c.blockDim = dim3(THREADS), c.dynamicSmemBytes = SMEM_BYTES, c.stream = stream;
    c.attrs = &cluster, c.numAttrs = 1;
    return cudaLaunchKernelEx(&c, kernel, m, p);
}
