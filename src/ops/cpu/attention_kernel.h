/* attention_kernel.h - softmax attention on the CPU, forward and backward, without a (Sq, Sk)
 * matrix.
 *
 *     q (B, Sq, Hq, Dqk)   k (B, Sk, Hk, Dqk)   v (B, Sk, Hk, Dv)   out (B, Sq, Hq, Dv)
 *     lse (B, Hq, Sq)      log of the softmax denominator, sink included; -inf: no key is allowed
 *
 * All contiguous. Query head h reads key head h / (Hq/Hk). Score s = scale q.k, then
 * cap tanh(s/cap) when softcap > 0.
 *
 * A key is allowed when all of these hold:
 *     its slot is used       k_pos >= 0, and q_pos >= 0
 *     same segment           q_seg == k_seg (when given)
 *     selected               its index is in the query's list (when given)
 *     position               causal: k <= q;  window > 0: q - k < window, and also k - q < window
 *                            when not causal;  chunk > 0: q / chunk == k / chunk
 *                            -- or both lie in the same span, q_span > 0 and q_span == k_span, and
 *                            window == 0 or q - k < window: a span lifts all but the window behind
 * Positions are q_pos, k_pos where given, otherwise index + q_offset, with q_jump added from query
 * Sq / 2 on, and index.
 * A sink is one more logit per query head with no value: it only adds to the denominator.
 * A query without any allowed key gives 0 and has gradient 0.
 *
 * Numbers: f32, or bf16 storage with f32 arithmetic (lse, sinks f32), or f64 (lse, sinks f64). No
 * allocation: the caller gives `work`, 64-byte aligned, of mx_attn_*_work_bytes; the size depends
 * on the thread count. Bits do not: tiles are cut the same way for any number of threads.
 */
#ifndef MX_OPS_CPU_ATTENTION_KERNEL_H
#define MX_OPS_CPU_ATTENTION_KERNEL_H

#include "ops/cpu/gemm.h"
#include <stddef.h>

typedef struct {
    bool causal;
    int64_t window, chunk; /* 0: none */
    float softcap;         /* 0: none */
    float scale;
    int64_t q_offset, q_jump; /* of queries where q_pos is absent: see above */
    const int32_t *q_pos, *k_pos;   /* (B, Sq), (B, Sk); NULL: by index */
    const int32_t *q_seg, *k_seg;   /* (B, Sq), (B, Sk); both or neither */
    const int32_t *q_span, *k_span; /* (B, Sq), (B, Sk); both or neither */
    const int32_t *selected;        /* (B, Sq, n_selected) key indices, -1 unused; NULL: all */
    int64_t n_selected;
} mx_attn_mask;

typedef struct {
    int64_t batch, q_len, k_len, q_heads, k_heads, qk_dim, v_dim;
    int64_t k_alloc; /* rows of k and v per batch entry; 0: k_len (a cache may be longer) */
    int64_t k_row, v_row; /* decoding: elements from one row to the next; 0: all heads' */
    const void *values; /* decoding: those of the keys whose scores are wanted, to be fetched; or */
    int64_t value_bytes; /* NULL; and the bytes of one key's */
    mx_num type;
    bool one_path; /* a query's bits do not depend on how many there are, as in gemm.h */
    mx_attn_mask mask;
    const void *sinks; /* (Hq) f32 / f64, or NULL */
    int threads;       /* 0: all of OpenMP's */
} mx_attn;

typedef struct {
    const void *q, *k, *v;
    void *out, *lse; /* lse may be NULL when no backward follows */
} mx_attn_forward_args;

typedef struct {
    const void *q, *k, *v, *out, *lse, *dout;
    const void *dlse;   /* (B, Hq, Sq), of the type of lse; NULL: 0 */
    void *dq, *dk, *dv; /* overwritten */
    void *dsinks;       /* (Hq), overwritten; NULL without sinks */
} mx_attn_backward_args;

size_t mx_attn_forward_work_bytes(const mx_attn *a);
void mx_attn_forward(const mx_attn *a, const mx_attn_forward_args *p, void *work);

size_t mx_attn_backward_work_bytes(const mx_attn *a);
void mx_attn_backward(const mx_attn *a, const mx_attn_backward_args *p, void *work);

#endif
