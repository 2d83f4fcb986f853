/* flash_hopper_grad.cuh - what the kernels of flash_hopper_backward.h share: their arguments, the
 * order of the work, and sums on their way to memory.
 */
#ifndef MX_DEVICE_CUDA_FLASH_HOPPER_GRAD_CUH
#define MX_DEVICE_CUDA_FLASH_HOPPER_GRAD_CUH

#include "device/cuda/plugin/flash.cuh"
#include "device/cuda/plugin/tma.cuh"
#include "device/cuda/plugin/wgmma.cuh"

enum { GRAD_KEYS = 128, GRAD_ROWS = 64, GRAD_DIM = 64 }; /* a block's keys; queries of a tile */
enum { GRAD_TILE = GRAD_ROWS * GRAD_DIM };

struct grad_args {
    mx_flash_shape s;
    const uint16_t *o, *dout;
    uint16_t *dq, *dk, *dv;
    const float *lse;
    float *stats;   /* (B, Hq, tiles, 2, 64): lse log2 e; dO . O. Beyond the end inf and 0 */
    float *dq_sums; /* (B, Hq, tiles, D / 64) of GRAD_TILE numbers */
    int *added;     /* (B, Hq, tiles): so many blocks have added, where they take turns */
    int *taken;     /* items of work */
    int tiles, blocks, heads, items; /* of queries; of keys; pairs of batch and key head */
    float scale2;                    /* scale log2 e */
    int band, last; /* heads whose items are taken together; so many at the end */
};

struct grad_maps {
    CUtensorMap q, k, v, dout;
};
__device__ __forceinline__ uint32_t shared_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* An item: 128 keys of a key head. */
struct grad_item {
    int batch, head, block, first; /* `first` tile of queries that sees them */
    bool up;                       /* the blocks of this head add to a tile from the first key on */
};
/* The order of the items is made for the turns in which blocks add to a tile of dQ: a block waits
 * for items before its own alone, and seldom. Heads are taken in bands, so that what the blocks of
 * a head share stays in the second-level cache: block by block, the last keys first. Under the
 * causal mask block j begins with tile 2 j, so tiles come to the blocks before j two steps later
 * each, in that order. At the end of all, where multiprocessors should end together, the first keys
 * come first, as they see the most tiles, and add first. */
__device__ __forceinline__ grad_item find_item(const grad_args &p, int i)
{
    int body = (p.heads - p.last) * p.blocks, heads = i < body ? p.band : p.last;
    int start = i < body ? i / (heads * p.blocks) * heads : p.heads - p.last;
    int rest = i - start * p.blocks, block = rest / heads, head = start + rest - block * heads;
    bool up = i >= body || !p.s.causal;
    if (!up)
        block = p.blocks - 1 - block;
    int batch = head / p.s.heads_kv;
    return {batch, head - batch * p.s.heads_kv, block,
            p.s.causal ? min(block * (GRAD_KEYS / GRAD_ROWS), p.tiles) : 0, up};
}
/* So many blocks of keys see tile q, and the turn of an item among them. */
__device__ __forceinline__ int blocks_of(const grad_args &p, int q)
{
    return p.s.causal ? min(q / (GRAD_KEYS / GRAD_ROWS) + 1, p.blocks) : p.blocks;
}
__device__ __forceinline__ int turn_of(const grad_item &t, int blocks)
{
    return t.up ? t.block : blocks - 1 - t.block;
}

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
/* A warp's 16 rows of (64, 64) pairs, as products hold them, to a slab; seen by products and the
 * copy engine once a barrier says so. */
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
/* A warp's 4 KB of a tile of dQ, by way of shared memory at `by`, to memory: a group of copies. */
__device__ __forceinline__ void add_quarter(float *to, uint32_t by, const float d[32])
{
    int lane = threadIdx.x & 31;
#pragma unroll
    for (int j = 0; j < 8; j++)
        asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(by + j * 512 + lane * 16),
                     "f"(d[4 * j]), "f"(d[4 * j + 1]), "f"(d[4 * j + 2]), "f"(d[4 * j + 3])
                     : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
    if (lane == 0) {
        asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], 4096;"
                     ::"l"(to), "r"(by)
                     : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    }
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
