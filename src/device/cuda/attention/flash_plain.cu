/* flash_plain.cu - attention with one warp a row and float arithmetic: the check for the fast
 * kernels, the path for f32, and for heads larger than 256. Correct first; no tiles, no matrix
 * units.
 *
 * By queries, 32 keys at a time: each lane scores one key, the warp keeps a running softmax, then
 * every lane adds its share of columns (c = lane, lane + 32, ...), taking each key's weight by
 * shuffle. By keys the same with the roles exchanged. Heads up to 512 (16 columns a lane).
 */
#include "device/cuda/attention/flash.cuh"

enum { COLS = 16 };

struct plain_params {
    mx_flash_shape s;
    mx_flash_args a;
    mask_rule rule;
    score_rule score;
};

__device__ __forceinline__ float get(const float *p, int64_t i)
{
    return p[i];
}
__device__ __forceinline__ float get(const uint16_t *p, int64_t i)
{
    return bf16_to_f32(p[i]);
}
__device__ __forceinline__ void put(float *p, int64_t i, float x)
{
    p[i] = x;
}
__device__ __forceinline__ void put(uint16_t *p, int64_t i, float x)
{
    p[i] = f32_to_bf16(x);
}
template <class T> __device__ __forceinline__ float dot(const T *a, const T *b, int n)
{
    float x = 0;
    for (int c = 0; c < n; c++)
        x += get(a, c) * get(b, c);
    return x;
}
template <class T> __device__ __forceinline__ T *at(const void *p, mx_flash_stride s, int b, int h)
{
    return (T *)p + b * s.batch + h * s.head;
}

template <class T> __global__ void plain_forward_kernel(const __grid_constant__ plain_params p)
{
    const mx_flash_shape &s = p.s;
    int i = blockIdx.x * 4 + (threadIdx.x >> 5), h = blockIdx.y, b = blockIdx.z,
        lane = threadIdx.x & 31;
    if (i >= s.seq_q)
        return;
    int g = h / (s.heads_q / s.heads_kv), lo, hi;
    const T *q = at<T>(p.a.q, s.q, b, h) + i * s.q.seq, *k = at<T>(p.a.k, s.k, b, g);
    const T *v = at<T>(p.a.v, s.v, b, g);
    token_info qi = query_at(p.a, s, b, i);
    key_range(p.rule, s, b, i, i, lo, hi);
    float m = p.a.sinks ? p.a.sinks[h] : -INFINITY, l = p.a.sinks ? 1.f : 0.f, o[COLS] = {},
          derivative;
    for (int j0 = lo; j0 < hi; j0 += 32) {
        int j = j0 + lane;
        token_info kj =
            token_at(p.a.k_pos, p.a.k_seg, p.a.k_span, (int64_t)b * s.seq_kv, j, s.seq_kv);
        float x = visible(p.rule, qi, kj)
                      ? score(p.score, dot(q, k + j * s.k.seq, s.dim_qk), derivative)
                      : -INFINITY;
        float up = fmaxf(m, warp_max(x));
        if (up == -INFINITY)
            continue;
        float w = expf(x - up), shrink = expf(m - up);
        l = l * shrink + warp_sum(w);
        m = up;
#pragma unroll
        for (int c = 0; c < COLS; c++)
            o[c] *= shrink;
        for (int t = 0; t < 32 && j0 + t < s.seq_kv; t++) {
            float wt = __shfl_sync(~0u, w, t);
#pragma unroll
            for (int c = 0; c < COLS; c++)
                if (lane + 32 * c < s.dim_v)
                    o[c] += wt * get(v, (j0 + t) * s.v.seq + lane + 32 * c);
        }
    }
    T *out = at<T>(p.a.o, s.o, b, h) + i * s.o.seq;
    float inv = l > 0 ? 1.f / l : 0.f;
#pragma unroll
    for (int c = 0; c < COLS; c++)
        if (lane + 32 * c < s.dim_v)
            put(out, lane + 32 * c, o[c] * inv);
    if (p.a.stats && lane == 0)
        p.a.stats[((int64_t)b * s.heads_q + h) * s.seq_q + i] = l > 0 ? m + logf(l) : -INFINITY;
}

