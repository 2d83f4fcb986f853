/* tma.cuh - TMA: tiles of a tensor into shared memory, announced on a barrier.
 *
 * A tensor map, made on the host and passed to the kernel by value (const __grid_constant__), says
 * where a tensor of up to four dims lies; one thread then issues the load of a box of it. Here
 * boxes are 64 bf16 wide (128 bytes) and `rows` high, and arrive as wgmma.cuh wants them: with the
 * 128-byte swizzle, at a multiple of 1024 bytes. What lies outside the tensor arrives as zeros, and
 * counts as bytes all the same. Boxes of 32 (64 bytes) have the 64-byte swizzle (16-byte piece ^
 * row / 2 % 4), which keeps a column of eight rows in eight banks of 16 bytes as well, and are at a
 * multiple of 512.
 *
 * A barrier (8 bytes of shared memory) counts arrivals and bytes; its phase turns when all have
 * come. bar_wait(b, parity) returns once the phase of that parity is over: on a fresh barrier at
 * once for parity 1. The usual ring: `full` of one arrival (the loader's bar_expect) and the bytes,
 * `empty` of an arrival for each warp that reads. A reader lets a place go only when what it read
 * is in use, not merely issued: an ldmatrix still on its way does not hold bar_arrive back.
 */
#ifndef MX_DEVICE_CUDA_TMA_CUH
#define MX_DEVICE_CUDA_TMA_CUH

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdint.h>

/* Where a tensor lies: elements in each dim, the innermost first and packed, and the distance in
 * elements from one to the next in the other dims. */
struct tensor_place {
    const void *at; /* bf16 */
    int64_t dims[4], strides[3];
};
/* A multiple of 16 bytes: what TMA needs of every address and distance. */
static inline bool tma_can(const tensor_place &t)
{
    bool ok = (uintptr_t)t.at % 16 == 0;
    for (int i = 0; i < 3; i++)
        ok = ok && t.strides[i] % 8 == 0 && t.strides[i] > 0;
    return ok;
}
/* The driver's function that makes maps, found at run time, as nothing here links the driver. */
typedef CUresult (*tma_encode)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                               const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                               const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                               CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
static inline tma_encode find_encode()
{
    void *fn = nullptr;
    cudaDriverEntryPointQueryResult found;
    cudaError_t e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &fn, 12000,
                                                     cudaEnableDefault, &found);
    return e == cudaSuccess ? (tma_encode)fn : nullptr;
}
/* Boxes of `cols` columns, 64 or 32, and `rows` rows (at most 256). */
static inline cudaError_t tma_map(CUtensorMap *map, const tensor_place &t, int rows, int cols = 64)
{
    static const tma_encode encode = find_encode(); /* of the machine, not of the call */
    if (!encode)
        return cudaErrorNotSupported;
    cuuint64_t dims[4], bytes[3];
    cuuint32_t box[4] = {(cuuint32_t)cols, (cuuint32_t)rows, 1, 1}, step[4] = {1, 1, 1, 1};
    for (int i = 0; i < 4; i++)
        dims[i] = (cuuint64_t)t.dims[i];
    for (int i = 0; i < 3; i++)
        bytes[i] = (cuuint64_t)t.strides[i] * 2;
    CUresult r = encode(
        map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, (void *)t.at, dims, bytes, box, step,
        CU_TENSOR_MAP_INTERLEAVE_NONE,
        cols == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return r == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

/* A box at (col, row, c2, c3) to shared memory; its bytes count on `bar`. */
__device__ __forceinline__ void tma_load(uint32_t to, const CUtensorMap *map, int col, int row,
                                         int c2, int c3, uint32_t bar)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
                 "l"(map), "r"(col), "r"(row), "r"(c2), "r"(c3), "r"(bar)
                 : "memory");
}
/* A box from shared memory, after tma_written of those who wrote it. After this thread's tma_read
 * the place may be written again, after tma_stored the box lies in the tensor. */
__device__ __forceinline__ void tma_store(const CUtensorMap *map, int col, int row, uint32_t from)
{
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%1, %2, %3, %3}],"
                 " [%4];\ncp.async.bulk.commit_group;" ::"l"(map),
                 "r"(col), "r"(row), "r"(0), "r"(from)
                 : "memory");
}
__device__ __forceinline__ void tma_written()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void tma_read()
{
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ __forceinline__ void tma_stored()
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/* Bytes of memory that lie in one piece; they count on `bar`. */
__device__ __forceinline__ void load_bytes(uint32_t to, const void *from, int bytes, uint32_t bar)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(bar)
                 : "memory");
}

/* Barriers: by one thread, then bar_ready and __syncthreads. */
__device__ __forceinline__ void bar_init(uint32_t bar, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals));
}
__device__ __forceinline__ void bar_ready()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
/* Arrives, and expects `bytes` to come before the phase is over. */
__device__ __forceinline__ void bar_expect(uint32_t bar, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void bar_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
__device__ __forceinline__ void bar_wait(uint32_t bar, int parity)
{
    asm volatile("{\n.reg .pred p;\nAGAIN:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1, 0x989680;\n"
                 "@p bra DONE;\nbra AGAIN;\nDONE:\n}" ::"r"(bar),
                 "r"(parity)
                 : "memory");
}
/* --- clusters: blocks that write to each other's memory and arrive at each other's barriers --- */
__device__ __forceinline__ int cluster_rank()
{
    int rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
__device__ __forceinline__ void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
/* At the same barrier of block `rank`. */
__device__ __forceinline__ void bar_arrive_at(uint32_t bar, int rank)
{
    asm volatile("{\n.reg .b32 r;\nmapa.shared::cluster.u32 r, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [r];\n}" ::"r"(bar),
                 "r"(rank)
                 : "memory");
}
/* A box to the same place in every block of the mask, each counted at its own barrier. */
__device__ __forceinline__ void tma_load_to_all(uint32_t to, const CUtensorMap *map, int col,
                                                int row, int c2, int c3, uint32_t bar,
                                                uint16_t mask)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(to),
                 "l"(map), "r"(col), "r"(row), "r"(c2), "r"(c3), "r"(bar), "h"(mask)
                 : "memory");
}

/* A word of shared memory. */
__device__ __forceinline__ int load_shared(uint32_t at)
{
    int x;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(at) : "memory");
    return x;
}
__device__ __forceinline__ void store_shared(uint32_t at, int x)
{
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
}

/* A place in a ring of N, and the parity of its next phase. A loader begins with parity 1. */
template <int N> struct ring_at {
    int slot, parity;
    __device__ __forceinline__ void step()
    {
        if (++slot == N)
            slot = 0, parity ^= 1;
    }
};

#endif
