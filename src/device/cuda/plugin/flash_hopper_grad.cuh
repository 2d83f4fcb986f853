/* flash_hopper_grad.cuh - what the kernels of flash_hopper_backward.h share: their arguments, the
 * order of the work, the float32 tiles of dQ, and sums on their way to memory.
 *
 * A tile of dQ is 64 queries of a head, 16 KB, kept in the order in which the lanes of a warpgroup
 * hold such sums (wgmma.cuh): warp w has 4 KB, of them 512 bytes for each 8 columns j, of them lane
 * l 16 bytes: d[4 j] .. d[4 j + 3]. So a warp adds 4 KB that lie in one piece.
 */
#ifndef MX_DEVICE_CUDA_FLASH_HOPPER_GRAD_CUH
#define MX_DEVICE_CUDA_FLASH_HOPPER_GRAD_CUH

#include "device/cuda/plugin/flash.cuh"
#include "device/cuda/plugin/wgmma.cuh"

enum { GRAD_KEYS = 128, GRAD_ROWS = 64, GRAD_DIM = 64 }; /* a block's keys; queries of a tile */
enum { GRAD_TILE = GRAD_ROWS * GRAD_DIM };

struct grad_args {
    mx_flash_shape s;
    const uint16_t *o, *dout;
    uint16_t *dq, *dk, *dv;
    const float *lse;
    float *stats;   /* (B, Hq, tiles, 2, 64): lse log2 e; dO . O. Beyond the end inf and 0 */
    float *dq_sums; /* (B, Hq, tiles) of GRAD_TILE numbers */
    int *taken;     /* items of work */
    int tiles, blocks, heads, items; /* of queries; of keys; pairs of batch and key head */
    float scale2;                    /* scale log2 e */
    int last;                        /* so many heads at the end are taken block by block */
};

/* An item: 128 keys of a key head. */
struct grad_item {
    int batch, head, block, first; /* `first` tile of queries that sees them */
};
/* Head by head, so that what the blocks of a head share stays in the second-level cache; at the end
 * the longest first over several heads, so that all multiprocessors end together. */
__device__ __forceinline__ grad_item find_item(const grad_args &p, int i)
{
    int body = (p.heads - p.last) * p.blocks, head, block;
    if (i < body) {
        head = i / p.blocks, block = i - head * p.blocks;
    } else {
        block = (i - body) / p.last, head = p.heads - p.last + i - body - block * p.last;
    }
    int batch = head / p.s.heads_kv;
    return {batch, head - batch * p.s.heads_kv, block,
            p.s.causal ? min(block * (GRAD_KEYS / GRAD_ROWS), p.tiles) : 0};
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
            if (row + 8 * h < rows)
                *(uint4 *)(g + (row + 8 * h) * stride + 32 * c + 8 * (lane & 3)) =
                    make_uint4(v[0], v[1], v[2], v[3]);
        }
}

/* flash_hopper_passes.cu: before the gradient, statistics, dQ and `taken` 0; after it, dQ
 * to bf16. */
cudaError_t flash_hopper_before(const grad_args &p, cudaStream_t stream);
cudaError_t flash_hopper_after(const grad_args &p, cudaStream_t stream);

#endif
