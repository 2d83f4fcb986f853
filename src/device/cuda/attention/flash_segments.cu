/* flash_segments.cu - which tiles of 64 tokens have a segment in common.
 *
 * Packed rows hold documents one after the other, and a tile sees a few others of thousands. What
 * the tables of mx_flash_segments say follows from the least and the greatest id of each tile, so
 * it holds for ids in any order: a superset of what is seen, which masks inside the tiles make
 * exact. Where documents lie in one piece it is exact to the tile.
 *
 *   ids_kernel    a warp a tile: its ids, the least and the greatest
 *   sees_kernel   a warp a tile: the first and the last tile it overlaps
 *   items_kernel  a block a row: for the backward pass, whose blocks of keys walk tiles of queries.
 *                 first and end of a block never fall from one block to the next (closed()), so
 *                 the blocks that add to a tile of dQ are an interval, and each knows its place in
 *                 the order. Every block has a tile and every tile a block, which writes its dQ,
 *                 even where nothing is seen.
 */
#include "device/cuda/attention/flash.cuh"
#include "ops/gpu_work.h"

enum { WARPS = 8, ROW_THREADS = 1024 };
static_assert((int)TILE == (int)MX_GPU_TILE && (int)MX_FLASH_IDS == (int)MX_GPU_TILE_IDS &&
                  2 * sizeof(int2) * MX_GPU_MOST_ITEMS <= 48 << 10, "as planned");

struct segment_params {
    mx_flash_segments t;
    const int32_t *q_seg, *k_seg;
    int block_tiles, window;
    mx_flash_shape s;
};

static int tiles_of(int n)
{
    return (n + TILE - 1) / TILE;
}

static void lay_out(mx_flash_segments *t, const mx_flash_shape *s, char *scratch)
{
    *t = {};
    t->q_tiles = tiles_of(s->seq_q), t->k_tiles = (int)mx_gpu_key_tiles(s->seq_kv);
    int32_t **parts[MX_GPU_SEGMENT_PARTS] = {&t->q_ids,  &t->k_ids, &t->k_range, &t->q_sees,
                                             &t->k_seen, &t->items, &t->order};
    for (int i = 0; i < MX_GPU_SEGMENT_PARTS; i++) {
        *parts[i] = (int32_t *)scratch;
        scratch += mx_gpu_segments_part(s->batch, s->seq_q, s->seq_kv, i);
    }
}

/* Ids [at, at + 64) of row b, two a lane, and the range of them all. */
__device__ __forceinline__ int4 ids_of(const int32_t *seg, int b, int n, int at)
{
    int lane = threadIdx.x & 31, i = at + 2 * lane;
    const int32_t *row = seg + (int64_t)b * n;
    int x = seg ? row[min(i, n - 1)] : 0, y = seg ? row[min(i + 1, n - 1)] : 0;
    return {x, y, __reduce_min_sync(~0u, min(x, y)), __reduce_max_sync(~0u, max(x, y))};
}

__global__ __launch_bounds__(32 * WARPS) void ids_kernel(const __grid_constant__ segment_params p)
{
    int tile = blockIdx.x * WARPS + threadIdx.x / 32, b = blockIdx.y, lane = threadIdx.x & 31;
    if (tile < p.t.q_tiles) {
        int4 x = ids_of(p.q_seg, b, p.s.seq_q, tile * TILE);
        int2 *to = (int2 *)(p.t.q_ids + ((int64_t)b * p.t.q_tiles + tile) * MX_FLASH_IDS);
        to[lane] = {x.x, x.y};
        if (lane < 2)
            to[32 + lane] = lane ? int2{0, 0} : int2{x.z, x.w};
    } else if (tile - p.t.q_tiles < p.t.k_tiles) {
        int64_t at = (int64_t)b * p.t.k_tiles + tile - p.t.q_tiles;
        int4 x = ids_of(p.k_seg, b, p.s.seq_kv, (tile - p.t.q_tiles) * TILE);
        ((int2 *)p.t.k_ids)[at * 32 + lane] = {x.x, x.y};
        if (lane == 0)
            ((int2 *)p.t.k_range)[at] = {x.z, x.w};
    }
}

/* Of tiles with ranges at `range`, `stride` ints apart: those that overlap `own`, as [x, y), and
 * those around `near` that have no other id than own's, where it has one only, as [z, w). */
