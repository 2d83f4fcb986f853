/* gemm_transpose.h - transposes of 16 x 16 words and stores of bf16, for packing and for register
 * tiles. */
#ifndef MX_OPS_CPU_GEMM_TRANSPOSE_H
#define MX_OPS_CPU_GEMM_TRANSPOSE_H

#include "base/simd.h"

typedef uint32_t v16u __attribute__((vector_size(64)));
typedef uint32_t v16u_any __attribute__((vector_size(64), aligned(2), may_alias));

/* Exchanges the off-diagonal D x D blocks of every 2D x 2D block. */
#define EXCHANGE(r, D)                                                                             \
    for (int i = 0; i < 16; i++)                                                                   \
        if (!(i & D)) {                                                                            \
            v16u lo = r[i], hi = r[i + D];                                                         \
            r[i] = MX_SHUFFLE(v16u, lo, hi, LO(0, D), LO(4, D), LO(8, D), LO(12, D));              \
            r[i + D] = MX_SHUFFLE(v16u, lo, hi, HI(0, D), HI(4, D), HI(8, D), HI(12, D));          \
        }
#define LO1(l, D) ((l) & D ? 16 + (l)-D : (l))
#define HI1(l, D) ((l) & D ? 16 + (l) : (l) + D)
#define LO(l, D) LO1(l, D), LO1(l + 1, D), LO1(l + 2, D), LO1(l + 3, D)
#define HI(l, D) HI1(l, D), HI1(l + 1, D), HI1(l + 2, D), HI1(l + 3, D)

/* dst[k][j] = r[j][k] for 16 x 16 words; ld in words. */
MX_INLINE MX_TARGET_V4 void store_transposed16(void *dst, int64_t ld, v16u *r)
{
    EXCHANGE(r, 8)
    EXCHANGE(r, 4)
    EXCHANGE(r, 2)
    EXCHANGE(r, 1)
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        *(v16u_any *)((uint32_t *)dst + i * ld) = r[i];
}

/* The same from memory; ld_src in bytes. */
MX_INLINE MX_TARGET_V4 bool transpose16(void *dst, int64_t ld_dst, const char *src, int64_t ld_src)
{
    v16u r[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        r[i] = *(const v16u_any *)(src + i * ld_src);
    store_transposed16(dst, ld_dst, r);
    return true;
}

typedef short v32s_any __attribute__((vector_size(64), aligned(2), may_alias));
#define BF16_HALVES(dst, v, w)                                                                     \
    do {                                                                                           \
        mx_v32i16 half_;                                                                           \
        MX_BF16_ROUND(half_, v, w);                                                                \
        *(v32s_any *)(dst) = half_;                                                                \
    } while (0)

#endif
