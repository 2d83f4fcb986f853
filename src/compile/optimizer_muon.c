/* optimizer_muon.c - Muon's update of a matrix, built from ops that every device has.
 *
 *     M <- b M + (1-b) s G                       momentum, in mu_dtype; G (out, in); s: clip scale
 *     U  = b M (1-b^t)/(1-b^(t+1)) + (1-b) s G   Nesterov, up to a factor the next line removes
 *     X  = U / (|U| + eps)                       Frobenius norm; transposed where out > in
 *     X <- a X + (b A + c A A) X, A = X X^T      steps times: singular values towards 1
 *     W <- W - lr (f X + decay W)                f = sqrt(max(1, out/in)), or rms sqrt(max)
 *
 * with (a, b, c) = (3.4445, -4.7750, 2.0315). As optax.contrib.muon, which is what MaxText runs.
 * Both updates are sgd nodes: M is "trained" with the rate 1 and the decay 1-b, so a clip scale
 * that is not finite leaves M and W alone like every other update. Of a stack of matrices (experts,
 * or the groups of a block-diagonal projection) each is orthogonalised on its own, with a norm and
 * a shape of its own. Vectors, embeddings and the head keep AdamW. On a mesh the momentum is cut as
 * the weight is, and U is gathered where a matrix is cut.
 */
#include "compile/optimizer.h"

#include "compile/mesh/partition.h"
#include "ir/source.h"
#include "ops.h"
#include <math.h>

/* A weight as n matrices of (rows, cols), one after the other in memory. */
typedef struct {
    int64_t n, rows, cols;
    bool in_out;
} matrices;

static matrices matrices_of(const mx_node *w, const mx_type *t)
{
    const mx_var_attr *a = w->attr;
    int64_t stacked = t->ndim == 3 ? t->dim[0] : 1, parts = a->matrices > 1 ? a->matrices : 1;
    return (matrices){.n = stacked * parts, .rows = t->dim[t->ndim - 2] / parts,
                      .cols = t->dim[t->ndim - 1], .in_out = a->in_out};
}

