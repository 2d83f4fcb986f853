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
 * that is not finite leaves M and W alone like every other update. Vectors, embeddings, the head
 * and stacks of experts keep AdamW; momentum stays float32 whatever mu_dtype says, since the sgd
 * kernels of devices update float32.
 */
#include "compile/optimizer.h"

#include "ops.h"
#include <math.h>
#include <string.h>

bool mx_muon_takes(const mx_node *w)
{
    static const char *const others[] = {"*embed*", "*lm_head*", "*wte*", "*wpe*", "*score.weight"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (mx_glob_match(others[i], w->name))
            return false;
    return w->type.ndim == 2 && !strchr(w->name, '*');
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

static mx_node *orthogonal(mx_graph *g, mx_node *x, int steps, double eps)
{
    static const double a = 3.4445, b = -4.7750, c = 2.0315;
    bool tall = x->type.dim[0] > x->type.dim[1];
    mx_node *norm = mx_affine(g, mx_sqrt(g, mx_sum_squares(g, x)), 1, eps);
    x = mx_div(g, x, norm);
    for (int i = 0; i < steps; i++) {
        mx_node *gram = mx_matmul(g, tall ? "km,kn->mn" : "mk,nk->mn", x, x);
        mx_node *square = mx_matmul(g, "mk,kn->mn", gram, gram);
        mx_node *poly = mx_add(g, mx_affine(g, gram, b, 0), mx_affine(g, square, c, 0));
        mx_node *turned =
            tall ? mx_matmul(g, "mk,kn->mn", x, poly) : mx_matmul(g, "mk,kn->mn", poly, x);
        x = mx_add(g, mx_affine(g, x, a, 0), turned);
    }
    return x;
}

mx_node *mx_muon(mx_graph *g, const mx_optimizer *o, mx_node *const in[4], mx_step_rule r,
                 mx_node *step)
{
    mx_node *w = in[0], *d = mx_cast(g, in[1], MX_F32), *m = in[2], *copy = in[3];
    double b = o->muon_beta, out = (double)w->type.dim[0], fan_in = (double)w->type.dim[1];
    m = mx_momentum(g, m, d, r.scale, b, 1 - b);
    /* p = b^t; the ratio of the two bias corrections */
    mx_node *p = mx_exp(g, mx_affine(g, step, log(b > 0 ? b : 1e-30), 0));
    mx_node *ratio = mx_div(g, mx_affine(g, p, -1, 1), mx_affine(g, p, -b, 1));
    mx_node *u = mx_add(g, mx_mul(g, m, mx_affine(g, ratio, b, 0)),
                        mx_mul(g, d, mx_affine(g, r.scale, 1 - b, 0)));
    u = orthogonal(g, u, o->muon_steps, o->eps);
    r.factor = sqrt(fmax(1, out / fan_in));
    if (o->muon_rms > 0)
        r.factor = o->muon_rms * sqrt(fmax(out, fan_in));
    return mx_step_along(g, w, u, r, copy);
}
