/* xent.cu - softmax cross-entropy over rows of logits, the gradient written over the logits.
 *
 * One block a row, two blocks an SM, so that one reads while the other writes. Pass one finds max
 * and sum of exponentials together (each thread keeps a running pair, pairs are merged in a fixed
 * order) and keeps the front of the row in shared memory; pass two takes the front from there and
 * the rest from L2, and writes the gradient. Memory traffic is one read and one write of the
 * logits. With z = cap tanh(l / cap) the gradient is multiplied by 1 - (z / cap)^2. The z-loss adds
 * z_loss lse^2 to the loss and 2 z_loss lse to the softmax's factor.
 */
#include "device/cuda/attention/flash.cuh"
#include "device/cuda/core/kernels.h"

enum { XENT_THREADS = 512, KEPT = 6400 }; /* KEPT: vectors of eight kept on chip, 100 KiB */

struct max_sum {
    float m, s; /* s = sum of exp(z - m) */
};
__device__ __forceinline__ max_sum merge(max_sum a, max_sum b)
{
    float m = fmaxf(a.m, b.m);
    if (m == -INFINITY)
        return {m, 0.f};
    return {m, a.s * __expf(a.m - m) + b.s * __expf(b.m - m)};
}
template <bool CAP> __device__ __forceinline__ float capped(float l, float cap, float inv)
{
    return CAP ? cap * tanhf(l * inv) : l;
}

template <bool CAP>
__device__ max_sum row_max_sum(const uint16_t *row, vec8 *kept, int64_t vocab, float cap, float inv)
{
    max_sum t = {-INFINITY, 0.f};
    int64_t n8 = vocab / 8;
#pragma unroll 4
    for (int64_t c = threadIdx.x; c < n8; c += XENT_THREADS) {
        float f[8], m = t.m, s = 0;
        vec8 v = load8(row + 8 * c);
        if (c < KEPT)
            kept[c] = v;
        unpack8(f, v);
#pragma unroll
        for (int j = 0; j < 8; j++)
            m = fmaxf(m, f[j] = capped<CAP>(f[j], cap, inv));
        if (m == -INFINITY)
            continue;
        float m2 = m * LOG2E;
#pragma unroll
        for (int j = 0; j < 8; j++)
            s += exp2_fast(f[j] * LOG2E - m2);
        t.s = t.s * exp2_fast(t.m * LOG2E - m2) + s;
        t.m = m;
    }
    for (int64_t c = 8 * n8 + threadIdx.x; c < vocab; c += XENT_THREADS)
        t = merge(t, {capped<CAP>(bf16_to_f32(row[c]), cap, inv), 1.f});
    return t;
}

__device__ max_sum block_merge(max_sum t, max_sum *scratch)
{
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
    for (int o = 16; o; o >>= 1)
        t = merge(t, {__shfl_xor_sync(~0u, t.m, o), __shfl_xor_sync(~0u, t.s, o)});
    if (lane == 0)
        scratch[warp] = t;
    __syncthreads();
    t = lane < XENT_THREADS / 32 ? scratch[lane] : max_sum{-INFINITY, 0.f};
#pragma unroll
    for (int o = 16; o; o >>= 1)
        t = merge(t, {__shfl_xor_sync(~0u, t.m, o), __shfl_xor_sync(~0u, t.s, o)});
    return t;
}

/* g: of the softmax; hit: of the target's logit, 0 for others. */
template <bool CAP>
__device__ __forceinline__ float gradient(float l, float lse, float g, float cap, float inv,
                                          float hit)
{
    float z = capped<CAP>(l, cap, inv);
    float d = __expf(z - lse) * g - hit;
    return CAP ? d * (1.f - (z * inv) * (z * inv)) : d;
}

template <bool CAP>
__global__ void __launch_bounds__(XENT_THREADS, 2)
    xent_kernel(uint16_t *logits, const int32_t *targets, const float *weight,
                const float *grad_scale, float *loss, float *lse_out, int64_t vocab, int64_t ld,
                float cap, float z_loss, bool write, bool plain_loss)
{
    extern __shared__ vec8 kept[];
    __shared__ max_sum scratch[XENT_THREADS / 32];
    uint16_t *row = logits + (int64_t)blockIdx.x * ld;
    float inv = CAP ? 1.f / cap : 0.f;
    int64_t target = targets[blockIdx.x];
    bool counts = target >= 0 && target < vocab;
    max_sum t = block_merge(row_max_sum<CAP>(row, kept, vocab, cap, inv), scratch);
    float lse = t.m + logf(t.s), w = counts ? (weight ? weight[blockIdx.x] : 1.f) : 0.f;
    if (threadIdx.x == 0) {
        lse_out[blockIdx.x] = counts ? lse : 0.f;
        float own = counts ? capped<CAP>(bf16_to_f32(row[target]), cap, inv) : 0.f;
        loss[blockIdx.x] =
            counts ? (plain_loss ? 1.f : w) * (lse - own + z_loss * lse * lse) : 0.f;
    }
    if (!write)
        return;
    __syncthreads(); /* the target's logit has been read */
    float one = w * *grad_scale, g = one * (1.f + 2.f * z_loss * lse), lse2 = lse * LOG2E;
    target = counts ? target : -8;
    int64_t n8 = vocab / 8;
#pragma unroll 4
    for (int64_t c = threadIdx.x; c < n8; c += XENT_THREADS) {
        float f[8];
        unpack8(f, c < KEPT ? kept[c] : load8(row + 8 * c));
        if (CAP || target / 8 == c) {
            int hit = counts && target / 8 == c ? (int)(target % 8) : -1;
#pragma unroll
            for (int j = 0; j < 8; j++)
                f[j] = gradient<CAP>(f[j], lse, g, cap, inv, j == hit ? one : 0.f);
        } else {
#pragma unroll
            for (int j = 0; j < 8; j++)
                f[j] = exp2_fast(f[j] * LOG2E - lse2) * g;
        }
        store8_stream(row + 8 * c, pack8(f));
    }
    for (int64_t c = 8 * n8 + threadIdx.x; c < vocab; c += XENT_THREADS)
        row[c] = f32_to_bf16(
            gradient<CAP>(bf16_to_f32(row[c]), lse, g, cap, inv, c == target ? one : 0.f));
    for (int64_t c = vocab + threadIdx.x; c < ld; c += XENT_THREADS)
        row[c] = 0; /* columns that only make the row a multiple of 8 */
}

cudaError_t mx_cuda_xent(const mx_xent_shape *s, mx_bf16 *logits, const int32_t *targets,
                         const float *weight, const float *grad_scale, float *loss, float *lse,
                         cudaStream_t stream)
{
    if (s->ld % 8)
        return cudaErrorInvalidValue;
    auto *k = s->softcap > 0 ? xent_kernel<true> : xent_kernel<false>;
    cudaError_t e =
        cudaFuncSetAttribute(k, cudaFuncAttributeMaxDynamicSharedMemorySize, KEPT * sizeof(vec8));
    if (e != cudaSuccess)
        return e;
    k<<<(unsigned)s->rows, XENT_THREADS, KEPT * sizeof(vec8), stream>>>(
        logits, targets, weight, grad_scale, loss, lse, s->vocab, s->ld, s->softcap, s->z_loss,
        s->gradient, s->plain_loss);
    return cudaGetLastError();
}
