/* load.c - conversions between storage dtypes and the arithmetic types.
 *
 * One table row per dtype: how to read and write a run of elements. float16 is converted by
 * arithmetic on its fields; it occurs in checkpoints only.
 */
#include "ops/load.h"

#include "base/fp8.h"
#include "base/simd.h"
#include "base/vmath.h"
#include <math.h>
#include <string.h>

/* A float of e exponent and m mantissa bits with bias 2^(e-1)-1. */
static double unpack(uint32_t v, int e, int m)
{
    int bias = (1 << (e - 1)) - 1;
    uint32_t mant = v & ((1u << m) - 1), exp = (v >> m) & ((1u << e) - 1);
    double sign = (v >> (e + m)) & 1 ? -1.0 : 1.0;
    if (exp == (1u << e) - 1)
        return mant ? NAN : sign * INFINITY;
    if (!exp)
        return sign * ldexp(mant, 1 - bias - m);
    return sign * ldexp((double)(mant | (1u << m)), (int)exp - bias - m);
}

/* Round to nearest even into the same format; beyond the range: infinity. */
static uint32_t pack(double x, int e, int m)
{
    int bias = (1 << (e - 1)) - 1;
    uint32_t sign = signbit(x) ? 1u << (e + m) : 0, top = ((1u << e) - 1) << m;
    if (isnan(x))
        return sign | top | 1u << (m - 1);
    int exp;
    double a = fabs(x);
    if (a == 0)
        return sign;
    if (isinf(a))
        return sign | top;
    frexp(a, &exp);
    int scale = exp - 1 < 1 - bias ? 1 - bias : exp - 1; /* exponent of the unit bit */
    double q = nearbyint(ldexp(a, m - scale));           /* mantissa with its hidden bit, rounded */
    uint64_t bits = (uint64_t)q + ((uint64_t)(scale + bias - 1) << m);
    if (scale == 1 - bias && q < (double)(1u << m))
        bits = (uint64_t)q; /* denormal */
    return sign | (bits > top ? top : (uint32_t)bits);
}

#define PLAIN_RUNS(T, suffix, as)                                                                  \
    static MX_CLONES void read32_##suffix(const void *p, int64_t n, float *out)                    \
    {                                                                                              \
        const T *x = p;                                                                            \
        for (int64_t i = 0; i < n; i++)                                                            \
            out[i] = (float)x[i];                                                                  \
    }                                                                                              \
    static MX_CLONES void read64_##suffix(const void *p, int64_t n, double *out)                   \
    {                                                                                              \
        const T *x = p;                                                                            \
        for (int64_t i = 0; i < n; i++)                                                            \
            out[i] = (double)x[i];                                                                 \
    }                                                                                              \
    static MX_CLONES void write32_##suffix(void *p, int64_t n, const float *in)                    \
    {                                                                                              \
        T *x = p;                                                                                  \
        for (int64_t i = 0; i < n; i++)                                                            \
            x[i] = as(T, in[i]);                                                                   \
    }                                                                                              \
    static MX_CLONES void write64_##suffix(void *p, int64_t n, const double *in)                   \
    {                                                                                              \
        T *x = p;                                                                                  \
        for (int64_t i = 0; i < n; i++)                                                            \
            x[i] = as(T, in[i]);                                                                   \
    }
/* Integers take the nearest number they have, and 0 for what is no number: C leaves it open. The
 * bounds are exact as floats, which the largest integers of 32 and 64 bits are not. */
#define AS_IS(T, v) (T)(v)
#define NEAREST(T, v, low, beyond, most)                                                           \
    ((v) < (low) ? (T)(low) : (v) >= (beyond) ? (T)(most) : (v) == (v) ? (T)(v) : 0)
#define AS_I32(T, v) NEAREST(T, v, -0x1p31f, 0x1p31f, INT32_MAX)
#define AS_I64(T, v) NEAREST(T, v, -0x1p63f, 0x1p63f, INT64_MAX)
#define AS_I8(T, v) NEAREST(T, v, -128.f, 128.f, 127)
#define AS_U8(T, v) NEAREST(T, v, 0.f, 256.f, 255)
PLAIN_RUNS(float, f32, AS_IS)
PLAIN_RUNS(double, f64, AS_IS)
PLAIN_RUNS(int32_t, i32, AS_I32)
PLAIN_RUNS(int64_t, i64, AS_I64)
PLAIN_RUNS(int8_t, i8, AS_I8)
PLAIN_RUNS(uint8_t, u8, AS_U8)

