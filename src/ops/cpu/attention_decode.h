/* attention_decode.h - attention of one query per sequence; see attention_decode.c. */
#ifndef MX_OPS_CPU_ATTENTION_DECODE_H
#define MX_OPS_CPU_ATTENTION_DECODE_H

#include "ops/cpu/attention_kernel.h"

/* Is it the better way for this shape? The answer needs no data but whether inputs are there. */
bool mx_attn_decode_can(const mx_attn *a);
size_t mx_attn_decode_work_bytes(const mx_attn *a);
void mx_attn_decode(const mx_attn *a, const mx_attn_forward_args *p, void *work);

/* What it is made of, for keys that lie elsewhere (attention_paged.c). Scores of n key rows, as
 * they lie in the cache, with all query heads: s[head * MX_ATTN_DECODE_KEYS + key]; and
 * o (heads, v_dim) += those weights times the value rows. */
enum { MX_ATTN_DECODE_KEYS = 128 };
typedef struct {
    const float *floats;
    const uint16_t *halves; /* the same in bf16, where that is what they are; NULL: it is not */
} mx_attn_queries;
void mx_attn_score(float *s, const mx_attn_queries *q, const void *k, int n, const mx_attn *a);
void mx_attn_mix(float *o, const float *p, const void *v, int n, const mx_attn *a);

#endif
