/* lanes.h - vectors of 16 floats for the kernels of decoding, which read float32 or bfloat16
 * once. */
#ifndef MX_OPS_CPU_LANES_H
#define MX_OPS_CPU_LANES_H

#include "base/simd.h"
#include "base/vmath.h"
#include <stdbool.h>

#define LANES 16

typedef float lanes __attribute__((vector_size(4 * LANES)));
typedef float lanes_any __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t words __attribute__((vector_size(4 * LANES)));
typedef uint32_t pairs_any __attribute__((vector_size(4 * LANES), aligned(2), may_alias));
typedef uint16_t halves_any __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

MX_INLINE float element(const void *p, int64_t i, bool bf16)
{
    return bf16 ? mx_float_of_bf16(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}

/* Through a pointer: a 64-byte vector as a result has no ABI at the baseline level. */
MX_INLINE void load(lanes *v, const void *p, int64_t i, bool bf16)
{
    if (bf16)
        *v = (lanes)(__builtin_convertvector(*(const halves_any *)((const uint16_t *)p + i), words)
                     << 16);
    else
        *v = *(const lanes_any *)((const float *)p + i);
}

/* Sums of the lanes of four vectors at once, in one fixed order. */
#define PICK(v, w, ...) MX_SHUFFLE(words, v, w, __VA_ARGS__)
MX_INLINE void fold4(float *sums, const lanes *v)
{
    lanes a = PICK(v[0], v[1], 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30)
              + PICK(v[0], v[1], 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
    lanes b = PICK(v[2], v[3], 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30)
              + PICK(v[2], v[3], 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
    lanes c = PICK(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29)
              + PICK(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
    c += PICK(c, c, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
    c += PICK(c, c, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
    for (int i = 0; i < 4; i++)
        sums[i] = c[i];
}

#endif
