/* flash_hopper_dq.cuh - dQ of flash_hopper_backward.cu: a block's part of each tile, and how the
 * parts come together.
 *
 * A tile of dQ, 64 queries of a head, gets a part from every block of keys that they see. The
 * blocks add in a fixed order (a semaphore counts them), so the bits are the same in every run:
 *
 *   the first    stores its part in float32 (16 KB of p.dq_sums)
 *   the next     add theirs there; both by TMA (store, reduce)
 *   the last     fetches the sum, adds its part in registers, scales, rounds and stores bf16
 *
 * so no memory is set to zero before, nothing goes over dQ afterwards, and a tile that one block
 * alone sees is rounded where it is made. p.added counts the parts that are in memory. A block that
 * comes too early waits, but an order of the items (flash_hopper_grad.cuh) in which the blocks of a
 * head come to a tile one after the other leaves little to wait for. All of it is the work of
 * single threads beside group 1, which would lose a step to each way through memory:
 *
 *   two adders   a slot of the `out` ring each: wait for the order, part, copy, free, count
 *   a fetcher    the sums for the next tile that this item is the last of, a step ahead
 *
 * The order follows items taken earlier, by blocks that run, and adders depend on no other thread
 * of their block than group 1, for the part: so there is no deadlock.
 *
 * A copy that has ended is visible to the thread that issued it (PTX: its end is a fence between
 * the async proxy and the generic one); a fence of the GPU's scope and the count tell the others.
 * Who reads the count fences the other way, and for the async proxy. When the sum is in registers
 * its lines in L2 are dropped: they are not needed in memory.
 *
 * A tile lies in the order in which the lanes of a warpgroup hold such sums (wgmma.cuh): warp w has
 * 4 KB, of them 512 bytes for each 8 columns j, of them lane l 16 bytes: d[4 j] .. d[4 j + 3].
 */
#ifndef MX_DEVICE_CUDA_FLASH_HOPPER_DQ_CUH
#define MX_DEVICE_CUDA_FLASH_HOPPER_DQ_CUH

#include "device/cuda/attention/flash_hopper_smem.cuh"
#include "device/cuda/core/wgmma.cuh"

/* Where a tile of queries is. */
struct dq_tile {
    int batch, head, q;
};
__device__ __forceinline__ int64_t number_of(const grad_args &p, const dq_tile &t)
{
    return (int64_t)(t.batch * p.s.heads_q + t.head) * p.tiles + t.q;
}

/* --- the threads beside group 1 --- */

/* each(tile, order, blocks) for the tiles of all items of this block, in their order. */
template <bool SEGS, class Each>
__device__ __forceinline__ void for_tiles(const grad_args &p, const grad_smem &r, Each each)
{
    const int group = p.s.heads_q / p.s.heads_kv;
    ring_at<ITEMS> at = {0, 0};
#pragma unroll 1
    for (;; at.step()) {
        bar_wait(r.item_full + 8 * at.slot, at.parity);
        int i = item_in(r, at.slot);
        if (i < 0)
            return;
        grad_item t = item_of<SEGS>(p, r, at.slot, i);
        arrive_behind(t, r.item_empty + 8 * at.slot);
#pragma unroll 1
        for (int h = t.head * group; h < (t.head + 1) * group; h++)
#pragma unroll 1
            for (int q = t.first; q < t.end; q++) {
                dq_order x = order_of<NARROW_TILES, SEGS>(p, t, q);
                each(dq_tile{t.batch, h, q}, x.order, x.n);
            }
    }
}
/* Every second tile that group 1 leaves in `out`. */
template <bool SEGS>
__device__ __forceinline__ void add_tiles(const grad_args &p, const grad_smem &r, int mine)
{
    const uint32_t from = r.at + AT_OUT + mine * TILE_BYTES;
    int n = 0, parity = 0;
    for_tiles<SEGS>(p, r, [&](const dq_tile &t, int order, int blocks) {
        if (order == blocks - 1 || (n++ & 1) != mine)
            return;
        int64_t tile = number_of(p, t);
        if (order > 0)
            wait_order(p.added + tile, order);
        bar_wait(r.out_full + 8 * mine, parity);
        parity ^= 1;
        send_part(p.dq_sums + tile * GRAD_TILE, from, order);
        bar_arrive(r.out_empty + 8 * mine);
        count_part(p.added + tile, order + 1);
    });
}
/* The sums of tiles whose last part is this block's. */
template <bool SEGS>
__device__ __forceinline__ void fetch_tiles(const grad_args &p, const grad_smem &r)
{
    int parity = 1;
    for_tiles<SEGS>(p, r, [&](const dq_tile &t, int order, int blocks) {
        if (blocks == 1 || order != blocks - 1)
            return;
        int64_t tile = number_of(p, t);
        wait_order(p.added + tile, order);
        bar_wait(r.sums_empty, parity);
        parity ^= 1;
        bar_expect(r.sums_full, TILE_BYTES);
        load_bytes(r.at + AT_SUMS, p.dq_sums + tile * GRAD_TILE, TILE_BYTES, r.sums_full);
    });
}

