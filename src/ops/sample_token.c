/* sample_token.c - the next token from a row of logits, drawn on the device.
 *
 *     logits (R, V) float32   settings (R, 4) float32   ->   ids (R) int32
 * A row's settings are temperature, top_k, top_p and a number in [0, 1) (inputs.h). Temperature 0:
 * the largest logit, of equal ones the lowest id. Otherwise: temperature; the top_k largest (0:
 * all) and what is as likely as the last of them; of those the likeliest whose weights reach the
 * share top_p (1: all); then, in the order of ids, the token at which the weights pass that
 * number's share of them all. Ids from `vocab` on have no text and are not drawn. -1: no logit is a
 * number.
 */
#include "ops.h"
#include "ops/copy.h"
#include "ops/inputs.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum { MX_INPUTS_SAMPLE_TOKEN };
enum { MX_SAMPLE_SETTINGS };

typedef struct {
    int64_t vocab;
} sample_attr;

static int largest_first(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

static int64_t best_of(const float *x, int64_t n)
{
    int64_t best = -1;
    for (int64_t i = 0; i < n; i++)
        if (!isnan(x[i]) && (best < 0 || x[i] > x[best]))
            best = i;
    return best;
}

/* The least logit that is kept. */
static float least_kept(const float *x, int64_t n, const float *how, float *sorted)
{
    int64_t kept = 0, k = how[TOP_K] >= 1 && how[TOP_K] < (float)n ? (int64_t)how[TOP_K] : n;
    for (int64_t i = 0; i < n; i++)
        if (!isnan(x[i]))
            sorted[kept++] = x[i];
    qsort(sorted, (size_t)kept, sizeof *sorted, largest_first);
    k = k < kept ? k : kept;
    while (k < kept && sorted[k] == sorted[k - 1])
        k++;
    double all = 0, sum = 0;
    for (int64_t i = 0; i < k; i++)
        all += exp((double)(sorted[i] - sorted[0]) / (double)how[TEMPERATURE]);
    int64_t i = 0;
    do
        sum += exp((double)(sorted[i] - sorted[0]) / (double)how[TEMPERATURE]);
    while (++i < k && sum < (double)how[TOP_P] * all);
    return sorted[i - 1];
}

static int32_t draw(const float *x, int64_t n, const float *how, float *work)
{
    int64_t best = best_of(x, n), last = best;
    if (best < 0 || !(how[TEMPERATURE] > 0))
        return (int32_t)best;
    float least = least_kept(x, n, how, work);
    double all = 0, at = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int64_t i = 0; i < n; i++) {
            double w = x[i] >= least ? exp((double)(x[i] - x[best]) / (double)how[TEMPERATURE]) : 0;
            *(pass ? &at : &all) += w;
            last = pass && w > 0 ? i : last;
            if (pass && w > 0 && at > (double)how[UNIFORM] * all)
                return (int32_t)i;
        }
    return (int32_t)last;
}

static void sample_cpu(const mx_call *c)
{
    const mx_type *t = &c->in[SAMPLE_LOGITS].type;
    const float *logits = c->in[SAMPLE_LOGITS].data, *settings = c->in[SAMPLE_SETTINGS].data;
    int64_t vocab = ((const sample_attr *)c->attr)->vocab;
    int32_t *out = c->out[0].data;
    float *work = c->work;
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < t->dim[0]; r++)
        out[r] = draw(logits + r * t->dim[1], vocab, settings + r * N_SETTINGS,
                      work + omp_get_thread_num() * vocab);
}

static size_t work_bytes(const mx_node *n, int n_threads)
{
    return sizeof(float) * (size_t)((const sample_attr *)n->attr)->vocab * (size_t)n_threads;
}

static void infer(mx_graph *g, mx_node *n)
{
    const sample_attr *a = n->attr;
    const mx_type *x = &n->in[SAMPLE_LOGITS]->type, *s = &n->in[SAMPLE_SETTINGS]->type;
    if (x->ndim != 2 || s->ndim != 2 || s->dim[1] != N_SETTINGS || a->vocab < 1 ||
        a->vocab > x->dim[1])
        mx_graph_fail_inputs(g, n, "logits (R, V) and settings (R, 4), with %lld of V drawn",
                             (long long)a->vocab);
    n->type.dtype = MX_I32;
}

mx_node *mx_sample_token(mx_graph *g, mx_node *logits, mx_node *settings, int64_t vocab)
{
    return MX_APPLY(g, &mx_op_sample_token, &(sample_attr){vocab}, logits, settings);
}

#define LOGITS {2, {6, 40}, MX_F32, -4, 4, .no_grad = true, .fixed = true}
#define SETTINGS(LO, HI) {2, {6, 4}, MX_F32, LO, HI, .no_grad = true, .fixed = true}
const mx_op mx_op_sample_token = {
    .name = "sample_token",
    .doc = "the next token from a row of logits",
    .dims = "r!v,r!s->r",
    .attr_size = sizeof(sample_attr),
    .fields = (const mx_attr_field[]){MX_FIELD(sample_attr, MX_ATTR_INT, vocab), {0}},
    .no_cast = true,
    .dtypes = MX_F32_ONLY,
    .infer = infer,
    .cost = mx_cost_move,
    .cpu = sample_cpu,
    .work_bytes = work_bytes,
    .cases = (const mx_case[]){{2, {LOGITS, SETTINGS(0, 1)}, &(sample_attr){37}},
                               {2, {LOGITS, SETTINGS(1, 5)}, &(sample_attr){40}},
                               {2, {LOGITS, SETTINGS(-1, 0)}, &(sample_attr){1}}, {0}},
};
