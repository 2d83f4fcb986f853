/* grouped_tiled.cu - one GEMM per expert on the tensor cores: bf16 operands, float sums.
 *
 * A block makes a tile of 128 x 256, going through k in steps of 64. Pieces of 16 bytes come from
 * memory with cp.async, which fills what lies outside (an expert's last rows, the end of a width)
 * with zeros and thus needs no borders in the arithmetic; several steps are under way at once.
 *
 * An operand lies in shared memory in slabs of 128-byte rows with the 128-byte swizzle (16-byte
 * piece ^ row % 8), which ldmatrix reads without bank conflicts and wgmma takes as it is, so one
 * loader serves both:
 *     k inside  (x; w of NT)         one slab, a row for each of the 128 or 256 rows, 64 of k
 *     k outside (w of NN; all of TN) a slab for each 64 columns, a row for each of the 64 k
 * On Hopper two groups of four warps each multiply 64 x 256 straight from shared memory (wgmma),
 * one step behind the loads. Elsewhere eight warps have 64 x 64 each (mma.sync).
 */
#include "device/cuda/attention/flash.cuh"
#include "device/cuda/moe/grouped.cuh"
#include "device/cuda/core/wgmma.cuh"

enum { BM = 128, BN = 256, BK = 64, THREADS = 256 };
enum { A_BYTES = BM * BK * 2, B_BYTES = BN * BK * 2, STAGE = A_BYTES + B_BYTES, SLAB = BK * 128 };
enum { HOPPER_STAGES = 4, OTHER_STAGES = 2, ALIGN = 1024 };

struct tiled_call {
    grouped_shape s;
    const uint16_t *a, *b;
    void *y;
    bool out_f32;
};

/* --- from memory to shared memory --- */

/* What one thread loads of an operand: R / 32 pieces of 16 bytes a step. */
template <int R, bool K_OUTSIDE> struct loader {
    const uint16_t *base, *at;
    int64_t ld;
    uint32_t in; /* bit j: piece j lies inside the width or the rows */

    __device__ loader(const uint16_t *p, int64_t ld_, int limit) : base(p), ld(ld_), in(0)
    {
        int row = threadIdx.x / 8, col = threadIdx.x % 8 * 8;
        at = p + row * ld + col;
#pragma unroll
        for (int j = 0; j < R / 32; j++)
            in |= (uint32_t)(K_OUTSIDE ? (j >> 1) * 64 + col < limit : row + 32 * j < limit) << j;
    }
    /* The next 64 of k, of which k_left are there, to shared address `to`. */
    __device__ __forceinline__ void next(uint32_t to, int k_left)
    {
        int row = threadIdx.x / 8, piece = threadIdx.x % 8;
        to += row * 128 + ((piece ^ (row & 7)) << 4);
#pragma unroll
        for (int j = 0; j < R / 32; j++) {
            bool ok = in >> j & 1 && (K_OUTSIDE ? row + (j & 1) * 32 : piece * 8) < k_left;
            const uint16_t *from =
                at + (K_OUTSIDE ? (j & 1) * 32 * ld + (j >> 1) * 64 : 32 * j * ld);
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to + j * 4096),
                         "l"(ok ? from : base), "r"(ok ? 16 : 0));
        }
        at += K_OUTSIDE ? BK * ld : BK;
    }
};
__device__ __forceinline__ void loads_commit()
{
    asm volatile("cp.async.commit_group;");
}
/* Until at most N commits are under way. */
template <int N> __device__ __forceinline__ void loads_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N));
}

/* --- mma.sync --- */

__device__ __forceinline__ void load_fragment(uint32_t r[4], uint32_t at, bool transposed)
{
    if (transposed)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at));
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at));
}
/* Where this lane reads its row of the 16 x 16 part at (first, k) of an operand. `lo`: which lanes
 * have the upper half in the operand's own direction, `hi`: in k. */
template <bool K_OUTSIDE>
__device__ __forceinline__ uint32_t fragment_at(uint32_t factor, int first, int k, int lo, int hi)
{
    int lane = threadIdx.x & 31;
    int i = first + (lane >> lo & 1) * 8, q = k + (lane >> hi & 1) * 8;
    int row = (K_OUTSIDE ? q : i) + (lane & 7), piece = (K_OUTSIDE ? i & 63 : q) >> 3;
    return factor + (K_OUTSIDE ? (i >> 6) * SLAB : 0) + row * 128 + ((piece ^ (row & 7)) << 4);
}
template <bool A_OUT, bool B_OUT>
__device__ __forceinline__ void multiply_step(float acc[4][8][4], uint32_t a, uint32_t b)
{
    int warp = threadIdx.x / 32, m = warp / 4 * 64, n = warp % 4 * 64;
#pragma unroll
    for (int k = 0; k < BK; k += 16) {
        uint32_t af[4][4], bf[4][4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            load_fragment(af[i], fragment_at<A_OUT>(a, m + 16 * i, k, 3, 4), A_OUT);
            load_fragment(bf[i], fragment_at<B_OUT>(b, n + 16 * i, k, 4, 3), B_OUT);
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 8; j++)
                mma(acc[i][j], af[i], bf[j / 2][j % 2 * 2], bf[j / 2][j % 2 * 2 + 1]);
    }
}

