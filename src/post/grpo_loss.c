/* grpo_loss.c - the losses of group-relative policy optimisation over the graph, as TRL has them;
 * the table of semantics says where MaxText (Tunix) and verl differ.
 *
 *     d = log p - log p_old     rho = e^d, or by sequence exp(mean d over its tokens)
 *     grpo, bnpo, dr_grpo, dapo, luspo   -min(rho A, clip(rho, 1 - eps, 1 + eps_high) A)
 *     cispo                              -sg(min(rho, eps_high)) A log p
 *     sapo                               -(4 / T) sigmoid(T (rho - 1)) A,  T by the sign of A
 *     vespo                              -phi A log p,  phi = exp(l + k ln w - l w), w = exp(sum d)
 *     + beta k3, k3 = e^(ref - log p) - (ref - log p) - 1, times rho (use_bias_correction_kl)
 * They differ in what the sum over tokens is divided by. With top_entropy_quantile all but beta k3
 * is of the tokens of highest entropy alone. verl's dual clip: where A < 0 the loss is
 * at most -c A.
 */
#include "post/grpo.h"

#include "ops.h"
#include "post/tokens.h"
#include <math.h>
#include <string.h>

static mx_node *number(mx_graph *g, double x)
{
    return mx_constant(g, MX_SCALAR, MX_F32, x);
}

/* The ratio is held below delta: also for the metrics of clipping. */
static mx_node *capped(mx_graph *g, const mx_grpo *s, mx_node *ratio)
{
    return s->delta > 0 ? mx_clamp(g, ratio, 0, s->delta) : ratio;
}

static mx_node *clipped(mx_graph *g, const mx_grpo *s, const mx_grpo_terms *t)
{
    mx_node *ratio = t->ratio, *advantage = t->advantage;
    mx_node *inside = mx_clamp(g, ratio, 1 - s->epsilon, 1 + s->epsilon_high);
    mx_node *free = mx_mul(g, capped(g, s, ratio), advantage), *held = mx_mul(g, inside, advantage);
    /* Their minimum; where they are equal, as on policy, the gradient is the first one's. */
    mx_node *less = mx_detach(g, mx_greater(g, free, held));
    mx_node *least = mx_add(g, free, mx_mul(g, less, mx_sub(g, held, free)));
    if (s->of->dual_clip > 0) {
        mx_node *floor = mx_affine(g, advantage, s->of->dual_clip, 0);
        mx_node *bad = mx_greater(g, number(g, 0), advantage);
        mx_node *below = mx_mul(g, mx_detach(g, mx_greater(g, floor, least)), bad);
        least = mx_add(g, least, mx_mul(g, below, mx_sub(g, floor, least)));
    }
    return mx_affine(g, least, -1, 0);
}

/* -w A log p, w a constant. */
static mx_node *weighted(mx_graph *g, mx_node *w, const mx_grpo_terms *t)
{
    w = mx_mul(g, mx_detach(g, w), t->advantage);
    return mx_affine(g, mx_mul(g, w, t->logp), -1, 0);
}

static mx_node *cispo(mx_graph *g, const mx_grpo *s, const mx_grpo_terms *t)
{
    mx_node *w = s->of->cispo_low
                     ? mx_clamp(g, t->ratio, 1 - s->epsilon, 1 + s->epsilon_high)
                     : mx_minimum(g, t->ratio, number(g, s->epsilon_high));
    return weighted(g, w, t);
}

/* up of answers whose advantage is not negative, down of others: (B, 1). */
static mx_node *by_sign(mx_graph *g, mx_node *advantage, double up, double down)
{
    mx_node *bad = mx_greater(g, number(g, 0), advantage);
    return mx_affine(g, bad, down - up, up);
}

