/* sample.c - penalties, then temperature, then the three cuts (top-k, top-p, min-p), then one draw.
 *
 * The order and the formulas are those of transformers' logits processors. The draw is one uniform
 * number from Philox, so an answer depends on the seed, the sequence and the step alone, not on the
 * batch.
 */
#include "infer/sample.h"

#include "base/rng.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Below it quotients may be infinite, and the highest logit is all there is anyway. */
static const double LEAST_TEMPERATURE = 1e-30;

typedef struct {
    float value;
    int32_t id;
} candidate;

static int by_value(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    if (isnan(x->value) != isnan(y->value)) /* an order for sorting needs them all in one place */
        return isnan(x->value) ? 1 : -1;
    if (x->value != y->value && !isnan(x->value))
        return x->value > y->value ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

static void penalise(const mx_sampling *s, candidate *c, int64_t vocab, const int32_t *seen,
                     int64_t n_seen)
{
    if (s->repetition_penalty == 1 && s->presence_penalty == 0 && s->frequency_penalty == 0)
        return;
    for (int64_t i = 0; i < n_seen; i++) {
        int32_t id = seen[i];
        if (id < 0 || id >= vocab)
            continue;
        if (c[id].id == id) { /* the first time; then it is marked until the end */
            c[id].id = ~id;
            double v = c[id].value, r = s->repetition_penalty > 0 ? s->repetition_penalty : 1;
            c[id].value = (float)((v < 0 ? v * r : v / r) - s->presence_penalty);
        }
        c[id].value -= (float)s->frequency_penalty;
    }
    for (int64_t i = 0; i < n_seen; i++)
        if (seen[i] >= 0 && seen[i] < vocab)
            c[seen[i]].id = seen[i];
}

static double log_sum(const float *z, int64_t n, float *top)
{
    double sum = 0;
    *top = z[0];
    for (int64_t i = 1; i < n; i++)
        *top = z[i] > *top ? z[i] : *top;
    for (int64_t i = 0; i < n; i++)
        sum += exp((double)z[i] - *top);
    return *top + log(sum);
}

/* How many of the sorted candidates are kept; total is the sum of their weights. */
static int64_t cut(const mx_sampling *s, const candidate *c, int64_t n, double *total)
{
    int64_t keep = s->top_k > 0 && s->top_k < n ? s->top_k : n;
    double all = 0, sum = 0;
    for (int64_t i = 0; i < keep; i++)
        all += exp((double)c[i].value - c[0].value);
    for (int64_t i = 0; i < keep; i++) {
        double w = exp((double)c[i].value - c[0].value);
        bool enough = s->top_p > 0 && s->top_p < 1 && sum >= s->top_p * all;
        if (i > 0 && (enough || (s->min_p > 0 && w < s->min_p))) {
            keep = i;
            break;
        }
        sum += w;
    }
    *total = sum;
    return keep;
}

mx_choice mx_sample(const mx_sampling *s, const float *logits, int64_t vocab, const int32_t *seen,
                    int64_t n_seen, uint64_t stream, uint64_t step, void *work)
{
    candidate *c = work;
    float top;
    double lse = log_sum(logits, vocab, &top);
    for (int64_t i = 0; i < vocab; i++)
        c[i] = (candidate){logits[i], (int32_t)i};
    penalise(s, c, vocab, seen, n_seen);
    int32_t pick = 0;
    if (s->temperature < LEAST_TEMPERATURE) {
        for (int64_t i = 1; i < vocab; i++)
            if (c[i].value > c[pick].value)
                pick = (int32_t)i;
        return (mx_choice){pick, (float)(logits[pick] - lse)};
    }
    for (int64_t i = 0; i < vocab; i++)
        c[i].value = (float)(c[i].value / s->temperature);
    qsort(c, (size_t)vocab, sizeof *c, by_value);
    double total, at = 0;
    int64_t keep = cut(s, c, vocab, &total);
    mx_random4 r = mx_philox(s->seed, stream, step);
    double u = mx_uniform_f64(r.v[0], r.v[1]) * total;
    pick = c[keep - 1].id;
    for (int64_t i = 0; i < keep; i++) {
        at += exp((double)c[i].value - c[0].value);
        if (u < at) {
            pick = c[i].id;
            break;
        }
    }
    return (mx_choice){pick, (float)(logits[pick] - lse)};
}
