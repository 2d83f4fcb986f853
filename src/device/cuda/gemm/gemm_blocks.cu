/* gemm_blocks.cu - see gemm_blocks.h.
 *
 * A block of threads makes tiles of 256 x 128, k in steps of 128, which is a row of a slab
 * (wgmma.cuh). Two blocks of a cluster have tiles side by side and share A: each loads half of it
 * for both. One thread loads into the four stages of hopper_gemm.cuh, whose sizes are the same, and
 * the step's scales beside them; two groups of four warps multiply 128 x 128 each, 64 rows at a
 * time.
 *
 * The sums of a step are complete before its scales are applied, so a group's tensor cores are idle
 * while it adds them up, and the other group uses them. Registers suffice for no more than 64 of a
 * step's sums and 128 of the tile's.
 */
#include "device/cuda/gemm/gemm_blocks.h"
#include "device/cuda/gemm/hopper_gemm.cuh"

enum { WIDE_M = 256, WIDE_N = 128, DEEP = 128, ROWS_AT_ONCE = 64, SETS = 8 };
enum { SCALES_BYTES = 2048, SCALES_B = 1024, A_BYTES = 4 * SLAB }; /* of a stage */

struct blocks_form : gemm_epilogue {
    enum { SMEM_BYTES = STAGES * SCALES_BYTES, LOADER_REGISTERS = 40, GROUP_REGISTERS = 232 };
};

struct blocks_args {
    const float *scale_a, *scale_b;
    void *y;
    bool y_f32;
};

/* d (64, 128) += A (64, 32) B (128, 32)^T of 8-bit floats, k inside. */
template <bool E5M2> __device__ __forceinline__ void wgmma_8(float *d, uint64_t a, uint64_t b,
                                                             int add)
{
    if constexpr (E5M2)
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n128k32.f32.e5m2.e4m3 {" WGMMA_NAMES_64
                     "}, %64, %65, p, 1, 1;\n}\n"
                     : WGMMA_SUMS_32(d, 0), WGMMA_SUMS_32(d, 32)
                     : "l"(a), "l"(b), "r"(add));
    else
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" WGMMA_NAMES_64
                     "}, %64, %65, p, 1, 1;\n}\n"
                     : WGMMA_SUMS_32(d, 0), WGMMA_SUMS_32(d, 32)
                     : "l"(a), "l"(b), "r"(add));
}

__device__ __forceinline__ float shared_float(uint32_t at)
{
    return __int_as_float(load_shared(at));
}
__device__ __forceinline__ float2 shared_pair(uint32_t at)
{
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(at) : "memory");
    return v;
}

template <bool RUNS_B>
__device__ __forceinline__ void load_blocks(const gemm_shape &s, const blocks_args &p,
                                            const gemm_smem &r, const CUtensorMap *map_a,
                                            const CUtensorMap *map_b)
{
    ring_at<STAGES> at = {0, 1};
    for (int t = r.first; t < r.mt * r.nt; t += r.clusters) {
        tile_at tile = find_tile(s, t, r.mt, r.nt);
        int m0 = tile.m * WIDE_M, n0 = (tile.n * PAIR + r.rank) * WIDE_N;
        int rows = min(WIDE_M, s.m - m0), cols = RUNS_B ? max(min(WIDE_N, s.n - n0), 0) : 0;
        for (int i = 0; i < r.steps; i++, at.step()) {
            uint32_t bar = r.full + 8 * at.slot, to = r.stages + at.slot * STAGE;
            uint32_t scales = r.spare + at.slot * SCALES_BYTES;
            bar_wait(r.empty + 8 * at.slot, at.parity);
            bar_expect(bar, STAGE + 4 * (rows + cols));
            tma_load_to_all(to + r.rank * (A_BYTES / PAIR), map_a, i * DEEP,
                            m0 + r.rank * (WIDE_M / PAIR), 0, 0, bar, 3);
            tma_load(to + A_BYTES, map_b, i * DEEP, n0, 0, 0, bar);
            load_bytes(scales, p.scale_a + (int64_t)i * s.m + m0, 4 * rows, bar);
            if (cols)
                load_bytes(scales + SCALES_B, p.scale_b + (int64_t)i * s.n + n0, 4 * cols, bar);
        }
    }
}

