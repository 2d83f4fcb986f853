/* hopper_gemm.cuh - a persistent GEMM on Hopper whose epilogue overlaps the next tile's main loop.
 *
 *     sums (m, n) = A (m, k) B (k, n), handed to an `Epilogue` tile by tile
 *
 * A block makes tiles of 128 x 256, k in steps of 64, one tile after the other: one thread loads
 * (tma.cuh) into four stages, two groups of four warps multiply 64 x 256 each (wgmma.cuh). Two
 * blocks of a cluster have tiles one below the other and share B: each loads half of it for both.
 * Tiles go in bands of rows, so that a band's A stays in L2.
 *
 * The tensor cores do not wait for the epilogue. A group puts a finished tile aside, rounded, two
 * numbers to a register, one half of it while the other is still multiplied; its Epilogue works on
 * an eighth of it during each of the next tile's first steps, in eight portions between the wgmma
 * instructions. (After a step's instructions it hides nothing: a warp is let go only when the last
 * but one has begun. Measured in docs/log/gpu-kernels.md.)
 *
 * An Epilogue has, each for one thread of a group:
 *     args                        what the kernel is given for it
 *     wanted(p, band)             is this band of 256 rows wanted? (static; band -1: is any?)
 *     begin(p, m0, n0)            the group's tile at (m0, n0) is about to be multiplied
 *     place(p, m0, n0)            that tile is about to be put aside
 *     take(half, d, p)            columns 128 half and on, laid out as in wgmma.cuh
 *     part_of<C>(portion, p)      an eighth, 32 columns
 * and, where it has use for them (gemm_epilogue has the defaults):
 *     ready<C>(p)                 before an eighth and the step that it goes with
 *     SPREAD                      eighths go as far apart as the steps of a long k allow
 *     TWO_FACTORS                 a tile is of 128 columns of B and as many of maps.second
 *     SMEM_BYTES, prepare(r)      of shared memory for it, and its barriers there (static)
 *     HELPERS, maps               so many more warps beside the producer warp, their tensor maps
 *     help(s, p, maps, r, i)      what helper warp i does (static)
 *     GROUPED                     tiles are found by the Epilogue, not in one grid of them:
 *     count(s, p, r)              how many there are; the whole block, before all else (static)
 *     find(s, r, t)               tile t, of band m, which is its first row (static)
 *     start(s, p, r)              before the first tile (static)
 *     within(tile)                the tile that `begin` speaks of
 */
#ifndef MX_DEVICE_CUDA_HOPPER_GEMM_CUH
#define MX_DEVICE_CUDA_HOPPER_GEMM_CUH

#include "device/cuda/gemm/gemm_epilogue.h"
#include "device/cuda/core/tma.cuh"
#include "device/cuda/core/vec.cuh"
#include "device/cuda/core/wgmma.cuh"

enum { SLAB = 64 * 128, TILE_M = 128, TILE_N = 256, HALF_N = TILE_N / 2 };
enum { STAGES = 4, STAGE = 6 * SLAB, GROUPS = 2, GEMM_THREADS = 128 * (GROUPS + 1) };
enum { EIGHTHS = 8, PAIR = 2, BAND_M = PAIR * TILE_M };

struct gemm_shape {
    int m, n, k;
    int group; /* bands that are gone through together */
};

struct gemm_smem {
    uint32_t stages, full, empty; /* shared addresses; a barrier for each stage */
    uint32_t spare;               /* SMEM_BYTES for the Epilogue, at a multiple of 1024 */
    int rank, mt, nt, steps, clusters, first;
    int tiles;
};

/* 1 / (1 + 2^x): a sigmoid of -x log(2). */
static constexpr float GEMM_LOG2E = 1.4426950408889634f;
__device__ __forceinline__ float sigmoid_down2(float x)
{
    float e, s;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(1.f + e));
    return s;
}

