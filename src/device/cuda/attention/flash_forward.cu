/* flash_forward.cu - attention forward on the tensor cores. See flash.h for what it computes.
 *
 * A block of four warps owns 64 queries of one head, a warp 16 of them; keys come in tiles of 64.
 * The values of a tile travel while its scores are formed, the next tile's keys while the values
 * are used. The softmax is kept running: m the largest score so far, l the sum of exp(s - m), O
 * rescaled when m grows. Tiles wholly outside the mask are never visited; tiles wholly inside skip
 * the mask.
 */
#include "device/cuda/attention/flash.cuh"
#include "device/cuda/attention/flash_hopper.h"

struct fwd_params {
    mx_flash_shape s;
    mx_flash_args a;
    mask_rule rule;
    score_rule score;
};

/* Scores of one warp's 16 x 64 tile, in units of log2: capped, masked. */
__device__ __forceinline__ void finish_scores(float c[8][4], const fwd_params &p,
                                              const token_info q[2], const token_info *keys,
                                              bool full)
{
    int lane = threadIdx.x & 31;
    if (full && p.score.cap == 0) { /* most tiles of most models */
        float s = p.score.scale * LOG2E;
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                c[n][e] *= s;
        return;
    }
    float derivative;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            c[n][e] = score(p.score, c[n][e], derivative) * LOG2E;
    if (full)
        return;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int f = 0; f < 2; f++) {
            token_info key = keys[n * 8 + lane % 4 * 2 + f];
            c[n][f] = visible(p.rule, q[0], key) ? c[n][f] : -INFINITY;
            c[n][f + 2] = visible(p.rule, q[1], key) ? c[n][f + 2] : -INFINITY;
        }
}

/* Folds a tile into the running softmax: c becomes probabilities, o and l are rescaled. */
template <int DV>
__device__ __forceinline__ void fold(float c[8][4], float (*o)[4], float m[2], float l[2])
{
    float up[2] = {m[0], m[1]}, sum[2] = {0, 0}, shrink[2], base[2];
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            up[e >> 1] = fmaxf(up[e >> 1], c[n][e]);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        up[r] = fmaxf(up[r], __shfl_xor_sync(~0u, up[r], 1));
        up[r] = fmaxf(up[r], __shfl_xor_sync(~0u, up[r], 2));
        base[r] = up[r] == -INFINITY ? 0.f : up[r]; /* nothing seen yet: keep exp2 at 0, not NaN */
        shrink[r] = exp2_fast(m[r] - base[r]);
        m[r] = up[r];
    }
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            c[n][e] = exp2_fast(c[n][e] - base[e >> 1]);
            sum[e >> 1] += c[n][e];
        }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
        sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
        l[r] = l[r] * shrink[r] + sum[r];
    }
#pragma unroll
    for (int n = 0; n < DV / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            o[n][e] *= shrink[e >> 1];
}

