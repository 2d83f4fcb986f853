/* merge.h - attention to several sets of keys merged (src/ops/merge_attention.c), on the device. */
#ifndef MX_DEVICE_CUDA_MERGE_H
#define MX_DEVICE_CUDA_MERGE_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { MX_MERGE_MOST = 8 };

typedef struct {
    int batch, length, heads, size; /* out (B, S, H, E), lse (B, H, S) */
    bool f32;                       /* what is merged; else bf16 */
    int n;
    struct {
        const void *out;
        const float *lse;
        int skipped; /* how many of the first queries it does not have */
    } set[MX_MERGE_MOST];
} mx_cuda_merge;

cudaError_t mx_cuda_merge_sets(const mx_cuda_merge *m, void *out, float *lse, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
