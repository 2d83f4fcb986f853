/* element.c - conversion through one of three hubs, a block at a time.
 *
 *     float types other than F64, to F32 / BF16 / F16        through f32 (exact into the hub)
 *     integers to integers                                   through i64, range checked
 *     all that involves F64, and integers to floats          through f64
 * A hub block is 2,048 elements, so it stays near the core; one decoder per source type
 * and one encoder per destination type replace a function for each of the 256 pairs. f64 to 16-bit
 * goes through f32 as torch does. U64 above 2^63 does not pass the i64 hub and is reported.
 */
#include "store/element.h"

#include "base/fp8.h"
#include "base/simd.h"

#include <math.h>
#include <string.h>

enum { BLOCK = 2048 };

static const struct {
    const char *name;
    int bytes;
    bool is_float;
} types[MX_ST_N_DTYPES] = {
    [MX_ST_NONE] = {"?", 0, false},         [MX_ST_F64] = {"F64", 8, true},
    [MX_ST_F32] = {"F32", 4, true},         [MX_ST_BF16] = {"BF16", 2, true},
    [MX_ST_F16] = {"F16", 2, true},         [MX_ST_F8_E4M3] = {"F8_E4M3", 1, true},
    [MX_ST_F8_E5M2] = {"F8_E5M2", 1, true}, [MX_ST_F8_E8M0] = {"F8_E8M0", 1, true},
    [MX_ST_I64] = {"I64", 8, false},        [MX_ST_U64] = {"U64", 8, false},
    [MX_ST_I32] = {"I32", 4, false},        [MX_ST_U32] = {"U32", 4, false},
    [MX_ST_I16] = {"I16", 2, false},        [MX_ST_U16] = {"U16", 2, false},
    [MX_ST_I8] = {"I8", 1, false},          [MX_ST_U8] = {"U8", 1, false},
    [MX_ST_BOOL] = {"BOOL", 1, false},
};

const char *mx_st_dtype_name(mx_st_dtype d)
{
    return types[d].name;
}

mx_st_dtype mx_st_dtype_parse(const char *name)
{
    for (int d = MX_ST_NONE + 1; d < MX_ST_N_DTYPES; d++)
        if (strcmp(types[d].name, name) == 0)
            return (mx_st_dtype)d;
    return MX_ST_NONE;
}

int mx_st_dtype_bytes(mx_st_dtype d)
{
    return types[d].bytes;
}

static const mx_st_dtype of_graph[MX_DTYPE_COUNT] = {
    [MX_F32] = MX_ST_F32,         [MX_F64] = MX_ST_F64,         [MX_BF16] = MX_ST_BF16,
    [MX_F16] = MX_ST_F16,         [MX_I32] = MX_ST_I32,         [MX_I64] = MX_ST_I64,
    [MX_I8] = MX_ST_I8,           [MX_U8] = MX_ST_U8,           [MX_BOOL] = MX_ST_BOOL,
    [MX_F8_E4M3] = MX_ST_F8_E4M3, [MX_F8_E5M2] = MX_ST_F8_E5M2,
};

mx_st_dtype mx_st_dtype_of(mx_dtype d)
{
    MX_ASSERT(of_graph[d] != MX_ST_NONE, "dtype %d has no safetensors name", (int)d);
    return of_graph[d];
}

bool mx_st_dtype_graph(mx_st_dtype d, mx_dtype *out)
{
    for (int g = 0; g < MX_DTYPE_COUNT && d != MX_ST_NONE; g++)
        if (of_graph[g] == d) {
            *out = (mx_dtype)g;
            return true;
        }
    return false;
}

/* --- single values ------------------------------------------------------------------------- */
/* Small floats widen without branches, so that loops over them vectorise: the exponent is moved to
 * the new bias; a subnormal (exponent 0) is put behind an implicit one, which is subtracted again.
 */
