/* flash_backward.cu - the gradient of attention on the tensor cores, without atomics.
 *
 *   D_i = dO_i . O_i              one kernel; also dsink = - sum_i e^(sink - L_i) D_i
 *   P = e^(s - L),  dP = dO V^T,  dS = P (dP - D) s'(q.k)
 *   dQ = dS K                     by queries: a block owns 64 queries and walks the keys
 *   dV = P^T dO,  dK = dS^T Q     by keys: a block owns 64 keys of one key head, walks the queries
 *                                 of every head of its group, and so sums the group as it goes
 *
 * By keys the scores are formed transposed (keys down, queries across), so P^T and dS^T come out as
 * the A operand of the GEMMs that follow. Heads above 128 run dK and dV as two passes: both
 * accumulators would not fit in registers.
 */
#include "device/cuda/attention/flash.cuh"

struct bwd_params {
    mx_flash_shape s;
    mx_flash_args a;
    mask_rule rule;
    score_rule score;
};

/* One warp a row. */
__global__ void row_dot_kernel(const __grid_constant__ bwd_params p)
{
    const mx_flash_shape &s = p.s;
    int64_t i = (int64_t)blockIdx.x * 4 + (threadIdx.x >> 5),
            n = (int64_t)s.batch * s.heads_q * s.seq_q;
    int lane = threadIdx.x & 31;
    if (i >= n)
        return;
    int64_t t = i % s.seq_q, h = i / s.seq_q % s.heads_q, b = i / s.seq_q / s.heads_q;
    const uint16_t *o = (const uint16_t *)p.a.o + b * s.o.batch + h * s.o.head + t * s.o.seq;
    const uint16_t *d =
        (const uint16_t *)p.a.dout + b * s.dout.batch + h * s.dout.head + t * s.dout.seq;
    float x = 0;
    for (int c = lane; c < s.dim_v; c += 32)
        x += bf16_to_f32(o[c]) * bf16_to_f32(d[c]);
    x = warp_sum(x);
    if (lane == 0)
        p.a.row_dot[i] = p.a.dlse ? x - p.a.dlse[i] : x;
}

/* One block a head: a fixed order over batch and rows. */
__global__ void sink_kernel(const __grid_constant__ bwd_params p)
{
    __shared__ float scratch[32];
    const mx_flash_shape &s = p.s;
    int h = blockIdx.x;
    float x = 0;
    for (int64_t i = threadIdx.x; i < (int64_t)s.batch * s.seq_q; i += blockDim.x) {
        int64_t at = (i / s.seq_q * s.heads_q + h) * s.seq_q + i % s.seq_q;
        x -= __expf(p.a.sinks[h] - p.a.stats[at]) * p.a.row_dot[at];
    }
    x = block_sum(x, scratch);
    if (threadIdx.x == 0)
        p.a.dsinks[h] = x;
}

/* From a score tile c (dots) and dp, the probability and dS of one element. */
__device__ __forceinline__ void element(const bwd_params &p, float dot, float dp, float lse,
                                        float d, bool see, float &prob, float &ds)
{
    float derivative, x = score(p.score, dot, derivative);
    prob = see ? exp2_fast((x - lse) * LOG2E) : 0.f;
    ds = prob * (dp - d) * derivative;
}
/* The same where everything is seen and nothing capped; lse2 = lse * log2 e. */
__device__ __forceinline__ void element_plain(const bwd_params &p, float dot, float dp, float lse2,
                                              float d, float &prob, float &ds)
{
    prob = exp2_fast(dot * (p.score.scale * LOG2E) - lse2);
    ds = prob * (dp - d) * p.score.scale;
}