/* --- the kernel --- */

/* Columns c and c + 1 of row r of the tile. */
__device__ __forceinline__ void store_two(const tiled_call &p, int64_t y0, int r, int c, int rows,
                                          int cols, float x, float y)
{
    if (r >= rows || c >= cols)
        return;
    int64_t at = y0 + (int64_t)r * p.s.n + c;
    if (p.out_f32)
        *(float2 *)((float *)p.y + at) = make_float2(x, y);
    else
        *(uint32_t *)((uint16_t *)p.y + at) = pack2(x, y);
}

/* A warp's 16 x 256 sums: floats as they are, bf16 through shared memory in rows of 512 bytes. */
__device__ __forceinline__ void store_band(const tiled_call &p, const float d[128], char *shared,
                                           int64_t y0, int rows, int cols)
{
    enum { PITCH = BN + 8 };
    int warp = threadIdx.x / 32, lane = threadIdx.x & 31, r = lane / 4, c = lane % 4 * 2;
    if (p.out_f32) {
#pragma unroll
        for (int j = 0; j < 32; j++) {
            int i = warp * 16 + r;
            store_two(p, y0, i, 8 * j + c, rows, cols, d[4 * j], d[4 * j + 1]);
            store_two(p, y0, i + 8, 8 * j + c, rows, cols, d[4 * j + 2], d[4 * j + 3]);
        }
        return;
    }
    uint16_t *band = (uint16_t *)shared + warp * 16 * PITCH;
#pragma unroll
    for (int j = 0; j < 32; j++) {
        *(uint32_t *)(band + r * PITCH + 8 * j + c) = pack2(d[4 * j], d[4 * j + 1]);
        *(uint32_t *)(band + (r + 8) * PITCH + 8 * j + c) = pack2(d[4 * j + 2], d[4 * j + 3]);
    }
    __syncwarp();
    for (int i = 0; i < 16; i++)
        if (warp * 16 + i < rows && lane * 8 < cols)
            store8((uint16_t *)p.y + y0 + (int64_t)(warp * 16 + i) * p.s.n + lane * 8,
                   load8(band + i * PITCH + lane * 8));
}

template <mx_grouped_kind KIND, bool WGMMA>
__global__ __launch_bounds__(THREADS, 1) void tiled_kernel(tiled_call p)
{
#if !defined(__CUDA_ARCH_FEAT_SM90_ALL)
    if (WGMMA)
        __trap(); /* mx_cuda_grouped_tiled does not ask for it here */
#endif
    constexpr bool TN = KIND == MX_GROUPED_TN, B_OUT = KIND != MX_GROUPED_NT;
    constexpr int STAGES = WGMMA ? HOPPER_STAGES : OTHER_STAGES, AHEAD = WGMMA ? 2 : STAGES - 1;
    extern __shared__ char shared_any[];
    char *shared = (char *)(((uintptr_t)shared_any + ALIGN - 1) / ALIGN * ALIGN);
    uint32_t smem = (uint32_t)__cvta_generic_to_shared(shared);
    grouped_tile g;
    if (TN)
        find_sum_tile(g, p.s, blockIdx.x, BM, BN);
    else if (!find_row_tile(g, p.s, blockIdx.x, BM, BN))
        return;
    int k = TN ? g.to - g.from : g.expert < 0 ? 0 : p.s.k;
    int rows = TN ? p.s.m - g.m0 : g.to - g.from - g.m0, cols = p.s.n - g.n0;
    int64_t y0 = (TN ? (int64_t)g.expert * p.s.m + g.m0 : (int64_t)g.from + g.m0) * p.s.n + g.n0;
    int64_t w = g.expert < 0 ? 0 : (int64_t)g.expert * p.s.n * p.s.k;
    loader<BM, TN> a(TN ? p.a + (int64_t)g.from * p.s.m + g.m0
                        : p.a + (int64_t)(g.from + g.m0) * p.s.k, TN ? p.s.m : p.s.k, rows);
    loader<BN, B_OUT> b(TN      ? p.b + (int64_t)g.from * p.s.n + g.n0
                        : B_OUT ? p.b + w + g.n0
                                : p.b + w + (int64_t)g.n0 * p.s.k, B_OUT ? p.s.n : p.s.k, cols);
    int steps = (k + BK - 1) / BK;
    auto load = [&](int t) {
        if (t < steps) {
            uint32_t to = smem + t % STAGES * STAGE;
            a.next(to, k - t * BK);
            b.next(to + A_BYTES, k - t * BK);
        }
        loads_commit();
    };
    for (int t = 0; t < AHEAD; t++)
        load(t);
    if constexpr (WGMMA) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
        float d[128];
        for (int i = 0; i < 128 && !steps; i++)
            d[i] = 0;
        for (int t = 0; t < steps; t++) {
            loads_wait<AHEAD - 1>();
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            __syncthreads(); /* step t is there, and step t - 2 is read */
            uint32_t at = smem + t % STAGES * STAGE;
            uint64_t da = describe_slab(at + threadIdx.x / 128 * SLAB, SLAB);
            uint64_t db = describe_slab(at + A_BYTES, SLAB);
            wgmma_fence();
#pragma unroll
            for (int q = 0; q < BK / 16; q++)
                wgmma<TN, B_OUT>(d, da + q * (TN ? 2048 >> 4 : 32 >> 4),
                                 db + q * (B_OUT ? 2048 >> 4 : 32 >> 4), t || q);
            wgmma_commit();
            load(t + AHEAD);
            wgmma_wait<1>();
        }
        wgmma_wait<0>();
        __syncthreads();
        store_band(p, d, shared, y0, rows, cols);
#endif
    } else {
        float d[4][8][4] = {};
        for (int t = 0; t < steps; t++) {
            loads_wait<AHEAD - 1>();
            __syncthreads(); /* step t is there, and step t - 1 is read */
            load(t + AHEAD);
            uint32_t at = smem + t % STAGES * STAGE;
            multiply_step<TN, B_OUT>(d, at, at + A_BYTES);
        }
        int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
        int r = warp / 4 * 64 + lane / 4, c = warp % 4 * 64 + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 8; j++) {
                store_two(p, y0, r + 16 * i, c + 8 * j, rows, cols, d[i][j][0], d[i][j][1]);
                store_two(p, y0, r + 16 * i + 8, c + 8 * j, rows, cols, d[i][j][2], d[i][j][3]);
            }
    }
}