MX_INLINE float f16_value(uint32_t h)
{
    uint32_t sign = (h & 0x8000u) << 16, mag = (h & 0x7fffu) << 13;
    float sub = mx_float_of_bits(mag | 0x38800000u) - 0x1p-14f;
    uint32_t u = mag >= 0x0f800000u ? mag | 0x7f800000u : mag + 0x38000000u;
    u = mag < 0x00800000u ? mx_bits_of_float(sub) : u;
    return mx_float_of_bits(sign | u);
}

static float e8m0_value(uint8_t b)
{
    if (b == 0xff)
        return NAN;
    return b ? mx_float_of_bits((uint32_t)b << 23) : 0x1p-127f;
}

MX_INLINE uint16_t f16_bits(float x)
{
    uint32_t u = mx_bits_of_float(x), sign = u >> 16 & 0x8000u, mag = u & 0x7fffffffu;
    /* Below 2^-14 the result is subnormal: adding 0.5 lets the FPU round at 2^-24. */
    uint32_t sub = mx_bits_of_float(mx_float_of_bits(mag) + 0.5f) - 0x3f000000u;
    uint32_t normal = (mag - 0x38000000u + 0xfffu + (mag >> 13 & 1)) >> 13;
    uint32_t h = mag < 0x38800000u ? sub : normal;
    h = mag >= 0x477ff000u ? 0x7c00u : h; /* 65520 and above round to infinity */
    h = mag > 0x7f800000u ? 0x7e00u : h;
    return (uint16_t)(sign | h);
}

/* --- blocks into and out of the hubs --------------------------------------------------------- */
/* Loads and stores go through memcpy: tensors in a file are aligned to their element only by
 * custom, and the compiler turns it into a plain (vector) move. */
#define DECODE(T, value)                                                                           \
    for (int64_t i = 0; i < n; i++) {                                                              \
        T x;                                                                                       \
        memcpy(&x, p + i * (int64_t)sizeof x, sizeof x);                                           \
        out[i] = (value);                                                                          \
    }                                                                                              \
    return
#define ENCODE(T, value)                                                                           \
    for (int64_t i = 0; i < n; i++) {                                                              \
        T x = (T)(value);                                                                          \
        memcpy(p + i * (int64_t)sizeof x, &x, sizeof x);                                           \
    }                                                                                              \
    return

/* One loop a type, compiled for each level of the machine: loading a model is made of these. */
#define DECODER(name, T, value)                                                                    \
    MX_CLONES static void name(const char *p, float *out, int64_t n)                               \
    {                                                                                              \
        DECODE(T, value);                                                                          \
    }
#define ENCODER(name, T, value)                                                                    \
    MX_CLONES static void name(const float *in, char *p, int64_t n)                                \
    {                                                                                              \
        ENCODE(T, value);                                                                          \
    }
DECODER(decode_bf16, uint16_t, mx_float_of_bf16(x))
DECODER(decode_f16, uint16_t, f16_value(x))
DECODER(decode_e4m3, uint8_t, mx_float_of_e4m3(x))
DECODER(decode_e5m2, uint8_t, mx_float_of_e5m2(x))
ENCODER(encode_bf16, uint16_t, mx_bf16_of_float(in[i]))
ENCODER(encode_f16, uint16_t, f16_bits(in[i]))

static void decode_f32(mx_st_dtype d, const char *p, float *out, int64_t n)
{
    switch (d) {
    case MX_ST_F32:
        memcpy(out, p, (size_t)n * 4);
        return;
    case MX_ST_BF16:
        decode_bf16(p, out, n);
        return;
    case MX_ST_F16:
        decode_f16(p, out, n);
        return;
    case MX_ST_F8_E4M3:
        decode_e4m3(p, out, n);
        return;
    case MX_ST_F8_E5M2:
        decode_e5m2(p, out, n);
        return;
    case MX_ST_F8_E8M0:
        DECODE(uint8_t, e8m0_value(x));
    default:
        MX_ASSERT(false, "dtype %d has no f32 form", (int)d);
    }
}

