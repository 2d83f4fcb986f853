/* vmath.h - exp, log, tanh, erf and friends for floats, written so that loops over them vectorise.
 *
 * Straight-line code: no tables, no calls, selects instead of branches. Inside a function marked
 * MX_CLONES (base/simd.h) a plain loop becomes 16 lanes of AVX-512 or 8 of AVX2.
 *
 *     function       largest error   out of range
 *     mx_vexpf       1 ulp           +inf above 88.73, 0 below -103.97, denormals are right
 *     mx_vlogf       1 ulp           -inf at 0, NaN below 0, denormals are right
 *     mx_vlog1pf     2 ulp           for x > -1
 *     mx_vtanhf      2 ulp           +-1
 *     mx_verff       3 ulp           +-1
 * NaN in, NaN out. The bounds are asserted by tests/base/vmath_test.c over the whole range.
 *
 * Method. exp: x = n ln2 + r, |r| <= ln2/2; exp(r) is a polynomial; 2^n is applied in two halves so
 * that neither half leaves the range of normal floats. log: x = 2^e m, m in [sqrt(1/2), sqrt(2));
 * log(m) = f - f^2/2 + f^3 P(f), f = m-1. tanh: odd polynomial below 0.625, 1 - 2/(exp(2x)+1)
 * above. erf: odd polynomial below 0.9, 1 - exp(P(x)) above, where P is fitted to log(erfc).
 * Coefficients are near-minimax fits made for these intervals. Rounding to an integer adds and
 * subtracts 1.5*2^23, whose low mantissa bits then are the integer: no conversion, works on every
 * target.
 */
#ifndef MX_BASE_VMATH_H
#define MX_BASE_VMATH_H

#include "base/simd.h"
#include <stdint.h>

MX_INLINE float mx_float_of_bits(uint32_t u)
{
    union {
        uint32_t u;
        float f;
    } v = {.u = u};
    return v.f;
}
MX_INLINE uint32_t mx_bits_of_float(float f)
{
    union {
        float f;
        uint32_t u;
    } v = {.f = f};
    return v.u;
}
MX_INLINE float mx_vabsf(float x)
{
    return mx_float_of_bits(mx_bits_of_float(x) & 0x7fffffffu);
}
MX_INLINE float mx_vcopysignf(float magnitude, float sign)
{
    return mx_float_of_bits((mx_bits_of_float(magnitude) & 0x7fffffffu)
                            | (mx_bits_of_float(sign) & 0x80000000u));
}

/* bfloat16: the upper half of a float; rounding is to nearest even, NaN stays NaN. */
MX_INLINE float mx_float_of_bf16(uint16_t b)
{
    return mx_float_of_bits((uint32_t)b << 16);
}
MX_INLINE uint16_t mx_bf16_of_float(float f)
{
    uint32_t u = mx_bits_of_float(f);
    uint32_t r = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    uint32_t nan = (u >> 16) | 0x40u;
    return (uint16_t)(f == f ? r : nan);
}

MX_INLINE float mx_vexpf(float x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23 */
    float c = x < -104.0f ? -104.0f : x;
    c = c > 89.0f ? 89.0f : c; /* a NaN passes both */
    float t = c * 1.44269504f + magic;
    int32_t n = (int32_t)(mx_bits_of_float(t) - mx_bits_of_float(magic));
    float nf = t - magic;
    float r = c - nf * 0.693359375f; /* ln2 in two parts: the first product is exact */
    r = r - nf * -2.12194440e-4f;
    float p = 0x1.6a234ep-10f;
    p = p * r + 0x1.123a6cp-7f;
    p = p * r + 0x1.5558f4p-5f;
    p = p * r + 0x1.555490p-3f;
    p = p * r + 0x1.fffffcp-2f;
    p = p * (r * r) + r + 1.0f;
    int32_t h = n >> 1;
    float s1 = mx_float_of_bits((uint32_t)(127 + h) << 23);
    float s2 = mx_float_of_bits((uint32_t)(127 + (n - h)) << 23);
    return p * s1 * s2;
}

/* exp(x) for x <= 0, flushing to 0 below -87.3: one multiplication and two selects less. The
 * softmax loops use it, where what is flushed is below 2^-126 of the row's largest term. */
