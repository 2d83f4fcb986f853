/* element_test.c - element types: values, rounding, ranges. */
#include "../test.h"
#include "store/element.h"
#include <math.h>
#include <string.h>

static float value_of(mx_st_dtype from, uint16_t bits)
{
    float x = 0;
    uint8_t byte = (uint8_t)bits;
    const void *at = mx_st_dtype_bytes(from) == 1 ? (const void *)&byte : &bits;
    MX_CHECK(mx_st_convert(from, at, MX_ST_F32, &x, 1, NULL, &(int64_t){0}));
    return x;
}

static uint16_t bits_of(mx_st_dtype to, float x)
{
    uint16_t bits = 0;
    MX_CHECK(mx_st_convert(MX_ST_F32, &x, to, &bits, 1, NULL, &(int64_t){0}));
    return bits;
}

MX_TEST(element_f8_values)
{
    MX_CHECK(value_of(MX_ST_F8_E4M3, 0x7e) == 448.0f, "%g", (double)value_of(MX_ST_F8_E4M3, 0x7e));
    MX_CHECK(value_of(MX_ST_F8_E4M3, 0x01) == 0x1p-9f);
    MX_CHECK(value_of(MX_ST_F8_E4M3, 0x08) == 0x1p-6f);
    MX_CHECK(value_of(MX_ST_F8_E4M3, 0xb8) == -1.0f);
    MX_CHECK(isnan(value_of(MX_ST_F8_E4M3, 0x7f)) && isnan(value_of(MX_ST_F8_E4M3, 0xff)));
    MX_CHECK(value_of(MX_ST_F8_E5M2, 0x7b) == 57344.0f);
    MX_CHECK(value_of(MX_ST_F8_E5M2, 0x01) == 0x1p-16f);
    MX_CHECK(isinf(value_of(MX_ST_F8_E5M2, 0x7c)) && isnan(value_of(MX_ST_F8_E5M2, 0x7d)));
}

/* Every binary16 value survives a round trip; values between neighbours go to the nearest, ties to
 * the even one. */
MX_TEST(element_f16_rounds_to_nearest_even)
{
    for (uint32_t h = 0; h < 0x7c00; h++) {
        float x = value_of(MX_ST_F16, (uint16_t)h), y = value_of(MX_ST_F16, (uint16_t)(h + 1));
        MX_CHECK(bits_of(MX_ST_F16, x) == h, "h=%x", h);
        MX_CHECK(bits_of(MX_ST_F16, -x) == (h | 0x8000), "h=%x", h);
        if (h == 0x7bff)
            y = 65536.0f;
        float mid = (x + y) / 2;
        MX_CHECK(bits_of(MX_ST_F16, mid) == h + (h & 1), "tie after %x", h);
        MX_CHECK(bits_of(MX_ST_F16, nextafterf(mid, 0)) == h, "below the tie after %x", h);
        MX_CHECK(bits_of(MX_ST_F16, nextafterf(mid, INFINITY)) == h + 1, "above the tie after %x",
                 h);
    }
    MX_CHECK(bits_of(MX_ST_F16, 1e6f) == 0x7c00 && (bits_of(MX_ST_F16, NAN) & 0x7fff) > 0x7c00);
}

MX_TEST(element_bf16_rounds_to_nearest_even)
{
    MX_CHECK(bits_of(MX_ST_BF16, 1.0f) == 0x3f80);
    MX_CHECK(bits_of(MX_ST_BF16, 0x1.01p0f) == 0x3f80, "a tie goes to even");
    MX_CHECK(bits_of(MX_ST_BF16, 0x1.03p0f) == 0x3f82, "a tie goes to even");
    MX_CHECK(bits_of(MX_ST_BF16, 0x1.010002p0f) == 0x3f81);
    MX_CHECK(bits_of(MX_ST_BF16, INFINITY) == 0x7f80 && bits_of(MX_ST_BF16, 3.4e38f) == 0x7f80);
    uint32_t low_nan = 0x7f800001;
    float f;
    memcpy(&f, &low_nan, 4);
    MX_CHECK((bits_of(MX_ST_BF16, f) & 0x7fff) > 0x7f80, "NaN stays NaN");
}

