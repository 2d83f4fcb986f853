/* grouped_hopper.cu - one GEMM per expert on Hopper, all of them in one persistent kernel
 * (hopper_gemm.cuh): TMA loads, two blocks that share the weight, and an epilogue that goes on
 * beside the next tile's main loop, be it another expert's.
 *
 *     y (rows, n) = x (rows, k) w_e (n, k)^T, or w_e (k, n)
 *
 * An expert's rows fall into bands of 256. How many there are is known on the device only: every
 * block adds them up from the starts into a table in shared memory, in which tile t is searched
 * for. A band that reaches past its expert's rows multiplies rows of the next one too; they are not
 * stored.
 */
#include "device/cuda/gemm/hopper_gemm.cuh"
#include "device/cuda/moe/moe_kernels.h"

enum { MOST_EXPERTS = 1024 };

struct grouped_args {
    const int32_t *start;
    uint16_t *y;
    int experts, n;
};

/* The table: the first row of expert e at 8 e, the bands of those before it at 8 e + 4; after the
 * last expert the end of its rows and all bands. */
struct grouped_epilogue : gemm_epilogue {
    typedef grouped_args args;
    enum { GROUPED = true, SMEM_BYTES = 8 * (MOST_EXPERTS + 1) + 1016 };
    uint32_t v[64];
    int64_t at;  /* of this lane's first 16 bytes */
    int left[2]; /* columns from there on, of its row and the one 8 below; 0: not stored */
    int to;      /* the end of the rows of the tile under way */

    static __device__ __forceinline__ bool wanted(const args &, int)
    {
        return true;
    }
    __device__ grouped_epilogue(const gemm_smem &, int)
    {
        at = 0, left[0] = left[1] = 0, to = 0; /* nothing aside yet */
    }

    /* --- which tiles there are --- */

    /* The first rows, by one warp: starts that fall or leave the rows count as far as they make
     * sense. */
    static __device__ __forceinline__ void first_rows(const gemm_shape &s, const args &p,
                                                      const gemm_smem &r)
    {
        int lane = threadIdx.x & 31, end = 0;
        for (int e0 = 0; e0 <= p.experts; e0 += 32) {
            int from = e0 + lane <= p.experts ? min(p.start[e0 + lane], s.m) : 0;
            from = max(from, end);
            for (int o = 1; o < 32; o *= 2) {
                int before = __shfl_up_sync(~0u, from, o);
                from = lane >= o ? max(from, before) : from;
            }
            if (e0 + lane <= p.experts)
                store_shared(r.spare + 8 * (e0 + lane), from);
            end = __shfl_sync(~0u, from, 31);
        }
        __syncwarp();
    }
    static __device__ __forceinline__ void add_bands(const args &p, const gemm_smem &r)
    {
        int lane = threadIdx.x & 31, all = 0;
        for (int e0 = 0; e0 <= p.experts; e0 += 32) {
            uint32_t own = r.spare + 8 * (e0 + lane);
            int bands = 0;
            if (e0 + lane < p.experts)
                bands = (load_shared(own + 8) - load_shared(own) + BAND_M - 1) / BAND_M;
            int sum = bands;
            for (int o = 1; o < 32; o *= 2) {
                int before = __shfl_up_sync(~0u, sum, o);
                sum += lane >= o ? before : 0;
            }
            if (e0 + lane <= p.experts)
                store_shared(own + 4, all + sum - bands);
            all += __shfl_sync(~0u, sum, 31);
        }
    }
    static __device__ __forceinline__ int count(const gemm_shape &s, const args &p,
                                                const gemm_smem &r)
    {
        if (threadIdx.x < 32) {
            first_rows(s, p, r);
            add_bands(p, r);
        }
        __syncthreads();
        return load_shared(r.spare + 8 * p.experts + 4) * r.nt;
    }
    /* The last expert that begins no later than band t / nt; of one without rows the next does too.
     */
    static __device__ __forceinline__ tile_at find(const gemm_shape &s, const gemm_smem &r, int t)
    {
        int band = t / r.nt, low = 0, high = s.group;
        while (high - low > 1) {
            int mid = (low + high) / 2;
            if (load_shared(r.spare + 8 * mid + 4) <= band)
                low = mid;
            else
                high = mid;
        }
        uint32_t own = r.spare + 8 * low;
        int first = load_shared(own + 4), bands = load_shared(own + 12) - first;
        int within = t - first * r.nt;
        return {load_shared(own) + within % bands * BAND_M, within / bands, low,
                load_shared(own + 8)};
    }
    /* Rows of no expert become zeros. */
    static __device__ __forceinline__ void start(const gemm_shape &s, const args &p,
                                                 const gemm_smem &r)
    {
        int64_t low = (int64_t)load_shared(r.spare) * p.n;
        int64_t from = (int64_t)load_shared(r.spare + 8 * p.experts) * p.n;
        int64_t end = (int64_t)s.m * p.n, step = (int64_t)gridDim.x * GROUPS * 128 * 8;
        int64_t own = ((int64_t)blockIdx.x * GROUPS * 128 + threadIdx.x) * 8;
        for (int64_t i = own; i < low; i += step)
            store8(p.y + i, make_uint4(0, 0, 0, 0));
        for (int64_t i = from + own; i < end; i += step)
            store8(p.y + i, make_uint4(0, 0, 0, 0));
    }