/* phi (B, 1), the metric vespo/phi_seq_mean too. */
static mx_node *gamma_weight(mx_graph *g, const mx_grpo *s, const mx_grpo_terms *t)
{
    mx_node *sum = mx_row_sum(g, mx_clamp(g, t->log_ratio, -20, 20));
    mx_node *log_w = mx_clamp(g, sum, log(1e-8), 20), *w = mx_exp(g, log_w);
    mx_node *k = by_sign(g, t->advantage, s->vespo_k[0], s->vespo_k[1]);
    mx_node *l = by_sign(g, t->advantage, s->vespo_lambda[0], s->vespo_lambda[1]);
    mx_node *log_phi = mx_sub(g, mx_add(g, l, mx_mul(g, k, log_w)), mx_mul(g, l, w));
    return mx_detach(g, mx_exp(g, log_phi));
}

static mx_node *vespo(mx_graph *g, const mx_grpo *s, const mx_grpo_terms *t)
{
    return weighted(g, gamma_weight(g, s, t), t);
}

static mx_node *sapo(mx_graph *g, const mx_grpo *s, const mx_grpo_terms *terms)
{
    mx_node *ratio = terms->ratio, *advantage = terms->advantage;
    mx_node *good = mx_greater(g, advantage, number(g, 0));
    double up = s->sapo_positive, down = s->sapo_negative;
    mx_node *t = mx_affine(g, good, up - down, down), *by = mx_affine(g, good, 4 / up - 4 / down,
                                                                      4 / down);
    mx_node *soft = mx_sigmoid(g, mx_mul(g, t, mx_affine(g, ratio, 1, -1)));
    return mx_affine(g, mx_mul(g, mx_mul(g, soft, by), advantage), -1, 0);
}

static const mx_grpo_loss losses[] = {
    {"dapo", MX_MEAN_OF_TOKENS, clipped, true},
    {"grpo", MX_MEAN_OF_SEQUENCES, clipped, true},
    {"bnpo", MX_MEAN_OF_MICROBATCH, clipped, true},
    {"dr_grpo", MX_SUM_BY_LENGTH, clipped, true},
    {"luspo", MX_SUM_OF_SEQUENCES, clipped, true},
    {"gspo", MX_MEAN_OF_SEQUENCES, clipped, true},
    {"cispo", MX_MEAN_OF_TOKENS, cispo, false},
    {"sapo", MX_MEAN_OF_SEQUENCES, sapo, false},
    {"vespo", MX_MEAN_OF_TOKENS, vespo, false},
};

const mx_grpo_loss *mx_grpo_loss_find(const char *name)
{
    for (size_t i = 0; i < sizeof losses / sizeof *losses; i++)
        if (strcmp(losses[i].name, name) == 0)
            return &losses[i];
    return NULL;
}

const char *mx_grpo_loss_names(mx_arena *a)
{
    const char *text = "";
    for (size_t i = 0; i < sizeof losses / sizeof *losses; i++)
        text = mx_arena_printf(a, "%s%s%s", text, i ? ", " : "", losses[i].name);
    return text;
}

static const mx_grpo_semantics semantics[] = {
    {.name = "trl", .generations = 8, .std_epsilon = 1e-4, .kl = MX_KL_K3},
    {.name = "maxtext", .losses = "grpo gspo dr_grpo", .generations = 2, .beta = 0.08,
     .std_epsilon = 1e-6, .log_ratio = 20, .kl = MX_KL_K1, .by_token = true},
    {.name = "verl", .losses = "dapo grpo gspo cispo", .generations = 8, .std_epsilon = 1e-6,
     .log_ratio = 20, .dual_clip = 3, .kl = MX_KL_K3_HELD, .by_token = true, .cispo_low = true},
};

const mx_grpo_semantics *mx_grpo_semantics_find(const char *name)
{
    for (size_t i = 0; i < sizeof semantics / sizeof *semantics; i++)
        if (strcmp(semantics[i].name, name) == 0)
            return &semantics[i];
    return NULL;
}

/* --- the graph --- */

/* Tokens of a batch by row. */
typedef struct {
    mx_graph *g;
    const mx_grpo *s;
    mx_token_logps t;
    mx_node *counts, *logp; /* (B, S) */
    mx_node *old;           /* (B, S): log p of the policy that answered */
    mx_node *tokens;        /* (B, 1), at least 1 */
    mx_node *advantage;     /* (B, 1) */
    mx_node *ratio;         /* (B, S), or (B, 1) by sequence */
    mx_node *log_ratio;     /* (B, S) */
    mx_node *kl;            /* (B, S); NULL: none */
} rows;