static void decode_i64(mx_st_dtype d, const char *p, int64_t *out, int64_t n)
{
    switch (d) {
    case MX_ST_I64:
        memcpy(out, p, (size_t)n * 8);
        return;
    case MX_ST_U64:
        memcpy(out, p, (size_t)n * 8);
        return; /* the caller looks at the sign */
    case MX_ST_I32:
        DECODE(int32_t, x);
    case MX_ST_U32:
        DECODE(uint32_t, x);
    case MX_ST_I16:
        DECODE(int16_t, x);
    case MX_ST_U16:
        DECODE(uint16_t, x);
    case MX_ST_I8:
        DECODE(int8_t, x);
    case MX_ST_U8:
        DECODE(uint8_t, x);
    case MX_ST_BOOL:
        DECODE(uint8_t, x != 0);
    default:
        MX_ASSERT(false, "dtype %d has no integer form", (int)d);
    }
}

static void decode_f64(mx_st_dtype d, const char *p, double *out, int64_t n)
{
    union {
        float f[BLOCK];
        int64_t i[BLOCK];
    } hub;
    if (d == MX_ST_F64) {
        memcpy(out, p, (size_t)n * 8);
    } else if (d == MX_ST_U64) {
        DECODE(uint64_t, (double)x);
    } else if (types[d].is_float) {
        decode_f32(d, p, hub.f, n);
        for (int64_t i = 0; i < n; i++)
            out[i] = (double)hub.f[i];
    } else {
        decode_i64(d, p, hub.i, n);
        for (int64_t i = 0; i < n; i++)
            out[i] = (double)hub.i[i];
    }
}

static void encode_f32(mx_st_dtype d, const float *in, char *p, int64_t n)
{
    switch (d) {
    case MX_ST_F32:
        memcpy(p, in, (size_t)n * 4);
        return;
    case MX_ST_BF16:
        encode_bf16(in, p, n);
        return;
    case MX_ST_F16:
        encode_f16(in, p, n);
        return;
    case MX_ST_F64:
        ENCODE(double, in[i]);
    default:
        MX_ASSERT(false, "nothing is converted to dtype %d", (int)d);
    }
}

static void encode_f64(mx_st_dtype d, const double *in, char *p, int64_t n)
{
    float f[BLOCK];
    if (d == MX_ST_F64) {
        memcpy(p, in, (size_t)n * 8);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        f[i] = (float)in[i];
    encode_f32(d, f, p, n);
}

static void integer_range(mx_st_dtype d, int64_t *lo, int64_t *hi)
{
    int bits = 8 * types[d].bytes;
    bool is_signed = d == MX_ST_I64 || d == MX_ST_I32 || d == MX_ST_I16 || d == MX_ST_I8;
    *hi = d == MX_ST_BOOL ? 1 : bits == 64 ? INT64_MAX : (INT64_C(1) << (bits - is_signed)) - 1;
    *lo = !is_signed ? 0 : bits == 64 ? INT64_MIN : -(INT64_C(1) << (bits - 1));
}

static int64_t encode_i64(mx_st_dtype d, const int64_t *in, char *p, int64_t n)
{
    int64_t lo, hi;
    integer_range(d, &lo, &hi);
    for (int64_t i = 0; i < n; i++) {
        if (in[i] < lo || in[i] > hi)
            return i;
        /* Little-endian: the low bytes of the hub value are the narrow value. */
        memcpy(p + i * types[d].bytes, &in[i], (size_t)types[d].bytes);
    }
    return -1;
}

/* --- the public conversion ------------------------------------------------------------------ */
bool mx_st_convertible(mx_st_dtype from, mx_st_dtype to)
{
    if (from == to)
        return from != MX_ST_NONE;
    if (to == MX_ST_F64 || to == MX_ST_F32 || to == MX_ST_BF16 || to == MX_ST_F16)
        return true;
    return !types[to].is_float && !types[from].is_float && to != MX_ST_U64;
}

/* At most BLOCK values, so that 32 bits count them. */
MX_CLONES static void scan_f32(mx_st_scan *scan, const float *x, int64_t n)
{
    uint32_t nan = 0, inf = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t mag = mx_bits_of_float(x[i]) & 0x7fffffffu;
        nan += mag > 0x7f800000u;
        inf += mag == 0x7f800000u;
    }
    scan->n_nan += nan;
    scan->n_inf += inf;
}

