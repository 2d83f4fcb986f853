/* simd.h - one source, the best instructions of the machine it runs on.
 *
 * The program is built for the baseline of its architecture (x86-64: SSE2) and must run anywhere.
 * A hot loop is therefore compiled several times and the dynamic linker picks a version once, when
 * the program is loaded (ifunc): no global state, no branch per call.
 *
 *     MX_CLONES void scale(float *x, int64_t n) { for (...) x[i] *= 2; }
 *
 * MX_CLONES is for loops that the compiler vectorises by itself. What they call must be inlined
 * (MX_INLINE), or it stays baseline code. Kernels that need a fixed register tile are written with
 * compiler vectors (vector_size) and compiled per level with MX_TARGET_V3 (AVX2+FMA), MX_TARGET_V4
 * (AVX-512) and MX_TARGET_BF16 (AVX-512 with VDPBF16PS, where AMX's tiles may be used
 * as well); mx_simd_level says which one may be called.
 *
 * Elsewhere than on x86-64 all of it means "baseline", where NEON is already the baseline.
 *
 * Bits: levels differ in vector width and in contraction of a*b+c, so two machines of different
 * level agree to rounding, not to the bit. One machine always agrees with itself.
 */
#ifndef MX_BASE_SIMD_H
#define MX_BASE_SIMD_H

#include "base/status.h"
#include <stdbool.h>
#include <stdint.h>

#define MX_INLINE static inline __attribute__((always_inline, unused))

/* The compiler takes x for a new value: keeps it from making a pointer of every sum with x. */
#define MX_OPAQUE(x) __asm__("" : "+r"(x))

typedef short mx_v32i16 __attribute__((vector_size(64)));

typedef enum {
    MX_SIMD_BASE = 0, /* baseline of the architecture */
    MX_SIMD_V3 = 3,   /* x86-64-v3: AVX2, FMA */
    MX_SIMD_V4 = 4,   /* x86-64-v4: AVX-512 F BW CD DQ VL */
    MX_SIMD_BF16 = 5, /* v4 and AVX512_BF16 */
    MX_SIMD_AMX = 6,  /* BF16, AMX with bf16 and int8, and the kernel's permission to use it */
} mx_simd;

/* The level of this machine, or a lower one that the environment asks for (base, avx2, avx512,
 * bf16): for tests, and to compare. It chooses among MX_TARGET_ code alone. */
#define MX_SIMD_VARIABLE "MX_SIMD"
mx_simd mx_simd_level(void);
const char *mx_simd_name(mx_simd level);
/* Fails where the environment asks for a level that is not there. */
mx_status mx_simd_check(void) MX_MUST_USE;

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#if defined(__SANITIZE_THREAD__) /* whose calls in a resolver come before it has begun */
#define MX_CLONES
#else
#define MX_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#endif
#define MX_TARGET_V3 __attribute__((target("arch=x86-64-v3")))
#define MX_TARGET_V4 __attribute__((target("arch=x86-64-v4,prefer-vector-width=512")))
#define MX_TARGET_BF16 __attribute__((target("arch=x86-64-v4,avx512bf16,prefer-vector-width=512")))
/* acc (16 floats) += the sum of two products, per lane; a, b hold 16 pairs of bf16, for which gcc
 * has a type since version 13. */
#if __GNUC__ >= 13
typedef __bf16 mx_v32bf16 __attribute__((vector_size(64)));
#else
typedef short mx_v32bf16 __attribute__((vector_size(64)));
#endif
#define MX_BF16_DOT(acc, a, b) \
    __builtin_ia32_dpbf16ps_v16sf((acc), (mx_v32bf16)(a), (mx_v32bf16)(b))
/* out (64 bytes) = lo and hi (16 floats each) rounded to bf16; what is too small to be normal
 * becomes 0. */
#define MX_BF16_ROUND(out, lo, hi)                                                                 \
    __asm__("vcvtne2ps2bf16 %2, %1, %0" : "=v"(out) : "v"(hi), "v"(lo))