static mx_node *kl_of(mx_graph *g, const rows *r, mx_node *reference)
{
    const mx_grpo *s = r->s;
    mx_node *far = mx_mul(g, mx_sub(g, reference, r->logp), r->counts);
    if (s->of->kl == MX_KL_K1)
        return mx_affine(g, far, -1, 0);
    if (s->of->kl == MX_KL_K3_HELD)
        far = mx_clamp(g, far, -20, 20);
    mx_node *k3 = mx_affine(g, mx_sub(g, mx_exp(g, far), far), 1, -1);
    if (s->of->kl == MX_KL_K3_HELD)
        return mx_clamp(g, k3, -10, 10);
    return s->bias_correction ? mx_mul(g, k3, r->ratio) : k3;
}

static rows rows_of(mx_graph *g, const mx_head *h, const mx_build *b, const mx_grpo *s)
{
    mx_shape shape = MX_SHAPE(b->batch, b->seq);
    rows r = {.g = g, .s = s, .t = mx_logps_of(g, h, b, s->temperature)};
    r.counts = mx_reshape(g, r.t.counts, shape);
    r.logp = mx_reshape(g, r.t.logp, shape);
    r.tokens = mx_maximum(g, mx_row_sum(g, r.counts), number(g, 1));
    r.advantage = mx_reshape(g, mx_rows_input(g, "advantage", MX_SHAPE(b->batch), MX_F32,
                                              MX_BATCH_AXES),
                             MX_SHAPE(b->batch, 1));
    mx_node *known = mx_reshape(g, mx_rows_input(g, "has_old", MX_SHAPE(b->batch), MX_F32,
                                              MX_BATCH_AXES),
                                MX_SHAPE(b->batch, 1));
    mx_node *now = mx_detach(g, r.logp);
    mx_node *old = mx_rows_input(g, "old", shape, MX_F32, MX_ROWS_AXES);
    old = mx_add(g, now, mx_mul(g, mx_sub(g, old, now), known));
    r.old = old;
    mx_node *d = mx_mul(g, mx_sub(g, r.logp, old), r.counts);
    r.log_ratio = d;
    if (s->of->log_ratio > 0)
        d = mx_clamp(g, d, -s->of->log_ratio, s->of->log_ratio);
    if (s->by_sequence)
        d = mx_div(g, mx_row_sum(g, d), r.tokens);
    if (s->by_sequence && s->of->by_token) /* the mean as a value, each token's own gradient */
        d = mx_clamp(g, mx_add(g, mx_sub(g, r.logp, now), mx_detach(g, d)), -1e30, 10);
    r.ratio = mx_exp(g, d);
    if (s->beta > 0)
        r.kl = kl_of(g, &r, mx_rows_input(g, "reference", shape, MX_F32, MX_ROWS_AXES));
    return r;
}

/* Per token, or per sequence where x is (B, 1): a scalar. */
static mx_node *mean_over(const rows *r, mx_node *x)
{
    mx_graph *g = r->g;
    if (x->type.dim[1] == 1)
        return mx_affine(g, mx_sum_all(g, x), 1 / (double)r->t.batch, 0);
    return mx_mean_counted(g, x, r->counts);
}

/* (1, 1): the largest over sequences of each one's mean. */
static mx_node *most_of(const rows *r, mx_node *x)
{
    mx_graph *g = r->g;
    if (x->type.dim[1] != 1) { /* sequences without a token have no part in it */
        mx_node *there = mx_greater(g, mx_row_sum(g, r->counts), number(g, 0));
        x = mx_div(g, mx_row_sum(g, mx_mul(g, x, r->counts)), r->tokens);
        x = mx_add(g, x, mx_affine(g, there, 2, -2));
    }
    return mx_row_max(g, mx_reshape(g, x, MX_SHAPE(1, r->t.batch)));
}

