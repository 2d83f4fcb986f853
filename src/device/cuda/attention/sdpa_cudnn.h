/* sdpa_cudnn.h - attention through cuDNN's fused kernels, planned once and launched many times.
 *
 *     S = scale Q K^T, capped and masked;  P = softmax(S);  O = P V       keys shared by groups
 *     Q (B, S, Hq, Dqk)   K (B, Skv, Hkv, Dqk)   V (B, Skv, Hkv, Dv)   O (B, S, Hq, Dv)
 *     stats (B, Hq, S) f32: log sum exp of each row of S, kept for the backward pass
 *
 * Tensors are bf16 or f16, each given by batch, sequence and head strides (in elements, the last
 * dim packed), so q, k and v may be slices of one projection's output and dq, dk, dv slices of its
 * gradient.
 *
 * Masks: causal (key <= query, both counted from the start), sliding window (query - key < window),
 * padding (per-sequence lengths). Packed documents are for our own kernels: cuDNN takes them as a
 * fixed number of sequences with offsets, and its deterministic backward then wants workspace for
 * each of them at full length. Sinks (one extra logit per head) and logit soft-cap are asked for
 * like the rest; what cuDNN cannot do comes back as an error from mx_sdpa_plan_new, and the caller
 * takes our own kernel.
 *
 * Deterministic backward: cuDNN's default adds dQ with atomics; `deterministic` asks for the
 * variant that keeps dP in workspace instead (more memory, slower).
 */
#ifndef MX_DEVICE_CUDA_SDPA_CUDNN_H
#define MX_DEVICE_CUDA_SDPA_CUDNN_H

#include "device/cuda/core/libs.h"
#include <stdint.h>

typedef struct {
    int64_t batch, seq, head; /* strides in elements */
} mx_sdpa_stride;

typedef struct {
    int64_t batch, seq_q, seq_kv, heads_q, heads_kv, dim_qk, dim_v;
    mx_sdpa_stride q, k, v, o, dout, dq, dk, dv; /* the last four for the backward plan only */
    float scale, softcap;                        /* softcap 0: none */
    int64_t window;                              /* 0: none */
    bool f16;                                    /* else bf16 */
    bool causal, sinks, padded, deterministic;
    bool backward; /* the backward plan; else the forward one */
    bool stats;    /* forward: write the row statistics */
    int choice;    /* take cuDNN's suggestions from this one on (0: the first that plans) */
} mx_sdpa_shape;

typedef struct {
    const void *q, *k, *v;
    void *o; /* written forward, read backward */
    float *stats;
    const int32_t *len_q, *len_kv; /* (B) padded */
    const float *sinks; /* (Hq) */
    const void *dout;
    void *dq, *dk, *dv;
    float *dsinks; /* (Hq) */
} mx_sdpa_args;

typedef struct mx_sdpa mx_sdpa; /* the cuDNN handle */
typedef struct mx_sdpa_plan mx_sdpa_plan;

mx_status mx_sdpa_open(mx_sdpa **out, mx_cuda_libs *libs) MX_MUST_USE;
void mx_sdpa_close(mx_sdpa *s);
mx_status mx_sdpa_plan_new(mx_sdpa_plan **out, mx_sdpa *s, const mx_sdpa_shape *shape) MX_MUST_USE;
void mx_sdpa_plan_free(mx_sdpa_plan *p);
size_t mx_sdpa_plan_workspace(const mx_sdpa_plan *p);
/* The suggestion taken, and how many there were: a timed search walks them with `choice`. */
int mx_sdpa_plan_choice(const mx_sdpa_plan *p, int *offered);
/* Capturable in a CUDA graph; allocates only small host descriptors. */
mx_status mx_sdpa_plan_launch(mx_sdpa_plan *p, const mx_sdpa_args *args, void *workspace,
                              cudaStream_t stream) MX_MUST_USE;

#endif
