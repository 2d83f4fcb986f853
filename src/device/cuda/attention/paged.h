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

/* Most elements of a head; most queries on the tensor cores. */
enum { MX_CUDA_PAGED_DIM = 1024, MX_CUDA_PAGED_QUERIES = 4096 };

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
    const int32_t *until; /* (queries): the last position each sees, if after its own, or NULL */
    void *out;
    /* paged_mma.cu's own: query heads of a warp, and parts of those that share a key head; tokens
     * of a tile; positions of a leaf and most leaves that are seen; places for tokens that stand
     * alone, which tokens have them (count first), and the results of their leaves. */
    int group, parts, tile, leaf, leaves, places;
    int32_t *alone;
    float *parts_at;
} mx_cuda_paged;

/* Plain arithmetic. */
cudaError_t mx_cuda_paged_attention(const mx_cuda_paged *p, cudaStream_t stream);
/* On the tensor cores; work: mx_gpu_paged_bytes. */
bool mx_cuda_paged_mma_is_possible(const mx_cuda_paged *p);
cudaError_t mx_cuda_paged_mma(const mx_cuda_paged *p, void *work, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
