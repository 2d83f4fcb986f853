/* orpo.c - odds ratio preference optimisation: no reference.
 *
 *     a, b = mean log p of the chosen and of the rejected answer's tokens
 *     o = (a - b) - (log(1 - e^a) - log(1 - e^b))
 *     loss = NLL - lambda mean ls(o)
 * NLL is of prompt and chosen answer, the mean over all their tokens of a microbatch (TRL's).
 *
 * semantics=maxtext has Tunix 0.1.7's: a, b = sums of log p; NLL is of chosen answers alone, the
 * mean of their means; -ls(o) smoothed to -(1 - e) ls(o) - e ls(-o), e = label smoothing.
 */
#include "ops.h"
#include "post/pairs.h"
#include "post/tasks.h"
#include <string.h>

typedef struct {
    double lambda, smoothing;
    bool sums; /* Tunix's */
} settings;

static mx_status read(const mx_config *c, mx_arena *a, const void **out)
{
    settings *s = MX_NEW(a, settings);
    s->lambda = mx_beta_of(c, "dpo.orpo_lambda");
    s->sums = strcmp(mx_config_text(c, "semantics"), "maxtext") == 0;
    s->smoothing = s->sums ? mx_config_float(c, "dpo.dpo_label_smoothing") : 0;
    *out = s;
    return MX_OK;
}

/* log(1 - e^x), x below 0. */
static mx_node *log1mexp(mx_graph *g, mx_node *x)
{
    x = mx_minimum(g, x, mx_constant(g, MX_SCALAR, MX_F32, -1e-7));
    return mx_log(g, mx_affine(g, mx_exp(g, x), -1, 1));
}

/* The labels of all tokens but the first of each row, prompts too: (B, S) int32. */
static mx_node *all_labels(mx_graph *g, const mx_build *b)
{
    int64_t S = b->seq;
    mx_node *segments =
        mx_axes(MX_ROWS_AXES, mx_input(g, "segments", MX_SHAPE(b->batch, S), MX_I32));
    mx_node *next = mx_pad(g, mx_slice(g, b->tokens, 1, 1, S - 1), 1, 0, 1);
    mx_node *there = mx_pad(g, mx_slice(g, segments, 1, 1, S - 1), 1, 0, 1);
    mx_node *is = mx_greater(g, mx_cast(g, there, MX_F32), mx_constant(g, MX_SCALAR, MX_F32, 0.5));
    /* next where there is a token, else -1 */
    mx_node *label = mx_mul(g, mx_affine(g, mx_cast(g, next, MX_F32), 1, 1), is);
    return mx_cast(g, mx_affine(g, label, 1, -1), MX_I32);
}

/* The NLL of the chosen rows, prompts included: a scalar, the mean over their tokens. */
static mx_node *chosen_nll(mx_graph *g, const mx_head *h, const mx_build *b,
                           const mx_token_logps *t)
{
    int64_t P = b->batch / 2, d = t->x->type.dim[1], n = P * b->seq;
    mx_node *x = mx_reshape(g, mx_side(g, mx_reshape(g, t->x, MX_SHAPE(b->batch, b->seq * d)), 0),
                            MX_SHAPE(n, d));
    mx_node *labels = mx_reshape(g, mx_side(g, all_labels(g, b), 0), MX_SHAPE(n));
    mx_node *each = mx_linear_xent(g, x, h->weight, labels, t->tempered, h->softcap, 0);
    mx_node *counts = mx_greater(g, mx_cast(g, labels, MX_F32),
                                 mx_constant(g, MX_SCALAR, MX_F32, -0.5));
    return mx_mean_counted(g, each, counts);
}

/* (1 - e) ls(x) + e ls(-x) */
static mx_node *smoothed(mx_graph *g, mx_node *x, double e)
{
    mx_node *agrees = mx_log_sigmoid(g, x);
    if (e == 0)
        return agrees;
    mx_node *differs = mx_log_sigmoid(g, mx_affine(g, x, -1, 0));
    return mx_add(g, mx_affine(g, agrees, 1 - e, 0), mx_affine(g, differs, e, 0));
}

static mx_node *loss(mx_graph *g, const mx_head *h, mx_build *b, const void *given)
{
    const settings *s = given;
    mx_token_logps t = mx_logps_of(g, h, b, 1);
    mx_node *n = mx_row_sums(g, &t, t.counts), *one = mx_constant(g, MX_SCALAR, MX_F32, 1);
    mx_node *sum_of = mx_row_sums(g, &t, t.logp), *mean = mx_div(g, sum_of, mx_maximum(g, n, one));
    mx_node *by = s->sums ? sum_of : mean, *a = mx_side(g, by, 0), *r = mx_side(g, by, 1);
    mx_node *odds = mx_sub(g, mx_sub(g, a, r), mx_sub(g, log1mexp(g, a), log1mexp(g, r)));
    mx_node *ratio = smoothed(g, odds, s->smoothing);
    mx_node *there = mx_greater(g, mx_side(g, n, 0), mx_constant(g, MX_SCALAR, MX_F32, 0.5));
    mx_node *pairs = mx_sum_all(g, there);
    mx_node *nll = s->sums ? mx_affine(g, mx_pair_mean(g, mx_side(g, mean, 0), there), -1, 0)
                           : chosen_nll(g, h, b, &t);
    mx_reward_metrics(g, mx_affine(g, a, s->lambda, 0), mx_affine(g, r, s->lambda, 0), there,
                      s->sums);
    if (b->training) {
        mx_logp_metrics(g, a, r, there, s->sums);
        if (s->sums)
            mx_metric_root(g, "odds_ratio", mx_pair_mean(g, mx_exp(g, odds), there));
        mx_metric_root(g, "nll_loss", nll);
        mx_metric_root(g, "log_odds_ratio", mx_pair_mean(g, ratio, there));
        mx_metric_root(g, "log_odds_chosen", mx_pair_mean(g, odds, there));
    }
    /* the NLL counts once for every pair, as the odds do */
    mx_node *sum = mx_sub(g, mx_mul(g, nll, pairs),
                          mx_affine(g, mx_sum_all(g, mx_mul(g, ratio, there)), s->lambda, 0));
    return mx_loss_root(g, b, mx_mul(g, sum, t.scale), mx_mul(g, pairs, t.scale));
}

const mx_objective mx_objective_orpo = {
    .name = "orpo",
    .doc = "preferences by odds ratio, beside the likelihood of the chosen answers; no reference",
    .verb = "dpo",
    .data = "prompt, chosen and rejected",
    .place = 3,
    .rows = MX_ROWS_PAIRS,
    .read = read,
    .loss = loss,
    .sides_apart = true,
    .count = mx_count_pairs,
    .mean_of_microbatches = true,
    .measure = mx_tasks_measure,
    .measure_end = mx_tasks_close,
};
