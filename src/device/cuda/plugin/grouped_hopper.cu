/* grouped_hopper.cu - one product per expert on Hopper's matrix unit: bf16 factors, float sums.
 *
 * One block a multiprocessor stays for good and makes every gridDim-th tile. Four of its warps load
 * (grouped_load.cuh), as far ahead as there is room, also into the next tile while the results of
 * the last are on their way out; two groups of four warps multiply 64 x 256 each, straight from
 * shared memory. Barriers in shared memory say of each of the four stages when it is full (all
 * loading threads' copies have arrived) and when it is empty (all multiplying warps have read it).
 */
#include "device/cuda/plugin/grouped_load.cuh"
#include "device/cuda/plugin/vec.cuh"
#include "device/cuda/plugin/wgmma.cuh"

enum { STAGES = 4, LOADERS = 128, WARPS = 8, THREADS = LOADERS + WARPS * 32 };
enum { PITCH = 64 + 8, STAGING = WARPS * 16 * PITCH * 2, BARRIERS = 2 * STAGES * 8 };
enum { ALIGN = 1024, ROOM = STAGES * STAGE + STAGING + BARRIERS + ALIGN };

/* --- barriers --- */

__device__ __forceinline__ void barrier_init(uint32_t b, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(b), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t b)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(b) : "memory");
}
/* Arrives when this thread's copies so far have. */
__device__ __forceinline__ void barrier_arrive_after_copies(uint32_t b)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(b) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32_t b, uint32_t parity)
{
    uint32_t done = 0;
    while (!done)
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}\n"
                     : "=r"(done)
                     : "r"(b), "r"(parity)
                     : "memory");
}
/* Step t of a block's whole work: its stage, and the parity of that stage's turn. */
struct turn {
    uint32_t t, room;
    __device__ __forceinline__ uint32_t stage() const { return room + t % STAGES * STAGE; }
    __device__ __forceinline__ uint32_t full() const
    {
        return room + STAGES * STAGE + STAGING + t % STAGES * 8;
    }
    __device__ __forceinline__ uint32_t empty() const { return full() + STAGES * 8; }
    __device__ __forceinline__ uint32_t parity() const { return t / STAGES & 1; }
};

/* --- results --- */

/* A warp's 16 x 256 sums: floats as they are, bf16 through shared memory, 64 columns at a time, so
 * that a row goes out in pieces of 128 bytes. */
__device__ __forceinline__ void store_sums(const tiled_call &p, const tile_task &task,
                                           const float d[128], uint16_t *staging, int warp)
{
    int lane = threadIdx.x & 31, r = lane / 4, c = lane % 4 * 2, row = warp * 16;
    if (p.out_f32) {
#pragma unroll
        for (int j = 0; j < 64; j++) {
            int i = row + r + j % 2 * 8, col = j / 2 * 8 + c;
            if (i < task.rows && col < task.cols)
                *(float2 *)((float *)p.y + task.y + (int64_t)i * p.s.n + col) =
                    make_float2(d[2 * j], d[2 * j + 1]);
        }
        return;
    }
    staging += row * PITCH;
#pragma unroll
    for (int q = 0; q < 4; q++) {
#pragma unroll
        for (int j = 0; j < 16; j++) {
            __nv_bfloat162 two = __floats2bfloat162_rn(d[32 * q + 2 * j], d[32 * q + 2 * j + 1]);
            *(__nv_bfloat162 *)(staging + (r + j % 2 * 8) * PITCH + j / 2 * 8 + c) = two;
        }
        __syncwarp();
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int i = j * 4 + lane / 8, col = q * 64 + lane % 8 * 8;
            if (row + i < task.rows && col < task.cols)
                store8((uint16_t *)p.y + task.y + (int64_t)(row + i) * p.s.n + col,
                       load8(staging + i * PITCH + lane % 8 * 8));
        }
        __syncwarp();
    }
}

/* --- the kernel --- */

