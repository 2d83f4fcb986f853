/* xent_keep.h - the logits of a slice of the vocabulary, kept as exponentials for the gradient
 * (mx_xent_kept of ops/cpu/xent_kernel.h), by the GEMM of xent_exp.h; bf16.
 *
 *     keep   e_j = exp(z_j - a), a the logit of the label or of a word in its place; the label's is
 *            left out of e and of the GEMM's sums, and counted by itself
 *     back   dz_j = dlse exp(z_j - lse) = factor e_j          factor = dlse exp(a - lse)
 *            dz_t = dlse exp(z_t - lse) + dpicked = factor e'_t
 *            dx = factor (e' w),   dw = e'^T (factor x)
 * A label far less likely than the words here would ask for an e'_t beyond bf16: in such a row all
 * of e is made smaller instead.
 */
#ifndef MX_DEVICE_CUDA_XENT_KEEP_H
#define MX_DEVICE_CUDA_XENT_KEEP_H

#include "device/cuda/train/xent_exp.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const int32_t *labels; /* (rows), numbers of all words */
    int64_t first;         /* number of the first word here */
    float *lse, *picked, *about; /* (rows) */
} mx_xent_keep_rows;

/* All that linear_xent_slice_keep does. Of `a` x, w, e and the scratch are read: labels, own,
 * about, parts, marked and bands. */
cudaError_t mx_cuda_xent_keep(const mx_xent_exp *s, const mx_xent_exp_args *a, int32_t *labels,
                              const mx_xent_keep_rows *r, cudaStream_t stream);
/* The same from logits in float32, (rows, ld_logits), for other devices and dtypes: kept is float
 * or bf16. */
typedef struct {
    int64_t rows, vocab, ld_logits, ld;
    const float *logits;
    float softcap;
    void *kept;
    bool f32;
} mx_xent_plain_keep;
cudaError_t mx_cuda_xent_plain_keep(const mx_xent_plain_keep *s, const mx_xent_keep_rows *r,
                                    cudaStream_t stream);

/* Of rows whose logits are kept: the label's entry of e, factors, and x times them. */
typedef struct {
    int64_t rows, d, vocab, ld, first;
    float softcap;
    const int32_t *labels;
    const float *lse, *dlse, *dpicked, *picked, *about; /* (rows) */
    void *kept;     /* (rows, ld) */
    const void *x;  /* (rows, d) */
    void *scaled;   /* (rows, d): factor x */
    float *factor;  /* (rows) */
    bool f32;
} mx_xent_back;
cudaError_t mx_cuda_xent_back(const mx_xent_back *s, cudaStream_t stream);
/* dx (rows, d) = factor sums; s->d of any size, where mx_cuda_xent_scale takes multiples of 8. */
cudaError_t mx_cuda_xent_back_dx(const mx_xent_back *s, void *dx, const float *sums,
                                 cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