/* --- group 1 --- */

/* d = dS K over the keys of group 2 alone, or of both. */
template <int STEPS>
__device__ __forceinline__ void multiply_ds(float d[32], uint64_t ds, uint64_t k)
{
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < STEPS; i++)
        wgmma_n64<true, true>(d, ds + i * 128, k + i * 128, i > 0);
    wgmma_commit();
    wgmma_wait<0>();
}
__device__ __forceinline__ void add_sums(float d[32], uint32_t from)
{
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float4 x;
        asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
                     : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                     : "r"(from + j * 512)
                     : "memory");
        d[4 * j] += x.x, d[4 * j + 1] += x.y, d[4 * j + 2] += x.z, d[4 * j + 3] += x.w;
    }
}
/* The last part of a tile: dQ. The slot of the sums is free once they are in use, so after the
 * stores: an arrival does not wait for loads. */
__device__ __forceinline__ void finish_tile(const grad_args &p, const grad_smem &r, float d[32],
                                            const dq_tile &t, bool alone, int parity)
{
    int lane = threadIdx.x & 31, thread = threadIdx.x & 127;
    if (!alone) {
        bar_wait(r.sums_full, parity);
        add_sums(d, r.at + AT_SUMS + thread / 32 * (TILE_BYTES / 4) + lane * 16);
        asm volatile("discard.global.L2 [%0], 128;" ::"l"(p.dq_sums + number_of(p, t) * GRAD_TILE +
                                                          thread * 32)
                     : "memory");
    }
    const mx_flash_stride &s = p.s.dq;
    int64_t row = (int64_t)t.q * GRAD_ROWS;
    store_sums(p.dq + t.batch * s.batch + t.head * s.head + row * s.seq, s.seq,
               p.s.seq_q - (int)row, d, p.s.scale);
    __syncwarp();
    if (!alone && lane == 0)
        bar_arrive(r.sums_empty);
}
template <bool SEGS>
__device__ __forceinline__ void make_dq(const grad_args &p, const grad_smem &r)
{
    const int group = p.s.heads_q / p.s.heads_kv, lane = threadIdx.x & 31;
    const uint32_t piece = (threadIdx.x / 32 & 3) * (TILE_BYTES / 4) + lane * 16;
    int parity = 0;
    ring_at<ITEMS> at = {0, 0};
    ring_at<DS_SLOTS> ds_at = {0, 0};
    ring_at<OUTS> out = {0, 1};
    for (;; at.step()) {
        bar_wait(r.item_full + 8 * at.slot, at.parity);
        int i = item_in(r, at.slot);
        if (i < 0)
            break;
        grad_item t = item_of<SEGS>(p, r, at.slot, i);
        uint64_t k = describe_slab(r.at + at.slot * 2 * KEYS_BYTES, KEYS_BYTES);
        for (int h = t.head * group; h < (t.head + 1) * group; h++)
            for (int q = t.first; q < t.end; q++, ds_at.step()) {
                bool half =
                    p.s.causal && (tile_place(p, q) + 1) * GRAD_ROWS <= t.block * GRAD_KEYS + 64;
                dq_order x = order_of<NARROW_TILES, SEGS>(p, t, q);
                float d[32];
                bar_wait(r.ds_full + 8 * ds_at.slot, ds_at.parity);
                uint64_t ds = describe_slab(r.at + AT_DS + ds_at.slot * DS_BYTES, 8192);
                if (half)
                    multiply_ds<4>(d, ds, k);
                else
                    multiply_ds<8>(d, ds, k);
                settle(d);
                if (lane == 0)
                    bar_arrive(r.ds_empty + 8 * ds_at.slot);
                if (x.order < x.n - 1) {
                    bar_wait(r.out_empty + 8 * out.slot, out.parity);
                    put_sums(r.at + AT_OUT + out.slot * TILE_BYTES + piece, d);
                    if (lane == 0)
                        bar_arrive(r.out_full + 8 * out.slot);
                    out.step();
                } else {
                    dq_tile to = {t.batch, h, q};
                    /* nothing of the addresses is kept over the tiles */
                    asm volatile("" : "+r"(to.batch), "+r"(to.head), "+r"(to.q));
                    finish_tile(p, r, d, to, x.n == 1, parity);
                    parity ^= x.n > 1;
                }
            }
        if (lane == 0)
            bar_arrive(r.item_empty + 8 * at.slot);
    }
}

#endif