static void clip_metrics(const rows *r)
{
    mx_graph *g = r->g;
    mx_node *ratio = capped(g, r->s, r->ratio);
    mx_node *low = mx_greater(g, number(g, 1 - r->s->epsilon), ratio);
    mx_node *high = mx_greater(g, ratio, number(g, 1 + r->s->epsilon_high));
    low = mx_mul(g, low, mx_greater(g, number(g, 0), r->advantage));
    high = mx_mul(g, high, mx_greater(g, r->advantage, number(g, 0)));
    mx_metric_root(g, "clip_ratio/low_mean", mean_over(r, low));
    mx_metric_root(g, "clip_ratio/high_mean", mean_over(r, high));
    mx_metric_root(g, "clip_ratio/region_mean", mean_over(r, mx_add(g, low, high)));
    mx_node *least = most_of(r, mx_affine(g, low, -1, 0));
    mx_metric_root(g, "clip_ratio/low_min", mx_affine(g, least, -1, 0));
    mx_metric_root(g, "clip_ratio/high_max", most_of(r, high));
}

/* (B, 1): 0 of bad answers that the policy has turned away from by more than the threshold, as the
 * mean over their tokens of log p_old - log p. */
static mx_node *near_policy(const rows *r)
{
    mx_graph *g = r->g;
    mx_node *far = mx_div(g, mx_row_sum(g, mx_detach(g, r->log_ratio)), r->tokens);
    mx_node *gone = mx_greater(g, mx_affine(g, far, -1, 0), number(g, r->s->off_policy));
    mx_node *bad = mx_greater(g, number(g, 0), r->advantage);
    return mx_affine(g, mx_mul(g, gone, bad), -1, 1);
}

/* (B, S): 1 of tokens whose entropy is at least the quantile of the microbatch's, interpolated
 * between two of them. entropy (n) is 0 where no token counts. */
static mx_node *high_entropy(const rows *r, mx_node *entropy)
{
    mx_graph *g = r->g;
    int64_t n = r->t.batch * r->t.seq;
    mx_shape line = MX_SHAPE(1, n);
    mx_node *counts = mx_reshape(g, r->counts, line), *one = number(g, 1);
    mx_node *each = mx_detach(g, mx_reshape(g, entropy, line));
    mx_node *there = mx_add(g, mx_mul(g, each, counts), mx_affine(g, counts, 1, -1));
    mx_node *sorted = mx_top_k(g, there, n); /* the highest first; -1 where there is no token */
    mx_node *last = mx_affine(g, mx_maximum(g, mx_sum_all(g, counts), one), 1, -1);
    mx_node *place = mx_sub(g, last, mx_affine(g, last, 1 - r->s->top_entropy, 0));
    mx_node *index = mx_affine(g, mx_cumsum(g, mx_constant(g, line, MX_F32, 1), false), 1, -1);
    mx_node *far = mx_sub(g, index, place);
    far = mx_maximum(g, far, mx_affine(g, far, -1, 0));
    mx_node *weight = mx_maximum(g, mx_affine(g, far, -1, 1), number(g, 0));
    mx_node *least = mx_sum_all(g, mx_mul(g, weight, sorted));
    mx_node *is = mx_affine(g, mx_greater(g, least, there), -1, 1);
    return mx_reshape(g, is, MX_SHAPE(r->t.batch, r->t.seq));
}

/* (1, 1): the largest over the tokens that count; x is 0 at others. */
static mx_node *most_token(const rows *r, mx_node *x)
{
    return mx_row_max(r->g, mx_reshape(r->g, x, MX_SHAPE(1, r->t.batch * r->t.seq)));
}

static mx_node *drawn_of(const rows *r)
{
    return mx_rows_input(r->g, "drawn", MX_SHAPE(r->t.batch, r->t.seq), MX_F32, MX_ROWS_AXES);
}

