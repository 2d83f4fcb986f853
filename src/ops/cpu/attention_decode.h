/* attention_decode.h - attention of one query per sequence; see attention_decode.c. */
#ifndef MX_OPS_CPU_ATTENTION_DECODE_H
#define MX_OPS_CPU_ATTENTION_DECODE_H

#include "ops/cpu/attention_kernel.h"

/* Is it the better way for this shape? The answer needs no data but whether inputs are there. */
bool mx_attn_decode_can(const mx_attn *a);
size_t mx_attn_decode_work_bytes(const mx_attn *a);
void mx_attn_decode(const mx_attn *a, const mx_attn_forward_args *p, void *work);

#endif
