/* vmath_test.c - the vector functions of base/vmath.h against libm in double, over their whole
 * range.
 *
 * Each function is run in an MX_CLONES loop, so what is tested is the vectorised code of this
 * machine. Every 997th float of each sign is visited (4.3 million points), plus the
 * neighbourhoods of the seams.
 */
#include "../test.h"

#include "base/vmath.h"
#include <math.h>
#include <stddef.h>

#define BLOCK 1024

typedef void map_fn(float *y, const float *x, int n);
#define MAP(name, f)                                                                               \
    MX_CLONES static void name(float *restrict y, const float *restrict x, int n)                  \
    {                                                                                              \
        for (int i = 0; i < n; i++)                                                                \
            y[i] = f(x[i]);                                                                        \
    }
MAP(map_exp, mx_vexpf)
MAP(map_exp_nonpositive, mx_vexpf_nonpositive)
MAP(map_log, mx_vlogf)
MAP(map_log1p, mx_vlog1pf)
MAP(map_tanh, mx_vtanhf)
MAP(map_erf, mx_verff)

/* Error in units of the last place of the float nearest to `want`. */
static double ulp_error(float got, double want)
{
    if (isnan(want))
        return isnan(got) ? 0 : 1e30;
    if (isnan(got))
        return 1e30;
    float w = (float)want;
    if (isinf(w) || isinf(got))
        return w == got ? 0 : fabsf(got) >= 3.4028e38f && fabs(want) >= 3.4028e38 ? 1 : 1e30;
    double ulp = fabsf(w) < 0x1p-126f ? 0x1p-149 : ldexp(1.0, ilogbf(w) - 23);
    return fabs((double)got - want) / ulp;
}

static void sweep(const char *name, map_fn *f, double (*ref)(double), float lo, float hi,
                  double limit)
{
    float x[BLOCK], y[BLOCK];
    double worst = 0;
    float worst_x = 0;
    for (int sign = 0; sign < 2; sign++)
        for (uint64_t u = 0; u < 0x7f800000u;) {
            int n = 0;
            for (; n < BLOCK && u < 0x7f800000u; u += 997) {
                float v = mx_float_of_bits((uint32_t)u | (uint32_t)sign << 31);
                if (v >= lo && v <= hi)
                    x[n++] = v;
            }
            f(y, x, n);
            for (int i = 0; i < n; i++) {
                double e = ulp_error(y[i], ref(x[i]));
                if (e > worst) {
                    worst = e;
                    worst_x = x[i];
                }
            }
        }
    MX_CHECK(worst <= limit, "%s: %.2f ulp at %.9g (limit %.1f)", name, worst, worst_x, limit);
}

static float one(map_fn *f, float x)
{
    float v[16], y[16];
    for (int i = 0; i < 16; i++)
        v[i] = x;
    f(y, v, 16);
    return y[7];
}

MX_TEST(vmath_exp_matches_libm)
{
    sweep("exp", map_exp, exp, -INFINITY, INFINITY, 1.1);
    MX_CHECK(one(map_exp, INFINITY) == INFINITY);
    MX_CHECK(one(map_exp, -INFINITY) == 0);
    MX_CHECK(one(map_exp, 0) == 1);
    MX_CHECK(isnan(one(map_exp, NAN)));
    MX_CHECK(one(map_exp, -100.0f) > 0, "denormal results are kept");
}

MX_TEST(vmath_exp_nonpositive_matches_libm)
{
    sweep("exp_nonpositive", map_exp_nonpositive, exp, -87.3f, 0, 1.1);
    MX_CHECK(one(map_exp_nonpositive, -INFINITY) == 0);
    MX_CHECK(one(map_exp_nonpositive, -90.0f) == 0);
    MX_CHECK(one(map_exp_nonpositive, 0) == 1);
    MX_CHECK(isnan(one(map_exp_nonpositive, NAN)));
}

MX_TEST(vmath_log_matches_libm)
{
    sweep("log", map_log, log, 0, INFINITY, 1.1);
    MX_CHECK(one(map_log, 0) == -INFINITY);
    MX_CHECK(one(map_log, INFINITY) == INFINITY);
    MX_CHECK(one(map_log, 1) == 0);
    MX_CHECK(isnan(one(map_log, -1)));
    MX_CHECK(isnan(one(map_log, NAN)));
    sweep("log1p", map_log1p, log1p, -0.999f, INFINITY, 2);
    MX_CHECK(isnan(one(map_log1p, NAN)));
}

MX_TEST(vmath_tanh_erf_match_libm)
{
    sweep("tanh", map_tanh, tanh, -INFINITY, INFINITY, 2);
    sweep("erf", map_erf, erf, -INFINITY, INFINITY, 3);
    MX_CHECK(one(map_tanh, INFINITY) == 1 && one(map_tanh, -INFINITY) == -1);
    MX_CHECK(one(map_erf, INFINITY) == 1 && one(map_erf, -INFINITY) == -1);
    MX_CHECK(isnan(one(map_tanh, NAN)) && isnan(one(map_erf, NAN)));
    MX_CHECK(signbit(one(map_tanh, -0.0f)) && signbit(one(map_erf, -0.0f)), "odd at zero");
}

MX_TEST(vmath_bf16_rounds_to_nearest_even)
{
    MX_CHECK(mx_bf16_of_float(1.0f) == 0x3f80);
    MX_CHECK(mx_bf16_of_float(0x1.01p0f) == 0x3f80, "tie goes to even");
    MX_CHECK(mx_bf16_of_float(0x1.03p0f) == 0x3f82, "tie goes to even");
    MX_CHECK(mx_bf16_of_float(0x1.010002p0f) == 0x3f81);
    MX_CHECK(mx_bf16_of_float(3.4e38f) == 0x7f80, "overflow is infinity");
    MX_CHECK(mx_bf16_of_float(-INFINITY) == 0xff80);
    MX_CHECK(isnan(mx_float_of_bf16(mx_bf16_of_float(NAN))));
    MX_CHECK(isnan(mx_float_of_bf16(mx_bf16_of_float(mx_float_of_bits(0x7f800001u)))),
             "a NaN with only low bits must not become infinity");
}
