/* dpo_losses.c - one function a loss; b = beta, e = label smoothing, D the difference of scores,
 * s the logistic sigmoid, ls its logarithm. */
#include "post/dpo_losses.h"

#include "ops.h"
#include "post/pairs.h"
#include <math.h>
#include <string.h>

static mx_node *times(const mx_pair *p, double a, mx_node *x)
{
    return mx_affine(p->g, x, a, 0);
}

static mx_node *sum(const mx_pair *p, mx_node *x, mx_node *y)
{
    return mx_add(p->g, x, y);
}

static mx_node *square(const mx_pair *p, mx_node *x)
{
    return mx_mul(p->g, x, x);
}

/* -ls(a x) */
static mx_node *nls(const mx_pair *p, double a, mx_node *x)
{
    return mx_softplus(p->g, times(p, -a, x));
}

/* s(a x) */
static mx_node *sig(const mx_pair *p, double a, mx_node *x)
{
    return mx_sigmoid(p->g, times(p, a, x));
}

/* -(1 - e) ls(b x) - e ls(-b x) */
static mx_node *smoothed(const mx_pair *p, mx_node *x)
{
    return sum(p, times(p, 1 - p->smoothing, nls(p, p->beta, x)),
               times(p, p->smoothing, nls(p, -p->beta, x)));
}

static mx_node *sigmoid(const mx_pair *p)
{
    return p->conservative ? smoothed(p, p->delta) : nls(p, p->beta, p->delta);
}

static mx_node *hinge(const mx_pair *p)
{
    mx_node *zero = mx_constant(p->g, MX_SCALAR, MX_F32, 0);
    return mx_maximum(p->g, mx_affine(p->g, p->delta, -p->beta, 1), zero);
}

/* score(c) / |c| - score(r) / |r| */
static mx_node *by_length(const mx_pair *p)
{
    return mx_sub(p->g, mx_div(p->g, p->c_score, p->c_length),
                  mx_div(p->g, p->r_score, p->r_length));
}

static mx_node *ipo(const mx_pair *p)
{
    return square(p, mx_affine(p->g, by_length(p), 1, -1 / (2 * p->beta)));
}

static mx_node *sigmoid_norm(const mx_pair *p)
{
    return nls(p, p->beta, by_length(p));
}

/* s(bD)(ls(bD) - log(1 - e)) + s(-bD)(ls(-bD) - log e) */
static mx_node *exo_pair(const mx_pair *p)
{
    double b = p->beta, e = p->smoothing;
    mx_node *won = mx_affine(p->g, nls(p, b, p->delta), -1, -log(1 - e));
    mx_node *lost = mx_affine(p->g, nls(p, -b, p->delta), -1, -log(e));
    return sum(p, mx_mul(p->g, sig(p, b, p->delta), won),
               mx_mul(p->g, sig(p, -b, p->delta), lost));
}

static mx_node *nca_pair(const mx_pair *p)
{
    mx_node *half = sum(p, nls(p, -p->beta, p->c), nls(p, -p->beta, p->r));
    return sum(p, nls(p, p->beta, p->c), times(p, 0.5, half));
}

static mx_node *robust(const mx_pair *p)
{
    double e = p->smoothing;
    mx_node *clean = times(p, 1 - e, nls(p, p->beta, p->delta));
    mx_node *flipped = times(p, -e, nls(p, -p->beta, p->delta));
    return times(p, 1 / (1 - 2 * e), sum(p, clean, flipped));
}

static mx_node *bco_pair(const mx_pair *p)
{
    return sum(p, nls(p, p->beta, p->c), nls(p, -p->beta, p->r));
}

static mx_node *sppo_hard(const mx_pair *p)
{
    double half = 0.5 / p->beta;
    return sum(p, square(p, mx_affine(p->g, p->c, 1, -half)),
               square(p, mx_affine(p->g, p->r, 1, half)));
}

/* The batch's numbers from the largest to the smallest, padding last: (P, 1) -> (1, P). */
static mx_node *sorted(const mx_pair *p, mx_node *x)
{
    int64_t n = mx_type_count(&x->type);
    x = mx_where(p->g, p->there, x, mx_constant(p->g, MX_SCALAR, MX_F32, -1e30));
    return mx_top_k(p->g, mx_reshape(p->g, x, MX_SHAPE(1, n)), n);
}

static mx_node *aot_of(const mx_pair *p, mx_node *a, mx_node *b)
{
    mx_node *d = smoothed(p, mx_sub(p->g, sorted(p, a), sorted(p, b)));
    return mx_reshape(p->g, d, mx_shape_of(&a->type));
}

static mx_node *aot(const mx_pair *p)
{
    return aot_of(p, p->ratio, p->ref_ratio);
}

static mx_node *aot_unpaired(const mx_pair *p)
{
    return aot_of(p, p->c, p->r);
}

static mx_node *apo_zero(const mx_pair *p)
{
    return sum(p, mx_affine(p->g, sig(p, p->beta, p->c), -1, 1), sig(p, p->beta, p->r));
}

static mx_node *apo_down(const mx_pair *p)
{
    mx_node *won = sig(p, p->beta, mx_sub(p->g, p->c, p->r));
    return sum(p, sig(p, p->beta, p->c), mx_affine(p->g, won, -1, 1));
}

/* x = bD, w = s(x / tau): (1 - w)(-ls(x)) + w e^-x */
static mx_node *discopop(const mx_pair *p)
{
    mx_node *w = sig(p, p->beta / p->tau, p->delta);
    mx_node *logistic = mx_mul(p->g, nls(p, p->beta, p->delta), mx_affine(p->g, w, -1, 1));
    return sum(p, logistic, mx_mul(p->g, w, mx_exp(p->g, times(p, -p->beta, p->delta))));
}

static mx_node *sft(const mx_pair *p)
{
    return mx_add(p->g, times(p, 0, p->c), p->nll);
}

static const mx_dpo_loss losses[] = {
    {"sigmoid", sigmoid},       {"hinge", hinge},
    {"ipo", ipo},               {"exo_pair", exo_pair},
    {"nca_pair", nca_pair},     {"robust", robust},
    {"bco_pair", bco_pair},     {"sppo_hard", sppo_hard},
    {"aot", aot},               {"aot_unpaired", aot_unpaired},
    {"apo_zero", apo_zero},     {"apo_down", apo_down},
    {"discopop", discopop},     {"sft", sft},
    {"sigmoid_norm", sigmoid_norm},
};

const mx_dpo_loss *mx_dpo_loss_find(const char *name, size_t n)
{
    for (size_t i = 0; i < sizeof losses / sizeof *losses; i++)
        if (strlen(losses[i].name) == n && memcmp(losses[i].name, name, n) == 0)
            return &losses[i];
    return NULL;
}

const char *mx_dpo_loss_names(mx_arena *a)
{
    const char *text = "";
    for (size_t i = 0; i < sizeof losses / sizeof *losses; i++)
        text = mx_arena_printf(a, "%s%s%s", text, i ? ", " : "", losses[i].name);
    return text;
}
