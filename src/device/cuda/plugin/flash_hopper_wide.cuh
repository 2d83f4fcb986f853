/* flash_hopper_wide.cuh - what the passes of the gradient at head size 128 share: their arguments,
 * and tiles on their way between registers, shared memory and memory.
 *
 * dQ is summed in float32: of each 64 queries of a head two halves of 64 columns, 16 KB each, in
 * the order in which the lanes of a warpgroup hold such sums (wgmma.cuh): warp w has 4 KB, of them
 * 512 bytes for each 8 columns j, of them lane l 16 bytes: d[4 j] .. d[4 j + 3].
 */
#ifndef MX_DEVICE_CUDA_FLASH_HOPPER_WIDE_CUH
#define MX_DEVICE_CUDA_FLASH_HOPPER_WIDE_CUH

#include "device/cuda/plugin/flash_hopper_grad.cuh"
#include "device/cuda/plugin/tma.cuh"

enum { WIDE = 128, WIDE_HALF = GRAD_ROWS * 64 };

struct wide_args {
    mx_flash_shape s;
    const uint16_t *o, *dout;
    uint16_t *dq, *dk, *dv;
    const float *lse;
    float *stats;   /* (B, Hq, tiles, 2, 64): lse log2 e; dO . O. Beyond the end inf and 0 */
    float *dq_sums; /* (B, Hq, tiles, 2) of WIDE_HALF numbers */
    int *taken;     /* items of work */
    int tiles, blocks, heads; /* of queries; of keys; pairs of batch and key head */
    float scale2;             /* scale log2 e */
};
struct wide_maps {
    CUtensorMap q, k, v, dout;
};

__device__ __forceinline__ int item_in(uint32_t at)
{
    int i;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(i) : "r"(at) : "memory");
    return i;
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

/* flash_hopper_wide.cu: whether its code was made for this chip; the pass that multiplies. */
bool flash_wide_made();
cudaError_t flash_wide_main(const wide_args &p, const wide_maps &m, int sms, cudaStream_t stream);

#endif