template <class T> __global__ void plain_row_dot_kernel(const __grid_constant__ plain_params p)
{
    const mx_flash_shape &s = p.s;
    int i = blockIdx.x * 128 + threadIdx.x, h = blockIdx.y, b = blockIdx.z;
    if (i >= s.seq_q)
        return;
    int64_t row = ((int64_t)b * s.heads_q + h) * s.seq_q + i;
    p.a.row_dot[row] = dot(at<T>(p.a.o, s.o, b, h) + i * s.o.seq,
                           at<T>(p.a.dout, s.dout, b, h) + i * s.dout.seq, s.dim_v) -
                       (p.a.dlse ? p.a.dlse[row] : 0.f);
}

__global__ void plain_sink_kernel(const __grid_constant__ plain_params p)
{
    __shared__ float scratch[32];
    const mx_flash_shape &s = p.s;
    int h = blockIdx.x;
    float x = 0;
    for (int64_t i = threadIdx.x; i < (int64_t)s.batch * s.seq_q; i += blockDim.x) {
        int64_t k = (i / s.seq_q * s.heads_q + h) * s.seq_q + i % s.seq_q;
        x -= expf(p.a.sinks[h] - p.a.stats[k]) * p.a.row_dot[k];
    }
    x = block_sum(x, scratch);
    if (threadIdx.x == 0)
        p.a.dsinks[h] = x;
}

/* Probability and dS of the pair (query i of head h, key j). */
template <class T>
__device__ __forceinline__ void pair(const plain_params &p, int b, int h, int g, int i, int j,
                                     float &prob, float &ds)
{
    const mx_flash_shape &s = p.s;
    prob = ds = 0;
    if (i >= s.seq_q || j >= s.seq_kv)
        return;
    token_info qi = query_at(p.a, s, b, i);
    token_info kj = token_at(p.a.k_pos, p.a.k_seg, p.a.k_span, (int64_t)b * s.seq_kv, j, s.seq_kv);
    int64_t row = ((int64_t)b * s.heads_q + h) * s.seq_q + i;
    float lse = p.a.stats[row];
    if (lse == -INFINITY || !visible(p.rule, qi, kj))
        return;
    float derivative, x = score(p.score,
                           dot(at<T>(p.a.q, s.q, b, h) + i * s.q.seq,
                               at<T>(p.a.k, s.k, b, g) + j * s.k.seq, s.dim_qk),
                           derivative);
    float dp = dot(at<T>(p.a.dout, s.dout, b, h) + i * s.dout.seq,
                   at<T>(p.a.v, s.v, b, g) + j * s.v.seq, s.dim_v);
    prob = expf(x - lse);
    ds = prob * (dp - p.a.row_dot[row]) * derivative;
}

template <class T> __global__ void plain_dq_kernel(const __grid_constant__ plain_params p)
{
    const mx_flash_shape &s = p.s;
    int i = blockIdx.x * 4 + (threadIdx.x >> 5), h = blockIdx.y, b = blockIdx.z,
        lane = threadIdx.x & 31;
    if (i >= s.seq_q)
        return;
    int g = h / (s.heads_q / s.heads_kv), lo, hi;
    key_range(p.rule, s, b, i, i, lo, hi);
    const T *k = at<T>(p.a.k, s.k, b, g);
    float acc[COLS] = {};
    for (int j0 = lo; j0 < hi; j0 += 32) {
        float prob, ds;
        pair<T>(p, b, h, g, i, j0 + lane, prob, ds);
        for (int t = 0; t < 32 && j0 + t < s.seq_kv; t++) {
            float w = __shfl_sync(~0u, ds, t);
#pragma unroll
            for (int c = 0; c < COLS; c++)
                if (lane + 32 * c < s.dim_qk)
                    acc[c] += w * get(k, (j0 + t) * s.k.seq + lane + 32 * c);
        }
    }
    T *out = at<T>(p.a.dq, s.dq, b, h) + i * s.dq.seq;
#pragma unroll
    for (int c = 0; c < COLS; c++)
        if (lane + 32 * c < s.dim_qk)
            put(out, lane + 32 * c, acc[c]);
}

