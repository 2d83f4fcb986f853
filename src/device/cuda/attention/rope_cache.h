/* rope_cache.h - rotary embeddings of queries and keys, and keys and values into the cache, as one
 * kernel. Rules as in kernels.h. */
#ifndef MX_DEVICE_CUDA_ROPE_CACHE_H
#define MX_DEVICE_CUDA_ROPE_CACHE_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* q (n, heads_q, d), k and v (n, heads_k, d) of bf16; cos and sin (n, d), or one row for all.
 * q_to = q cos + rotate_half(q) sin, and so k_to, which may be q and k themselves. k_to and v go to
 * the caches (batch, s, heads_k, d) at slots (batch, t), n = batch t; of tokens with the same slot
 * the last one is written, and none at a slot outside [0, s). */
typedef struct {
    const void *q, *k, *v;
    void *q_to, *k_to, *k_cache, *v_cache;
    const float *cos, *sin;
    const int32_t *slots;
    int64_t n, t, s;
    int heads_q, heads_k, d;
    bool one_angle;
} mx_cuda_rope_cache;

/* d % 4 == 0. */
cudaError_t mx_cuda_rope_cache_launch(const mx_cuda_rope_cache *p, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