/* Is this a weight for Muon? The rest gets AdamW. */
static bool takes(const mx_node *w)
{
    static const char *const others[] = {"*embed*", "*lm_head*", "*wte*", "*wpe*", "*score.weight",
                                         "*bias", "*.ape"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (mx_glob_match(others[i], w->name))
            return false;
    bool experts = w->type.ndim == 3 && w->axes && mx_starts_with(w->axes, "exp,");
    return w->type.ndim == 2 || experts;
}

/* |x| of each matrix: a scalar, or (n, 1, 1). */
static mx_node *norms(mx_graph *g, mx_node *x, const matrices *m)
{
    if (x->type.ndim == 2)
        return mx_sqrt(g, mx_sum_squares(g, x));
    mx_node *flat = mx_reshape(g, x, MX_SHAPE(m->n, m->rows * m->cols));
    mx_node *sum = mx_row_sum(g, mx_mul(g, flat, flat));
    return mx_reshape(g, mx_sqrt(g, sum), MX_SHAPE(m->n, 1, 1));
}

static mx_node *orthogonal(mx_graph *g, mx_node *x, const matrices *m, int steps, double eps)
{
    static const double a = 3.4445, b = -4.7750, c = 2.0315;
    bool tall = m->rows > m->cols, one = x->type.ndim == 2;
    const char *outer = tall ? one ? "km,kn->mn" : "ekm,ekn->emn" : one ? "mk,nk->mn"
                                                                     : "emk,enk->emn";
    const char *inner = one ? "mk,kn->mn" : "emk,ekn->emn";
    x = mx_div(g, x, mx_affine(g, norms(g, x, m), 1, eps));
    for (int i = 0; i < steps; i++) {
        mx_node *gram = mx_matmul(g, outer, x, x);
        mx_node *square = mx_matmul(g, inner, gram, gram);
        mx_node *poly = mx_add(g, mx_affine(g, gram, b, 0), mx_affine(g, square, c, 0));
        mx_node *turned = tall ? mx_matmul(g, inner, x, poly) : mx_matmul(g, inner, poly, x);
        x = mx_add(g, mx_affine(g, x, a, 0), turned);
    }
    return x;
}

/* Where a weight's matrices lie whole; of a stack, those that the rank has. */
static mx_placement whole_matrices(const mx_node *w)
{
    mx_placement at = {0};
    if (w->type.ndim == 3)
        at.dim[0] = w->box->at.dim[0];
    return at;
}

/* On a mesh a rank orthogonalises whole matrices and takes its part of the result. */
static mx_node *orthogonal_part(mx_graph *g, const mx_update *to, mx_node *u)
{
    const mx_muon_rates *r = to->o->own;
    const mx_partition *on = to->on;
    const mx_node *w = to->w;
    mx_type t = w->type;
    mx_placement whole = {0};
    if (on) {
        whole = whole_matrices(w);
        t = mx_placement_local(on->mesh, &w->box->whole, &whole);
        u = mx_partition_bring(g, on, u, &w->box->whole, &w->box->at, &whole);
    }
    matrices k = matrices_of(w, &t);
    if (k.n > 1)
        u = mx_reshape(g, u, MX_SHAPE(k.n, k.rows, k.cols));
    u = mx_reshape(g, orthogonal(g, u, &k, r->steps, to->o->eps), mx_shape_of(&t));
    return on ? mx_partition_bring(g, on, u, &w->box->whole, &whole, &w->box->at) : u;
}

static mx_node *update(mx_graph *g, const mx_update *given)
{
    const mx_muon_rates *r = given->o->own;
    mx_update to = *given;
    mx_node *w = to.w;
    if (!takes(w))
        return mx_optimizer_rule_adamw.update(g, given);
    mx_node *m = mx_update_state(g, &to, "momentum", to.o->mu_dtype);
    to.d = mx_cast(g, to.d, MX_F32);
    matrices k = matrices_of(w, to.on ? &w->box->whole : &w->type);
    double b = r->beta, out = (double)(k.in_out ? k.cols : k.rows);
    double fan_in = (double)(k.in_out ? k.rows : k.cols);
    m = mx_cast(g, mx_momentum(g, m, &to, b, 1 - b), MX_F32);
    /* p = b^t; the ratio of the two bias corrections */
    mx_node *p = mx_exp(g, mx_affine(g, to.step, log(b > 0 ? b : 1e-30), 0));
    mx_node *ratio = mx_div(g, mx_affine(g, p, -1, 1), mx_affine(g, p, -b, 1));
    mx_node *u = mx_add(g, mx_mul(g, m, mx_affine(g, ratio, b, 0)),
                        mx_mul(g, to.d, mx_affine(g, to.scale, 1 - b, 0)));
    if (mx_type_count(&w->type)) /* otherwise another stage has it */
        u = orthogonal_part(g, &to, u);
    double factor = r->rms > 0 ? r->rms * sqrt(fmax(out, fan_in)) : sqrt(fmax(1, out / fan_in));
    return mx_step_along(g, &to, u, factor, r->decay);
}

static const void *configure(const mx_config *cfg, mx_arena *a)
{
    mx_muon_rates r = {.beta = mx_config_float(cfg, "muon_beta"),
                       .decay = mx_config_float(cfg, "muon_weight_decay"),
                       .rms = mx_config_float(cfg, "muon_consistent_rms"),
                       .steps = (int)mx_config_int(cfg, "muon_steps")};
    return mx_arena_copy(a, &r, sizeof r);
}

const mx_optimizer_rule mx_optimizer_rule_muon = {
    .name = "muon",
    .doc = "momentum, orthogonalised, for matrices; AdamW for the rest",
    .moments = 2,
    .configure = configure,
    .update = update,
};
