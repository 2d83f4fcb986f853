/* flash_hopper_backward.cu - the gradient of attention on Hopper, warp-specialized: loads, GEMMs,
 * sums.
 *
 *   P^T = e^(s K Q^T - L)      dP^T = V dO^T      dS^T = P^T (dP^T - D)
 *   dV += P^T dO               dK += dS^T Q       dQ += dS K            s: scale; L, D: of a query
 *
 * A block of four warpgroups takes items (128 keys of a key head) until none is left and walks all
 * 64-query tiles that see them, of all heads of the group:
 *   0     single threads: K and V of the item, then Q, dO and statistics (L log2 e, D) of every
 *         tile; dQ's ways to memory and back
 *   1     dQ of a tile = dS K, from the shared dS of both groups of keys (flash_hopper_dq.cuh)
 *   2, 3  64 keys each, as A fragments in registers: K Q^T and V dO^T come out with keys down, so
 *         P^T and dS^T, rounded, are the A of the GEMMs that follow; dS^T also goes to group 1
 * Rings in shared memory are between them (flash_hopper_smem.cuh). A tile above the diagonal of one
 * group's keys is left out by it; group 1 then takes half.
 *
 * A step's GEMMs are issued one by one, each as soon as its operands are there, and what is
 * computed meanwhile belongs to the next: S, dP (while dV and dK of the tile before end), exp,
 * dV, dS (while dV is formed), dK. df lies over dp, so dP waits for dK of the tile before.
 *
 * Timings, and what was tried: docs/log/gpu-kernels.md.
 */
#include "device/cuda/attention/flash_hopper_dq.cuh"

enum { THREADS = 512 };

/* Warp 0. The next item is taken with the last tile of this one: a block that takes it earlier
 * than it comes to it keeps others waiting. */
template <bool SEGS>
__device__ __forceinline__ void load_all(const grad_args &p, const grad_maps &m, const grad_smem &r)
{
    int group = p.s.heads_q / p.s.heads_kv, next = atomicAdd(p.taken, 1);
    ring_at<ITEMS> at = {0, 1};
    ring_at<STAGES> stage = {0, 1};
#pragma unroll 1
    for (;; at.step()) {
        int i = next < p.items ? next : -1;
        uint32_t full = r.item_full + 8 * at.slot, to = r.at + at.slot * 2 * KEYS_BYTES;
        uint32_t record = r.at + AT_RECORDS + at.slot * RECORD_BYTES;
        bar_wait(r.item_empty + 8 * at.slot, at.parity);
        if (i < 0) {
            store_shared(record, i);
            bar_arrive(full);
            return;
        }
        grad_item t = find_item<NARROW_TILES>(p, i);
        if (SEGS)
            store_record(p, record, i, t, t.block);
        else
            store_shared(record, i);
        int left = group * (t.end - t.first);
        bar_expect(full, 2 * KEYS_BYTES + (SEGS ? KEY_IDS_BYTES : 0));
        if (SEGS)
            load_bytes(r.at + AT_KEY_IDS + at.slot * KEY_IDS_BYTES,
                       p.seg.k_ids + ((int64_t)t.batch * p.seg.k_tiles + 2 * t.block) * 64,
                       KEY_IDS_BYTES, full);
        tma_load(to, &m.k, 0, t.block * GRAD_KEYS, t.head, t.batch, full);
        tma_load(to + KEYS_BYTES, &m.v, 0, t.block * GRAD_KEYS, t.head, t.batch, full);
#pragma unroll 1
        for (int h = t.head * group; h < (t.head + 1) * group; h++)
#pragma unroll 1
            for (int q = t.first; q < t.end; q++, stage.step()) {
                int64_t tile = (int64_t)(t.batch * p.s.heads_q + h) * p.tiles + q;
                if (--left == 0)
                    next = atomicAdd(p.taken, 1);
                full = r.rows_full + 8 * stage.slot;
                to = r.at + AT_ROWS + stage.slot * 2 * ROWS_BYTES;
                bar_wait(r.rows_empty + 8 * stage.slot, stage.parity);
                bar_expect(full, 2 * ROWS_BYTES + STATS_BYTES + (SEGS ? IDS_BYTES : 0));
                if (SEGS)
                    load_bytes(r.at + AT_IDS + stage.slot * IDS_BYTES,
                               p.seg.q_ids + ((int64_t)t.batch * p.tiles + q) * MX_FLASH_IDS,
                               IDS_BYTES, full);
                tma_load(to, &m.q, 0, q * GRAD_ROWS, h, t.batch, full);
                tma_load(to + ROWS_BYTES, &m.dout, 0, q * GRAD_ROWS, h, t.batch, full);
                load_bytes(r.at + AT_STATS + stage.slot * STATS_BYTES,
                           p.stats + tile * (2 * GRAD_ROWS), STATS_BYTES, full);
            }
    }
}

