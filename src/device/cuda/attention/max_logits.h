/* max_logits.h - the largest attention score of each head (see src/ops/max_logits.c), on the
 * device.
 *
 *     q (B, S, H, D)   k (B, S, K, D)   ->   out (H) float
 * A maximum does not depend on the order it is taken in, so blocks meet in an atomic one.
 */
#ifndef MX_DEVICE_CUDA_MAX_LOGITS_H
#define MX_DEVICE_CUDA_MAX_LOGITS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int batch, seq, heads_q, heads_k, dim, window; /* window 0: none */
    float scale;
    bool f32; /* q and k, else bf16 */
    const void *q, *k;
    const int32_t *segments; /* (B, S), or NULL */
} mx_cuda_max_logits;

cudaError_t mx_cuda_max_logits_of(const mx_cuda_max_logits *s, float *out, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
