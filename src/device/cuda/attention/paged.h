/* paged.h - attention of single queries over a cache in pages (see src/ops/paged_attention.c), on
 * the device. */
#ifndef MX_DEVICE_CUDA_PAGED_H
#define MX_DEVICE_CUDA_PAGED_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Most elements of a head. */
enum { MX_CUDA_PAGED_DIM = 1024 };

typedef struct {
    int queries, q_heads, k_heads, qk_dim, v_dim;
    int64_t slots, k_row, v_row; /* of the pool; elements from one slot to the next */
    int page, rows, columns;     /* of the table */
    int64_t window, chunk;       /* 0: none */
    float scale, softcap;
    bool bf16;
    const void *q, *k, *v;
    const int32_t *positions, *row, *table;
    const float *sinks;      /* NULL: none */
    const int32_t *selected; /* (queries, n_selected) positions, -1 unused; NULL: no list */
    int n_selected;
    void *out;
} mx_cuda_paged;

cudaError_t mx_cuda_paged_attention(const mx_cuda_paged *p, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