#define CODED_RUNS(T, suffix, decode, encode)                                                      \
    static MX_CLONES void read32_##suffix(const void *p, int64_t n, float *out)                    \
    {                                                                                              \
        const T *x = p;                                                                            \
        for (int64_t i = 0; i < n; i++)                                                            \
            out[i] = (float)decode(x[i]);                                                          \
    }                                                                                              \
    static void read64_##suffix(const void *p, int64_t n, double *out)                             \
    {                                                                                              \
        const T *x = p;                                                                            \
        for (int64_t i = 0; i < n; i++)                                                            \
            out[i] = (double)decode(x[i]);                                                         \
    }                                                                                              \
    static MX_CLONES void write32_##suffix(void *p, int64_t n, const float *in)                    \
    {                                                                                              \
        T *x = p;                                                                                  \
        for (int64_t i = 0; i < n; i++)                                                            \
            x[i] = (T)encode(in[i]);                                                               \
    }                                                                                              \
    static void write64_##suffix(void *p, int64_t n, const double *in)                             \
    {                                                                                              \
        T *x = p;                                                                                  \
        for (int64_t i = 0; i < n; i++)                                                            \
            x[i] = (T)encode((float)in[i]);                                                        \
    }
#define F16_READ(v) unpack(v, 5, 10)
#define F16_WRITE(v) pack(v, 5, 10)
CODED_RUNS(uint16_t, bf16, mx_float_of_bf16, mx_bf16_of_float)
CODED_RUNS(uint16_t, f16, F16_READ, F16_WRITE)
CODED_RUNS(uint8_t, e4m3, mx_float_of_e4m3, mx_e4m3_of_float)
CODED_RUNS(uint8_t, e5m2, mx_float_of_e5m2, mx_e5m2_of_float)

#define ROW(suffix) {read32_##suffix, read64_##suffix, write32_##suffix, write64_##suffix}
static const struct {
    void (*read32)(const void *, int64_t, float *);
    void (*read64)(const void *, int64_t, double *);
    void (*write32)(void *, int64_t, const float *);
    void (*write64)(void *, int64_t, const double *);
} codec[MX_DTYPE_COUNT] = {
    [MX_F32] = ROW(f32),   [MX_F64] = ROW(f64),      [MX_BF16] = ROW(bf16),    [MX_F16] = ROW(f16),
    [MX_I32] = ROW(i32),   [MX_I64] = ROW(i64),      [MX_I8] = ROW(i8),        [MX_U8] = ROW(u8),
    [MX_BOOL] = ROW(u8),   [MX_F8_E4M3] = ROW(e4m3), [MX_F8_E5M2] = ROW(e5m2),
};

static void *at(const mx_tensor *t, int64_t i)
{
    return (char *)t->data + (size_t)i * mx_dtype_bytes(t->type.dtype);
}

double mx_load_f64(const mx_tensor *t, int64_t i)
{
    double v;
    codec[t->type.dtype].read64(at(t, i), 1, &v);
    return v;
}

void mx_store_f64(const mx_tensor *t, int64_t i, double v)
{
    codec[t->type.dtype].write64(at(t, i), 1, &v);
}

void mx_load_run_f32(const mx_tensor *t, int64_t i, int64_t n, float *out)
{
    codec[t->type.dtype].read32(at(t, i), n, out);
}

void mx_load_run_f64(const mx_tensor *t, int64_t i, int64_t n, double *out)
{
    codec[t->type.dtype].read64(at(t, i), n, out);
}

void mx_store_run_f32(const mx_tensor *t, int64_t i, int64_t n, const float *in)
{
    codec[t->type.dtype].write32(at(t, i), n, in);
}

void mx_store_run_f64(const mx_tensor *t, int64_t i, int64_t n, const double *in)
{
    codec[t->type.dtype].write64(at(t, i), n, in);
}

void mx_convert_run(const mx_tensor *from, int64_t i, const mx_tensor *to, int64_t k, int64_t n)
{
    enum { TILE = 512 };
    if (from->type.dtype == to->type.dtype) {
        memcpy(at(to, k), at(from, i), (size_t)n * mx_dtype_bytes(to->type.dtype));
        return;
    }
    double tile[TILE];
    for (int64_t j = 0; j < n; j += TILE) {
        int64_t m = n - j < TILE ? n - j : TILE;
        mx_load_run_f64(from, i + j, m, tile);
        mx_store_run_f64(to, k + j, m, tile);
    }
}