#else
#define MX_CLONES
#define MX_TARGET_V3
#define MX_TARGET_V4
#define MX_TARGET_BF16
#define MX_BF16_DOT(acc, a, b) ((void)(a), (void)(b), (acc)) /* never called at this level */
#define MX_BF16_ROUND(out, lo, hi) ((void)(lo), (void)(hi), (out) = (mx_v32i16){0}) /* nor this */
#endif

/* AMX: eight tiles of 16 rows of 64 bytes, here by their numbers. A thread sets their shape before
 * it uses them and gives them up afterwards (mx_tile_shape). A tile of pairs of bf16 (a, 16 rows of
 * k) times one (b, [pair of k][16 columns]) adds to 16 x 16 floats. The order of such a sum: even
 * elements of k by one chain of fused multiply-adds from 0, odd ones by another, the two added, and
 * that added to the float. Numbers too small to be normal count as 0. */
typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} mx_tile_shape __attribute__((aligned(64)));
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define MX_TILES_OPEN(shape) __asm__ volatile("ldtilecfg %0" : : "m"(shape))
#define MX_TILES_CLOSE() __asm__ volatile("tilerelease")
#define MX_TILE_ZERO(t) __asm__ volatile("tilezero %%tmm" #t : :)
#define MX_TILE_LOAD(t, p, stride)                                                                 \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t : : "r"(p), "r"((int64_t)(stride)))
#define MX_TILE_STORE(t, p, stride)                                                                \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)"                                           \
                     :                                                                             \
                     : "r"(p), "r"((int64_t)(stride))                                              \
                     : "memory")
#define MX_TILE_BF16(c, a, b)                                                                      \
    __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c : :)
/* What was stored before is in memory, where tiles are loaded from. */
#define MX_TILE_FENCE() __asm__ volatile("" : : : "memory")
#else
#define MX_TILES_OPEN(shape) ((void)(shape))
#define MX_TILES_CLOSE() ((void)0)
#define MX_TILE_ZERO(t) ((void)0)
#define MX_TILE_LOAD(t, p, stride) ((void)(p), (void)(stride))
#define MX_TILE_STORE(t, p, stride) ((void)(p), (void)(stride))
#define MX_TILE_BF16(c, a, b) ((void)0)
#define MX_TILE_FENCE() ((void)0)
#endif

/* Lanes of two vectors by number; `type` is the vector of integers of the same shape. */
#if defined(__clang__)
#define MX_SHUFFLE(type, v, w, ...) __builtin_shufflevector(v, w, __VA_ARGS__)
#else
#define MX_SHUFFLE(type, v, w, ...) __builtin_shuffle(v, w, (type){__VA_ARGS__})
#endif

/* Bit i: the byte (p[i] | fold) - low is above `span`, for the 16 bytes at p. With fold 0x20, low
 * 'a' and span 25 that is "no ASCII letter". */
#if defined(__x86_64__) && defined(__GNUC__)
typedef char mx_v16i8 __attribute__((vector_size(16)));
typedef uint8_t mx_v16u8 __attribute__((vector_size(16)));
MX_INLINE uint32_t mx_outside16(const uint8_t *p, uint8_t fold, uint8_t low, uint8_t span)
{
    mx_v16u8 v;
    __builtin_memcpy(&v, p, 16);
    v = (v | fold) - low;
    return (uint32_t)__builtin_ia32_pmovmskb128((mx_v16i8)(v > span));
}
#else
MX_INLINE uint32_t mx_outside16(const uint8_t *p, uint8_t fold, uint8_t low, uint8_t span)
{
    uint32_t bits = 0;
    for (int i = 0; i < 16; i++)
        bits |= (uint32_t)((uint8_t)((p[i] | fold) - low) > span) << i;
    return bits;
}
#endif

/* Dot products of bytes (AVX512-VNNI) and tables of bytes (AVX512-VBMI), for kernels that read
 * quantized weights. mx_simd_has_bytes says whether code of MX_TARGET_BYTES may be called;
 * elsewhere it is compiled and never called. */
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
