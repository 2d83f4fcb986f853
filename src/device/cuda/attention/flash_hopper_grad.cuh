/* flash_hopper_grad.cuh - what the kernels of flash_hopper_backward.h share: their arguments, the
 * order of the work, and sums on their way to memory.
 */
#ifndef MX_DEVICE_CUDA_FLASH_HOPPER_GRAD_CUH
#define MX_DEVICE_CUDA_FLASH_HOPPER_GRAD_CUH

#include "device/cuda/attention/flash.cuh"
#include "device/cuda/core/tma.cuh"
#include "device/cuda/core/wgmma.cuh"

enum { GRAD_KEYS = 128, GRAD_ROWS = 64, GRAD_DIM = 64 }; /* a block's keys; queries of a tile */
enum { GRAD_TILE = GRAD_ROWS * GRAD_DIM, TILE_BYTES = GRAD_TILE * 4 };
enum { NARROW_TILES = 2, WIDE_TILES = 4 }; /* tiles of keys in an item, by head size */
/* Of a tile of queries with segments; of the keys of a block. */
enum { IDS_BYTES = MX_FLASH_IDS * 4, KEY_IDS_BYTES = GRAD_KEYS * 4, RECORD_BYTES = 32 };

struct grad_args {
    mx_flash_shape s;
    mx_flash_segments seg; /* where the kernel is made for them */
    const uint16_t *o, *dout;
    uint16_t *dq, *dk, *dv;
    const float *lse, *dlse;
    float *stats;   /* (B, Hq, tiles, 2, 64): lse log2 e; dO . O. Beyond the end inf and 0 */
    float *dq_sums; /* (B, Hq, tiles, D / 64) of GRAD_TILE numbers */
    int *added;     /* (B, Hq, tiles, D / 64): how many items have added */
    int *taken;     /* items of work */
    int tiles, blocks, heads, items; /* of queries; of keys; pairs of batch and key head */
    float scale2;                    /* scale log2 e */
    uint32_t reach; /* the window, or more than any distance */
    int band, last; /* heads whose items are taken together; the number at the end */
};

struct grad_maps {
    CUtensorMap q, k, v, dout;
};
__device__ __forceinline__ uint32_t shared_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* An item: the keys of a block (128 of them, or 256 of a pair of blocks) of a key head, and the
 * tiles of queries [first, end) that see them. */
struct grad_item {
    int batch, head, block, first, end;
    bool up; /* the blocks of this head add to a tile from the first key on */
};
/* Where a tile of queries is among those of keys. */
__device__ __forceinline__ int tile_place(const grad_args &p, int q)
{
    return query_place(p.s, q * GRAD_ROWS) / GRAD_ROWS;
}
/* The order of the items is made for the order in which blocks add to a tile of dQ: a block waits
 * for items before its own alone, and seldom. Heads are taken in bands, so that what the blocks of
 * a head share stays in L2: block by block, the last keys first. Under the
 * causal mask block j begins with its own tile, so tiles come to the blocks before j later, one
 * after the other. At the end of all, where SMs should end together, the first keys
 * come first, as they see the most tiles, and add first. Every item has a tile, the last where it
 * is seen by none: barriers count rounds. Segments narrow [first, end) afterwards. */
template <int TILES> __device__ __forceinline__ grad_item find_item(const grad_args &p, int i)
{
    int body = (p.heads - p.last) * p.blocks, heads = i < body ? p.band : p.last;
    int start = i < body ? i / (heads * p.blocks) * heads : p.heads - p.last;
    int rest = i - start * p.blocks, block = rest / heads, head = start + rest - block * heads;
    bool up = i >= body || !p.s.causal;
    if (!up)
        block = p.blocks - 1 - block;
    int batch = head / p.s.heads_kv;
    int own = first_query(p.s, block * TILES * GRAD_ROWS) / GRAD_ROWS;
    int first = p.s.causal ? min(own, p.tiles - 1) : 0;
    return {batch, head - batch * p.s.heads_kv, block, first, p.tiles, up};
}
/* The place of an item among those that add to tile q of dQ, and how many they are. */
struct dq_order {
    int order, n;
};
template <int TILES, bool SEGS>
__device__ __forceinline__ dq_order order_of(const grad_args &p, const grad_item &t, int q)
{
    bool all = !p.s.causal || q == p.tiles - 1;
    int2 x = {0, all ? p.blocks : min(tile_place(p, q) / TILES + 1, p.blocks)};
    if (SEGS) /* at once, not where it is needed: nothing else hides the way to memory */
        asm volatile("ld.global.nc.v2.b32 {%0, %1}, [%2];"
                     : "=r"(x.x), "=r"(x.y)
                     : "l"(p.seg.order + 2 * ((int64_t)t.batch * p.tiles + q)));
    return {t.up ? t.block - x.x : x.x + x.y - 1 - t.block, x.y};
}