/* (64, 64) of a slab as the A of four GEMMs. */
__device__ __forceinline__ void hold(uint32_t f[16], uint32_t slab, uint32_t piece)
{
#pragma unroll
    for (int k = 0; k < 4; k++)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(f[4 * k]), "=r"(f[4 * k + 1]), "=r"(f[4 * k + 2]), "=r"(f[4 * k + 3])
                     : "r"(slab + (piece ^ (k << 5)))
                     : "memory");
}
/* d = A B^T, or d += A B where B_OUT. */
template <bool B_OUT>
__device__ __forceinline__ void multiply(float d[32], const uint32_t a[16], uint32_t b)
{
    uint64_t slab = describe_slab(b, 8192);
#pragma unroll
    for (int k = 0; k < 4; k++)
        wgmma_held_n64<B_OUT>(d, a + 4 * k, slab + (B_OUT ? 128 : 2) * k, B_OUT || k > 0);
}
/* P of dots. seen(see, j) says which elements of the j-th queries count. */
template <class Seen>
__device__ __forceinline__ void exps(float s[32], uint32_t logs, float scale2, Seen seen)
{
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float2 x = load_two(logs + j * 32);
        bool see[4] = {true, true, true, true};
        seen(see, j);
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[4 * j + e] = see[e] ? exp2_fast(s[4 * j + e] * scale2 - (e & 1 ? x.y : x.x)) : 0.f;
    }
}
/* dS of P and dP. */
__device__ __forceinline__ void score_grads(float dp[32], const float s[32], uint32_t dots)
{
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float2 x = load_two(dots + j * 32);
#pragma unroll
        for (int e = 0; e < 4; e++)
            dp[4 * j + e] = s[4 * j + e] * (dp[4 * j + e] - (e & 1 ? x.y : x.x));
    }
}
__device__ __forceinline__ void round_all(uint32_t f[16], const float d[32])
{
#pragma unroll
    for (int j = 0; j < 16; j++)
        f[j] = pack2(d[2 * j], d[2 * j + 1]);
#pragma unroll
    for (int j = 0; j < 16; j++)
        asm volatile("" : "+r"(f[j])::"memory");
}
/* dS^T to group 1; nothing of it where the tile was left out. */
__device__ __forceinline__ void hand_over(const grad_smem &r, const uint32_t f[16], int n, int to,
                                          bool any)
{
    int slot = n & (DS_SLOTS - 1), lane = threadIdx.x & 31;
    bar_wait(r.ds_empty + 8 * slot, (n / DS_SLOTS & 1) ^ 1);
    if (any) {
        uint32_t at = r.at + AT_DS + slot * DS_BYTES + to, piece = piece_at(lane);
#pragma unroll
        for (int k = 0; k < 4; k++)
            asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(
                             at + (piece ^ (k << 5))),
                         "r"(f[4 * k]), "r"(f[4 * k + 1]), "r"(f[4 * k + 2]), "r"(f[4 * k + 3])
                         : "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncwarp();
    if (lane == 0)
        bar_arrive(r.ds_full + 8 * slot);
}

/* Groups 2 and 3 (w = 0, 1). */
template <bool SEGS>
__device__ __forceinline__ void make_dkv(const grad_args &p, const grad_smem &r, int w)
{
    const int lane = threadIdx.x & 31;
    int n = 0; /* tiles so far: says the slot and the phase in every ring */
#pragma unroll 1
    for (int m = 0;; m++) {
        const int item_slot = m & (ITEMS - 1);
        bar_wait(r.item_full + 8 * item_slot, m / ITEMS & 1);
        int i = item_in(r, item_slot), k0, first, end, left;
        if (i < 0)
            break;
        {
            grad_item t = item_of<SEGS>(p, r, item_slot, i);
            k0 = t.block * GRAD_KEYS + 64 * w, first = t.first, end = t.end;
            left = p.s.heads_q / p.s.heads_kv * (t.end - t.first);
        }
        uint32_t kf[16], vf[16], pf[16], df[16];
        const uint32_t slab = r.at + item_slot * 2 * KEYS_BYTES + w * 8192;
        hold(kf, slab, piece_at(lane));
        hold(vf, slab + KEYS_BYTES, piece_at(lane));
        float dk[32] = {}, dv[32] = {}, s[32], dp[32];
        int q = first, was = -1; /* the slot of the tile before, still in use */
#pragma unroll 1
        for (; left > 0; left--, n++) {
            const int stage = n & (STAGES - 1);
            const uint32_t rows = r.at + AT_ROWS + stage * 2 * ROWS_BYTES;
            const uint32_t ids = r.at + AT_IDS + stage * IDS_BYTES;
            bar_wait(r.rows_full + 8 * stage, n / STAGES & 1);
            const tile_kind kind = kind_of_tile<SEGS>(
                p, q, k0, ids, r.at + AT_RECORDS + item_slot * RECORD_BYTES + 16 + 8 * w);
            if (kind == TILE_UNSEEN) {
                wgmma_wait<0>();
                if (lane == 0 && was >= 0)
                    bar_arrive(r.rows_empty + 8 * was);
                bool zero = SEGS || w == 0; /* group 1 leaves out what lies above the diagonal */
#pragma unroll
                for (int j = 0; j < 16; j++)
                    df[j] = 0;
                hand_over(r, df, n, w * 8192, zero);
                if (lane == 0)
                    bar_arrive(r.rows_empty + 8 * stage);
                was = -1;
            } else {
                wgmma_fence();
                multiply<false>(s, kf, rows);
                wgmma_commit();
                wgmma_wait<1>();
                if (lane == 0 && was >= 0)
                    bar_arrive(r.rows_empty + 8 * was);
                wgmma_fence();
                multiply<false>(dp, vf, rows + ROWS_BYTES);
                wgmma_commit();
                wgmma_wait<1>();
                settle(s);
                const uint32_t logs = r.at + AT_STATS + stage * STATS_BYTES + (lane & 3) * 8;
                if (kind == TILE_MASKED) {
                    uint32_t keys = r.at + AT_KEY_IDS + item_slot * KEY_IDS_BYTES + 256 * w;
                    score_mask<SEGS> mask(p, q, k0, keys, ids);
                    exps(s, logs, p.scale2, [&](bool see[4], int j) { mask.seen(see, j); });
                } else {
                    exps(s, logs, p.scale2, [](bool *, int) {});
                }
                round_all(pf, s);
                wgmma_fence();
                multiply<true>(dv, pf, rows + ROWS_BYTES);
                wgmma_commit();
                wgmma_wait<1>();
                settle(dp);
                score_grads(dp, s, logs + GRAD_ROWS * 4);
                round_all(df, dp);
                hand_over(r, df, n, w * 8192, true);
                wgmma_fence();
                multiply<true>(dk, df, rows);
                wgmma_commit();
                was = stage;
            }
            if (++q == end)
                q = first;
        }
        wgmma_wait<0>();
        settle(dk), settle(dv);
        if (lane == 0 && was >= 0)
            bar_arrive(r.rows_empty + 8 * was);
        if (lane == 0)
            bar_arrive(r.item_empty + 8 * item_slot);
        asm volatile("" : "+r"(i)); /* found again rather than kept in registers */
        grad_item t = find_item<NARROW_TILES>(p, i);
        int64_t row = t.block * GRAD_KEYS + 64 * w;
        const mx_flash_stride &sv = p.s.dv, &sk = p.s.dk;
        store_sums(p.dv + t.batch * sv.batch + t.head * sv.head + row * sv.seq, sv.seq,
                   p.s.seq_kv - (int)row, dv, 1.f);
        store_sums(p.dk + t.batch * sk.batch + t.head * sk.head + row * sk.seq, sk.seq,
                   p.s.seq_kv - (int)row, dk, p.s.scale);
    }
}

template <bool SEGS>
__global__ __launch_bounds__(THREADS, 1) void flash_grad_kernel(
    const __grid_constant__ grad_maps m, const __grid_constant__ grad_args p)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ char shared_bytes[];
    grad_smem r = room_at((shared_at(shared_bytes) + 1023) & ~1023u);
    if (threadIdx.x == 0)
        smem_open(r);
    __syncthreads();
    const int role = __shfl_sync(~0u, threadIdx.x / 128, 0);
    if (role == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
        if (threadIdx.x == 0)
            load_all<SEGS>(p, m, r);
        else if (threadIdx.x == 32 || threadIdx.x == 64)
            add_tiles<SEGS>(p, r, threadIdx.x / 64);
        else if (threadIdx.x == 96)
            fetch_tiles<SEGS>(p, r);
    } else if (role == 1) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 64;");
        make_dq<SEGS>(p, r);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 208;");
        make_dkv<SEGS>(p, r, role - 2);
    }
#endif
}

bool flash_narrow_made()
{
    static const bool hopper = made_for_hopper(flash_grad_kernel<false>); /* of the machine */
    return hopper;
}
cudaError_t flash_narrow(const grad_args &p, const grad_maps &m, int sms, cudaStream_t stream)
{
    auto *kernel = p.seg.order ? flash_grad_kernel<true> : flash_grad_kernel<false>;
    cudaError_t e =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_BYTES);
    if (e != cudaSuccess)
        return e;
    kernel<<<(unsigned)min(sms, p.items), THREADS, SMEM_BYTES, stream>>>(m, p);
    return cudaGetLastError();
}
