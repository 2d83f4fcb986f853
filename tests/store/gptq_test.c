/* gptq_test.c - GPTQ: its factor against H in double arithmetic, and what rounding with it
 * gains. */
#include "../test.h"
#include "base/arena.h"
#include "base/fp8.h"
#include "base/rng.h"
#include "store/gptq.h"
#include <math.h>
#include <string.h>

enum { N = 160, ROWS = 12, TOKENS = 700, GROUP = 32 };

static float uniform(uint64_t stream, int64_t i)
{
    return 2 * mx_uniform_f32((uint32_t)mx_hash64(stream, (uint64_t)i)) - 1;
}

/* Inputs whose channels are mixtures of few causes, of very different size; channel 7 is
 * always 0. */
static void make_inputs(float *x, float *h)
{
    for (int64_t t = 0; t < TOKENS; t++)
        for (int64_t i = 0; i < N; i++)
            x[t * N + i] = i == 7 ? 0
                                  : (uniform(1, t * 8 + i % 8) + 0.3f * uniform(2, t * N + i)) *
                                        (i % 11 == 3 ? 8.f : 1.f);
    for (int64_t i = 0; i < N; i++)
        for (int64_t j = 0; j < N; j++) {
            double sum = 0;
            for (int64_t t = 0; t < TOKENS; t++)
                sum += (double)x[t * N + i] * x[t * N + j];
            h[i * N + j] = (float)sum;
        }
}

/* H^-1 = U^T U: with the columns in the factor's order, and the diagonal raised, H U^T U is 1. */
static void check_factor(const mx_gptq_factor *f, const float *h)
{
    double mean = 0, worst = 0;
    double *inverse = mx_realloc(NULL, sizeof *inverse * N * N);
    for (int i = 0; i < N; i++)
        mean += (double)h[i * N + i] / N;
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            double sum = 0;
            for (int k = 0; k <= (i < j ? i : j); k++)
                sum += (double)f->u[k * N + i] * f->u[k * N + j];
            inverse[i * N + j] = sum;
        }
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            double sum = 0;
            for (int k = 0; k < N; k++)
                sum += (h[f->order[i] * N + f->order[k]] + (i == k ? MX_GPTQ_DAMP * mean : 0)) *
                       inverse[k * N + j];
            worst = fmax(worst, fabs(sum - (i == j)));
        }
    MX_CHECK(worst < 1e-3, "H U^T U is off by %g", worst);
    mx_free(inverse);
}

/* |(W - V) x|^2 over the inputs. */
static double loss_of(const float *w, const float *v, const float *x)
{
    double all = 0;
    for (int t = 0; t < TOKENS; t++)
        for (int r = 0; r < ROWS; r++) {
            double sum = 0;
            for (int i = 0; i < N; i++)
                sum += ((double)w[r * N + i] - v[r * N + i]) * x[t * N + i];
            all += sum * sum;
        }
    return all;
}

typedef struct {
    mx_code_kind kind;
    bool act_order, zeros;
    float shift; /* of all weights */
    double gain; /* what is lost of the outputs is less than this, of what the nearest codes lose */
} rounding;

/* H's diagonal is raised: what is said to be lost holds that too. */
static double said_loss(const float *h, const float *w, const float *v, const float *x)
{
    double mean = 0, squares = 0;
    for (int i = 0; i < N; i++)
        mean += (double)h[i * N + i] / N;
    for (int i = 0; i < ROWS * N; i++)
        squares += ((double)w[i] - v[i]) * ((double)w[i] - v[i]);
    return loss_of(w, v, x) + MX_GPTQ_DAMP * mean * squares;
}

/* Of the codes of int4, the share that would be better one higher or lower, the others given: what
 * coordinate descent leaves. */
static double improvable(const mx_gptq_factor *f, const float *w, const mx_gptq_weight *of)
{
    int n_better = 0;
    for (int r = 0; r < ROWS; r++)
        for (int j = 0; j < N; j++) {
            double g = 0, d = f->h[j * N + j], s = of->scale[(r * N + j) / of->group];
            uint8_t q = of->codes[r * N + j];
            for (int k = 0; k < N; k++)
                g += ((double)w[r * N + k] - of->w[r * N + k]) * f->h[k * N + j];
            n_better += (q < 15 && s * s * d - 2 * s * g < -1e-3 * s * s * d) ||
                        (q > 0 && s * s * d + 2 * s * g < -1e-3 * s * s * d);
        }
    return (double)n_better / (ROWS * N);
}

