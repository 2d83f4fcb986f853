/* paged_cluster.cu - paged attention of one token, in one launch: a key head is a cluster's. Its
 * warps take a leaf each, in turn, and merge them when all are there. The arithmetic, and so the
 * bits, are those of paged_single.cuh, without its list of work. */
#include "device/cuda/attention/paged_single.cuh"
#include "device/cuda/core/tma.cuh"

enum { CLUSTER = 8, WARPS = 4, STAGES = 5 };

/* The leaf of positions [begin, end]. */
template <int D>
__device__ __forceinline__ void take_leaf(const mx_cuda_paged &p, softmax_rows<D> &s,
                                          uint16_t *tiles, const head_group &h, int begin, int end)
{
    constexpr int TILE_SIZE = 2 * KEYS * (D + 8);
    const int32_t *table = p.table + (int64_t)p.row[0] * p.columns;
    const int x0 = begin / KEYS * KEYS, steps = (end - x0) / KEYS + 1;
    const limits see = {{begin, begin}, {end, end}};
    unsigned there = 0; /* bit of a stage: its page is one of the pool's */
    int slots = -1;     /* of 32 steps, a lane each */
    auto copy = [&](int i) {
        if (i < steps) {
            if (i % 32 == 0)
                slots = (int)slot_of(p, table, x0 + (i + (threadIdx.x & 31)) * KEYS);
            const int stage = i % STAGES, slot = __shfl_sync(~0u, slots, i % 32);
            there = (there & ~(1u << stage)) | (unsigned)(slot >= 0) << stage;
            copy_step<D>(p, tiles + stage * TILE_SIZE, slot, h.kh, x0 + i * KEYS, end);
        }
        commit_copies();
    };
    uint32_t q[D / 16][4];
    for (int i = 0; i < STAGES - 1; i++)
        copy(i);
    load_queries<D>(p, q, h, 0, 1);
    s.clear();
    for (int i = 0; i < steps; i++) {
        const uint16_t *k = tiles + i % STAGES * TILE_SIZE;
        wait_copies<STAGES - 2>();
        __syncwarp();
        if (there >> i % STAGES & 1)
            take_keys<D>(p, s, q, k, k + KEYS * (D + 8), x0 + i * KEYS, see);
        __syncwarp();
        copy(i + STAGES - 1);
    }
    s.sum();
}

template <int D>
__global__ void __launch_bounds__(32 * WARPS)
    cluster_kernel(const __grid_constant__ mx_cuda_paged p)
{
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(16) uint16_t tiles[];
    const int warp = threadIdx.x / 32, mine = warp * CLUSTER + (int)blockIdx.x;
    const token_list tokens = {p.positions, p.row, p.queries, p.rows, p.places};
    const head_group h = heads_of(p, blockIdx.y / p.parts, blockIdx.y % p.parts);
    let_next_start();
    wait_for_previous();
    if (!tokens.sees_any(0)) {
        for (int i = threadIdx.x; i < h.n * D / 2 && blockIdx.x == 0; i += 32 * WARPS)
            ((uint32_t *)p.out)[h.first * D / 2 + i] = 0;
        return;
    }
    const int at = p.positions[0], lo = (int)first_seen(p, at), leaves = leaves_seen(p, at);
    for (int i = mine; i < leaves; i += CLUSTER * WARPS) {
        const int from = (lo / p.leaf + i) * p.leaf;
        softmax_rows<D> s;
        take_leaf<D>(p, s, tiles + warp * STAGES * 2 * KEYS * (D + 8), h, max(lo, from),
                     min(at, from + p.leaf - 1));
        store_part<D>(p, s, h, 0, i);
    }
    cluster_sync();
    for (int i = mine; i < h.n * (D / 64); i += CLUSTER * WARPS)
        merge_leaves<D, 1>(p, 0, 0, h.first + i / (D / 64), leaves, i % (D / 64) * 64);
#endif
}

template <int D> static cudaError_t launch(const mx_cuda_paged &p, cudaStream_t stream)
{
    const dim3 grid(CLUSTER, (unsigned)(p.k_heads * p.parts));
    const size_t bytes = sizeof(uint16_t) * WARPS * STAGES * 2 * KEYS * (D + 8);
    cudaError_t e = allow_shared(cluster_kernel<D>, bytes);
    return e != cudaSuccess
               ? e
               : launch_config({grid, 32 * WARPS, bytes, stream}, CLUSTER, cluster_kernel<D>, p);
}

/* Several tokens, or one with many leaves, keep more of the chip busy by a list. */
bool mx_cuda_paged_cluster_is_possible(const mx_cuda_paged *p)
{
    enum { SHORT = 16384 };
    int device = 0, major = 0;
    return p->queries == 1 && (int64_t)p->page * p->columns <= SHORT &&
           cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) ==
               cudaSuccess &&
           major >= 9;
}

cudaError_t mx_cuda_paged_cluster(const mx_cuda_paged *p, cudaStream_t stream)
{
    return p->qk_dim == 64 ? launch<64>(*p, stream) : launch<128>(*p, stream);
}
