/* simd_bytes.h - dot products of bytes (AVX512-VNNI) and tables of bytes (AVX512-VBMI), for kernels
 * that read quantized weights. mx_simd_has_bytes says whether code of MX_TARGET_BYTES may be
 * called; elsewhere it is compiled and never called. */
#ifndef MX_OPS_CPU_SIMD_BYTES_H
#define MX_OPS_CPU_SIMD_BYTES_H

#include "base/simd.h"
#include <stdbool.h>

typedef int32_t mx_v16i32 __attribute__((vector_size(64)));
typedef char mx_v64i8 __attribute__((vector_size(64)));
typedef uint8_t mx_v64u8 __attribute__((vector_size(64)));
typedef uint8_t mx_v64u8_any __attribute__((vector_size(64), aligned(1), may_alias));

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define MX_TARGET_BYTES                                                                            \
    __attribute__((target(                                                                         \
        "arch=x86-64-v4,avx512vnni,avx512vbmi,avx512bf16,prefer-vector-width=512")))
/* acc (16 int32) += sums of four products per lane: a of uint8, b of int8. */
#define MX_BYTE_DOT(acc, a, b)                                                                     \
    ((mx_v16i32)__builtin_ia32_vpdpbusd_v16si((acc), (mx_v16i32)(a), (mx_v16i32)(b)))
/* v = the first n < 64 bytes at p, and zeros. */
#define MX_BYTES_FIRST(v, p, n)                                                                    \
    ((v) = (mx_v64u8)__builtin_ia32_loaddquqi512_mask((const char *)(p), (mx_v64i8){0},            \
                                                      ~0ull >> (64 - (n))))
/* For each byte of v the one of that number, modulo 128, of the 128 in a and b. */
#define MX_BYTES_OF(a, b, v) __builtin_shuffle((a), (b), (v))
/* v stays in a register: it is not loaded again where it is used. */
#define MX_KEEP(v) __asm__("" : "+v"(v))
MX_INLINE bool mx_simd_has_bytes(void)
{
    return mx_simd_level() >= MX_SIMD_BF16 && __builtin_cpu_supports("avx512vnni") &&
           __builtin_cpu_supports("avx512vbmi");
}
#else
#define MX_TARGET_BYTES
#define MX_BYTE_DOT(acc, a, b) ((void)(a), (void)(b), (acc))
#define MX_BYTES_FIRST(v, p, n) ((void)(p), (void)(n), (v) = (mx_v64u8){0})
#define MX_BYTES_OF(a, b, v) ((void)(a), (void)(b), (v))
#define MX_KEEP(v) ((void)(v))
MX_INLINE bool mx_simd_has_bytes(void)
{
    return false;
}
#endif

#endif
