/* muon.c - Muon's update of a matrix, built from ops that every device has.
 *
 *     M <- b M + (1-b) s G                       momentum, float32; G (out, in); s: clip scale
 *     U  = b M (1-b^t)/(1-b^(t+1)) + (1-b) s G   Nesterov, up to a factor the next line removes
 *     X  = U / (|U| + eps)                       Frobenius norm; transposed where out > in
 *     X <- a X + (b A + c A A) X, A = X X^T      muon_steps times: singular values towards 1
 *     W <- W - lr (f X + decay W)                f = sqrt(max(1, out/in)), or rms sqrt(max)
 *
 * with (a, b, c) = (3.4445, -4.7750, 2.0315). As optax.contrib.muon, which is what MaxText runs.
 * Both updates are sgd nodes: M is "trained" with the rate 1 and the decay 1-b, so a clip scale
 * that is not finite leaves M and W alone like every other update. Of a stack of matrices (experts,
 * or the groups of a block-diagonal projection) each is orthogonalised on its own, with a norm and
 * a shape of its own. Vectors, embeddings and the head keep AdamW; momentum stays float32 whatever
 * mu_dtype says, since the sgd kernels of devices update float32. On a mesh the momentum is cut as
 * the weight is, and U is gathered where a matrix is cut.
 */
#include "compile/optimizer.h"

#include "compile/partition.h"
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

bool mx_muon_takes(const mx_node *w)
{
    static const char *const others[] = {"*embed*", "*lm_head*", "*wte*", "*wpe*", "*score.weight",
                                         "*bias", "*.ape"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (mx_glob_match(others[i], w->name))
            return false;
    bool experts = w->type.ndim == 3 && w->axes && mx_starts_with(w->axes, "exp,");
    return w->type.ndim == 2 || experts;
}

static mx_node *hyper(mx_graph *g, mx_node *rate, mx_node *scale)
{
    mx_node *zero = mx_constant(g, MX_SHAPE(1), MX_F32, 0);
    mx_node *part[4] = {mx_reshape(g, rate, MX_SHAPE(1)), mx_reshape(g, scale, MX_SHAPE(1)), zero,
                        zero};
    return mx_concat(g, 4, part, 0);
}

mx_node *mx_momentum(mx_graph *g, mx_node *m, mx_node *d, mx_node *scale, double keep, double take)
{
    mx_node *one = mx_constant(g, MX_SCALAR, MX_F32, 1);
    mx_node *h = hyper(g, one, mx_affine(g, scale, -take, 0));
    return mx_sgd(g, (mx_node *[]){m, d, h, NULL}, 1 - keep);
}

mx_node *mx_step_along(mx_graph *g, mx_node *w, mx_node *direction, mx_step_rule r, mx_node *copy)
{
    /* 0 * scale: NaN where the step must be skipped. */
    mx_node *h = hyper(g, r.lr, mx_affine(g, r.scale, 0, r.factor));
    return mx_sgd(g, (mx_node *[]){w, direction, h, copy}, r.decay);
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
static mx_node *orthogonal_part(mx_graph *g, const mx_optimizer *o, const mx_node *w, mx_node *u,
                                const mx_partition *on)
{
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
    u = mx_reshape(g, orthogonal(g, u, &k, o->muon_steps, o->eps), mx_shape_of(&t));
    return on ? mx_partition_bring(g, on, u, &w->box->whole, &whole, &w->box->at) : u;
}

mx_node *mx_muon(mx_graph *g, const mx_optimizer *o, mx_node *const in[4], mx_step_rule r,
                 mx_node *step, const mx_partition *on)
{
    mx_node *w = in[0], *d = mx_cast(g, in[1], MX_F32), *m = in[2], *copy = in[3];
    matrices k = matrices_of(w, on ? &w->box->whole : &w->type);
    double b = o->muon_beta, out = (double)(k.in_out ? k.cols : k.rows);
    double fan_in = (double)(k.in_out ? k.rows : k.cols);
    m = mx_momentum(g, m, d, r.scale, b, 1 - b);
    /* p = b^t; the ratio of the two bias corrections */
    mx_node *p = mx_exp(g, mx_affine(g, step, log(b > 0 ? b : 1e-30), 0));
    mx_node *ratio = mx_div(g, mx_affine(g, p, -1, 1), mx_affine(g, p, -b, 1));
    mx_node *u = mx_add(g, mx_mul(g, m, mx_affine(g, ratio, b, 0)),
                        mx_mul(g, d, mx_affine(g, r.scale, 1 - b, 0)));
    if (mx_type_count(&w->type)) /* otherwise another stage has it */
        u = orthogonal_part(g, o, w, u, on);
    r.factor = sqrt(fmax(1, out / fan_in));
    if (o->muon_rms > 0)
        r.factor = o->muon_rms * sqrt(fmax(out, fan_in));
    return mx_step_along(g, w, u, r, copy);
}