/* Registers a thread: 128 of the loader's and 256 of the groups' come out of one pool. */
struct gemm_epilogue {
    struct maps {};
    enum { TWO_FACTORS = false, SPREAD = false, GROUPED = false };
    enum { SMEM_BYTES = 2048, HELPERS = 0, LOADER_REGISTERS = 24, GROUP_REGISTERS = 240 };
    static __device__ __forceinline__ void prepare(const gemm_smem &) {}
    template <int C, class Args> __device__ __forceinline__ void ready(const Args &) {}
};
template <class Epilogue> constexpr int gemm_shared()
{
    return STAGES * (STAGE + 16) + Epilogue::SMEM_BYTES + 1024;
}

struct tile_at {
    int m, n;      /* a band of rows and a tile of columns */
    int which, to; /* GROUPED: of the matrices B; the end of its rows */
};
__device__ __forceinline__ tile_at find_tile(const gemm_shape &s, int t, int mt, int nt)
{
    int set = t / (s.group * nt), within = t - set * s.group * nt;
    int height = min(s.group, mt - set * s.group);
    return {set * s.group + within % height, within / height, 0, s.m};
}

/* Columns from one tile to the next. */
template <class Epilogue> __host__ __device__ constexpr int tile_wide()
{
    return Epilogue::TWO_FACTORS ? HALF_N : TILE_N;
}
/* What this block loads its half of B from. */
template <class Epilogue>
__device__ __forceinline__ const CUtensorMap *factor_of(const gemm_smem &r, const CUtensorMap *b,
                                                        const typename Epilogue::maps &more)
{
    if constexpr (Epilogue::TWO_FACTORS)
        return r.rank ? &more.second : b;
    return b;
}

/* Tile t, with the first row of its band in place of the band. */
template <class Epilogue>
__device__ __forceinline__ tile_at tile_of(const gemm_shape &s, const gemm_smem &r, int t)
{
    if constexpr (Epilogue::GROUPED) {
        return Epilogue::find(s, r, t);
    } else {
        tile_at tile = find_tile(s, t, r.mt, r.nt);
        tile.m *= BAND_M;
        return tile;
    }
}

/* t, or the next of this cluster's tiles that is wanted. */
template <class Epilogue>
__device__ __forceinline__ int next_tile(const gemm_shape &s, const typename Epilogue::args &p,
                                         const gemm_smem &r, int t)
{
    if constexpr (!Epilogue::GROUPED)
        while (t < r.tiles && !Epilogue::wanted(p, find_tile(s, t, r.mt, r.nt).m))
            t += r.clusters;
    return t;
}

template <class Epilogue, bool B_OUT>
__device__ __forceinline__ void load_tiles(const gemm_shape &s, const typename Epilogue::args &p,
                                           const gemm_smem &r, const CUtensorMap *map_a,
                                           const CUtensorMap *map_b)
{
    /* either half is of columns n0 on */
    const int skip = Epilogue::TWO_FACTORS ? HALF_N * r.rank : 0;
    ring_at<STAGES> at = {0, 1};
    for (int t = next_tile<Epilogue>(s, p, r, r.first); t < r.tiles;
         t = next_tile<Epilogue>(s, p, r, t + r.clusters)) {
        tile_at tile = tile_of<Epilogue>(s, r, t);
        int m0 = tile.m + r.rank * TILE_M, n0 = tile.n * tile_wide<Epilogue>() - skip;
        for (int i = 0; i < r.steps; i++, at.step()) {
            uint32_t bar = r.full + 8 * at.slot, to = r.stages + at.slot * STAGE;
            bar_wait(r.empty + 8 * at.slot, at.parity);
            bar_expect(bar, STAGE);
            tma_load(to, map_a, i * 64, m0, 0, 0, bar);
            tma_load(to + SLAB, map_a, i * 64, m0 + 64, 0, 0, bar);
#pragma unroll
            for (int j = 2 * r.rank; j < 2 * r.rank + 2; j++)
                tma_load_to_all(to + (2 + j) * SLAB, map_b, B_OUT ? n0 + 64 * j : i * 64,
                                B_OUT ? i * 64 : n0 + 64 * j, tile.which, 0, bar, 3);
        }
    }
}

/* Half of a tile's sums, rounded, two to a word: word 8 c + 4 h + i has columns 32 c + 8 i + 2 q
 * and the next, of row l / 4 + 8 h (lane l = 4 (l / 4) + q). */