template <int D, int DV>
__global__ void __launch_bounds__(FLASH_THREADS)
    flash_dq_kernel(const __grid_constant__ bwd_params p)
{
    extern __shared__ uint16_t shared[];
    __shared__ token_info keys[TILE];
    const mx_flash_shape &s = p.s;
    uint16_t *sq = shared, *sg = sq + TILE * (D + 8), *sk = sg + TILE * (DV + 8);
    uint16_t *sv = sk + TILE * (D + 8);
    int q0 = (int)(gridDim.x - 1 - blockIdx.x) * TILE, h = blockIdx.y, b = blockIdx.z;
    int g = h / (s.heads_q / s.heads_kv), warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const uint16_t *kp = (const uint16_t *)p.a.k + b * s.k.batch + g * s.k.head;
    const uint16_t *vp = (const uint16_t *)p.a.v + b * s.v.batch + g * s.v.head;
    int lo, hi, row = warp * 16 + lane / 4;
    key_range(p.rule, s, b, q0, min(q0 + TILE, s.seq_q) - 1, lo, hi);
    token_info q[2];
    float lse[2], dot[2];
    for (int r = 0; r < 2; r++) {
        int i = q0 + row + 8 * r;
        int64_t at = ((int64_t)b * s.heads_q + h) * s.seq_q + i;
        q[r] = query_at(p.a, s, b, i);
        lse[r] = i < s.seq_q ? p.a.stats[at] : -INFINITY;
        dot[r] = i < s.seq_q ? p.a.row_dot[at] : 0.f;
    }
    float acc[D / 8][4] = {};
    tile_load<D>(sq, (const uint16_t *)p.a.q + b * s.q.batch + h * s.q.head + q0 * s.q.seq, s.q.seq,
                 s.seq_q - q0, s.dim_qk);
    tile_load<DV>(sg,
                  (const uint16_t *)p.a.dout + b * s.dout.batch + h * s.dout.head + q0 * s.dout.seq,
                  s.dout.seq, s.seq_q - q0, s.dim_v);
    for (int k0 = lo; k0 < hi; k0 += TILE) {
        __syncthreads(); /* the last tile is no longer read */
        tile_load<D>(sk, kp + k0 * s.k.seq, s.k.seq, s.seq_kv - k0, s.dim_qk);
        tile_load<DV>(sv, vp + k0 * s.v.seq, s.v.seq, s.seq_kv - k0, s.dim_v);
        if (threadIdx.x < TILE)
            keys[threadIdx.x] = token_at(p.a.k_pos, p.a.k_seg, p.a.k_span, (int64_t)b * s.seq_kv,
                                         k0 + threadIdx.x, s.seq_kv);
        tile_wait();
        bool full = tile_full(p.rule, s, b, q0, k0);
        float c[8][4] = {}, dp[8][4] = {};
        gemm_nt<D>(c, sq, warp * 16, sk);
        gemm_nt<DV>(dp, sg, warp * 16, sv);
        if (full && p.score.cap == 0) {
#pragma unroll
            for (int n = 0; n < 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    float prob, ds;
                    element_plain(p, c[n][e], dp[n][e], lse[e >> 1] * LOG2E, dot[e >> 1], prob, ds);
                    c[n][e] = ds;
                }
            gemm_nn<D>(acc, c, sk);
            continue;
        }
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int r = e >> 1;
                bool see = lse[r] > -INFINITY &&
                           (full || visible(p.rule, q[r], keys[n * 8 + lane % 4 * 2 + (e & 1)]));
                float prob, ds;
                element(p, c[n][e], dp[n][e], lse[r], dot[r], see, prob, ds);
                c[n][e] = ds;
            }
        gemm_nn<D>(acc, c, sk);
    }
    uint16_t *out = (uint16_t *)p.a.dq + b * s.dq.batch + h * s.dq.head + q0 * s.dq.seq;
    store_rows<D>(out, s.dq.seq, warp * 16, s.seq_q - q0, s.dim_qk, acc, 1.f, 1.f);
}

