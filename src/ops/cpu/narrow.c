/* narrow.c - see narrow.h. One instruction rounds 32 numbers where the CPU has it; elsewhere blocks
 * are rounded by integer arithmetic, through a buffer, since the compiler cannot know that a row
 * may be written over from its beginning. */
#include "ops/cpu/narrow.h"

#include "base/simd.h"
#include "base/vmath.h"
#include <string.h>

typedef float v16f_any __attribute__((vector_size(64), aligned(4), may_alias));
typedef short v32s_any __attribute__((vector_size(64), aligned(2), may_alias));

/* 16 numbers at most, of which n are wanted. */
MX_INLINE MX_TARGET_BF16 void one_vector(uint16_t *half, const float *x, size_t n, float f)
{
    v16f_any v = *(const v16f_any *)x * f;
    mx_v32i16 out;
    MX_BF16_ROUND(out, v, v);
    memcpy(half, &out, n * sizeof *half);
}

/* What is left over goes the same way: a number has the same bits wherever it stands. */
MX_TARGET_BF16 static void by_vectors(uint16_t *half, const float *x, int64_t n, float f)
{
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        v16f_any lo = *(const v16f_any *)(x + i) * f, hi = *(const v16f_any *)(x + i + 16) * f;
        mx_v32i16 out;
        MX_BF16_ROUND(out, lo, hi);
        *(v32s_any *)(half + i) = out;
    }
    if (i + 16 <= n) {
        one_vector(half + i, x + i, 16, f);
        i += 16;
    }
    if (i < n) {
        float rest[16] = {0};
        memcpy(rest, x + i, (size_t)(n - i) * sizeof *rest);
        one_vector(half + i, rest, (size_t)(n - i), f);
    }
}

MX_CLONES static void by_blocks(uint16_t *half, const float *x, int64_t n, float f)
{
    uint16_t block[512];
    for (int64_t i = 0; i < n; i += 512) {
        int64_t m = n - i < 512 ? n - i : 512;
        for (int64_t j = 0; j < m; j++)
            block[j] = mx_bf16_of_float(x[i + j] * f);
        memcpy(half + i, block, (size_t)m * sizeof *block);
    }
}

void mx_narrow_scaled(uint16_t *half, const float *x, int64_t n, float f)
{
    if (mx_simd_level() >= MX_SIMD_BF16)
        by_vectors(half, x, n, f);
    else
        by_blocks(half, x, n, f);
}

void mx_narrow(uint16_t *half, const float *x, int64_t n)
{
    mx_narrow_scaled(half, x, n, 1);
}