__device__ __forceinline__ int4 overlapped(int2 own, const int32_t *range, int stride, int n,
                                           int near)
{
    int first = n, last = -1, below = -1, above = n;
    for (int k = threadIdx.x & 31; k < n; k += 32) {
        int2 r = *(const int2 *)(range + (int64_t)k * stride);
        if (r.x <= own.y && r.y >= own.x)
            first = min(first, k), last = max(last, k);
        if (r.x != own.x || r.y != own.x) {
            if (k <= near)
                below = max(below, k);
            else
                above = min(above, k);
        }
    }
    first = __reduce_min_sync(~0u, first), last = __reduce_max_sync(~0u, last);
    below = __reduce_max_sync(~0u, below), above = __reduce_min_sync(~0u, above);
    bool one = own.x == own.y, some = last >= 0;
    return {some ? first : 0, last + 1, one ? below + 1 : 0, one ? above : 0};
}
__global__ __launch_bounds__(32 * WARPS) void sees_kernel(const __grid_constant__ segment_params p)
{
    int tile = blockIdx.x * WARPS + threadIdx.x / 32, b = blockIdx.y, lane = threadIdx.x & 31;
    int keys = (p.s.seq_kv + TILE - 1) / TILE;
    const int32_t *q_range = p.t.q_ids + (int64_t)b * p.t.q_tiles * MX_FLASH_IDS + TILE;
    const int32_t *k_range = p.t.k_range + (int64_t)b * p.t.k_tiles * 2;
    if (tile < p.t.q_tiles) {
        int2 own = *(const int2 *)(q_range + (int64_t)tile * MX_FLASH_IDS);
        int near = query_place(p.s, tile * TILE) / TILE;
        int4 x = overlapped(own, k_range, 2, keys, min(near, keys - 1));
        if (lane == 0)
            ((int4 *)p.t.q_sees)[(int64_t)b * p.t.q_tiles + tile] = {
                x.x * TILE, min(x.y * TILE, p.s.seq_kv), x.z * TILE, min(x.w * TILE, p.s.seq_kv)};
    } else if ((tile -= p.t.q_tiles) < p.t.k_tiles) {
        int2 own = *(const int2 *)(k_range + 2 * tile);
        int4 x = overlapped(own, q_range, MX_FLASH_IDS, tile < keys ? p.t.q_tiles : 0, 0);
        if (lane == 0)
            ((int2 *)p.t.k_seen)[(int64_t)b * p.t.k_tiles + tile] = {x.x * TILE,
                                                                      min(x.y * TILE, p.s.seq_q)};
    }
}

/* The first tile of queries that is at block j of keys or after it. */
__device__ __forceinline__ int own_tile(const segment_params &p, int j)
{
    return min(first_query(p.s, j * p.block_tiles * TILE) / TILE, p.t.q_tiles - 1);
}
/* Tiles of queries for block j of keys: those that see it, and its own. */
__device__ __forceinline__ int2 tiles_for(const segment_params &p, int b, int j)
{
    int n = p.t.q_tiles, first = n, end = 0, own = own_tile(p, j);
    int own_end = j == p.t.n_items - 1 ? n : max(own + 1, own_tile(p, j + 1));
    for (int k = j * p.block_tiles; k < (j + 1) * p.block_tiles && k < p.t.k_tiles; k++) {
        int2 r = ((const int2 *)p.t.k_seen)[(int64_t)b * p.t.k_tiles + k];
        if (r.x < r.y)
            first = min(first, r.x / TILE), end = max(end, (r.y + TILE - 1) / TILE);
    }
    if (p.s.causal)
        first = max(first, own);
    if (p.window) /* the last key is seen by the window's queries from itself on */
        end = min(end, ((j + 1) * p.block_tiles * TILE + p.window - 2) / TILE + 1);
    return first < end ? int2{min(first, own), max(end, own_end)} : int2{own, own_end};
}
/* The first of what comes from here on, the end of what came so far. */
__device__ __forceinline__ int2 closed(const int2 *found, int n, int j)
{
    int2 x = found[j];
    for (int i = j + 1; i < n; i++)
        x.x = min(x.x, found[i].x);
    for (int i = 0; i < j; i++)
        x.y = max(x.y, found[i].y);
    return x;
}
__global__ __launch_bounds__(ROW_THREADS) void items_kernel(
    const __grid_constant__ segment_params p)
{
    extern __shared__ int2 found[];
    int b = blockIdx.x, n = p.t.n_items;
    int2 *all = found + n;
    for (int j = threadIdx.x; j < n; j += ROW_THREADS)
        found[j] = tiles_for(p, b, j);
    __syncthreads();
    for (int j = threadIdx.x; j < n; j += ROW_THREADS)
        ((int2 *)p.t.items)[(int64_t)b * n + j] = all[j] = closed(found, n, j);
    __syncthreads();
    for (int q = threadIdx.x; q < p.t.q_tiles; q += ROW_THREADS) {
        int before = 0, upto = 0;
        for (int j = 0; j < n; j++)
            before += all[j].y <= q, upto += all[j].x <= q;
        ((int2 *)p.t.order)[(int64_t)b * p.t.q_tiles + q] = {before, upto - before};
    }
}

size_t mx_flash_segments_bytes(const mx_flash_shape *s)
{
    return mx_gpu_segments_bytes(s->batch, s->seq_q, s->seq_kv);
}

cudaError_t mx_flash_segments_find(const mx_flash_shape *s, mx_flash_args *a, int block_tiles,
                                   void *scratch, cudaStream_t stream)
{
    lay_out(&a->segments, s, (char *)scratch);
    mx_flash_segments *t = &a->segments;
    if (block_tiles)
        t->n_items = (tiles_of(s->seq_kv) + block_tiles - 1) / block_tiles;
    int window = s->window < s->seq_q ? (int)s->window : 0;
    segment_params p = {*t, a->q_seg, a->k_seg, block_tiles, window, *s};
    dim3 tiles((unsigned)((t->q_tiles + t->k_tiles + WARPS - 1) / WARPS), (unsigned)s->batch);
    ids_kernel<<<tiles, 32 * WARPS, 0, stream>>>(p);
    sees_kernel<<<tiles, 32 * WARPS, 0, stream>>>(p);
    if (block_tiles)
        items_kernel<<<(unsigned)s->batch, ROW_THREADS, 2 * sizeof(int2) * (size_t)t->n_items,
                       stream>>>(p);
    return cudaGetLastError();
}