/* What is lost of the outputs. */
static double round_with(const float *h, const float *x, const rounding *how)
{
    float w[ROWS * N], v[ROWS * N], nearest[ROWS * N], scale[ROWS * N];
    uint8_t codes[ROWS * N], q[N];
    int8_t zero[ROWS * N] = {0};
    float *own = mx_realloc(NULL, sizeof *own * N * N);
    int64_t group = how->kind == MX_CODE_INT4 ? GROUP : N;
    memcpy(own, h, sizeof *own * N * N);
    mx_gptq_factor f;
    mx_gptq_outputs outputs = {0};
    MX_CHECK_OK(mx_gptq_factor_make(&f, own, N, how->act_order, "w"));
    check_factor(&f, h);
    for (int i = 0; i < ROWS * N; i++)
        w[i] = v[i] = uniform(3, i) + how->shift;
    mx_gptq_weight weight = {how->kind, ROWS, group, v, codes, scale, how->zeros ? zero : NULL};
    MX_CHECK_OK(mx_gptq_round(&f, &weight, &outputs));
    for (int at = 0; at < ROWS * N; at += (int)group) {
        float s = mx_encode(how->kind, w + at, group, q);
        for (int i = 0; i < group; i++) {
            nearest[at + i] = mx_code_value(how->kind, q[i]) * s;
            float of_code = (mx_code_value(how->kind, codes[at + i]) - zero[at / group]) *
                            scale[at / group];
            MX_CHECK(v[at + i] == of_code, "%g is not what its code says, %g", (double)v[at + i],
                     (double)of_code);
        }
        MX_CHECK((mx_bits_of_float(scale[at / group]) & 0xffff) == 0, "a scale of many bits");
        MX_CHECK(zero[at / group] >= -8 && zero[at / group] <= 7);
    }
    double by_gptq = loss_of(w, v, x), by_nearest = loss_of(w, nearest, x);
    MX_CHECK(by_gptq < how->gain * by_nearest, "kind %d: %g by GPTQ, %g by the nearest", how->kind,
             by_gptq, by_nearest);
    double said = said_loss(h, w, v, x);
    MX_CHECK(fabs(outputs.lost - said) < 0.02 * said, "%g is said to be lost, %g is", outputs.lost,
             said);
    MX_CHECK(outputs.whole > 10 * outputs.lost);
    if (how->kind == MX_CODE_INT4)
        MX_CHECK(improvable(&f, w, &weight) < 0.02, "%g of the codes could be better",
                 improvable(&f, w, &weight));
    mx_gptq_factor_close(&f);
    mx_free(own);
    return by_gptq;
}

MX_TEST(gptq_rounds_for_its_inputs)
{
    float *x = mx_realloc(NULL, sizeof *x * TOKENS * N), *h = mx_realloc(NULL, sizeof *h * N * N);
    make_inputs(x, h);
    for (int act_order = 0; act_order < 2; act_order++) {
        rounding four = {MX_CODE_INT4, act_order, false, 0, 0.5}, shifted = four, zeros = four;
        round_with(h, x, &four);
        round_with(h, x, &(rounding){MX_CODE_INT8, act_order, false, 0, 0.5});
        round_with(h, x, &(rounding){MX_CODE_E4M3, act_order, false, 0, 0.5});
        shifted.shift = zeros.shift = 0.5f; /* weights of -0.5 to 1.5 */
        zeros.zeros = true;
        double with = round_with(h, x, &zeros), without = round_with(h, x, &shifted);
        MX_CHECK(with < 0.7 * without, "%g with zero points, %g without", with, without);
    }
    mx_free(x);
    mx_free(h);
}

MX_TEST(gptq_refuses_inputs_that_are_not_finite)
{
    float h[4] = {1, 0, 0, NAN};
    mx_gptq_factor f;
    mx_status st = mx_gptq_factor_make(&f, h, 2, false, "layers.0.w");
    MX_CHECK(st && strstr(mx_status_text(st), "layers.0.w: its inputs are not finite"), "%s",
             mx_status_text(st));
    mx_status_free(st);
}

/* No input at all: nothing but the diagonal that is added, so every code is the nearest, and the
 * scale fits them no worse than the one that was chosen before they were known. */
MX_TEST(gptq_of_nothing_is_the_nearest)
{
    enum { SMALL = 8 };
    float h[SMALL * SMALL] = {0}, w[SMALL], v[SMALL], scale[1];
    uint8_t codes[SMALL], q[SMALL];
    double ours = 0, theirs = 0;
    mx_gptq_factor f;
    for (int i = 0; i < SMALL; i++)
        w[i] = v[i] = uniform(9, i);
    MX_CHECK_OK(mx_gptq_factor_make(&f, h, SMALL, false, "w"));
    MX_CHECK_OK(mx_gptq_round(&f, &(mx_gptq_weight){MX_CODE_INT4, 1, SMALL, v, codes, scale, NULL},
                              &(mx_gptq_outputs){0}));
    float s = mx_encode(MX_CODE_INT4, w, SMALL, q);
    for (int i = 0; i < SMALL; i++) {
        MX_CHECK(codes[i] == mx_code_of(MX_CODE_INT4, w[i] / scale[0]), "code %d", i);
        double b = w[i] - (double)mx_code_value(MX_CODE_INT4, q[i]) * s;
        ours += (w[i] - (double)v[i]) * (w[i] - (double)v[i]);
        theirs += b * b;
    }
    MX_CHECK(ours <= theirs * (1 + 1e-6), "%g, and %g by the scale alone", ours, theirs);
    mx_gptq_factor_close(&f);
}
