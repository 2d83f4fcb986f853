/* xent_exp.h - cross-entropy of x w^T and its gradient, without a pass over the logits.
 *
 * With z the (scaled, capped) logits of a row, z_t the label's, and a a number near them (z_t):
 *
 *     e_j   = exp(z_j - a)                       stored by the GEMM itself, bf16
 *     sum   = sum of e_j over j != t             float32, from the GEMM's unrounded values
 *     lse   = a + log(e_t + sum)                 loss = lse - z_t + z_loss lse^2
 *     dz_j  = weight (g e_j / (e_t + sum) - [j = t])        g = 1 + 2 z_loss lse
 *           = factor e'_j     with   factor = weight g / (e_t + sum),   e'_j = e_j for j != t,
 *                                    e'_t = (2 z_loss lse e_t - sum) / g
 *     dx    = factor (e' w)              dw = e'^T (factor x)
 *
 * so what a softmax would have to be known for is a factor of the row. The label is left out of the
 * sum, and nothing is made from the difference of two near numbers: for a label whose probability
 * is near 1 both loss and gradient keep their digits. Through a cap, z = cap tanh(l / cap), e'_j is
 * stored times 1 - (z_j / cap)^2, and summed without that.
 *
 * Exponentials about z_t are too large where the label's probability is below about e^-50. Such
 * rows are marked; two more GEMMs, which end at once where no row is marked, find the largest
 * logit of those rows and make their exponentials about that.
 *
 * Rows that do not count (label outside the vocabulary) have e = 0, factor 0, loss and lse 0.
 * Columns from the vocabulary to ld are 0. Sums have a fixed order: equal inputs give equal bits.
 */
#ifndef MX_DEVICE_CUDA_XENT_EXP_H
#define MX_DEVICE_CUDA_XENT_EXP_H

#include "device/cuda/core/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { MX_XENT_WIDE = 256, MX_XENT_BAND = 256 }; /* columns of a tile; rows that share a mark */

typedef struct {
    int64_t rows, d, vocab, ld; /* ld: a multiple of 8 */
    float scale, softcap, z_loss;
} mx_xent_exp;

typedef struct {
    const mx_bf16 *x, *w; /* (rows, d), (vocab, d) */
    const int32_t *labels;
    const float *weight; /* of a row's loss, in the gradient alone */
    mx_bf16 *e;          /* (rows, ld): e' */
    mx_bf16 *scaled;     /* (rows, d): factor x */
    float *factor;       /* (rows) */
    float *loss, *lse;   /* (rows) */
    /* scratch */
    float *own;      /* (rows): z_t */
    float *about;    /* (rows, 2): a before and after the cap */
    float *parts;    /* (vocab / MX_XENT_WIDE, rounded up, rows) */
    int32_t *marked; /* (rows) */
    int32_t *bands;  /* (rows / MX_XENT_BAND, rounded up, and one for all) */
} mx_xent_exp_args;

/* Whether this device and these sizes will do; without it use mx_cuda_xent. */
bool mx_cuda_xent_exp_is_possible(const mx_xent_exp *s);
/* All of the above but the GEMMs for dx and dw. */
cudaError_t mx_cuda_xent_exp(const mx_xent_exp *s, const mx_xent_exp_args *a, cudaStream_t stream);
/* dx (rows, d) = factor sums. */
cudaError_t mx_cuda_xent_scale(mx_bf16 *dx, const float *sums, const float *factor, int64_t rows,
                               int64_t d, cudaStream_t stream);

/* xent_exp.cu: the GEMM of all rows, about z_t; the largest logit (times log2 e) of marked
 * rows in place of sums; the GEMM of marked rows again, about that. */
typedef enum { MX_XENT_FIRST, MX_XENT_MOST, MX_XENT_AGAIN } mx_xent_pass;
cudaError_t mx_cuda_xent_gemm(const mx_xent_exp *s, const mx_xent_exp_args *a,
                                 mx_xent_pass pass, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