template <bool E5M2, bool RUNS_B> struct blocks_multiplier {
    const gemm_shape &s;
    const blocks_args &p;
    const gemm_smem &r;
    int group, lane;
    ring_at<STAGES> at;
    float part[64], sum[2][64]; /* of a step's 64 rows; of the tile's 128 */

    /* The stage before this one, to both blocks that load it. What was read of it has been used
     * for long. */
    __device__ __forceinline__ void leave_stage()
    {
        if (lane < PAIR)
            bar_arrive_at(r.empty + 8 * ((at.slot + STAGES - 1) % STAGES), lane);
    }
    /* sum += part times scales: `low` and `high` of the lane's two rows. */
    __device__ __forceinline__ void add_up(float *to, float low, float high, uint32_t scale_b)
    {
#pragma unroll
        for (int j = 0; j < 16; j++) {
            float2 b = {1, 1};
            if constexpr (RUNS_B)
                b = shared_pair(scale_b + 4 * (8 * j + 2 * (lane & 3)));
            to[4 * j] += part[4 * j] * (low * b.x);
            to[4 * j + 1] += part[4 * j + 1] * (low * b.y);
            to[4 * j + 2] += part[4 * j + 2] * (high * b.x);
            to[4 * j + 3] += part[4 * j + 3] * (high * b.y);
        }
    }
    /* Rows 64 H and on of the group's 128, of one step. */
    template <int H> __device__ __forceinline__ void multiply(float square, bool leave)
    {
        uint32_t from = r.stages + at.slot * STAGE, scales = r.spare + at.slot * SCALES_BYTES;
        uint64_t da = describe_slab(from + (2 * group + H) * SLAB, SLAB);
        uint64_t db = describe_slab(from + A_BYTES, SLAB);
        __syncwarp();
        wgmma_fence();
#pragma unroll
        for (int q = 0; q < 4; q++)
            wgmma_8<E5M2>(part, da + q * (32 >> 4), db + q * (32 >> 4), q);
        wgmma_commit();
        uint32_t row = scales + 4 * ((2 * group + H) * ROWS_AT_ONCE + sum_row());
        float low = shared_float(row) * square, high = shared_float(row + 32) * square;
        wgmma_wait<0>();
        if (leave)
            leave_stage();
        settle(part);
        add_up(sum[H], low, high, scales + SCALES_B);
    }
    /* 32 columns of a row, the lane's pair of each eight. */
    __device__ __forceinline__ void store_columns(const float *d, int64_t row, int col)
    {
        int q = lane & 3;
        if (p.y_f32) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (row < s.m && col + 8 * i < s.n)
                    *(float2 *)((float *)p.y + row * s.n + col + 8 * i + 2 * q) =
                        make_float2(d[4 * i], d[4 * i + 1]);
            return;
        }
        uint32_t w[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            w[i] = pack2(d[4 * i], d[4 * i + 1]);
        exchange(w);
        if (row < s.m && col + 8 * q < s.n)
            store8((uint16_t *)p.y + row * s.n + col + 8 * q, make_uint4(w[0], w[1], w[2], w[3]));
    }
    __device__ __forceinline__ void store(int m0, int n0)
    {
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int c = 0; c < 4; c++)
#pragma unroll
                for (int below = 0; below < 2; below++)
                    store_columns(&sum[h][16 * c + 2 * below],
                                  m0 + (2 * group + h) * ROWS_AT_ONCE + sum_row() + 8 * below,
                                  n0 + 32 * c);
    }
    __device__ __forceinline__ void tile(int t)
    {
        tile_at tile = find_tile(s, t, r.mt, r.nt);
        int m0 = tile.m * WIDE_M, n0 = (tile.n * PAIR + r.rank) * WIDE_N;
        /* The last tile of a pair may lie outside: nothing of it is stored. */
        int band = min(n0, s.n - 1) / WIDE_N;
        const float *squares = p.scale_b + (int64_t)band * r.steps;
        float next = RUNS_B ? 1 : __ldg(squares);
#pragma unroll
        for (int i = 0; i < 64; i++)
            sum[0][i] = sum[1][i] = 0;
        for (int i = 0; i < r.steps; i++, at.step()) {
            float square = next;
            if (!RUNS_B)
                next = __ldg(squares + min(i + 1, r.steps - 1));
            bar_wait(r.full + 8 * at.slot, at.parity);
            multiply<0>(square, i > 0 || t != r.first);
            multiply<1>(square, false);
        }
        store(m0, n0);
    }
};

