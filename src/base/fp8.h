/* fp8.h - the two 8-bit floats: E4M3 (fn: no infinity, one NaN, largest 448) and E5M2 (as IEEE,
 * largest 57,344). Bit for bit what torch's casts give.
 *
 * To nearest even. What is too large becomes 448 in E4M3, which has no infinity, and infinity in
 * E5M2. Branch-free, so that loops over them are vectorised.
 */
#ifndef MX_BASE_FP8_H
#define MX_BASE_FP8_H

#include "base/vmath.h"

#define MX_E4M3_MAX 448.f
#define MX_E5M2_MAX 57344.f

/* Adding 2^14 (2^7) to what is too small for a normal number leaves its multiples of 2^-9 (2^-16)
 * in the last bits of the sum, rounded. */
MX_INLINE uint8_t mx_e4m3_of_float(float x)
{
    uint32_t bits = mx_bits_of_float(x), u = bits & 0x7fffffff;
    uint32_t normal = ((u + 0x7ffff + (u >> 20 & 1)) >> 20) - (120 << 3);
    uint32_t small = mx_bits_of_float(mx_float_of_bits(u) + 0x1p14f) - 0x46800000;
    uint32_t v = u < 0x3c800000 ? small : normal;
    v = v > 0x7e ? 0x7e : v;
    return (uint8_t)((u > 0x7f800000 ? 0x7f : v) | (bits >> 24 & 0x80));
}

MX_INLINE uint8_t mx_e5m2_of_float(float x)
{
    uint32_t bits = mx_bits_of_float(x), u = bits & 0x7fffffff;
    uint32_t normal = ((u + 0xfffff + (u >> 21 & 1)) >> 21) - (112 << 2);
    uint32_t small = mx_bits_of_float(mx_float_of_bits(u) + 0x1p7f) - 0x43000000;
    uint32_t v = u < 0x38800000 ? small : normal;
    v = v > 0x7c ? 0x7c : v;
    return (uint8_t)((u > 0x7f800000 ? 0x7f : v) | (bits >> 24 & 0x80));
}

MX_INLINE float mx_float_of_e4m3(uint8_t b)
{
    uint32_t m = b & 0x7f;
    float x = mx_float_of_bits(m == 0x7f ? 0x7fc00000 : m << 20) * 0x1p120f;
    return b & 0x80 ? -x : x;
}

MX_INLINE float mx_float_of_e5m2(uint8_t b)
{
    uint32_t m = b & 0x7f;
    float x = mx_float_of_bits(m > 0x7b ? 0x7f800000 | m << 21 : m << 21) * 0x1p112f;
    return b & 0x80 ? -x : x;
}

#endif
