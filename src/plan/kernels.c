/* kernels.c - see kernels.h. */
#include "plan/kernels.h"

#include "ops/gpu_work.h"
#include <math.h>

enum { TILE_M = 128, TILE_N = 256, GROUPED_N = 128, SPLIT_LEAST = 2048 };

static double operand_bytes(mx_rate r)
{
    static const double bytes[MX_RATES] = {[MX_RATE_F32] = 4,
                                           [MX_RATE_BF16] = 2,
                                           [MX_RATE_FP8] = 1,
                                           [MX_RATE_FP8_ROWS] = 1,
                                           [MX_RATE_FP8_BLOCKS] = 1,
                                           [MX_RATE_INT8] = 1,
                                           [MX_RATE_FP4] = 0.5};
    return bytes[r];
}

/* Share of the rate that is left by an inner dim k, and by columns that fill no tile: a grouped
 * GEMM has many small results, whose last tiles and epilogues nothing hides. */
static double inner_share(const mx_plan_chip *c, const mx_plan_gemm *g, double k)
{
    if (g->groups == 1)
        return k / (k + c->k_half);
    double half = c->grouped_k_half > 0 ? c->grouped_k_half : c->k_half;
    return k / (k + half) * g->n / (ceil(g->n / GROUPED_N) * GROUPED_N);
}

/* With the inner dim in `split` parts, whose float32 sums are written and added. */
static double split_seconds(const mx_plan_chip *c, const mx_plan_gemm *g, double split)
{
    double tiles = ceil(g->m / TILE_M) * ceil(g->n / TILE_N) * g->groups * split;
    double waves = tiles / c->units, full = waves / (0.5 * (waves + ceil(waves)));
    double rows = g->m / (ceil(g->m / TILE_M) * TILE_M);
    double rate = c->sustained[g->rate] * full * inner_share(c, g, g->k / split);
    double sums = split > 1 ? 2 * 4 * split * g->m * g->n * g->groups : 0;
    return 2 * g->m * g->n * g->k * g->groups / (rate * (0.5 + 0.5 * rows)) +
           sums / (c->bytes_per_second * c->memory_share);
}

/* Where a result has too few tiles for the chip (gradients of small weights, over many tokens),
 * libraries split the sum; grouped GEMMs do not. */
static double formula(const mx_plan_chip *c, const mx_plan_gemm *g)
{
    double best = split_seconds(c, g, 1);
    for (double split = 2; g->groups == 1 && g->k / split >= SPLIT_LEAST; split *= 2)
        best = fmin(best, split_seconds(c, g, split));
    return best;
}

/* Measured over predicted, of the points near this shape. */
static double correction(const mx_plan_chip *c, const mx_plan_gemm *g)
{
    double sum = 0, weight = 0;
    const mx_gemm_points *all = g->groups > 1 ? &c->grouped : &c->gemm;
    for (int i = 0; i < all->n; i++) {
        const mx_gemm_point *p = &all->at[i];
        double dm = log2(p->m / g->m), dn = log2(p->n / g->n), dk = log2(p->k / g->k);
        double de = log2(p->groups / g->groups);
        double w = 1 / (0.05 + dm * dm + dn * dn + dk * dk + de * de);
        mx_plan_gemm at = {p->m, p->n, p->k, p->groups, MX_RATE_BF16};
        sum += w * (2 * p->m * p->n * p->k * p->groups / p->flops) / formula(c, &at);
        weight += w;
    }
    return weight > 0 ? sum / weight : 1;
}

/* Sums of int8 are int32, and a kernel of its own makes numbers of them. */
enum { INT8_SUM_BYTES = 4, RESULT_BYTES = 2 };

static double gemm_seconds(const mx_plan_chip *c, const mx_plan_gemm *g, double result_bytes)
{
    double b = operand_bytes(g->rate);
    double bytes = g->groups * (b * (g->m * g->k + g->k * g->n) + result_bytes * g->m * g->n);
    double compute = formula(c, g) * correction(c, g);
    double memory = bytes / (c->bytes_per_second * c->memory_share);
    return fmax(compute, memory) + c->launch_seconds;
}

/* A band of rows at a time, for which there is room. */
static double int8_seconds(const mx_plan_chip *c, const mx_plan_gemm *g)
{
    mx_plan_gemm band = *g;
    band.m = fmin(g->m, (double)mx_gpu_int8_band((int64_t)ceil(g->m), (int64_t)ceil(g->n)));
    double bands = g->m / band.m;
    return bands * (gemm_seconds(c, &band, INT8_SUM_BYTES) +
                    mx_int8_sums_seconds(c, g->groups * band.m * g->n));
}

