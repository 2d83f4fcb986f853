/* xent_slice.h - rows of the logits of a slice of the vocabulary (xent_slice.cu): what they
 * contribute to the cross-entropy, and their gradient (src/ops/linear_xent_slice.c). */
#ifndef MX_DEVICE_CUDA_XENT_SLICE_H
#define MX_DEVICE_CUDA_XENT_SLICE_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* logits (rows, ld), of which `vocab` columns are words, from number `first` on. */
typedef struct {
    int64_t rows, vocab, ld, first;
    float softcap; /* 0: none */
    const float *logits;
    const int32_t *labels; /* (rows), numbers of all words; a row with one below 0 gives 0 and 0 */
} mx_xent_slice_rows;

/* lse (rows), and the label's logit (rows), 0 where it is not here. */
cudaError_t mx_cuda_xent_slice(const mx_xent_slice_rows *s, float *lse, float *picked,
                               cudaStream_t stream);
/* The gradient of the logits: float, over them (out is logits), or bf16. */
typedef struct {
    const float *lse, *dlse, *dpicked; /* (rows) */
    void *out;                         /* (rows, ld) */
    bool f32;
} mx_xent_slice_back;
cudaError_t mx_cuda_xent_slice_grad(const mx_xent_slice_rows *s, const mx_xent_slice_back *g,
                                    cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