__device__ __forceinline__ void put_aside(uint32_t v[64], int half, const float d[64])
{
#pragma unroll
    for (int j = 0; j < 16; j++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            v[32 * half + j / 4 * 8 + 4 * h + j % 4] =
                pack2(d[4 * j + 2 * h], d[4 * j + 2 * h + 1]);
}

template <class Epilogue, bool B_OUT> struct multiplier {
    const gemm_shape &s;
    const typename Epilogue::args &p;
    const gemm_smem &r;
    int group, lane;
    Epilogue end;
    ring_at<STAGES> at;
    float lo[64], hi[64]; /* columns 0 to 127 and from 128 on */
    uint64_t da, db;
    int m0, n0; /* of the tile that is multiplied */

    __device__ __forceinline__ void next_stage()
    {
        bar_wait(r.full + 8 * at.slot, at.parity);
        uint32_t from = r.stages + at.slot * STAGE;
        da = describe_slab(from + group * SLAB, SLAB);
        db = describe_slab(from + 2 * SLAB, SLAB);
        __syncwarp();
        wgmma_fence();
    }
    /* The stage before this one, to both blocks that load it. */
    __device__ __forceinline__ void leave_stage()
    {
        if (lane < PAIR)
            bar_arrive_at(r.empty + 8 * ((at.slot + STAGES - 1) % STAGES), lane);
    }
    __device__ __forceinline__ void multiply(float d[64], int half, int q, bool add)
    {
        const int step = B_OUT ? 2048 >> 4 : 32 >> 4;
        wgmma_n128<false, B_OUT>(d, da + q * (32 >> 4), db + half * (2 * SLAB >> 4) + q * step,
                                 add || q);
    }
    __device__ __forceinline__ void multiply_half(float d[64], int half, bool add)
    {
#pragma unroll
        for (int q = 0; q < 4; q++)
            multiply(d, half, q, add);
        wgmma_commit();
    }
    /* A step that is neither first nor last; with C below EIGHTHS, and with that eighth. */
    template <int C> __device__ __forceinline__ void middle_step()
    {
        if constexpr (C < EIGHTHS)
            end.template ready<C>(p);
        next_stage();
#pragma unroll
        for (int q = 0; q < 4; q++) {
            multiply(lo, 0, q, true);
            if constexpr (C < EIGHTHS)
                end.template part_of<C>(2 * q, p);
            multiply(hi, 1, q, true);
            if (q == 3)
                wgmma_commit();
            if constexpr (C < EIGHTHS)
                end.template part_of<C>(2 * q + 1, p);
        }
        wgmma_wait<1>();
        leave_stage();
        at.step();
    }
    template <int C> __device__ __forceinline__ void first_middle_steps(int apart)
    {
        if constexpr (C < EIGHTHS)
            if (C + 2 < r.steps) {
                middle_step<C>();
                if constexpr (Epilogue::SPREAD)
                    for (int i = 1; i < apart; i++)
                        middle_step<EIGHTHS>();
                first_middle_steps<C + 1>(apart);
            }
    }
    /* All eighths from `first` on: indices of registers must be known to the compiler. */
    template <int C> __device__ __forceinline__ void rest(int first)
    {
        if constexpr (C < EIGHTHS) {
            if (C >= first) {
                end.template ready<C>(p);
#pragma unroll
                for (int k = 0; k < 8; k++)
                    end.template part_of<C>(k, p);
            }
            rest<C + 1>(first);
        }
    }
    __device__ __forceinline__ void look_up(int t)
    {
        tile_at tile = tile_of<Epilogue>(s, r, t);
        m0 = tile.m + r.rank * TILE_M + group * 64, n0 = tile.n * tile_wide<Epilogue>();
        if constexpr (Epilogue::GROUPED)
            end.within(tile);
        end.begin(p, m0, n0);
    }
    /* Ends tile t, of which the last step but one is under way; begins the next, unless there is
     * none. One half is put aside while the other is multiplied. */
    __device__ __forceinline__ bool change_tile(int &t)
    {
        next_stage();
        multiply_half(lo, 0, true);
        wgmma_wait<1>();
        leave_stage();
        wgmma_fence();
        multiply_half(hi, 1, true);
        rest<0>(r.steps - 2);
        at.step();
        end.place(p, m0, n0);
        wgmma_wait<1>();
        settle(lo);
        end.take(0, lo, p);
        wgmma_wait<0>();
        leave_stage();
        settle(hi);
        t = next_tile<Epilogue>(s, p, r, t + r.clusters);
        if (t >= r.tiles)
            return false;
        next_stage();
        multiply_half(lo, 0, false);
        end.take(1, hi, p);
        wgmma_fence();
        multiply_half(hi, 1, false);
        return true;
    }
    __device__ __forceinline__ void run()
    {
        int t = next_tile<Epilogue>(s, p, r, r.first);
        if (t >= r.tiles)
            return;
        next_stage();
        multiply_half(lo, 0, false);
        multiply_half(hi, 1, false);
        do {
            look_up(t);
            at.step();
            int apart = Epilogue::SPREAD ? max((r.steps - 2) / EIGHTHS, 1) : 1;
            first_middle_steps<0>(apart);
            for (int i = 1 + EIGHTHS * apart; i + 1 < r.steps; i++)
                middle_step<EIGHTHS>();
        } while (change_tile(t));
        end.take(1, hi, p);
        rest<0>(0);
    }
};

template <class Epilogue, bool B_OUT>
__global__ __launch_bounds__(GEMM_THREADS, 1) void gemm_kernel(
    const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
    const __grid_constant__ typename Epilogue::maps more, const gemm_shape s,
    const typename Epilogue::args p)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ char room_any[];
    gemm_smem r;
    r.stages = ((uint32_t)__cvta_generic_to_shared(room_any) + 1023) & ~1023u;
    r.spare = r.stages + STAGES * STAGE;
    r.full = r.spare + Epilogue::SMEM_BYTES, r.empty = r.full + 8 * STAGES;
    r.rank = cluster_rank();
    r.mt = (s.m + BAND_M - 1) / BAND_M,
    r.nt = (s.n + tile_wide<Epilogue>() - 1) / tile_wide<Epilogue>();
    r.steps = (s.k + 63) / 64, r.clusters = gridDim.x / PAIR, r.first = blockIdx.x / PAIR;
    r.tiles = r.mt * r.nt;
    int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
    if (!Epilogue::wanted(p, -1))
        return;
    if constexpr (Epilogue::GROUPED)
        r.tiles = Epilogue::count(s, p, r);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            bar_init(r.full + 8 * i, 1);
            bar_init(r.empty + 8 * i, 4 * GROUPS * PAIR);
        }
        Epilogue::prepare(r);
        bar_ready();
    }
    cluster_sync();
    if (group == GROUPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"((int)Epilogue::LOADER_REGISTERS));
        if (threadIdx.x == GROUPS * 128)
            load_tiles<Epilogue, B_OUT>(s, p, r, &map_a, factor_of<Epilogue>(r, &map_b, more));
        if constexpr (Epilogue::HELPERS) {
            int helper = (int)(threadIdx.x / 32) - 4 * GROUPS - 1;
            if (helper >= 0 && helper < Epilogue::HELPERS)
                Epilogue::help(s, p, more, r, helper);
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"((int)Epilogue::GROUP_REGISTERS));
        multiplier<Epilogue, B_OUT> m = {
            s, p, r, group, (int)(threadIdx.x & 31), Epilogue(r, group), {0, 0}};
        if constexpr (Epilogue::GROUPED)
            Epilogue::start(s, p, r);
        m.run();
    }
    cluster_sync(); /* no block exits while others write to its memory */
#endif
}

