/* encode.h - numbers as 8- and 4-bit codes with one scale, as checkpoints store weights.
 *
 *     kind    code                       scale of n numbers
 *     int4    value + 8, of -8..7        the one of twelve below absmax / 7.5 whose squared error
 *                                        is least
 *     int8    value, of -127..127        absmax / 127
 *     e4m3    the bits of the float8     absmax / 448
 * Scales are rounded up to bfloat16 before numbers are divided by them, so that every loader has
 * the same ones. Of zeros the scale is 1.
 *
 * int4 may have a zero point as well, an integer of -8..7 that is added before rounding and taken
 * off again: a number is (value - zero) * scale.
 */
#ifndef MX_OPS_CPU_ENCODE_H
#define MX_OPS_CPU_ENCODE_H

#include <stdbool.h>
#include <stdint.h>

typedef enum { MX_CODE_INT4, MX_CODE_INT8, MX_CODE_E4M3 } mx_code_kind;

float mx_code_scale(mx_code_kind kind, const float *x, int64_t n);
/* The code nearest to x / scale, saturated, and what a code stands for, without the scale. */
uint8_t mx_code_of(mx_code_kind kind, float x);
float mx_code_value(mx_code_kind kind, uint8_t code);

/* What codes are multiplied by, and what is taken off before. */
typedef struct {
    float scale;
    int zero;
} mx_code_grid;

/* The grid of n numbers. int4: the one of a few whose squared error is least, each number's
 * weighted by `weight` (n), NULL: alike; `zeros`: with a zero point; without, the scale may be
 * negative, so that the code -8 is of use to groups whose largest number is positive. */
mx_code_grid mx_code_fit(mx_code_kind kind, const float *x, const float *weight, int64_t n,
                         bool zeros);
/* The bfloat16 number nearest to a scale. */
float mx_code_round_scale(float scale);
uint8_t mx_grid_code(mx_code_kind kind, mx_code_grid g, float x);
float mx_grid_value(mx_code_kind kind, mx_code_grid g, uint8_t code);

/* n numbers, a byte each; the scale. */
float mx_encode(mx_code_kind kind, const float *x, int64_t n, uint8_t *q);
/* n numbers, an even number of them, as int4, two in a byte, the first in its low half. */
float mx_encode4(const float *x, int64_t n, uint8_t *q);

#endif
