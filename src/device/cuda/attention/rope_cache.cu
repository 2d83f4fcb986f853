/* rope_cache.cu - see rope_cache.h. A warp has a head of a token, its lanes neighbouring pairs of
 * both halves. */
#include "device/cuda/attention/rope_cache.h"
#include "device/cuda/core/pdl.cuh"
#include "device/cuda/core/vec.cuh"

enum { WARPS = 4 };

/* Where token i goes in its cache, in rows; -1: nowhere. */
__device__ __forceinline__ int64_t row_in_cache(const mx_cuda_rope_cache &p, int64_t token)
{
    const int64_t b = token / p.t, i = token % p.t;
    const int32_t *slots = p.slots + b * p.t;
    const int64_t slot = slots[i];
    bool later = false;
    for (int64_t j = i + 1 + (threadIdx.x & 31); j < p.t; j += 32)
        later |= slots[j] == slot;
    return __any_sync(~0u, later) || slot < 0 || slot >= p.s ? -1 : b * p.s + slot;
}

__global__ void __launch_bounds__(32 * WARPS)
    rope_cache_kernel(const __grid_constant__ mx_cuda_rope_cache p)
{
    const int d = p.d, half = d / 2;
    let_next_start();
    wait_for_previous();
    const int rows = p.heads_q + 2 * p.heads_k, lane = threadIdx.x & 31;
    const int64_t unit = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, token = unit / rows;
    if (token >= p.n)
        return;
    const int head = (int)(unit % rows), kv = head - p.heads_q, value = kv - p.heads_k;
    const int64_t at = (kv < 0 ? token * p.heads_q + head
                               : token * p.heads_k + (value < 0 ? kv : value)) * d;
    const uint16_t *from = (const uint16_t *)(kv < 0 ? p.q : value < 0 ? p.k : p.v) + at;
    uint16_t *to = value >= 0 ? NULL : (uint16_t *)(kv < 0 ? p.q_to : p.k_to) + at, *cache = NULL;
    const int64_t row = kv < 0 ? -1 : row_in_cache(p, token);
    if (row >= 0)
        cache = (uint16_t *)(value < 0 ? p.k_cache : p.v_cache) +
                (row * p.heads_k + (value < 0 ? kv : value)) * d;
    const int64_t angle = p.one_angle ? 0 : token * d;
    for (int i = 2 * lane; i < half; i += 64) {
        uint32_t y[2] = {*(const uint32_t *)(from + i), *(const uint32_t *)(from + half + i)};
        if (value < 0) {
            const float x[2][2] = {{low_of(y[0]), high_of(y[0])}, {low_of(y[1]), high_of(y[1])}};
#pragma unroll
            for (int h = 0; h < 2; h++) { /* as the generated kernel has it */
                const float2 c = *(const float2 *)(p.cos + angle + h * half + i);
                const float2 s = *(const float2 *)(p.sin + angle + h * half + i);
                const float sign = h ? 1.f : -1.f;
                y[h] = pack2(x[h][0] * c.x + sign * x[1 - h][0] * s.x,
                             x[h][1] * c.y + sign * x[1 - h][1] * s.y);
            }
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            if (to)
                *(uint32_t *)(to + h * half + i) = y[h];
            if (cache)
                *(uint32_t *)(cache + h * half + i) = y[h];
        }
    }
}

cudaError_t mx_cuda_rope_cache_launch(const mx_cuda_rope_cache *p, cudaStream_t stream)
{
    const int64_t units = p->n * (p->heads_q + 2 * p->heads_k);
    if (p->d % 4)
        return cudaErrorInvalidValue;
    return launch_pdl(rope_cache_kernel, (unsigned)((units + WARPS - 1) / WARPS), 32 * WARPS, 0,
                      stream, *p);
}