/* |log p - other| of the tokens that count. */
static mx_node *gap_to(const rows *r, mx_node *other)
{
    mx_graph *g = r->g;
    mx_node *d = mx_mul(g, mx_sub(g, mx_detach(g, r->logp), other), r->counts);
    return mx_maximum(g, d, mx_affine(g, d, -1, 0));
}

/* How far the sampler's log-probabilities are from training's. */
static void gap_metrics(const rows *r)
{
    mx_node *gap = gap_to(r, drawn_of(r));
    mx_metric_root(r->g, "sampling/sampling_logp_difference/mean",
                   mx_mean_counted(r->g, gap, r->counts));
    mx_metric_root(r->g, MX_LOGP_GAP, most_token(r, gap));
}

/* How far the policy has moved since it gave the answers: of log-probabilities the most, and the
 * ratios of tokens. */
static void moved_metrics(const rows *r)
{
    mx_graph *g = r->g;
    mx_metric_root(g, MX_OLD_GAP, most_token(r, gap_to(r, r->old)));
    mx_node *ratio = mx_exp(g, mx_detach(g, r->log_ratio)); /* 1 where no token counts */
    mx_metric_root(g, "sampling/importance_sampling_ratio/mean",
                   mx_mean_counted(g, ratio, r->counts));
    mx_metric_root(g, "sampling/importance_sampling_ratio/max", most_token(r, ratio));
    mx_node *least = most_token(r, mx_affine(g, ratio, -1, 0));
    mx_metric_root(g, "sampling/importance_sampling_ratio/min", mx_affine(g, least, -1, 0));
}

static mx_node *add_up(const rows *r, mx_node *each)
{
    mx_graph *g = r->g;
    mx_node *counted = mx_mul(g, each, r->counts), *sums = mx_row_sum(g, counted);
    switch (r->s->loss->mean) {
    case MX_MEAN_OF_SEQUENCES: return mx_sum_all(g, mx_div(g, sums, r->tokens));
    case MX_MEAN_OF_MICROBATCH: return mx_mean_counted(g, each, r->counts);
    default: return mx_sum_all(g, sums);
    }
}

mx_node *mx_grpo_build(mx_graph *g, const mx_head *h, mx_build *b, const void *settings)
{
    const mx_grpo *s = settings;
    rows r = rows_of(g, h, b, s);
    mx_grpo_terms t = {r.ratio, r.log_ratio, r.advantage, r.logp};
    mx_node *each = s->loss->build(g, s, &t);
    mx_token_facts f = {0};
    if (b->training || s->top_entropy < 1)
        f = mx_facts_of(g, h, &r.t);
    if (s->off_policy > 0)
        each = mx_mul(g, each, near_policy(&r));
    if (s->top_entropy < 1)
        each = mx_mul(g, each, high_entropy(&r, f.entropy));
    if (r.kl)
        each = mx_add(g, each, mx_affine(g, r.kl, s->beta, 0));
    if (each->type.dim[1] == 1)
        each = mx_broadcast_to(g, each, MX_SHAPE(b->batch, b->seq));
    if (b->training) {
        mx_metric_root(g, "entropy", mx_mean_counted(g, f.entropy, r.t.counts));
        if (r.kl)
            mx_metric_root(g, "kl", mean_over(&r, r.kl));
        if (s->loss->clips)
            clip_metrics(&r);
        if (strcmp(s->loss->name, "cispo") == 0)
            mx_metric_root(g, "cispo_clip_ratio",
                           mean_over(&r, mx_mul(g, mx_greater(g, r.ratio,
                                                              number(g, s->epsilon_high)),
                                                mx_greater(g, r.advantage, number(g, 0)))));
        if (strcmp(s->loss->name, "vespo") == 0)
            mx_metric_root(g, "vespo/phi_seq_mean", mean_over(&r, gamma_weight(g, s, &t)));
        if (s->policy_moves)
            moved_metrics(&r);
        else if (s->sampled)
            gap_metrics(&r);
    }
    mx_node *share = mx_affine(g, r.t.scale, (double)b->batch, 0);
    return mx_loss_root(g, b, mx_mul(g, add_up(&r, each), r.t.scale), share);
}