MX_TEST(element_conversions_between_types)
{
    int64_t bad = -1;
    mx_st_scan scan = {0};
    uint16_t bf[4] = {0x3f80, 0xc000, 0x7f80, 0x7fc0};
    float f[4];
    MX_CHECK(mx_st_convert(MX_ST_BF16, bf, MX_ST_F32, f, 4, &scan, &bad));
    MX_CHECK(f[0] == 1 && f[1] == -2 && isinf(f[2]) && isnan(f[3]));
    MX_CHECK(scan.n_nan == 1 && scan.n_inf == 1);
    int64_t ids[3] = {7, -100, 2000000000};
    int32_t narrow[3];
    MX_CHECK(mx_st_convert(MX_ST_I64, ids, MX_ST_I32, narrow, 3, NULL, &bad));
    MX_CHECK(narrow[0] == 7 && narrow[1] == -100 && narrow[2] == 2000000000);
    ids[1] = INT64_C(1) << 31;
    MX_CHECK(!mx_st_convert(MX_ST_I64, ids, MX_ST_I32, narrow, 3, NULL, &bad));
    MX_CHECK(bad == 1, "bad=%d", (int)bad);
    uint64_t huge[1] = {UINT64_MAX};
    MX_CHECK(!mx_st_convert(MX_ST_U64, huge, MX_ST_I64, ids, 1, NULL, &bad) && bad == 0);
    MX_CHECK(mx_st_convert(MX_ST_U64, huge, MX_ST_F32, f, 1, NULL, &bad) && f[0] == 0x1p64f);
    double d[1] = {0.1};
    MX_CHECK(mx_st_convert(MX_ST_F64, d, MX_ST_F32, f, 1, NULL, &bad) && f[0] == 0.1f);
    uint8_t flags[2] = {1, 0}, e8[2] = {127, 130};
    MX_CHECK(mx_st_convert(MX_ST_BOOL, flags, MX_ST_F32, f, 2, NULL, &bad) && f[0] == 1);
    MX_CHECK(mx_st_convert(MX_ST_F8_E8M0, e8, MX_ST_F32, f, 2, NULL, &bad));
    MX_CHECK(f[0] == 1 && f[1] == 8);
    MX_CHECK(!mx_st_convertible(MX_ST_F32, MX_ST_I32) &&
             !mx_st_convertible(MX_ST_NONE, MX_ST_NONE));
}

/* Every dtype of the graph has a name in the file, of the same width, and comes back. */
MX_TEST(element_graph_dtypes)
{
    for (int g = 0; g < MX_DTYPE_COUNT; g++) {
        mx_dtype back = MX_DTYPE_COUNT;
        mx_st_dtype d = mx_st_dtype_of((mx_dtype)g);
        MX_CHECK((size_t)mx_st_dtype_bytes(d) == mx_dtype_bytes((mx_dtype)g), "dtype %d", g);
        MX_CHECK(mx_st_dtype_graph(d, &back) && back == (mx_dtype)g, "dtype %d", g);
        MX_CHECK(mx_st_dtype_parse(mx_st_dtype_name(d)) == d);
    }
    mx_dtype none;
    MX_CHECK(!mx_st_dtype_graph(MX_ST_U32, &none) && !mx_st_dtype_graph(MX_ST_NONE, &none));
}

/* Longer than one internal block, so that block boundaries are crossed. */
MX_TEST(element_long_runs)
{
    enum { N = 5000 };
    static uint16_t h[N];
    static float f[N];
    static double d[N];
    int64_t bad;
    for (int i = 0; i < N; i++)
        h[i] = (uint16_t)(i * 7 % 0x7c00);
    MX_CHECK(mx_st_convert(MX_ST_F16, h, MX_ST_F32, f, N, NULL, &bad));
    MX_CHECK(mx_st_convert(MX_ST_F16, h, MX_ST_F64, d, N, NULL, &bad));
    for (int i = 0; i < N; i++)
        MX_CHECK(f[i] == value_of(MX_ST_F16, h[i]) && d[i] == (double)f[i], "i=%d", i);
}