/* What checkpoints are mostly made of, without a detour. */
MX_CLONES static void scan_bf16(mx_st_scan *scan, const uint16_t *x, int64_t n)
{
    uint32_t nan = 0, inf = 0;
    for (int64_t i = 0; i < n; i++) {
        uint16_t mag = x[i] & 0x7fff;
        nan += mag > 0x7f80;
        inf += mag == 0x7f80;
    }
    scan->n_nan += nan;
    scan->n_inf += inf;
}

static void scan_f64(mx_st_scan *scan, const double *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        scan->n_nan += isnan(x[i]) != 0;
        scan->n_inf += isinf(x[i]) != 0;
    }
}

void mx_st_scan_add(mx_st_scan *scan, mx_st_dtype d, const void *p, int64_t n)
{
    union {
        float f[BLOCK];
        double d[BLOCK];
    } hub;
    if (!types[d].is_float)
        return;
    for (int64_t at = 0; at < n; at += BLOCK) {
        int64_t k = n - at < BLOCK ? n - at : BLOCK;
        const char *src = (const char *)p + at * types[d].bytes;
        if (d == MX_ST_F64) {
            decode_f64(d, src, hub.d, k);
            scan_f64(scan, hub.d, k);
        } else if (d == MX_ST_BF16) {
            scan_bf16(scan, (const uint16_t *)(const void *)src, k);
        } else {
            decode_f32(d, src, hub.f, k);
            scan_f32(scan, hub.f, k);
        }
    }
}

static int64_t convert_block(mx_st_dtype from, const char *src, mx_st_dtype to, char *dst,
                             int64_t n, mx_st_scan *scan)
{
    union {
        float f[BLOCK];
        double d[BLOCK];
        int64_t i[BLOCK];
    } hub;
    if (types[from].is_float && from != MX_ST_F64) {
        decode_f32(from, src, hub.f, n);
        if (scan)
            scan_f32(scan, hub.f, n);
        encode_f32(to, hub.f, dst, n);
        return -1;
    }
    if (types[to].is_float) {
        decode_f64(from, src, hub.d, n);
        if (scan)
            scan_f64(scan, hub.d, n);
        encode_f64(to, hub.d, dst, n);
        return -1;
    }
    decode_i64(from, src, hub.i, n);
    for (int64_t i = 0; from == MX_ST_U64 && i < n; i++)
        if (hub.i[i] < 0)
            return i;
    return encode_i64(to, hub.i, dst, n);
}

bool mx_st_convert(mx_st_dtype from, const void *src, mx_st_dtype to, void *dst, int64_t n,
                   mx_st_scan *scan, int64_t *bad)
{
    MX_ASSERT(mx_st_convertible(from, to), "%s to %s", types[from].name, types[to].name);
    if (from == to) {
        memcpy(dst, src, (size_t)n * (size_t)types[from].bytes);
        if (scan)
            mx_st_scan_add(scan, from, src, n);
        return true;
    }
    for (int64_t at = 0; at < n; at += BLOCK) {
        int64_t k = n - at < BLOCK ? n - at : BLOCK;
        int64_t i = convert_block(from, (const char *)src + at * types[from].bytes, to,
                                  (char *)dst + at * types[to].bytes, k, scan);
        if (i >= 0) {
            *bad = at + i;
            return false;
        }
    }
    return true;
}