template <mx_grouped_kind KIND>
__global__ __launch_bounds__(THREADS, 1) void hopper_kernel(tiled_call p)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    constexpr bool TN = KIND == MX_GROUPED_TN, B_OUT = KIND != MX_GROUPED_NT;
    extern __shared__ char shared_any[];
    char *shared = (char *)(((uintptr_t)shared_any + ALIGN - 1) / ALIGN * ALIGN);
    turn at = {0, (uint32_t)__cvta_generic_to_shared(shared)};
    if (threadIdx.x == 0)
        for (int i = 0; i < STAGES; i++) {
            turn each = {(uint32_t)i, at.room};
            barrier_init(each.full(), LOADERS);
            barrier_init(each.empty(), WARPS);
        }
    __syncthreads();
    grouped_tile g;
    group_walk walk = {};
    if (threadIdx.x < LOADERS) {
        for (int i = blockIdx.x; find_tile(g, walk, p.s, TN, i, BM, BN); i += gridDim.x) {
            tile_task task(p, g, KIND);
            loader<BM, TN, LOADERS> a(task.a, task.lda, task.rows, threadIdx.x);
            loader<BN, B_OUT, LOADERS> b(task.b, task.ldb, task.cols, threadIdx.x);
            for (int k = task.k; k > 0; k -= BK, at.t++) {
                barrier_wait(at.empty(), at.parity() ^ 1);
                a.next(at.stage(), k);
                b.next(at.stage() + A_BYTES, k);
                barrier_arrive_after_copies(at.full());
            }
        }
        asm volatile("cp.async.wait_all;");
        return;
    }
    int warp = threadIdx.x / 32 - LOADERS / 32;
    uint16_t *staging = (uint16_t *)(shared + STAGES * STAGE);
    for (int i = blockIdx.x; find_tile(g, walk, p.s, TN, i, BM, BN); i += gridDim.x) {
        tile_task task(p, g, KIND);
        float d[128];
        if (task.k == 0)
#pragma unroll
            for (int j = 0; j < 128; j++)
                d[j] = 0;
        uint32_t before = 0; /* the stage that the unit may still be reading */
        for (int k = task.k; k > 0; k -= BK, at.t++) {
            barrier_wait(at.full(), at.parity());
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            uint64_t da = describe_slab(at.stage() + warp / 4 * SLAB, SLAB);
            uint64_t db = describe_slab(at.stage() + A_BYTES, SLAB);
            wgmma_fence();
#pragma unroll
            for (int q = 0; q < BK / 16; q++)
                wgmma<TN, B_OUT>(d, da + q * (TN ? 2048 >> 4 : 32 >> 4),
                                 db + q * (B_OUT ? 2048 >> 4 : 32 >> 4), k < task.k || q);
            wgmma_commit();
            wgmma_wait<1>();
            if (before && threadIdx.x % 32 == 0)
                barrier_arrive(before);
            before = at.empty();
        }
        wgmma_wait<0>();
        if (before && threadIdx.x % 32 == 0)
            barrier_arrive(before);
        store_sums(p, task, d, staging, warp);
    }
#else
    __trap(); /* never chosen: mx_cuda_has_wgmma */
#endif
}

template <mx_grouped_kind KIND>
static cudaError_t launch(const mx_grouped_call *g, cudaStream_t stream)
{
    int device = 0, processors = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    cudaError_t e = cudaFuncSetAttribute(hopper_kernel<KIND>,
                                         cudaFuncAttributeMaxDynamicSharedMemorySize, ROOM);
    int64_t tiles = grouped_blocks(g, BM, BN);
    unsigned blocks = (unsigned)(tiles < processors ? tiles : processors);
    tiled_call p = {grouped_shape_of(g), (const uint16_t *)g->a, (const uint16_t *)g->b, g->y,
                    g->out_f32};
    if (e == cudaSuccess && blocks)
        hopper_kernel<KIND><<<blocks, THREADS, ROOM, stream>>>(p);
    return e == cudaSuccess ? cudaGetLastError() : e;
}

cudaError_t mx_cuda_grouped_hopper(const mx_grouped_call *g, cudaStream_t stream)
{
    return g->kind == MX_GROUPED_NT   ? launch<MX_GROUPED_NT>(g, stream)
           : g->kind == MX_GROUPED_NN ? launch<MX_GROUPED_NN>(g, stream)
                                      : launch<MX_GROUPED_TN>(g, stream);
}