template <int D, int DV>
__global__ void __launch_bounds__(FLASH_THREADS)
    flash_forward_kernel(const __grid_constant__ fwd_params p)
{
    extern __shared__ uint16_t shared[];
    __shared__ token_info keys[TILE];
    uint16_t *sq = shared, *sk = sq + TILE * (D + 8), *sv = sk + TILE * (D + 8);
    const mx_flash_shape &s = p.s;
    /* the longest rows of a causal mask first, so that the last blocks are short ones */
    int q0 = (int)(gridDim.x - 1 - blockIdx.x) * TILE, h = blockIdx.y, b = blockIdx.z;
    int g = h / (s.heads_q / s.heads_kv), warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const uint16_t *qp = (const uint16_t *)p.a.q + b * s.q.batch + h * s.q.head + q0 * s.q.seq;
    const uint16_t *kp = (const uint16_t *)p.a.k + b * s.k.batch + g * s.k.head;
    const uint16_t *vp = (const uint16_t *)p.a.v + b * s.v.batch + g * s.v.head;
    int lo, hi;
    key_range(p.rule, s, b, q0, min(q0 + TILE, s.seq_q) - 1, lo, hi);
    int row = warp * 16 + lane / 4;
    token_info q[2];
    for (int r = 0; r < 2; r++)
        q[r] = query_at(p.a, s, b, q0 + row + 8 * r);
    float sink = p.a.sinks ? p.a.sinks[h] * LOG2E : -INFINITY;
    float o[DV / 8][4] = {}, m[2] = {sink, sink}, l[2] = {0, 0};
    if (p.a.sinks)
        l[0] = l[1] = 1; /* exp2(sink - m) */
    auto fetch_keys = [&](int k0) {
        tile_load<D>(sk, kp + k0 * s.k.seq, s.k.seq, s.seq_kv - k0, s.dim_qk);
        if (threadIdx.x < TILE)
            keys[threadIdx.x] = token_at(p.a.k_pos, p.a.k_seg, p.a.k_span, (int64_t)b * s.seq_kv,
                                         k0 + threadIdx.x, s.seq_kv);
    };
    tile_load<D>(sq, qp, s.q.seq, s.seq_q - q0, s.dim_qk);
    if (lo < hi)
        fetch_keys(lo);
    for (int k0 = lo; k0 < hi; k0 += TILE) {
        tile_wait();
        tile_load<DV>(sv, vp + k0 * s.v.seq, s.v.seq, s.seq_kv - k0, s.dim_v);
        float c[8][4] = {};
        gemm_nt<D>(c, sq, warp * 16, sk);
        finish_scores(c, p, q, keys, tile_full(p.rule, s, b, q0, k0));
        fold<DV>(c, o, m, l);
        tile_wait();
        if (k0 + TILE < hi)
            fetch_keys(k0 + TILE);
        gemm_nn<DV>(o, c, sv);
    }
    float inv[2] = {l[0] > 0 ? 1.f / l[0] : 0.f, l[1] > 0 ? 1.f / l[1] : 0.f};
    uint16_t *op = (uint16_t *)p.a.o + b * s.o.batch + h * s.o.head + q0 * s.o.seq;
    store_rows<DV>(op, s.o.seq, warp * 16, s.seq_q - q0, s.dim_v, o, inv[0], inv[1]);
    if (p.a.stats && lane % 4 == 0)
        for (int r = 0; r < 2; r++)
            if (q0 + row + 8 * r < s.seq_q)
                p.a.stats[((int64_t)b * s.heads_q + h) * s.seq_q + q0 + row + 8 * r] =
                    l[r] > 0 ? m[r] / LOG2E + logf(l[r]) : -INFINITY;
}

template <int D, int DV> static cudaError_t launch(const fwd_params &p, cudaStream_t stream)
{
    size_t bytes = (size_t)TILE * (2 * (D + 8) + DV + 8) * 2;
    auto *k = flash_forward_kernel<D, DV>;
    cudaError_t e =
        cudaFuncSetAttribute(k, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (e != cudaSuccess)
        return e;
    dim3 grid((unsigned)((p.s.seq_q + TILE - 1) / TILE), (unsigned)p.s.heads_q,
              (unsigned)p.s.batch);
    k<<<grid, FLASH_THREADS, bytes, stream>>>(p);
    return cudaGetLastError();
}

cudaError_t mx_flash_forward(const mx_flash_shape *s, const mx_flash_args *a, cudaStream_t stream)
{
    if (mx_flash_hopper_can(s, a))
        return mx_flash_hopper_forward(s, a, stream);
    return mx_flash_mma_forward(s, a, stream);
}

cudaError_t mx_flash_mma_forward(const mx_flash_shape *s, const mx_flash_args *a,
                                 cudaStream_t stream)
{
    fwd_params p = {*s, *a, make_rule(s, a), make_score(s)};
    int d = s->dim_qk, dv = s->dim_v;
    if (d <= 64 && dv <= 64)
        return launch<64, 64>(p, stream);
    if (d <= 128 && dv <= 128)
        return launch<128, 128>(p, stream);
    if (d <= 192 && dv <= 128)
        return launch<192, 128>(p, stream);
    if (d <= 256 && dv <= 256)
        return launch<256, 256>(p, stream);
    return mx_flash_plain_forward(s, a, false, stream);
}
