/* narrow.c - see narrow.h. One instruction rounds 32 numbers where the CPU has it; elsewhere blocks
 * are rounded by integer arithmetic, through a buffer, since the compiler cannot know that a row
 * may be written over from its beginning. */
#include "ops/cpu/narrow.h"

#include "base/simd.h"
#include "base/vmath.h"
#include <string.h>

typedef float v16f_any __attribute__((vector_size(64), aligned(4), may_alias));
typedef short v32s_any __attribute__((vector_size(64), aligned(2), may_alias));

/* As many whole vectors as there are; gives the number of elements done. */
MX_TARGET_BF16 static int64_t whole_vectors(uint16_t *half, const float *x, int64_t n, float f)
{
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        v16f_any lo = *(const v16f_any *)(x + i) * f, hi = *(const v16f_any *)(x + i + 16) * f;
        mx_v32i16 out;
        MX_BF16_ROUND(out, lo, hi);
        *(v32s_any *)(half + i) = out;
    }
    return i;
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
    int64_t done = mx_simd_level() >= MX_SIMD_BF16 ? whole_vectors(half, x, n, f) : 0;
    if (done < n)
        by_blocks(half + done, x + done, n - done, f);
}

void mx_narrow(uint16_t *half, const float *x, int64_t n)
{
    mx_narrow_scaled(half, x, n, 1);
}