    /* --- a tile --- */

    __device__ __forceinline__ void within(const tile_at &tile)
    {
        to = tile.to;
    }
    __device__ __forceinline__ void begin(const args &, int, int) {}
    __device__ __forceinline__ void place(const args &p, int m0, int n0)
    {
        int q = threadIdx.x & 3, row = m0 + sum_row();
        at = (int64_t)row * p.n + n0 + 8 * q;
        left[0] = row < to ? p.n - n0 - 8 * q : 0;
        left[1] = row + 8 < to ? p.n - n0 - 8 * q : 0;
    }
    __device__ __forceinline__ void take(int half, const float d[64], const args &)
    {
        put_aside(v, half, d);
    }
    /* Portions 0 to 3 are of the lane's row, 4 to 7 of the one 8 below. */
    template <int C> __device__ __forceinline__ void part_of(int k, const args &p)
    {
        int h = k / 4;
        uint32_t *w = &v[8 * C + 4 * h];
        if (k % 4 == 0)
            exchange_part<1>(w);
        if (k % 4 == 1)
            exchange_part<2>(w);
        if (k % 4 == 2 && left[h] > 32 * C)
            store8(p.y + at + 32 * C + (h ? 8 * (int64_t)p.n : 0),
                   make_uint4(w[0], w[1], w[2], w[3]));
    }
};

template <bool B_OUT> static int grouped_clusters()
{
    return gemm_clusters_at_once<grouped_epilogue, B_OUT>();
}

/* Few tiles a cluster, bands that are mostly empty and columns of which a third or more would be
 * multiplied in vain are left to the other kernel. */
bool mx_cuda_grouped_is_hopper(const mx_grouped_call *g)
{
    const int64_t most = 1 << 30, enough = 2;
    if (g->kind == MX_GROUPED_TN || g->out_f32 || !mx_cuda_grouped_is_tiled(g))
        return false;
    int clusters = g->kind == MX_GROUPED_NN ? grouped_clusters<true>() : grouped_clusters<false>();
    int64_t wide = (g->n + TILE_N - 1) / TILE_N;
    bool fills = 2 * wide * TILE_N <= 3 * g->n;
    return clusters && fills && g->experts <= MOST_EXPERTS && g->k > 64 && g->rows < most &&
           g->n < most &&
           g->rows >= g->experts * 2 * BAND_M && g->rows / BAND_M * wide >= enough * clusters;
}

template <bool B_OUT> static cudaError_t launch(const mx_grouped_call *g, cudaStream_t stream)
{
    CUtensorMap map_a, map_b;
    int clusters = grouped_clusters<B_OUT>();
    int64_t inner = B_OUT ? g->n : g->k, outer = B_OUT ? g->k : g->n, each = g->n * g->k;
    if (!clusters)
        return cudaErrorNotSupported;
    cudaError_t e = gemm_map(&map_a, g->a, g->rows, g->k);
    if (e == cudaSuccess)
        e = tma_map(&map_b, {g->b, {inner, outer, g->experts, 1}, {inner, each, each * g->experts}},
                    64);
    if (e != cudaSuccess)
        return e;
    gemm_shape s = {(int)g->rows, (int)g->n, (int)g->k, (int)g->experts};
    grouped_args p = {g->start, (uint16_t *)g->y, (int)g->experts, (int)g->n};
    cudaLaunchAttribute at;
    cudaLaunchConfig_t c = gemm_config<grouped_epilogue>(&at, clusters);
    c.stream = stream;
    return cudaLaunchKernelEx(&c, gemm_kernel<grouped_epilogue, B_OUT>, map_a, map_b,
                              grouped_epilogue::maps(), s, p);
}

cudaError_t mx_cuda_grouped_hopper(const mx_grouped_call *g, cudaStream_t stream)
{
    return g->kind == MX_GROUPED_NN ? launch<true>(g, stream) : launch<false>(g, stream);
}
