/* narrow.h - float32 rows into bfloat16, in place or not. */
#ifndef MX_OPS_CPU_NARROW_H
#define MX_OPS_CPU_NARROW_H

#include <stdint.h>

/* half[i] = x[i] rounded to nearest even. `half` may be where x is: what is written never overtakes
 * what is read. With AVX512_BF16 numbers too small to be normal become 0. */
void mx_narrow(uint16_t *half, const float *x, int64_t n);
/* The same of f x[i]. */
void mx_narrow_scaled(uint16_t *half, const float *x, int64_t n, float f);

#endif
