/* adamw_kernel.h - one AdamW step over flat arrays.
 *
 *     g' = clip g                         m = b1 m + (1 - b1) g'      v = b2 v + (1 - b2) g'^2
 *     p  = p (1 - lr wd) - lr (m / (1 - b1^step)) / (sqrt(v / (1 - b2^step)) + eps)
 * Weight decay is decoupled and comes first. `clip` points at a scalar that is computed on the way
 * (the gradient-norm factor); a factor of zero or NaN is the caller's to handle. `copy`, when
 * given, receives p rounded to bf16: the compute copy of the next step. Every array is read and
 * written once; the step is bound by memory: 28 bytes per parameter, 30 with the copy.
 */
#ifndef MX_OPS_CPU_ADAMW_KERNEL_H
#define MX_OPS_CPU_ADAMW_KERNEL_H

#include <stdint.h>

typedef struct {
    int64_t n;
    float *param, *m, *v;
    const float *grad;
    uint16_t *copy;    /* (n) bf16, or NULL */
    const float *clip; /* scalar, or NULL: 1 */
    double lr, beta1, beta2, eps, weight_decay;
    int64_t step; /* 1 for the first */
    int threads;  /* 0: all of OpenMP's */
} mx_adamw_args;

void mx_adamw_step(const mx_adamw_args *a);

#endif