template <mx_grouped_kind KIND, bool WGMMA>
static cudaError_t launch(const mx_grouped_call *g, cudaStream_t stream)
{
    int bytes = (WGMMA ? HOPPER_STAGES : OTHER_STAGES) * STAGE + ALIGN;
    cudaError_t e = cudaFuncSetAttribute(tiled_kernel<KIND, WGMMA>,
                                         cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    unsigned blocks = (unsigned)grouped_blocks(g, BM, BN);
    tiled_call p = {grouped_shape_of(g), (const uint16_t *)g->a, (const uint16_t *)g->b, g->y,
                    g->out_f32};
    if (e == cudaSuccess && blocks)
        tiled_kernel<KIND, WGMMA><<<blocks, THREADS, bytes, stream>>>(p);
    return e == cudaSuccess ? cudaGetLastError() : e;
}

bool mx_cuda_grouped_is_tiled(const mx_grouped_call *g)
{
    bool wide = g->n % 8 == 0 && (g->kind == MX_GROUPED_TN ? g->m : g->k) % 8 == 0;
    return !g->in_f32 && wide && ((uintptr_t)g->a | (uintptr_t)g->b | (uintptr_t)g->y) % 16 == 0;
}

cudaError_t mx_cuda_grouped_tiled(const mx_grouped_call *g, bool wgmma, cudaStream_t stream)
{
    switch (g->kind) {
    case MX_GROUPED_NT:
        return wgmma ? launch<MX_GROUPED_NT, true>(g, stream)
                     : launch<MX_GROUPED_NT, false>(g, stream);
    case MX_GROUPED_NN:
        return wgmma ? launch<MX_GROUPED_NN, true>(g, stream)
                     : launch<MX_GROUPED_NN, false>(g, stream);
    default:
        return wgmma ? launch<MX_GROUPED_TN, true>(g, stream)
                     : launch<MX_GROUPED_TN, false>(g, stream);
    }
}

cudaError_t mx_cuda_grouped(const mx_grouped_call *g, cudaStream_t stream)
{
    if (!mx_cuda_grouped_is_tiled(g))
        return mx_cuda_grouped_plain(g, stream);
    if (g->kind != MX_GROUPED_TN && g->rows <= MX_GROUPED_FEW)
        return mx_cuda_grouped_few(g, stream);
    if (mx_cuda_grouped_is_hopper(g))
        return mx_cuda_grouped_hopper(g, stream);
    /* of the machine, not of the call */
    static const bool wgmma = made_for_hopper(tiled_kernel<MX_GROUPED_NT, true>);
    return mx_cuda_grouped_tiled(g, wgmma, stream);
}
