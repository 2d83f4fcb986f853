/* delta_kernel.h - the gated delta rule (linear attention with a corrected memory), by chunks.
 *
 *     q, k (B, S, Hk, Dk)   v, o (B, S, Hv, Dv)   g, beta (B, S, Hv)   state (B, Hv, Dk, Dv)
 * Value head h reads query and key head h / (Hv/Hk). Per head and token, with M the state:
 *     M = exp(g) M;   u = beta (v - M^T k);   M = M + k u^T;   o = scale M^T q
 * g <= 0. Where segments are given, a token sees only what its own segment wrote: the state
 * starts from zero at every change, and the initial state belongs to the segment of the first
 * token.
 *
 * In a chunk of C tokens, with c the running sum of g, E_ij = exp(c_i - c_j) for j <= i:
 *     A_ij = beta_i k_i.k_j E_ij (j < i)       (I + A) U = beta V - beta exp(c) (K M0)
 *     O = scale (exp(c) Q M0 + (Q K^T * E) U)   M1 = exp(c_C) M0 + K^T (exp(c_C - c) U)
 * so all but one triangular solve is a GEMM. chunk = 1 is the recurrence itself and what
 * decoding calls; any chunk gives the same result up to rounding.
 *
 * Numbers: f32, bf16 storage with f32 arithmetic (g, beta, state, dg, dbeta f32), or f64. q and k
 * arrive normalised. `work` is 64-byte aligned. Bits do not depend on the thread count.
 */
#ifndef MX_OPS_CPU_DELTA_KERNEL_H
#define MX_OPS_CPU_DELTA_KERNEL_H

#include "ops/cpu/gemm.h"
#include <stddef.h>

#define MX_DELTA_MAX_CHUNK 128

typedef struct {
    int64_t batch, len, k_heads, v_heads, k_dim, v_dim;
    int chunk; /* 1 .. MX_DELTA_MAX_CHUNK; 64 is good for training */
    mx_num type;
    double scale;
    const void *q, *k, *v, *g, *beta;
    const int32_t *segments;   /* (B, S), or NULL */
    const void *initial_state; /* or NULL: zero */
    int threads;               /* 0: all of OpenMP's */
} mx_delta;

typedef struct {
    const void *dout;
    const void *dfinal_state;           /* or NULL: zero */
    void *dq, *dk, *dv, *dg, *dbeta;    /* overwritten */
    void *dinitial_state;               /* or NULL */
} mx_delta_grads;

size_t mx_delta_forward_work_bytes(const mx_delta *d);
/* final_state may be NULL, and may be the initial state itself. */
void mx_delta_forward(const mx_delta *d, void *out, void *final_state, void *work);

size_t mx_delta_backward_work_bytes(const mx_delta *d);
void mx_delta_backward(const mx_delta *d, const mx_delta_grads *g, void *work);

#endif