template <int D, int DV, bool DK_TOO, bool DV_TOO>
__global__ void __launch_bounds__(FLASH_THREADS)
    flash_dkv_kernel(const __grid_constant__ bwd_params p)
{
    extern __shared__ uint16_t shared[];
    __shared__ token_info queries[TILE];
    __shared__ alignas(16) float lse[TILE], dot[TILE];
    const mx_flash_shape &s = p.s;
    uint16_t *sk = shared, *sv = sk + TILE * (D + 8), *sq = sv + TILE * (DV + 8);
    uint16_t *sg = sq + TILE * (D + 8);
    int k0 = (int)blockIdx.x * TILE, g = blockIdx.y, b = blockIdx.z, group = s.heads_q / s.heads_kv;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, row = warp * 16 + lane / 4, lo, hi;
    query_range(p.rule, s, b, k0, min(k0 + TILE, s.seq_kv) - 1, lo, hi);
    token_info key[2];
    for (int r = 0; r < 2; r++)
        key[r] = token_at(p.a.k_pos, p.a.k_seg, p.a.k_span, (int64_t)b * s.seq_kv, k0 + row + 8 * r,
                          s.seq_kv);
    float dk[DK_TOO ? D / 8 : 1][4] = {}, dv[DV_TOO ? DV / 8 : 1][4] = {};
    tile_load<D>(sk, (const uint16_t *)p.a.k + b * s.k.batch + g * s.k.head + k0 * s.k.seq, s.k.seq,
                 s.seq_kv - k0, s.dim_qk);
    tile_load<DV>(sv, (const uint16_t *)p.a.v + b * s.v.batch + g * s.v.head + k0 * s.v.seq,
                  s.v.seq, s.seq_kv - k0, s.dim_v);
    int tiles = (hi - lo + TILE - 1) / TILE;
    for (int step = 0; step < group * tiles; step++) {
        int h = g * group + step / tiles, q0 = lo + step % tiles * TILE;
        __syncthreads();
        tile_load<D>(sq, (const uint16_t *)p.a.q + b * s.q.batch + h * s.q.head + q0 * s.q.seq,
                     s.q.seq, s.seq_q - q0, s.dim_qk);
        tile_load<DV>(
            sg, (const uint16_t *)p.a.dout + b * s.dout.batch + h * s.dout.head + q0 * s.dout.seq,
            s.dout.seq, s.seq_q - q0, s.dim_v);
        if (threadIdx.x < TILE) {
            int i = q0 + threadIdx.x;
            int64_t at = ((int64_t)b * s.heads_q + h) * s.seq_q + i;
            queries[threadIdx.x] = query_at(p.a, s, b, i);
            lse[threadIdx.x] = i < s.seq_q ? p.a.stats[at] : -INFINITY;
            dot[threadIdx.x] = i < s.seq_q ? p.a.row_dot[at] : 0.f;
        }
        tile_wait();
        bool full = tile_full(p.rule, s, b, q0, k0);
        float c[8][4] = {}, dp[8][4] = {};
        gemm_nt<D>(c, sk, warp * 16, sq);
        if (DK_TOO)
            gemm_nt<DV>(dp, sv, warp * 16, sg);
        bool easy = full && p.score.cap == 0;
#pragma unroll
        for (int n = 0; n < 8; n++) {
            int i = n * 8 + lane % 4 * 2;
            float2 L = *(const float2 *)&lse[i], d = *(const float2 *)&dot[i];
            if (easy) {
#pragma unroll
                for (int e = 0; e < 4; e++)
                    element_plain(p, c[n][e], dp[n][e], (e & 1 ? L.y : L.x) * LOG2E,
                                  e & 1 ? d.y : d.x, c[n][e], dp[n][e]);
                continue;
            }
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float one = e & 1 ? L.y : L.x;
                bool see =
                    one > -INFINITY && (full || visible(p.rule, queries[i + (e & 1)], key[e >> 1]));
                element(p, c[n][e], dp[n][e], one, e & 1 ? d.y : d.x, see, c[n][e], dp[n][e]);
            }
        }
        if (DV_TOO)
            gemm_nn<DV>(dv, c, sg);
        if (DK_TOO)
            gemm_nn<D>(dk, dp, sq);
    }
    if (DK_TOO)
        store_rows<D>((uint16_t *)p.a.dk + b * s.dk.batch + g * s.dk.head + k0 * s.dk.seq, s.dk.seq,
                      warp * 16, s.seq_kv - k0, s.dim_qk, dk, 1.f, 1.f);
    if (DV_TOO)
        store_rows<DV>((uint16_t *)p.a.dv + b * s.dv.batch + g * s.dv.head + k0 * s.dv.seq,
                       s.dv.seq, warp * 16, s.seq_kv - k0, s.dim_v, dv, 1.f, 1.f);
}

template <class K>
static cudaError_t go(K *kernel, dim3 grid, size_t bytes, const bwd_params &p, cudaStream_t stream)
{
    cudaError_t e =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (e != cudaSuccess)
        return e;
    kernel<<<grid, FLASH_THREADS, bytes, stream>>>(p);
    return cudaGetLastError();
}

template <int D, int DV> static cudaError_t launch(const bwd_params &p, cudaStream_t stream)
{
    size_t bytes = (size_t)TILE * 2 * (D + 8 + DV + 8) * 2;
    dim3 by_q((unsigned)((p.s.seq_q + TILE - 1) / TILE), (unsigned)p.s.heads_q,
              (unsigned)p.s.batch);
    dim3 by_k((unsigned)((p.s.seq_kv + TILE - 1) / TILE), (unsigned)p.s.heads_kv,
              (unsigned)p.s.batch);
    cudaError_t e = go(flash_dq_kernel<D, DV>, by_q, bytes, p, stream);
    if (e != cudaSuccess)
        return e;
    if constexpr (D <= 128) {
        return go(flash_dkv_kernel<D, DV, true, true>, by_k, bytes, p, stream);
    } else {
        e = go(flash_dkv_kernel<D, DV, true, false>, by_k, bytes, p, stream);
        return e != cudaSuccess
                   ? e
                   : go(flash_dkv_kernel<D, DV, false, true>, by_k, bytes, p, stream);
    }
}

cudaError_t mx_flash_backward(const mx_flash_shape *s, const mx_flash_args *a, cudaStream_t stream)
{
    int d = s->dim_qk, dv = s->dim_v;
    if (d > 256 || dv > 256)
        return mx_flash_plain_backward(s, a, false, stream);
    bwd_params p = {*s, *a, make_rule(s, a), make_score(s)};
    int64_t rows = (int64_t)s->batch * s->heads_q * s->seq_q;
    row_dot_kernel<<<(unsigned)((rows + 3) / 4), 128, 0, stream>>>(p);
    if (a->dsinks && a->sinks)
        sink_kernel<<<(unsigned)s->heads_q, 1024, 0, stream>>>(p);
    if (d <= 64 && dv <= 64)
        return launch<64, 64>(p, stream);
    if (d <= 128 && dv <= 128)
        return launch<128, 128>(p, stream);
    if (d <= 192 && dv <= 128)
        return launch<192, 128>(p, stream);
    return launch<256, 256>(p, stream);
}
