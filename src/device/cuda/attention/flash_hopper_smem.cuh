/* flash_hopper_smem.cuh - the shared memory of flash_hopper_backward.cu: ring buffers, and two
 * barriers for each, full and empty.
 *
 *   item    K and V of 128 keys, ids     the loader -> all; its number also to the adders
 *   rows    Q, dO, statistics, ids       the loader -> groups 2 and 3
 *   ds      dS of both groups of keys    groups 2 and 3 -> group 1
 *   out     dQ of a tile, float32        group 1 -> the adders, a slot each
 *   sums    dQ that others added         the fetcher -> group 1
 */
#ifndef MX_DEVICE_CUDA_FLASH_HOPPER_SMEM_CUH
#define MX_DEVICE_CUDA_FLASH_HOPPER_SMEM_CUH

#include "device/cuda/attention/flash_hopper_grad.cuh"

enum {
    ITEMS = 2, STAGES = 4, DS_SLOTS = 2, OUTS = 2, /* slots */
    KEYS_BYTES = GRAD_KEYS * 128, ROWS_BYTES = GRAD_ROWS * 128, STATS_BYTES = GRAD_ROWS * 8,
    DS_BYTES = GRAD_KEYS * GRAD_ROWS * 2,
    AT_ROWS = ITEMS * 2 * KEYS_BYTES, AT_DS = AT_ROWS + STAGES * 2 * ROWS_BYTES,
    AT_OUT = AT_DS + DS_SLOTS * DS_BYTES, AT_SUMS = AT_OUT + OUTS * TILE_BYTES,
    AT_STATS = AT_SUMS + TILE_BYTES, AT_RECORDS = AT_STATS + STAGES * STATS_BYTES,
    AT_IDS = AT_RECORDS + ITEMS * RECORD_BYTES, AT_KEY_IDS = AT_IDS + STAGES * IDS_BYTES,
    AT_BARS = AT_KEY_IDS + ITEMS * KEY_IDS_BYTES, BARS = 2 * (ITEMS + STAGES + DS_SLOTS + OUTS + 1),
    SMEM_BYTES = AT_BARS + BARS * 8 + 1024
};

/* Addresses in shared memory. */
struct grad_smem {
    uint32_t at, item_full, item_empty, rows_full, rows_empty, ds_full, ds_empty;
    uint32_t out_full, out_empty, sums_full, sums_empty;
};
__device__ __forceinline__ grad_smem room_at(uint32_t at)
{
    grad_smem r;
    r.at = at;
    r.item_full = r.at + AT_BARS, r.item_empty = r.item_full + 8 * ITEMS;
    r.rows_full = r.item_empty + 8 * ITEMS, r.rows_empty = r.rows_full + 8 * STAGES;
    r.ds_full = r.rows_empty + 8 * STAGES, r.ds_empty = r.ds_full + 8 * DS_SLOTS;
    r.out_full = r.ds_empty + 8 * DS_SLOTS, r.out_empty = r.out_full + 8 * OUTS;
    r.sums_full = r.out_empty + 8 * OUTS, r.sums_empty = r.sums_full + 8;
    return r;
}
/* By one thread; the others wait for it. Four warps of a group arrive, or one thread. */
__device__ __forceinline__ void smem_open(const grad_smem &r)
{
    for (int i = 0; i < ITEMS; i++)
        bar_init(r.item_full + 8 * i, 1), bar_init(r.item_empty + 8 * i, 3 * 4 + 3);
    for (int i = 0; i < STAGES; i++)
        bar_init(r.rows_full + 8 * i, 1), bar_init(r.rows_empty + 8 * i, 2 * 4);
    for (int i = 0; i < DS_SLOTS; i++)
        bar_init(r.ds_full + 8 * i, 2 * 4), bar_init(r.ds_empty + 8 * i, 4);
    for (int i = 0; i < OUTS; i++)
        bar_init(r.out_full + 8 * i, 4), bar_init(r.out_empty + 8 * i, 1);
    bar_init(r.sums_full, 1), bar_init(r.sums_empty, 4);
    bar_ready();
}
/* The number of the item that lies there; below 0 there are no more. */
__device__ __forceinline__ int item_in(const grad_smem &r, int slot)
{
    return load_shared(r.at + AT_RECORDS + slot * RECORD_BYTES);
}
template <bool SEGS>
__device__ __forceinline__ grad_item item_of(const grad_args &p, const grad_smem &r, int slot,
                                             int i)
{
    grad_item t = find_item<NARROW_TILES>(p, i);
    if (SEGS)
        load_record(t, r.at + AT_RECORDS + slot * RECORD_BYTES);
    return t;
}

#endif