/* --- host --- */

template <class Epilogue>
static cudaLaunchConfig_t gemm_config(cudaLaunchAttribute *at, int64_t clusters)
{
    cudaLaunchConfig_t c = {};
    at->id = cudaLaunchAttributeClusterDimension;
    at->val.clusterDim = {PAIR, 1, 1};
    c.gridDim = dim3((unsigned)(PAIR * clusters)), c.blockDim = dim3(GEMM_THREADS);
    c.dynamicSmemBytes = gemm_shared<Epilogue>(), c.attrs = at, c.numAttrs = 1;
    return c;
}
template <class Epilogue, class Kernel> static int gemm_clusters(Kernel kernel)
{
    cudaLaunchAttribute at;
    cudaLaunchConfig_t c = gemm_config<Epilogue>(&at, 1);
    int clusters = 0;
    if (!made_for_hopper(kernel) ||
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             gemm_shared<Epilogue>()) != cudaSuccess ||
        cudaOccupancyMaxActiveClusters(&clusters, kernel, &c) != cudaSuccess)
        return 0;
    return clusters;
}
/* Clusters that run on the device at once; 0: not this device. Of the machine, not of a call;
 * to be asked before the first launch, which may be into a graph. */
template <class Epilogue, bool B_OUT> static int gemm_clusters_at_once()
{
    static const int clusters = gemm_clusters<Epilogue>(gemm_kernel<Epilogue, B_OUT>);
    return clusters;
}
template <class Epilogue> static int64_t gemm_tiles(int64_t m, int64_t n)
{
    return (m + BAND_M - 1) / BAND_M * ((n + tile_wide<Epilogue>() - 1) / tile_wide<Epilogue>());
}
/* On this device, and large enough: a few tiles are left to others, who split them better. */
template <class Epilogue, bool B_OUT> static bool gemm_suits(int64_t m, int64_t n, int64_t k)
{
    const int64_t most = 1 << 30, enough = 4;
    int clusters = gemm_clusters_at_once<Epilogue, B_OUT>();
    return clusters && n % 8 == 0 && k % 8 == 0 && k > 64 && m < most && n < most && k < most &&
           gemm_tiles<Epilogue>(m, n) >= enough * clusters;
}
/* Boxes of 64 x 64 of a dense bf16 matrix. */
static inline cudaError_t gemm_map(CUtensorMap *map, const void *at, int64_t rows, int64_t cols)
{
    return tma_map(map, {at, {cols, rows, 1, 1}, {cols, rows * cols, rows * cols}}, 64);
}
/* A (m, k), B (n, k) or, B_OUT, (k, n), both dense. */
template <class Epilogue, bool B_OUT>
static cudaError_t gemm_launch(int64_t m, int64_t n, int64_t k, const void *a, const void *b,
                                  const typename Epilogue::args &p, cudaStream_t stream,
                                  const typename Epilogue::maps &more = {})
{
    CUtensorMap map_a, map_b;
    int clusters = gemm_clusters_at_once<Epilogue, B_OUT>();
    if (!clusters)
        return cudaErrorNotSupported;
    cudaError_t e = gemm_map(&map_a, a, m, k);
    if (e == cudaSuccess)
        e = B_OUT ? gemm_map(&map_b, b, k, n) : gemm_map(&map_b, b, n, k);
    if (e != cudaSuccess)
        return e;
    int64_t tiles = gemm_tiles<Epilogue>(m, n);
    gemm_shape shape = {(int)m, (int)n, (int)k, (clusters + 2) / 3};
    cudaLaunchAttribute at;
    cudaLaunchConfig_t c = gemm_config<Epilogue>(&at, tiles < clusters ? tiles : clusters);
    c.stream = stream;
    return cudaLaunchKernelEx(&c, gemm_kernel<Epilogue, B_OUT>, map_a, map_b, more, shape, p);
}

/* The same of either B. */
template <class Epilogue> static bool epilogue_suits(const mx_epilogue_gemm *s)
{
    return s->b_outside ? gemm_suits<Epilogue, true>(s->m, s->n, s->k)
                        : gemm_suits<Epilogue, false>(s->m, s->n, s->k);
}
template <class Epilogue>
static cudaError_t ended_launch(const mx_epilogue_gemm *s, const void *a, const void *b,
                                const typename Epilogue::args &p, cudaStream_t stream,
                                const typename Epilogue::maps &more = {})
{
    return s->b_outside
               ? gemm_launch<Epilogue, true>(s->m, s->n, s->k, a, b, p, stream, more)
               : gemm_launch<Epilogue, false>(s->m, s->n, s->k, a, b, p, stream, more);
}

#endif
