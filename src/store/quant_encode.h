/* quant_encode.h - quantized weights of programs (ops/cpu/encode.h), from checkpoints. */
#ifndef MX_STORE_QUANT_ENCODE_H
#define MX_STORE_QUANT_ENCODE_H

#include "device/device.h"
#include "store/quant.h"

/* Where a weight comes from: its numbers in memory, if they are there, else the tensor. */
typedef struct {
    const mx_quant_tensor *t;
    const float *numbers;
} mx_quantized_source;

/* Numbers [first, first + n) of it. */
mx_status mx_quantized_numbers(const mx_quantized_source *from, int64_t first, int64_t n,
                               float *out, mx_st_scan *scan) MX_MUST_USE;

/* A weight that a program keeps quantized (compile/quantize_weights.h, quantize_frozen.h), and its
 * scales.
 * Codes that the checkpoint has in the same form are taken as they are; others are made from the
 * numbers. */
mx_status mx_quantized_load(mx_session *s, mx_var *v, const mx_quantized_source *from,
                            mx_st_scan *scan) MX_MUST_USE;
mx_status mx_nf4_load(mx_session *s, mx_var *v, const mx_quantized_source *from,
                      mx_st_scan *scan) MX_MUST_USE;
/* The numbers that a weight in NF4, or in 8 bits with a scale a row, stands for. */
mx_status mx_quantized_read(mx_session *s, mx_var *v, float *out) MX_MUST_USE;
/* The variable beside weight v whose name ends so; NULL: there is none. */
mx_var *mx_quantized_part(mx_session *s, const mx_var *v, const char *end);

#endif
