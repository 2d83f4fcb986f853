/* sample.c - see sample.h.
 *
 * Candidates are popped from a heap, the likeliest first, so that a top-k or top-p that keeps few
 * of many costs little more than reading them. Each token takes one uniform number from Philox: it
 * depends on the seed, the sequence and the step alone, not on the batch.
 */
#include "infer/sample.h"

#include "base/rng.h"
#include "base/simd.h"
#include "base/vmath.h"
#include <math.h>
#include <stddef.h>

typedef struct {
    float value;
    int32_t id;
} candidate;

/* --- a heap, the best at its root; NaN is worst --- */

static bool better(const candidate *a, const candidate *b)
{
    if (isnan(a->value) || isnan(b->value))
        return !isnan(a->value) || (isnan(b->value) && a->id < b->id);
    return a->value > b->value || (a->value == b->value && a->id < b->id);
}

static void sift(candidate *c, int64_t i, int64_t n)
{
    candidate x = c[i];
    for (int64_t k; (k = 2 * i + 1) < n; i = k) {
        k += k + 1 < n && better(&c[k + 1], &c[k]);
        if (!better(&c[k], &x))
            break;
        c[i] = c[k];
    }
    c[i] = x;
}

static void heapify(candidate *c, int64_t n)
{
    for (int64_t i = n / 2; i-- > 0;)
        sift(c, i, n);
}

/* The best of n moves after the others: the i-th that is taken of n stands at n - 1 - i. */
static void pop(candidate *c, int64_t n)
{
    candidate top = c[0];
    c[0] = c[n - 1];
    c[n - 1] = top;
    sift(c, 0, n - 1);
}

/* --- sums --- */

/* Blocks of 512 are summed in float, their sums in double. */
MX_CLONES static double sum_exp(const float *z, int64_t n, float top)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i += 512) {
        float part = 0;
        int64_t end = i + 512 < n ? i + 512 : n;
#pragma omp simd reduction(+ : part)
        for (int64_t j = i; j < end; j++)
            part += mx_vexpf_nonpositive(z[j] - top);
        sum += part;
    }
    return sum;
}

MX_CLONES static float max_of(const float *z, int64_t n, bool *broken)
{
    float top = -INFINITY;
    int bad = 0;
#pragma omp simd reduction(max : top) reduction(| : bad)
    for (int64_t i = 0; i < n; i++) {
        bad |= z[i] != z[i];
        top = z[i] > top ? z[i] : top;
    }
    *broken = bad;
    return top;
}

double mx_log_sum_exp(const float *logits, int64_t n)
{
    bool broken;
    float top = max_of(logits, n, &broken);
    return broken ? NAN : top + log(sum_exp(logits, n, top));
}

int mx_most_likely(const float *logits, int64_t vocab, double log_sum, int k, mx_choice *out,
                   void *work)
{
    candidate *c = work;
    int n = k < vocab ? k : (int)vocab;
    for (int64_t i = 0; i < vocab; i++)
        c[i] = (candidate){logits[i], (int32_t)i};
    heapify(c, vocab);
    for (int i = 0; i < n; i++) {
        pop(c, vocab - i);
        const candidate *x = &c[vocab - 1 - i];
        out[i] = (mx_choice){x->id, (float)(x->value - log_sum)};
    }
    return n;
}

/* --- what changes logits --- */

static bool inside(int32_t id, int64_t vocab)
{
    return id >= 0 && id < vocab;
}

static void penalise(const mx_sample_args *a, candidate *c)
{
    const mx_sampling *s = &a->how;
    double r = s->repetition_penalty > 0 ? s->repetition_penalty : 1;
    bool counts = s->presence_penalty != 0 || s->frequency_penalty != 0;
    for (int64_t i = 0; i < a->n_seen && r != 1; i++) {
        int32_t id = a->seen[i];
        if (!inside(id, a->vocab) || c[id].id < 0)
            continue;
        c[id].id = ~id; /* marked until all have been looked at */
        double v = c[id].value;
        c[id].value = (float)(v < 0 ? v * r : v / r);
    }
    for (int64_t i = 0; i < a->n_seen; i++)
        if (inside(a->seen[i], a->vocab))
            c[a->seen[i]].id = a->seen[i];
    for (int64_t i = a->n_prompt; i < a->n_seen && counts; i++) {
        int32_t id = a->seen[i];
        if (!inside(id, a->vocab))
            continue;
        if (c[id].id >= 0)
            c[id].value -= (float)s->presence_penalty;
        c[id].value -= (float)s->frequency_penalty;
        c[id].id = ~id;
    }
    for (int64_t i = a->n_prompt; i < a->n_seen && counts; i++)
        if (inside(a->seen[i], a->vocab))
            c[a->seen[i]].id = a->seen[i];
}

static void prepare(const mx_sample_args *a, candidate *c)
{
    for (int64_t i = 0; i < a->vocab; i++) {
        bool out = a->allowed && !(a->allowed[i / 32] >> (i % 32) & 1);
        c[i] = (candidate){out ? -INFINITY : a->logits[i], (int32_t)i};
    }
    for (int i = 0; i < a->n_banned; i++)
        if (inside(a->banned[i], a->vocab))
            c[a->banned[i]].value = -INFINITY;
    for (int i = 0; i < a->n_bias; i++)
        if (inside(a->bias[i].id, a->vocab))
            c[a->bias[i].id].value += a->bias[i].bias;
    penalise(a, c);
}

/* --- sampling --- */