double mx_gemm_seconds(const mx_plan_chip *c, const mx_plan_gemm *g)
{
    return g->rate == MX_RATE_INT8 ? int8_seconds(c, g) : gemm_seconds(c, g, RESULT_BYTES);
}

double mx_int8_sums_seconds(const mx_plan_chip *c, double results)
{
    return mx_stream_seconds(c, results * (INT8_SUM_BYTES + RESULT_BYTES), 1);
}

/* FLOP/s with heads of 64, 128 or 256. Those of 128 have a curve, or shares of sustained; the
 * others a curve, or less than those by what the tensor cores are filled less. */
static double attention_rate(const mx_plan_chip *c, int size, double length, bool backward)
{
    static const double share[2][2] = {{0.70, 1.0}, {0.54, 0.84}}; /* at 2k and from 32k on */
    static const double fill[MX_HEAD_SIZES][2] = {{0.76, 0.87}, {1, 1}, {0.81, 0.81}};
    const mx_rate_curve *curve = &c->attention[size][backward], *usual = &c->attention[1][backward];
    double w = fmin(fmax(log2(length / 2048) / 4, 0), 1);
    if (curve->n)
        return mx_rate_curve_at(curve, length);
    if (usual->n)
        return fill[size][backward] * mx_rate_curve_at(usual, length);
    return fill[size][backward] * c->sustained[MX_RATE_BF16] *
           (share[backward][0] + w * (share[backward][1] - share[backward][0]));
}

double mx_attention_seconds(const mx_plan_chip *c, double flops, double length, double head_dim,
                            bool backward)
{
    double at = fmin(fmax(log2(head_dim / 64), 0), MX_HEAD_SIZES - 1);
    int below = at < 1 ? 0 : 1;
    double rate = (1 - (at - below)) * attention_rate(c, below, length, backward) +
                  (at - below) * attention_rate(c, below + 1, length, backward);
    return flops / rate + c->launch_seconds;
}

double mx_recurrence_seconds(const mx_plan_chip *c, double flops, double bytes, bool backward)
{
    static const double share[2] = {0.07, 0.045}; /* of sustained: short GEMMs, one after another */
    double rate = c->recurrence[backward] > 0 ? c->recurrence[backward]
                                              : share[backward] * c->sustained[MX_RATE_BF16];
    return fmax(flops / rate, bytes / (c->bytes_per_second * c->memory_share));
}

/* Thread instructions of quantize.cu's inner loop for a number, as compiled for sm_90. */
static const double RANDOM_INSTRUCTIONS = 51;

double mx_issue_seconds(const mx_plan_chip *c, double numbers, double instructions, double bytes)
{
    double issued = c->peak[MX_RATE_F32] / 2; /* an instruction of a lane is two FLOP at most */
    double computed = issued > 0 ? numbers * instructions / issued : 0;
    return fmax(0, computed - bytes / (c->bytes_per_second * c->memory_share));
}

double mx_random_seconds(const mx_plan_chip *c, double numbers, double bytes)
{
    return mx_issue_seconds(c, numbers, RANDOM_INSTRUCTIONS, bytes);
}

double mx_stream_seconds(const mx_plan_chip *c, double bytes, double kernels)
{
    return bytes / (c->bytes_per_second * c->memory_share) + kernels * c->launch_seconds;
}

void mx_traffic_bytes(mx_traffic kind, double bytes, mx_group_span s, double out[MX_LEVELS])
{
    double in = s.inside, across = s.size / s.inside;
    out[0] = out[1] = 0;
    if (s.size <= 1)
        return;
    if (kind == MX_SEND) {
        out[across > 1] = bytes;
        return;
    }
    if (kind == MX_ALL_TO_ALL) {
        out[0] = bytes * (in - 1) / s.size;
        out[1] = bytes * (s.size - in) / s.size;
        return;
    }
    double times = kind == MX_ALL_REDUCE ? 2 : 1;
    out[0] = times * bytes * (in - 1) / in;
    out[1] = times * bytes / in * (across - 1) / across;
}

double mx_traffic_seconds(const mx_network *w, mx_traffic kind, double bytes, mx_group_span s)
{
    double sent[MX_LEVELS], slowest = 0, latency = 0;
    mx_traffic_bytes(kind, bytes, s, sent);
    double steps[MX_LEVELS] = {s.inside - 1, s.size / s.inside - 1};
    for (int l = 0; l < MX_LEVELS; l++) {
        const mx_level *level = &w->level[l < w->n ? l : w->n - 1];
        slowest = fmax(slowest, sent[l] / level->bytes_per_second);
        latency += (kind == MX_SEND ? steps[l] > 0 : steps[l]) * level->latency;
    }
    return s.size > 1 ? slowest + latency * (kind == MX_ALL_REDUCE ? 2 : 1) : 0;
}
