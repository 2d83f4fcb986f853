/* dpo.c - direct preference optimisation, with TRL's losses.
 *
 *     c = sum over the chosen answer's tokens of log p - log p_ref,  r the same of the rejected one
 *     loss = mean over pairs of sum_k w_k loss_k(c, r, ...)        loss_type, loss_weights
 * ld_alpha weighs tokens beyond the shorter answer's length (LD-DPO); use_weighting multiplies a
 * pair's loss by how likely the model is to say both answers (WPO), without gradient.
 */
#include "ops.h"
#include "post/dpo_losses.h"
#include "post/pairs.h"
#include "post/reference.h"
#include "post/reference_cache.h"
#include "post/tasks.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_LOSSES = 8 };

typedef struct {
    const mx_dpo_loss *loss[MAX_LOSSES];
    double weight[MAX_LOSSES];
    int n;
    double beta, smoothing, tau, alpha, ld_alpha;
    const char *divergence;
    bool weighting, conservative;
} settings;

/* --- keys --- */

static mx_status read_losses(const mx_config *c, mx_arena *a, settings *s)
{
    const char *types = mx_config_text(c, "loss_type");
    types = *types ? types : "sigmoid";
    for (const char *p = types; *p;) {
        size_t k = strcspn(p, ", ");
        const mx_dpo_loss *l = mx_dpo_loss_find(p, k);
        if (!l || s->n == MAX_LOSSES)
            return mx_fail(MX_USAGE, "%s: loss_type=%s: %.*s is not one of dpo's losses: %s, orpo",
                           mx_config_where(c, "loss_type"), types, (int)k, p,
                           mx_dpo_loss_names(a));
        s->weight[s->n] = 1;
        s->loss[s->n++] = l;
        p += k + strspn(p + k, ", ");
    }
    const char *const *items;
    int n = mx_config_list(c, "loss_weights", &items);
    for (int i = 0; i < n && n == s->n; i++)
        if (!mx_parse_f64(items[i], &s->weight[i]) || !isfinite(s->weight[i]))
            n = -1;
    if (n && n != s->n)
        return mx_fail(MX_USAGE, "%s: expected a number for each of the %d losses of loss_type",
                       mx_config_where(c, "loss_weights"), s->n);
    return MX_OK;
}

static bool uses(const settings *s, const char *name)
{
    for (int i = 0; i < s->n; i++)
        if (strcmp(s->loss[i]->name, name) == 0)
            return true;
    return false;
}

static mx_status read(const mx_config *c, mx_arena *a, const void **out)
{
    settings *s = MX_NEW(a, settings);
    *s = (settings){.beta = mx_beta_of(c, "dpo.dpo_beta"),
                    .smoothing = mx_config_float(c, "dpo.dpo_label_smoothing"),
                    .ld_alpha = mx_config_float(c, "ld_alpha"),
                    .divergence = mx_config_text(c, "f_divergence_type"),
                    .weighting = mx_config_bool(c, "use_weighting"),
                    .conservative = strcmp(mx_config_text(c, "semantics"), "maxtext") == 0};
    MX_TRY(read_losses(c, a, s));
    *out = s;
    if (uses(s, "discopop")) /* others do not read it: the run says that it has no effect */
        s->tau = mx_config_float(c, "discopop_tau");
    if (strcmp(s->divergence, "alpha_divergence") == 0)
        s->alpha = mx_config_float(c, "f_alpha_divergence_coef");
    if (mx_config_bool(c, "precompute_ref_log_probs") && mx_config_int(c, "eval_interval") > 0)
        return mx_fail(MX_USAGE, "%s: the reference's log-probabilities are computed ahead for "
                       "training data alone; leave eval_interval out",
                       mx_config_where(c, "precompute_ref_log_probs"));
    bool divides = uses(s, "ipo") || uses(s, "sppo_hard");
    if (divides && s->beta <= 0)
        return mx_fail(MX_USAGE, "%s: this loss divides by beta, which is 0",
                       mx_config_where(c, "beta"));
    if (uses(s, "exo_pair") && s->smoothing <= 0)
        return mx_fail(MX_USAGE, "loss_type=exo_pair is infinite without label smoothing; set "
                       "label_smoothing=1e-3");
    if (uses(s, "robust") && s->smoothing >= 0.5)
        return mx_fail(MX_USAGE, "loss_type=robust needs label_smoothing below 0.5");
    return MX_OK;
}

/* --- the loss --- */