static double weight(const candidate *c, double top)
{
    return exp((double)c->value - top);
}

/* How many of the first candidates from `c` downwards are kept; *total: their weights. */
static int64_t nucleus(const candidate *c, int64_t n, double top, double share, double *total)
{
    double sum = 0;
    int64_t kept = 0;
    while (kept < n && (kept == 0 || sum < share))
        sum += weight(c - kept++, top);
    *total = sum;
    return kept;
}

/* The kept ones stand at the end, the best last; gives how many, of n. */
static int64_t cut(const mx_sampling *s, candidate *c, int64_t n, double top, double *total)
{
    bool by_p = s->top_p > 0 && s->top_p < 1;
    double all = 0;
    int64_t kept = 0;
    heapify(c, n);
    if (s->top_k > 0 && s->top_k < n) {
        for (; kept < n && (kept < s->top_k || c[0].value == c[n - kept].value); kept++)
            pop(c, n - kept);
        for (int64_t i = 0; i < kept; i++)
            all += weight(&c[n - 1 - i], top);
        *total = all;
        return by_p ? nucleus(&c[n - 1], kept, top, s->top_p * all, total) : kept;
    }
    for (int64_t i = 0; i < n; i++)
        all += weight(&c[i], top);
    double sum = 0;
    for (; kept < n && (kept == 0 || sum < s->top_p * all); kept++) {
        pop(c, n - kept);
        sum += weight(&c[n - 1 - kept], top);
    }
    *total = sum;
    return kept;
}

/* Candidates below the threshold of min-p go; those left stand first. */
static int64_t drop_unlikely(candidate *c, int64_t n, double min_p, double top)
{
    double least = top + log(min_p);
    int64_t kept = 0;
    for (int64_t i = 0; i < n; i++)
        if (c[i].value >= least)
            c[kept++] = c[i];
    return kept;
}

double mx_sample_uniform(const mx_sampling *s, uint64_t stream, uint64_t step)
{
    mx_random4 r = mx_philox(s->seed, stream, step);
    return mx_uniform_f64(r.v[0], r.v[1]);
}

static int32_t sample(const mx_sample_args *a, candidate *c)
{
    const mx_sampling *s = &a->how;
    int64_t n = a->vocab;
    double top = -INFINITY, total = 0, at = 0;
    for (int64_t i = 0; i < n; i++) {
        c[i].value = (float)(c[i].value / s->temperature);
        top = c[i].value > top ? c[i].value : top;
    }
    if (s->min_p > 0)
        n = drop_unlikely(c, n, s->min_p, top);
    bool cuts = (s->top_k > 0 && s->top_k < n) || (s->top_p > 0 && s->top_p < 1);
    int64_t kept = cuts ? cut(s, c, n, top, &total) : n;
    for (int64_t i = 0; i < n && !cuts; i++)
        total += weight(&c[i], top);
    double u = mx_sample_uniform(s, a->stream, a->step) * total;
    const candidate *last = NULL;
    for (int64_t i = 0; i < kept; i++) {
        const candidate *x = cuts ? &c[n - 1 - i] : &c[i];
        double w = weight(x, top);
        if (w > 0)
            last = x;
        at += w;
        if (w > 0 && u < at)
            break;
    }
    return last ? last->id : 0;
}

/* Of equal ones the first; a NaN is no candidate. */
MX_CLONES static int32_t first_best(const float *z, int64_t n)
{
    bool broken;
    float top = max_of(z, n, &broken);
    for (int64_t i = 0; i < n; i += 512) {
        int64_t end = i + 512 < n ? i + 512 : n;
        int found = 0;
#pragma omp simd reduction(| : found)
        for (int64_t j = i; j < end; j++)
            found |= z[j] == top;
        for (int64_t j = i; j < end && found; j++)
            if (z[j] == top)
                return (int32_t)j;
    }
    return 0;
}

/* Does the choice depend on the logits alone? */
static bool is_plain(const mx_sample_args *a)
{
    const mx_sampling *s = &a->how;
    bool penalties = (s->repetition_penalty > 0 && s->repetition_penalty != 1) ||
                     s->presence_penalty != 0 || s->frequency_penalty != 0;
    return !penalties && !a->allowed && !a->n_banned && !a->n_bias;
}

mx_choice mx_sample_next(const mx_sample_args *a)
{
    candidate *c = a->work;
    mx_choice out = {0, 0};
    bool greedy = a->how.temperature < MX_LEAST_TEMPERATURE;
    if (greedy && is_plain(a)) {
        out.id = first_best(a->logits, a->vocab);
    } else if (greedy) {
        prepare(a, c);
        for (int64_t i = 1; i < a->vocab; i++)
            if (better(&c[i], &c[out.id]))
                out.id = (int32_t)i;
    } else {
        prepare(a, c);
        out.id = sample(a, c);
    }
    if (!a->no_log_prob)
        out.log_prob = (float)(a->logits[out.id] - mx_log_sum_exp(a->logits, a->vocab));
    else if (isnan(a->logits[out.id]))
        out.log_prob = NAN;
    return out;
}

mx_choice mx_sample(const mx_sampling *s, const float *logits, int64_t vocab, const int32_t *seen,
                    int64_t n_seen, uint64_t stream, uint64_t step, void *work)
{
    return mx_sample_next(&(mx_sample_args){.how = *s,
                                            .logits = logits,
                                            .vocab = vocab,
                                            .seen = seen,
                                            .n_seen = n_seen,
                                            .stream = stream,
                                            .step = step,
                                            .work = work});
}