/* --- an item with segments in shared memory --- */

/* Its number, [first, end), and the least and greatest ids of each 64 of this block's keys: by the
 * thread that loads, after it the barrier that says so. `block`: of 128 keys. */
__device__ __forceinline__ void store_record(const grad_args &p, uint32_t to, int i, grad_item &t,
                                             int block)
{
    int2 x = ((const int2 *)p.seg.items)[(int64_t)t.batch * p.blocks + t.block];
    int4 k = *(const int4 *)(p.seg.k_range + ((int64_t)t.batch * p.seg.k_tiles + 2 * block) * 2);
    t.first = x.x, t.end = x.y;
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %3};\n"
                 "st.shared.v4.b32 [%0 + 16], {%4, %5, %6, %7};" ::"r"(to), "r"(i), "r"(x.x),
                 "r"(x.y), "r"(k.x), "r"(k.y), "r"(k.z), "r"(k.w)
                 : "memory");
}
__device__ __forceinline__ void load_record(grad_item &t, uint32_t from)
{
    t.first = load_shared(from + 4), t.end = load_shared(from + 8);
}
/* Arrives when what load_record read is there: an arrival alone would overtake it. */
__device__ __forceinline__ void arrive_behind(const grad_item &t, uint32_t bar)
{
    if ((t.first | t.end) >= 0)
        bar_arrive(bar);
}
__device__ __forceinline__ int2 load_ids(uint32_t at)
{
    int2 x;
    asm volatile("ld.shared.v2.b32 {%0,%1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(at) : "memory");
    return x;
}
/* What 64 keys from k0 on have to do with tile q; both know their least and greatest ids. */
enum tile_kind { TILE_UNSEEN, TILE_MASKED, TILE_WHOLE };
template <bool SEGS>
__device__ __forceinline__ tile_kind kind_of_tile(const grad_args &p, int q, int k0, uint32_t ids,
                                                  uint32_t record)
{
    int row = query_place(p.s, q * GRAD_ROWS);
    if (p.s.causal && row + GRAD_ROWS <= k0)
        return TILE_UNSEEN;
    bool some = (p.s.causal && row < k0 + 63) || k0 + 64 > p.s.seq_kv;
    if (SEGS) {
        int2 a = load_ids(ids + GRAD_ROWS * 4), b = load_ids(record);
        if (a.y < b.x || a.x > b.y || row - k0 - 63 >= (int)p.reach)
            return TILE_UNSEEN;
        some |= a.x != a.y || b.x != b.y || a.x != b.x || row + 63 - k0 >= (int)p.reach;
    }
    return some ? TILE_MASKED : TILE_WHOLE;
}

/* --- masks --- */

/* Of a lane's scores, keys down and queries across: two keys, 8 apart, and of each 8 queries two.
 */
template <bool SEGS> struct score_mask {
    int gap;      /* the first query less the first key; a constant where order does not matter */
    bool in[2];   /* the keys are there */
    int id[2];    /* SEGS: of the keys */
    uint32_t ids; /* SEGS: where those of the queries lie */
    uint32_t reach;

    /* Keys k0 .. of a group; its ids lie at key_ids, those of the queries at row_ids. */
    __device__ __forceinline__ score_mask(const grad_args &p, int q, int k0, uint32_t key_ids,
                                          uint32_t row_ids)
    {
        int lane = threadIdx.x & 31, key = (threadIdx.x / 32 & 3) * 16 + (lane >> 2);
        int row = query_place(p.s, q * GRAD_ROWS);
        gap = p.s.causal ? row + 2 * (lane & 3) - k0 - key : GRAD_ROWS;
        in[0] = k0 + key < p.s.seq_kv, in[1] = k0 + key + 8 < p.s.seq_kv;
        if (SEGS) {
            id[0] = load_shared(key_ids + key * 4), id[1] = load_shared(key_ids + key * 4 + 32);
            ids = row_ids + 8 * (lane & 3), reach = p.reach;
        }
    }
    /* Which of the four elements of queries 8 j .. are seen. */
    __device__ __forceinline__ void seen(bool see[4], int j) const
    {
        int2 own = SEGS ? load_ids(ids + 32 * j) : int2{0, 0};
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int far = gap + 8 * j + (e & 1) - (e >> 1) * 8;
            see[e] = SEGS ? (uint32_t)far < reach && (e & 1 ? own.y : own.x) == id[e >> 1]
                          : far >= 0;
            see[e] = see[e] && in[e >> 1];
        }
    }
};

