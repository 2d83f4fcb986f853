/* dequant.h - matrices of 8- and 4-bit codes with scales, and what multiplies by them.
 *
 *     codes      stored                                     value
 *     int8       int8 (n, k)                                code * scale
 *     fp8        E4M3 (n, k)                                code * scale
 *     int4       uint8 (n, k / 2), the first of two in      (code - 8) * scale
 *                the low half
 * scale (n, k / group) float32: one for each `group` numbers of a row.
 */
#ifndef MX_OPS_CPU_DEQUANT_H
#define MX_OPS_CPU_DEQUANT_H

#include "base/simd.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum { MX_CODES_INT8, MX_CODES_FP8, MX_CODES_INT4 } mx_codes_kind;

typedef struct {
    mx_codes_kind kind;
    const uint8_t *codes;
    const float *scale;
    int64_t n, k, group;
} mx_codes;

/* Row `row` as k floats. scaled = false: codes alone, as integers or E4M3 values. */
void mx_dequant_row(const mx_codes *w, int64_t row, bool scaled, float *out);

enum { MX_DEQUANT_MAX_M = 8 };

/* y (m, n) = x (m, k) w^T for m <= MX_DEQUANT_MAX_M on a CPU that multiplies bytes: int8 and int4
 * times x of 16 bits, in integers; E4M3 as bfloat16 times x as bfloat16. x is prepared once for all
 * threads and all columns. A row of y does not depend on the others. Infinity and NaN in x make its
 * row NaN. */
typedef struct {
    int64_t m;
    const void *prepared; /* 64 bytes aligned */
    float *y;             /* (m, to - from) */
    int64_t ldy;
} mx_dequant_rows;

/* The largest magnitude of n numbers; a NaN is larger than all. */
float mx_dequant_most(const float *x, int64_t n);

/* Is there such a CPU, and are the groups ones that its vectors take? */
bool mx_dequant_can_prepare(const mx_codes *w);
size_t mx_dequant_prepared_bytes(int64_t m, int64_t k);
void mx_dequant_prepare(const mx_codes *w, const float *x, int64_t m, void *prepared);
/* Rows [from, to) of w, in the calling thread. */
void mx_dequant_gemv(const mx_codes *w, const mx_dequant_rows *r, int64_t from, int64_t to);

#endif