template <class T> __global__ void plain_dkv_kernel(const __grid_constant__ plain_params p)
{
    const mx_flash_shape &s = p.s;
    int j = blockIdx.x * 4 + (threadIdx.x >> 5), g = blockIdx.y, b = blockIdx.z,
        lane = threadIdx.x & 31;
    if (j >= s.seq_kv)
        return;
    int group = s.heads_q / s.heads_kv, lo, hi;
    query_range(p.rule, s, b, j, j, lo, hi);
    float dk[COLS] = {}, dv[COLS] = {};
    for (int h = g * group; h < (g + 1) * group; h++) {
        const T *q = at<T>(p.a.q, s.q, b, h), *d = at<T>(p.a.dout, s.dout, b, h);
        for (int i0 = lo; i0 < hi; i0 += 32) {
            float prob, ds;
            pair<T>(p, b, h, g, i0 + lane, j, prob, ds);
            for (int t = 0; t < 32 && i0 + t < s.seq_q; t++) {
                float wp = __shfl_sync(~0u, prob, t), ws = __shfl_sync(~0u, ds, t);
#pragma unroll
                for (int c = 0; c < COLS; c++) {
                    if (lane + 32 * c < s.dim_v)
                        dv[c] += wp * get(d, (i0 + t) * s.dout.seq + lane + 32 * c);
                    if (lane + 32 * c < s.dim_qk)
                        dk[c] += ws * get(q, (i0 + t) * s.q.seq + lane + 32 * c);
                }
            }
        }
    }
    T *ok = at<T>(p.a.dk, s.dk, b, g) + j * s.dk.seq,
      *ov = at<T>(p.a.dv, s.dv, b, g) + j * s.dv.seq;
#pragma unroll
    for (int c = 0; c < COLS; c++) {
        if (lane + 32 * c < s.dim_qk)
            put(ok, lane + 32 * c, dk[c]);
        if (lane + 32 * c < s.dim_v)
            put(ov, lane + 32 * c, dv[c]);
    }
}

static bool fits(const mx_flash_shape *s)
{
    return s->dim_qk <= 32 * COLS && s->dim_v <= 32 * COLS && s->heads_q % s->heads_kv == 0;
}

cudaError_t mx_flash_plain_forward(const mx_flash_shape *s, const mx_flash_args *a, bool f32,
                                   cudaStream_t stream)
{
    if (!fits(s))
        return cudaErrorInvalidValue;
    plain_params p = {*s, *a, make_rule(s, a), make_score(s)};
    dim3 grid((unsigned)(s->seq_q + 3) / 4, (unsigned)s->heads_q, (unsigned)s->batch);
    auto *k = f32 ? plain_forward_kernel<float> : plain_forward_kernel<uint16_t>;
    k<<<grid, 128, 0, stream>>>(p);
    return cudaGetLastError();
}

cudaError_t mx_flash_plain_backward(const mx_flash_shape *s, const mx_flash_args *a, bool f32,
                                    cudaStream_t stream)
{
    if (!fits(s))
        return cudaErrorInvalidValue;
    plain_params p = {*s, *a, make_rule(s, a), make_score(s)};
    unsigned h = (unsigned)s->heads_q, b = (unsigned)s->batch;
    auto *kd = f32 ? plain_row_dot_kernel<float> : plain_row_dot_kernel<uint16_t>;
    auto *kq = f32 ? plain_dq_kernel<float> : plain_dq_kernel<uint16_t>;
    auto *kk = f32 ? plain_dkv_kernel<float> : plain_dkv_kernel<uint16_t>;
    kd<<<dim3((unsigned)(s->seq_q + 127) / 128, h, b), 128, 0, stream>>>(p);
    if (a->sinks && a->dsinks)
        plain_sink_kernel<<<h, 1024, 0, stream>>>(p);
    kq<<<dim3((unsigned)(s->seq_q + 3) / 4, h, b), 128, 0, stream>>>(p);
    kk<<<dim3((unsigned)(s->seq_kv + 3) / 4, (unsigned)s->heads_kv, b), 128, 0, stream>>>(p);
    return cudaGetLastError();
}