/* Where this lane's row of an 8 x 8 piece lies in a slab of 128-byte rows; ^ (k << 5) for the k-th
 * 16 columns. */
__device__ __forceinline__ uint32_t piece_at(int lane)
{
    int row = (threadIdx.x / 32 & 3) * 16 + (lane & 15);
    return row * 128 + (((lane >> 4) ^ (row & 7)) << 4);
}
__device__ __forceinline__ float2 load_two(uint32_t at)
{
    float2 x;
    asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(at) : "memory");
    return x;
}
/* Pairs of bf16 are not made later than here. */
__device__ __forceinline__ void settle_pairs(uint32_t f[16])
{
#pragma unroll
    for (int j = 0; j < 16; j++)
        asm volatile("" : "+r"(f[j])::"memory");
}
/* A warp's 16 rows of (64, 64) pairs, as wgmma holds them, to a slab; visible to wgmma and TMA once
 * a barrier says so. */
__device__ __forceinline__ void store_pairs(uint32_t slab, const uint32_t f[16])
{
    uint32_t piece = piece_at(threadIdx.x & 31);
#pragma unroll
    for (int k = 0; k < 4; k++)
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(
                         slab + (piece ^ (k << 5))),
                     "r"(f[4 * k]), "r"(f[4 * k + 1]), "r"(f[4 * k + 2]), "r"(f[4 * k + 3])
                     : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
}
/* --- a tile of dQ from shared memory to p.dq_sums, in order --- */

/* This lane's sums to its place of a tile in shared memory, for TMA. */
__device__ __forceinline__ void put_sums(uint32_t to, const float d[32])
{
#pragma unroll
    for (int j = 0; j < 8; j++)
        asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to + j * 512), "f"(d[4 * j]),
                     "f"(d[4 * j + 1]), "f"(d[4 * j + 2]), "f"(d[4 * j + 3])
                     : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
}
/* Until so many parts are in memory; what TMA then does comes after them. */
__device__ __forceinline__ void wait_order(const int *added, int order)
{
    int parts;
    do
        asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(parts) : "l"(added) : "memory");
    while (parts < order);
    asm volatile("fence.acq_rel.gpu;\nfence.proxy.async.global;" ::: "memory");
}
/* Stores the first part and adds the others; returns when its slot in shared memory is free. */
__device__ __forceinline__ void send_part(float *to, uint32_t from, int order)
{
    if (order == 0)
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
                     "r"(from), "r"((int)TILE_BYTES)
                     : "memory");
    else
        asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 "
                     "[%0], [%1], %2;" ::"l"(to),
                     "r"(from), "r"((int)TILE_BYTES)
                     : "memory");
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;" ::: "memory");
}
/* Once it is in memory. */
__device__ __forceinline__ void count_part(int *added, int parts)
{
    asm volatile("cp.async.bulk.wait_group 0;\nfence.acq_rel.gpu;\n"
                 "st.relaxed.gpu.global.s32 [%0], %1;" ::"l"(added), "r"(parts)
                 : "memory");
}
/* The sums of a warpgroup (64, 64) to bf16 rows at g, `rows` of them there. */
__device__ __forceinline__ void store_sums(uint16_t *g, int64_t stride, int rows, const float d[32],
                                           float scale)
{
    int lane = threadIdx.x & 31, row = (threadIdx.x / 32 & 3) * 16 + lane / 4;
#pragma unroll
    for (int c = 0; c < 2; c++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t v[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int at = 4 * (4 * c + i) + 2 * h;
                v[i] = pack2(d[at] * scale, d[at + 1] * scale);
            }
            exchange(v);
            if (row + 8 * h < rows) /* a plain assignment may become four stores */
                asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(
                                 g + (row + 8 * h) * stride + 32 * c + 8 * (lane & 3)),
                             "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
                             : "memory");
        }
}

/* flash_hopper_passes.cu: the statistics, `added` and `taken` 0; dq_sums to dq. */
cudaError_t flash_hopper_before(const grad_args &p, cudaStream_t stream);
cudaError_t flash_hopper_after(const grad_args &p, cudaStream_t stream);

/* The gradient itself: flash_hopper_backward.cu for head size 64, flash_hopper_wide.cu for 128.
 * Whether their code was made for this chip; their launch. */
bool flash_narrow_made();
bool flash_wide_made();
cudaError_t flash_narrow(const grad_args &p, const grad_maps &m, int sms, cudaStream_t stream);
cudaError_t flash_wide(const grad_args &p, const grad_maps &m, int sms, cudaStream_t stream);

#endif