/* 1 for tokens that both answers have, by number; ld_alpha for those beyond: (n). */
static mx_node *length_weights(mx_graph *g, const mx_token_logps *t, double alpha)
{
    mx_shape rows = MX_SHAPE(t->batch, t->seq);
    mx_node *counts = mx_reshape(g, t->counts, rows), *number = mx_cumsum(g, counts, false);
    mx_node *n = mx_row_sum(g, counts);
    mx_node *least = mx_minimum(g, mx_side(g, n, 0), mx_side(g, n, 1)); /* (P, 1) */
    mx_node *both = mx_reshape(g, mx_concat(g, 2, (mx_node *[]){least, least}, 1),
                               MX_SHAPE(t->batch, 1));
    mx_node *beyond = mx_greater(g, number, mx_affine(g, both, 1, 0.5));
    return mx_reshape(g, mx_affine(g, beyond, alpha - 1, 1), MX_SHAPE(t->batch * t->seq));
}

static mx_node *score(mx_graph *g, const settings *s, mx_node *x)
{
    if (strcmp(s->divergence, "forward_kl") == 0)
        return mx_affine(g, mx_exp(g, mx_affine(g, x, -1, 0)), -1, 1);
    if (strcmp(s->divergence, "js_divergence") == 0)
        return mx_affine(g, mx_log_sigmoid(g, x), 1, log(2));
    if (strcmp(s->divergence, "alpha_divergence") == 0 && fabs(s->alpha - 1) >= 1e-6) {
        double a = s->alpha - 1;
        mx_node *most = mx_constant(g, MX_SCALAR, MX_F32, 80);
        mx_node *power = mx_exp(g, mx_minimum(g, mx_affine(g, x, a, 0), most));
        return mx_affine(g, power, 1 / a, -1 / a);
    }
    return x;
}

static mx_pair make_pair(mx_graph *g, const settings *s, const mx_token_logps *t, mx_node *own,
                         mx_node *ref)
{
    mx_pair p = {.g = g, .beta = s->beta, .smoothing = s->smoothing, .tau = s->tau,
                 .conservative = s->conservative};
    mx_node *ratio = mx_sub(g, own, ref), *n = mx_row_sums(g, t, t->counts);
    mx_node *one = mx_constant(g, MX_SCALAR, MX_F32, 1);
    p.c = mx_side(g, ratio, 0);
    p.r = mx_side(g, ratio, 1);
    p.c_score = score(g, s, p.c);
    p.r_score = score(g, s, p.r);
    p.delta = mx_sub(g, p.c_score, p.r_score);
    p.c_length = mx_maximum(g, mx_side(g, n, 0), one);
    p.r_length = mx_maximum(g, mx_side(g, n, 1), one);
    p.ratio = mx_sub(g, mx_side(g, own, 0), mx_side(g, own, 1));
    p.ref_ratio = mx_sub(g, mx_side(g, ref, 0), mx_side(g, ref, 1));
    mx_shape rows = MX_SHAPE(t->batch, t->seq);
    p.nll = mx_affine(g, mx_mean_counted(g, mx_side(g, mx_reshape(g, t->logp, rows), 0),
                                         mx_side(g, mx_reshape(g, t->counts, rows), 0)), -1, 0);
    return p;
}

/* exp(mean over the answer's tokens of log p - log sum p^2), of both sides: (P, 1). */
static mx_node *wpo_weight(mx_graph *g, const mx_token_logps *t, const mx_token_facts *f)
{
    mx_node *one = mx_constant(g, MX_SCALAR, MX_F32, 1);
    mx_node *sum = mx_row_sums(g, t, mx_sub(g, t->logp, f->squares));
    mx_node *n = mx_maximum(g, mx_row_sums(g, t, t->counts), one);
    mx_node *w = mx_detach(g, mx_exp(g, mx_div(g, sum, n)));
    return mx_mul(g, mx_side(g, w, 0), mx_side(g, w, 1));
}

static void side_metrics(mx_graph *g, const mx_token_logps *t, const mx_token_facts *f)
{
    static const char *const names[2] = {"logits/chosen", "logits/rejected"};
    mx_shape rows = MX_SHAPE(t->batch, t->seq);
    mx_node *counts = mx_reshape(g, t->counts, rows), *logit = mx_reshape(g, f->logit, rows);
    for (int k = 0; k < 2; k++)
        mx_metric_root(g, names[k],
                       mx_mean_counted(g, mx_side(g, logit, k), mx_side(g, counts, k)));
    mx_metric_root(g, "entropy", mx_mean_counted(g, f->entropy, t->counts));
    mx_metric_root(g, "mean_token_accuracy",
                   mx_mean_counted(g, mx_side(g, mx_reshape(g, f->top1, rows), 0),
                                   mx_side(g, counts, 0)));
}

