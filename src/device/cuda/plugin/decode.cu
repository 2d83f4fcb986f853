/* decode.cu - one token at a time: matrix times few vectors, and one query against the cache.
 *
 * Both are bound by the bytes of weights or cache, each read once; the work is to keep enough loads in
 * flight. gemv: a warp takes R rows of W, each lane 16 bytes of each row at a time, the vectors x come
 * from the first-level cache. Attention: a group of lanes takes one key (16 bytes a lane), four keys at
 * a time, for all query heads that share it; every group keeps its own running softmax; groups, warps and
 * splits of the sequence are merged at the end, in a fixed order.
 */
#include "device/cuda/plugin/flash.cuh"
#include "device/cuda/plugin/kernels.h"

/* --- y (M, N) = x (M, K) W (N, K)^T --- */

template <int M, int R>
__global__ void __launch_bounds__(256)
    gemv_kernel(uint16_t *y, float *y32, const uint16_t *x, const uint16_t *w, int64_t n, int64_t k)
{
    int64_t row = ((int64_t)blockIdx.x * 8 + (threadIdx.x >> 5)) * R;
    int lane = threadIdx.x & 31;
    if (row >= n)
        return;
    const uint16_t *wr[R];
#pragma unroll
    for (int r = 0; r < R; r++)
        wr[r] = w + min(row + r, n - 1) * k; /* a row past the end is read again, not written */
    float acc[R][M] = {};
#pragma unroll 4
    for (int64_t c = 8 * lane; c < k; c += 256) {
        vec8 wv[R];
#pragma unroll
        for (int r = 0; r < R; r++)
            wv[r] = load8_stream(wr[r] + c);
#pragma unroll
        for (int m = 0; m < M; m++) {
            float f[8];
            unpack8(f, load8(x + m * k + c));
#pragma unroll
            for (int r = 0; r < R; r++) {
                float g[8];
                unpack8(g, wv[r]);
#pragma unroll
                for (int j = 0; j < 8; j++)
                    acc[r][m] += f[j] * g[j];
            }
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int m = 0; m < M; m++) {
            float s = warp_sum(acc[r][m]);
            if (lane == 0 && row + r < n) {
                if (y32)
                    y32[m * n + row + r] = s;
                else
                    y[m * n + row + r] = f32_to_bf16(s);
            }
        }
}

template <int M, int R>
static cudaError_t gemv_launch(mx_bf16 *y, float *y32, const mx_bf16 *x, const mx_bf16 *w, int64_t n,
                               int64_t k, cudaStream_t stream)
{
    gemv_kernel<M, R><<<(unsigned)((n + 8 * R - 1) / (8 * R)), 256, 0, stream>>>(y, y32, x, w, n, k);
    return cudaGetLastError();
}

cudaError_t mx_cuda_gemv(mx_bf16 *y, float *y32, const mx_bf16 *x, const mx_bf16 *w, int m, int64_t n,
                         int64_t k, cudaStream_t stream)
{
    typedef cudaError_t (*launcher)(mx_bf16 *, float *, const mx_bf16 *, const mx_bf16 *, int64_t,
                                    int64_t, cudaStream_t);
    static const launcher table[8] = {gemv_launch<1, 1>, gemv_launch<2, 2>, gemv_launch<3, 2>,
                                      gemv_launch<4, 2>, gemv_launch<5, 2>, gemv_launch<6, 2>,
                                      gemv_launch<7, 2>, gemv_launch<8, 2>};
    if (m < 1 || m > 8 || k % 8)
        return cudaErrorInvalidValue;
    return table[m - 1](y, y32, x, w, n, k, stream);
}

/* --- attention of one query a sequence --- */

enum { DECODE_THREADS = 128, KEYS_AT_ONCE = 4, TARGET_BLOCKS = 132 * 4 };

struct decode_params {
    mx_decode_shape s;
    score_rule score;
    int splits;
    uint16_t *o;
    const uint16_t *q, *k, *v;
    const int32_t *lengths;
    const float *sinks;
    float *partial; /* (B, Hq, splits, 2 + Dv): max, sum, weighted values */
};

static int decode_splits(const mx_decode_shape *s)
{
    int64_t want = (TARGET_BLOCKS + s->batch * s->heads_kv - 1) / (s->batch * s->heads_kv);
    int64_t most = (s->capacity + 127) / 128;
    return (int)(want < 1 ? 1 : want > most ? (most < 1 ? 1 : most) : want);
}

/* LANES lanes share a key; H query heads (of the group, from head h0) are done together. */
template <int LANES, int H> struct decode_state {
    float q[H][8], o[H][8], m[H], l[H];

    __device__ void keys(const decode_params &p, const uint16_t *k, const uint16_t *v, int64_t j0,
                         int64_t end, int64_t step, int part)
    {
        vec8 kv[KEYS_AT_ONCE], vv[KEYS_AT_ONCE];
        bool in_k = part * 8 < p.s.dim_qk, in_v = part * 8 < p.s.dim_v;
#pragma unroll
        for (int u = 0; u < KEYS_AT_ONCE; u++) {
            int64_t j = j0 + u * step;
            if (j < end && in_k)
                kv[u] = load8_stream(k + j * p.s.k_seq + part * 8);
            if (j < end && in_v)
                vv[u] = load8_stream(v + j * p.s.v_seq + part * 8);
        }
#pragma unroll
        for (int h = 0; h < H; h++) {
            float x[KEYS_AT_ONCE], up = m[h];
#pragma unroll
            for (int u = 0; u < KEYS_AT_ONCE; u++) {
                float f[8], s = 0, slope;
                bool in = j0 + u * step < end;
                if (in && in_k) {
                    unpack8(f, kv[u]);
#pragma unroll
                    for (int c = 0; c < 8; c++)
                        s += f[c] * q[h][c];
                }
#pragma unroll
                for (int w = LANES / 2; w; w >>= 1)
                    s += __shfl_xor_sync(~0u, s, w);
                x[u] = in ? score(p.score, s, slope) : -INFINITY;
                up = fmaxf(up, x[u]);
            }
            /* no branch: the lanes must meet again at the next head's shuffles */
            float base = up == -INFINITY ? 0.f : up, shrink = __expf(m[h] - base);
            m[h] = up;
            l[h] *= shrink;
#pragma unroll
            for (int c = 0; c < 8; c++)
                o[h][c] *= shrink;
#pragma unroll
            for (int u = 0; u < KEYS_AT_ONCE; u++) {
                float w = __expf(x[u] - base), f[8];
                l[h] += w;
                if (j0 + u * step < end && in_v) {
                    unpack8(f, vv[u]);
#pragma unroll
                    for (int c = 0; c < 8; c++)
                        o[h][c] += w * f[c];
                }
            }
        }
    }
};

/* Merges the block's lane groups, head by head, and writes the split's partial result. */
template <int LANES, int H>
__device__ void decode_merge(const decode_params &p, const decode_state<LANES, H> &t, int b, int h0,
                             int heads)
{
    constexpr int GROUPS = DECODE_THREADS / LANES;
    __shared__ float sm[GROUPS], sl[GROUPS], so[GROUPS][LANES * 8];
    int group = threadIdx.x / LANES, part = threadIdx.x % LANES;
#pragma unroll
    for (int h = 0; h < H; h++) {
        if (h >= heads)
            return;
        __syncthreads();
        if (part == 0) {
            sm[group] = t.m[h];
            sl[group] = t.l[h];
        }
#pragma unroll
        for (int c = 0; c < 8; c++)
            so[group][part * 8 + c] = t.o[h][c];
        __syncthreads();
        float m = -INFINITY, l = 0;
        for (int i = 0; i < GROUPS; i++)
            m = fmaxf(m, sm[i]);
        float base = m == -INFINITY ? 0.f : m;
        for (int i = 0; i < GROUPS; i++)
            l += sl[i] * __expf(sm[i] - base);
        float *out = p.partial + (((int64_t)b * p.s.heads_q + h0 + h) * p.splits + blockIdx.x) *
                                     (2 + p.s.dim_v);
        if (threadIdx.x == 0) {
            out[0] = m;
            out[1] = l;
        }
        for (int c = threadIdx.x; c < p.s.dim_v; c += DECODE_THREADS) {
            float x = 0;
            for (int i = 0; i < GROUPS; i++)
                x += so[i][c] * __expf(sm[i] - base);
            out[2 + c] = x;
        }
    }
}

template <int LANES, int H>
__global__ void __launch_bounds__(DECODE_THREADS) decode_kernel(const __grid_constant__ decode_params p)
{
    const mx_decode_shape &s = p.s;
    int b = blockIdx.z, rep = s.heads_q / s.heads_kv, blocks = (rep + H - 1) / H;
    int g = blockIdx.y / blocks, h0 = g * rep + blockIdx.y % blocks * H;
    int heads = min(H, (g + 1) * rep - h0);
    int group = threadIdx.x / LANES, part = threadIdx.x % LANES;
    constexpr int GROUPS = DECODE_THREADS / LANES;
    int64_t len = p.lengths[b], first = s.window && len > s.window ? len - s.window : 0;
    int64_t chunk = (len - first + p.splits - 1) / p.splits;
    int64_t lo = first + chunk * blockIdx.x, hi = lo + chunk < len ? lo + chunk : len;
    decode_state<LANES, H> t;
#pragma unroll
    for (int h = 0; h < H; h++) {
        t.m[h] = -INFINITY;
        t.l[h] = 0;
        bool in = h < heads && part * 8 < s.dim_qk;
        vec8 x = {};
        if (in)
            x = load8(p.q + ((int64_t)b * s.heads_q + h0 + h) * s.dim_qk + part * 8);
        unpack8(t.q[h], x);
#pragma unroll
        for (int c = 0; c < 8; c++)
            t.o[h][c] = 0;
    }
    const uint16_t *k = p.k + b * s.k_batch + g * s.k_head, *v = p.v + b * s.v_batch + g * s.v_head;
    /* every group runs the same number of rounds: the shuffles inside need whole warps */
    for (int64_t j = lo; j < hi; j += GROUPS * KEYS_AT_ONCE)
        t.keys(p, k, v, j + group, hi, GROUPS, part);
    decode_merge<LANES, H>(p, t, b, h0, heads);
}

__global__ void decode_combine_kernel(const __grid_constant__ decode_params p)
{
    const mx_decode_shape &s = p.s;
    int h = blockIdx.x, b = blockIdx.y;
    const float *in = p.partial + ((int64_t)b * s.heads_q + h) * p.splits * (2 + s.dim_v);
    float m = p.sinks ? p.sinks[h] : -INFINITY, l = 0;
    for (int i = 0; i < p.splits; i++)
        m = fmaxf(m, in[(int64_t)i * (2 + s.dim_v)]);
    float base = m == -INFINITY ? 0.f : m;
    if (p.sinks)
        l = __expf(p.sinks[h] - base);
    for (int i = 0; i < p.splits; i++)
        l += in[(int64_t)i * (2 + s.dim_v) + 1] * __expf(in[(int64_t)i * (2 + s.dim_v)] - base);
    for (int c = threadIdx.x; c < s.dim_v; c += blockDim.x) {
        float x = 0;
        for (int i = 0; i < p.splits; i++)
            x += in[(int64_t)i * (2 + s.dim_v) + 2 + c] * __expf(in[(int64_t)i * (2 + s.dim_v)] - base);
        p.o[((int64_t)b * s.heads_q + h) * s.dim_v + c] = f32_to_bf16(l > 0 ? x / l : 0.f);
    }
}

size_t mx_cuda_decode_scratch_bytes(const mx_decode_shape *s)
{
    return (size_t)s->batch * s->heads_q * decode_splits(s) * (2 + s->dim_v) * sizeof(float);
}

template <int LANES, int H> static void decode_go(const decode_params &p, cudaStream_t stream)
{
    int rep = p.s.heads_q / p.s.heads_kv;
    dim3 grid((unsigned)p.splits, (unsigned)(p.s.heads_kv * ((rep + H - 1) / H)), (unsigned)p.s.batch);
    decode_kernel<LANES, H><<<grid, DECODE_THREADS, 0, stream>>>(p);
}
template <int LANES> static void decode_heads(const decode_params &p, cudaStream_t stream)
{
    int rep = p.s.heads_q / p.s.heads_kv;
    if (rep == 1)
        decode_go<LANES, 1>(p, stream);
    else if (rep == 2)
        decode_go<LANES, 2>(p, stream);
    else if (rep <= 4)
        decode_go<LANES, 4>(p, stream);
    else
        decode_go<LANES, 8>(p, stream);
}

cudaError_t mx_cuda_decode_attention(const mx_decode_shape *s, mx_bf16 *o, const mx_bf16 *q,
                                     const mx_bf16 *k, const mx_bf16 *v, const int32_t *lengths,
                                     const float *sinks, void *scratch, cudaStream_t stream)
{
    int d = s->dim_qk > s->dim_v ? s->dim_qk : s->dim_v;
    if (s->dim_qk % 8 || s->dim_v % 8 || d > 256 || s->k_seq % 8 || s->v_seq % 8)
        return cudaErrorInvalidValue;
    decode_params p = {*s, {s->scale, s->softcap, s->softcap > 0 ? 1.f / s->softcap : 0.f},
                       decode_splits(s), o, q, k, v, lengths, sinks, (float *)scratch};
    if (d <= 64)
        decode_heads<8>(p, stream);
    else if (d <= 128)
        decode_heads<16>(p, stream);
    else
        decode_heads<32>(p, stream);
    decode_combine_kernel<<<dim3((unsigned)s->heads_q, (unsigned)s->batch), 128, 0, stream>>>(p);
    return cudaGetLastError();
}