template <bool E5M2, bool RUNS_B>
__global__ __launch_bounds__(GEMM_THREADS, 1) void blocks_kernel(
    const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
    const gemm_shape s, const blocks_args p)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ char room_any[];
    gemm_smem r;
    r.stages = ((uint32_t)__cvta_generic_to_shared(room_any) + 1023) & ~1023u;
    r.spare = r.stages + STAGES * STAGE;
    r.full = r.spare + blocks_form::SMEM_BYTES, r.empty = r.full + 8 * STAGES;
    r.rank = cluster_rank();
    r.mt = (s.m + WIDE_M - 1) / WIDE_M, r.nt = (s.n + PAIR * WIDE_N - 1) / (PAIR * WIDE_N);
    r.steps = (s.k + DEEP - 1) / DEEP, r.clusters = gridDim.x / PAIR, r.first = blockIdx.x / PAIR;
    int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            bar_init(r.full + 8 * i, 1);
            bar_init(r.empty + 8 * i, 4 * GROUPS * PAIR);
        }
        bar_ready();
    }
    cluster_sync();
    if (group == GROUPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(
            (int)blocks_form::LOADER_REGISTERS));
        if (threadIdx.x == GROUPS * 128)
            load_blocks<RUNS_B>(s, p, r, &map_a, &map_b);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(
            (int)blocks_form::GROUP_REGISTERS));
        blocks_multiplier<E5M2, RUNS_B> m = {s, p, r, group, (int)(threadIdx.x & 31), {0, 0}};
        for (int t = r.first; t < r.mt * r.nt; t += r.clusters)
            m.tile(t);
    }
    cluster_sync(); /* no block exits while others write to its memory */
#endif
}

/* --- host --- */

template <bool E5M2, bool RUNS_B> static int blocks_clusters()
{
    static const int clusters = gemm_clusters<blocks_form>(blocks_kernel<E5M2, RUNS_B>);
    return clusters;
}

/* Boxes of 128 x 128 bytes of a dense matrix. */
static cudaError_t map_bytes(CUtensorMap *map, const void *at, int64_t rows, int64_t cols)
{
    static const tma_encode encode = find_encode(); /* of the machine, not of the call */
    cuuint64_t all = (cuuint64_t)(rows * cols);
    cuuint64_t dims[4] = {(cuuint64_t)cols, (cuuint64_t)rows, 1, 1};
    cuuint64_t steps[3] = {(cuuint64_t)cols, all, all};
    cuuint32_t box[4] = {DEEP, 128, 1, 1}, each[4] = {1, 1, 1, 1};
    if (!encode)
        return cudaErrorNotSupported;
    CUresult e = encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 4, (void *)at, dims, steps, box, each,
                        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return e == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

template <bool E5M2, bool RUNS_B>
static cudaError_t launch_blocks(const mx_gemm_blocks_shape *s, const mx_gemm_blocks_args *a,
                                 cudaStream_t stream)
{
    CUtensorMap map_a, map_b;
    int clusters = blocks_clusters<E5M2, RUNS_B>();
    if (!clusters)
        return cudaErrorNotSupported;
    cudaError_t e = map_bytes(&map_a, a->a, s->m, s->k);
    if (e == cudaSuccess)
        e = map_bytes(&map_b, a->b, s->n, s->k);
    if (e != cudaSuccess)
        return e;
    int64_t tiles = (s->m + WIDE_M - 1) / WIDE_M * ((s->n + 2 * WIDE_N - 1) / (2 * WIDE_N));
    gemm_shape shape = {(int)s->m, (int)s->n, (int)s->k, SETS};
    blocks_args p = {a->scale_a, a->scale_b, a->y, s->y_f32};
    cudaLaunchAttribute at;
    cudaLaunchConfig_t c = gemm_config<blocks_form>(&at, tiles < clusters ? tiles : clusters);
    c.stream = stream;
    return cudaLaunchKernelEx(&c, blocks_kernel<E5M2, RUNS_B>, map_a, map_b, shape, p);
}

bool mx_gemm_blocks_is_possible(const mx_gemm_blocks_shape *s)
{
    const int64_t most = 1 << 30;
    bool fits = s->m % 16 == 0 && s->n % 16 == 0 && s->k % 16 == 0 && s->m > 0 && s->n > 0 &&
                s->k > 0 && s->m < most && s->n < most && s->k < most;
    int clusters = s->a_e5m2 ? s->runs_b ? blocks_clusters<true, true>()
                                         : blocks_clusters<true, false>()
                   : s->runs_b ? blocks_clusters<false, true>()
                               : blocks_clusters<false, false>();
    return fits && clusters;
}

cudaError_t mx_gemm_blocks_launch(const mx_gemm_blocks_shape *s, const mx_gemm_blocks_args *a,
                                  cudaStream_t stream)
{
    if (s->a_e5m2)
        return s->runs_b ? launch_blocks<true, true>(s, a, stream)
                         : launch_blocks<true, false>(s, a, stream);
    return s->runs_b ? launch_blocks<false, true>(s, a, stream)
                     : launch_blocks<false, false>(s, a, stream);
}
