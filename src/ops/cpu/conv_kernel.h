/* conv_kernel.h - short causal convolution over time, one filter per channel.
 *
 *     x, y (B, S, C)   w (C, K)   bias (C) or NULL   state (B, K-1, C): the inputs before x
 *     y[t] = bias + sum_k w[:, k] x[t - (K-1) + k]          x before time 0 is the state, or zero
 * Where segments are given, a tap that reaches into another segment reads zero; the state belongs
 * to the segment of the first token.
 *
 * Numbers: f32, bf16 storage with f32 sums (w, bias, state as x; dw, dbias f32), or f64. `work` is
 * 64-byte aligned. Bits do not depend on the thread count.
 */
#ifndef MX_OPS_CPU_CONV_KERNEL_H
#define MX_OPS_CPU_CONV_KERNEL_H

#include "ops/cpu/gemm.h"
#include <stddef.h>

#define MX_CONV_MAX_TAPS 16

typedef struct {
    int64_t batch, len, channels;
    int taps; /* K, 1 .. MX_CONV_MAX_TAPS */
    mx_num type;
    const void *x, *w, *bias, *state; /* bias, state: or NULL */
    const int32_t *segments;          /* (B, S), or NULL */
    int threads;                      /* 0: all of OpenMP's */
    bool transposed; /* `work` is that of an earlier call with this filter, which is in it */
} mx_conv;

size_t mx_conv_work_bytes(const mx_conv *c);
/* new_state (B, K-1, C) may be NULL, and may be the state itself. */
void mx_conv_forward(const mx_conv *c, void *y, void *new_state, void *work);
/* dx (B, S, C), dw (C, K), dbias (C), each or NULL; overwritten. */
void mx_conv_backward(const mx_conv *c, const void *dy, void *dx, void *dw, void *dbias,
                      void *work);

#endif