static mx_node *loss(mx_graph *g, const mx_head *h, mx_build *b, const void *given)
{
    const settings *s = given;
    mx_token_logps t = mx_logps_of(g, h, b, 1);
    mx_node *given_ref = mx_rows_input(g, "reference", MX_SHAPE(b->batch, b->seq), MX_F32,
                                       MX_ROWS_AXES);
    mx_node *ref = mx_reshape(g, given_ref, MX_SHAPE(b->batch * b->seq));
    mx_node *logp = t.logp;
    if (s->ld_alpha >= 0) {
        mx_node *w = length_weights(g, &t, s->ld_alpha);
        logp = mx_mul(g, logp, w);
        ref = mx_mul(g, ref, w);
    }
    mx_node *own = mx_row_sums(g, &t, logp);
    mx_node *n = mx_row_sums(g, &t, t.counts), *half = mx_constant(g, MX_SCALAR, MX_F32, 0.5);
    mx_node *there = mx_greater(g, mx_side(g, n, 0), half); /* (P, 1): not padding */
    mx_pair p = make_pair(g, s, &t, own, mx_row_sums(g, &t, ref));
    p.there = there;
    mx_token_facts f = {0};
    if (b->training || s->weighting)
        f = mx_facts_of(g, h, &t);
    mx_node *each = NULL;
    for (int i = 0; i < s->n; i++) {
        mx_node *one = mx_affine(g, s->loss[i]->build(&p), s->weight[i], 0);
        each = each ? mx_add(g, each, one) : one;
    }
    if (s->weighting)
        each = mx_mul(g, each, wpo_weight(g, &t, &f));
    mx_reward_metrics(g, mx_affine(g, p.c, s->beta, 0), mx_affine(g, p.r, s->beta, 0), there,
                      s->conservative);
    if (b->training) {
        mx_logp_metrics(g, mx_side(g, own, 0), mx_side(g, own, 1), there, s->conservative);
        side_metrics(g, &t, &f);
    }
    mx_node *sum = mx_sum_all(g, mx_mul(g, each, there));
    return mx_loss_root(g, b, mx_mul(g, sum, t.scale),
                        mx_mul(g, mx_sum_all(g, there), t.scale));
}

/* --- the run --- */

/* One of the two. */
typedef struct {
    mx_reference *live;
    mx_reference_cache *ahead;
} dpo_run;

static mx_status open(mx_objective_run *o)
{
    dpo_run *r = mx_realloc(NULL, sizeof *r);
    *r = (dpo_run){0};
    o->state = r;
    if (mx_config_bool(o->config, "precompute_ref_log_probs"))
        return mx_reference_cache_open(&r->ahead, o);
    return mx_reference_open(&r->live, o, 1, false);
}

/* Asked ahead, the reference is gone before the first step. */
static mx_status beside(const mx_objective_run *o, mx_beside *out)
{
    return mx_config_bool(o->config, "precompute_ref_log_probs")
               ? MX_OK
               : mx_reference_beside(o, 1, false, out);
}

static void close(mx_objective_run *o)
{
    dpo_run *r = o->state;
    if (!r)
        return;
    mx_reference_close(r->live);
    mx_reference_cache_close(r->ahead);
    mx_free(r);
    o->state = NULL;
}

static mx_status feed(mx_objective_run *o, mx_exec *e, const mx_batch *b, int64_t row)
{
    dpo_run *r = o->state;
    const float *logps;
    if (r->ahead)
        MX_TRY(mx_reference_cache_find(r->ahead, b, row, o->fed, &logps));
    else
        MX_TRY(mx_reference_find(r->live, b, row, o->fed, &logps));
    return mx_exec_write_rows(e, "reference", logps);
}

static mx_status ahead(mx_objective_run *o, const mx_batch *b)
{
    dpo_run *r = o->state;
    return r->live ? mx_reference_ahead(r->live, b, o->fed) : MX_OK;
}

const mx_objective mx_objective_dpo = {
    .name = "dpo",
    .doc = "preferences, against a reference: sigmoid, hinge, ipo, robust, ... of TRL",
    .verb = "dpo",
    .data = "prompt, chosen and rejected",
    .place = 2,
    .rows = MX_ROWS_PAIRS,
    .balances = true,
    .read = read,
    .loss = loss,
    .count = mx_count_pairs,
    .mean_of_microbatches = true,
    .open = open,
    .beside = beside,
    .close = close,
    .feed = feed,
    .ahead = ahead,
    .measure = mx_tasks_measure,
    .measure_end = mx_tasks_close,
};
