/* encode.c - see encode.h. */
#include "ops/cpu/encode.h"

#include "base/fp8.h"
#include "base/simd.h"
#include <math.h>

static float round_up(float s)
{
    uint32_t u = mx_bits_of_float(s);
    return mx_float_of_bits((u + 0xffff) & 0xffff0000u);
}

static MX_CLONES float most_of(const float *x, int64_t n)
{
    float most = 0;
    for (int64_t i = 0; i < n; i++)
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    return most;
}

static float within(float q, float low, float high)
{
    return q < low ? low : q > high ? high : q;
}

uint8_t mx_code_of(mx_code_kind kind, float x)
{
    if (kind == MX_CODE_E4M3)
        return mx_e4m3_of_float(x);
    if (kind == MX_CODE_INT8)
        return (uint8_t)(int8_t)within(rintf(x), -127, 127);
    return (uint8_t)((int)within(rintf(x), -8, 7) + 8);
}

float mx_code_value(mx_code_kind kind, uint8_t code)
{
    return kind == MX_CODE_E4M3   ? mx_float_of_e4m3(code)
           : kind == MX_CODE_INT8 ? (float)(int8_t)code
                                  : (float)(code - 8);
}

static MX_CLONES float squared_error(const float *x, int64_t n, float s)
{
    float error = 0, factor = 1 / s;
    for (int64_t i = 0; i < n; i++) {
        float q = rintf(x[i] * factor);
        q = q < -8 ? -8 : q > 7 ? 7 : q;
        error += (x[i] - q * s) * (x[i] - q * s);
    }
    return error;
}

static float scale4(const float *x, int64_t n, float amax)
{
    float best = 1, least = INFINITY;
    for (int i = 0; i < 12; i++) {
        float s = round_up(amax * (1 - 0.03f * (float)i) / 7.5f);
        float error = squared_error(x, n, s);
        if (error < least) {
            least = error;
            best = s;
        }
    }
    return best;
}

float mx_code_scale(mx_code_kind kind, const float *x, int64_t n)
{
    float amax = most_of(x, n);
    if (amax == 0)
        return 1;
    return kind == MX_CODE_INT4 ? scale4(x, n, amax)
                                : round_up(amax / (kind == MX_CODE_E4M3 ? MX_E4M3_MAX : 127));
}

float mx_code_round_scale(float scale)
{
    return mx_float_of_bf16(mx_bf16_of_float(scale));
}

uint8_t mx_grid_code(mx_code_kind kind, mx_code_grid g, float x)
{
    return mx_code_of(kind, x / g.scale + (float)g.zero);
}

float mx_grid_value(mx_code_kind kind, mx_code_grid g, uint8_t code)
{
    return (mx_code_value(kind, code) - (float)g.zero) * g.scale;
}

static MX_CLONES float weighted_error(const float *x, const float *weight, int64_t n,
                                      mx_code_grid g)
{
    float error = 0, factor = 1 / g.scale, zero = (float)g.zero;
    for (int64_t i = 0; i < n; i++) {
        float q = rintf(x[i] * factor + zero);
        q = q < -8 ? -8 : q > 7 ? 7 : q;
        float e = x[i] - (q - zero) * g.scale;
        error += e * e * (weight ? weight[i] : 1);
    }
    return error;
}

typedef struct {
    const float *x, *weight;
    int64_t n;
    mx_code_grid best;
    float least; /* its error */
} search;

static void try_grid(search *s, float scale, float zero)
{
    mx_code_grid g = {round_up(scale), (int)within(zero, -8, 7)};
    float error = weighted_error(s->x, s->weight, s->n, g);
    if (error < s->least) {
        s->least = error;
        s->best = g;
    }
}

/* Without zero points: the largest magnitude on the code -8, which has no counterpart among the
 * positive ones, or nearer to 0; negative scales turn the codes around. */
static void search_scales(search *s, float amax)
{
    enum { CLIPS = 18 };
    for (int i = 0; i < CLIPS; i++) {
        float scale = (1.08f - 0.03f * (float)i) * amax / 8;
        try_grid(s, scale, 0);
        try_grid(s, -scale, 0);
    }
}

/* The range of the numbers, which holds 0, or less and less of it; the zero point that puts its
 * lower end on the lowest code, and those beside it. */
static void search_zeros(search *s)
{
    enum { CLIPS = 16 };
    float low = 0, high = 0;
    for (int64_t i = 0; i < s->n; i++) {
        low = fminf(low, s->x[i]);
        high = fmaxf(high, s->x[i]);
    }
    for (int i = 0; i < CLIPS; i++) {
        float part = 1 - 0.03f * (float)i, scale = round_up(part * (high - low) / 15);
        for (int k = -1; k <= 1; k++)
            try_grid(s, scale, rintf(-8 - part * low / scale) + (float)k);
    }
}

static mx_code_grid fit4(const float *x, const float *weight, int64_t n, bool zeros)
{
    search s = {x, weight, n, {1, 0}, INFINITY};
    float amax = most_of(x, n);
    if (amax > 0 && zeros)
        search_zeros(&s);
    else if (amax > 0)
        search_scales(&s, amax);
    return s.best;
}

mx_code_grid mx_code_fit(mx_code_kind kind, const float *x, const float *weight, int64_t n,
                         bool zeros)
{
    return kind == MX_CODE_INT4 ? fit4(x, weight, n, zeros)
                                : (mx_code_grid){mx_code_scale(kind, x, n), 0};
}

static MX_CLONES void fp8_codes(const float *x, int64_t n, float s, uint8_t *q)
{
    for (int64_t i = 0; i < n; i++)
        q[i] = mx_e4m3_of_float(x[i] / s);
}

static MX_CLONES void int8_codes(const float *x, int64_t n, float s, uint8_t *q)
{
    for (int64_t i = 0; i < n; i++)
        q[i] = (uint8_t)(int8_t)rintf(x[i] / s);
}

float mx_encode(mx_code_kind kind, const float *x, int64_t n, uint8_t *q)
{
    float s = mx_code_scale(kind, x, n);
    if (kind == MX_CODE_E4M3)
        fp8_codes(x, n, s, q);
    else if (kind == MX_CODE_INT8)
        int8_codes(x, n, s, q);
    else
        for (int64_t i = 0; i < n; i++)
            q[i] = mx_code_of(kind, x[i] / s);
    return s;
}

float mx_encode4(const float *x, int64_t n, uint8_t *q)
{
    float s = mx_code_scale(MX_CODE_INT4, x, n);
    for (int64_t k = 0; k < n; k += 2)
        q[k / 2] = (uint8_t)(mx_code_of(MX_CODE_INT4, x[k] / s) |
                             mx_code_of(MX_CODE_INT4, x[k + 1] / s) << 4);
    return s;
}