MX_INLINE float mx_vexpf_nonpositive(float x)
{
    const float magic = 12582912.0f;
    float c = x < -87.3f ? -87.3f : x;
    float t = c * 1.44269504f + magic;
    uint32_t n = mx_bits_of_float(t) - mx_bits_of_float(magic);
    float nf = t - magic;
    float r = c - nf * 0.693359375f;
    r = r - nf * -2.12194440e-4f;
    float p = 0x1.6a234ep-10f;
    p = p * r + 0x1.123a6cp-7f;
    p = p * r + 0x1.5558f4p-5f;
    p = p * r + 0x1.555490p-3f;
    p = p * r + 0x1.fffffcp-2f;
    p = p * (r * r) + r + 1.0f;
    float e = p * mx_float_of_bits((127u + n) << 23);
    return x < -87.3f ? 0.0f : e;
}

/* log(m 2^e) for the mantissa polynomial; `add` is a small correction summed before the large
 * terms. */
MX_INLINE float mx_vlog_core(float x, float add)
{
    const float inf = __builtin_inff(), nan = __builtin_nanf("");
    float tiny = x < 0x1p-126f ? 0x1p23f : 1.0f;
    float e0 = x < 0x1p-126f ? -23.0f : 0.0f;
    uint32_t ix = mx_bits_of_float(x * tiny) - 0x3f3504f3u;
    float e = (float)((int32_t)ix >> 23) + e0;
    float f = mx_float_of_bits((ix & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
    float p = 0x1.14573ep-4f;
    p = p * f + -0x1.de3bf8p-4f;
    p = p * f + 0x1.e6f08cp-4f;
    p = p * f + -0x1.fc220ep-4f;
    p = p * f + 0x1.233766p-3f;
    p = p * f + -0x1.555c4ep-3f;
    p = p * f + 0x1.99a4b6p-3f;
    p = p * f + -0x1.000006p-2f;
    p = p * f + 0x1.555548p-2f;
    float f2 = f * f;
    float y = f * f2 * p + (e * -2.12194440e-4f + add);
    y = y - 0.5f * f2 + f;
    y = y + e * 0.693359375f;
    y = x == inf ? inf : y;
    y = x == 0.0f ? -inf : y;
    y = x < 0.0f ? nan : y;
    return x == x ? y : x;
}

MX_INLINE float mx_vlogf(float x)
{
    return mx_vlog_core(x, 0.0f);
}

MX_INLINE float mx_vlog1pf(float x)
{
    float w = 1.0f + x;
    float lost = x - (w - 1.0f); /* what the sum rounded away */
    float y = mx_vlog_core(w, w < 0x1p24f ? lost / w : 0.0f);
    return mx_vabsf(x) < 0x1p-12f ? x - 0.5f * x * x : y;
}

MX_INLINE float mx_vtanhf(float x)
{
    float a = mx_vabsf(x), t = x * x;
    float p = 0x1.18e1c4p-9f;
    p = p * t + -0x1.0bf4f6p-7f;
    p = p * t + 0x1.638b56p-6f;
    p = p * t + -0x1.b9ee90p-5f;
    p = p * t + 0x1.111066p-3f;
    p = p * t + -0x1.555554p-2f;
    float low = x + x * t * p;
    float c = a > 20.0f ? 20.0f : a;
    float high = 1.0f - 2.0f / (mx_vexpf(2.0f * c) + 1.0f);
    return mx_vcopysignf(a < 0.625f ? low : high, x);
}

MX_INLINE float mx_verff(float x)
{
    float a = mx_vabsf(x), t = x * x;
    float p = 0x1.6510bep-14f;
    p = p * t + -0x1.aca392p-11f;
    p = p * t + 0x1.550a44p-8f;
    p = p * t + -0x1.b81524p-6f;
    p = p * t + 0x1.ce2e54p-4f;
    p = p * t + -0x1.812744p-2f;
    float low = x * 0x1.20dd76p+0f + x * (t * p);
    float c = a > 4.0f ? 4.0f : a;
    float q = -0x1.5d723cp-16f;
    q = q * c + 0x1.c45954p-12f;
    q = q * c + -0x1.106262p-8f;
    q = q * c + 0x1.9aebbap-6f;
    q = q * c + -0x1.bb454cp-4f;
    q = q * c + -0x1.444d1ep-1f;
    q = q * c + -0x1.212626p+0f;
    q = q * c + 0x1.62d950p-13f;
    float high = 1.0f - mx_vexpf(q);
    return mx_vcopysignf(a < 0.9f ? low : high, x);
}

#endif
