/* cpu_xent_test.c - linear + cross entropy against a plain computation in double.
 *
 * Covers ignored labels, softcap, logit scale, z-loss, accumulation into dw, several row chunks and
 * vocabulary tiles, all three number kinds, and the equality of the one-pass form with the form
 * that is given lse.
 */
#include "../test.h"
#include "numbers.h"

#include "ops/cpu/xent_kernel.h"
#include <math.h>
#include <string.h>

typedef struct {
    double *loss, *lse, *dx, *dw;
} expected;

static void reference(const mx_xent *c, const void *dloss, mx_num st, expected *e, double *s)
{
    double scale = c->scale == 0 ? 1 : (double)c->scale, cap = (double)c->softcap;
    double z = (double)c->z_loss;
    for (int64_t i = 0; i < c->n; i++) {
        double sum = 0, g = get(dloss, i, st);
        if (c->labels[i] < 0)
            continue;
        for (int64_t v = 0; v < c->vocab; v++) {
            double r = 0;
            for (int64_t k = 0; k < c->dim; k++)
                r += get(c->x, i * c->dim + k, c->type) * get(c->w, v * c->dim + k, c->type);
            s[v] = cap > 0 ? cap * tanh(r * scale / cap) : r * scale;
            sum += exp(s[v]);
        }
        double lse = log(sum);
        e->lse[i] = lse;
        e->loss[i] = lse - s[c->labels[i]] + z * lse * lse;
        for (int64_t v = 0; v < c->vocab; v++) {
            double d = g * (exp(s[v] - lse) * (1 + 2 * z * lse) - (v == c->labels[i]));
            d *= scale * (cap > 0 ? 1 - s[v] / cap * (s[v] / cap) : 1);
            for (int64_t k = 0; k < c->dim; k++) {
                e->dx[i * c->dim + k] += d * get(c->w, v * c->dim + k, c->type);
                e->dw[v * c->dim + k] += d * get(c->x, i * c->dim + k, c->type);
            }
        }
    }
}

static void compare(const char *what, const mx_xent *c, const void *got, mx_num t,
                    const double *want, int64_t n, double tol)
{
    double big = 1e-3, worst = 0;
    int64_t at = 0;
    for (int64_t i = 0; i < n; i++)
        big = fabs(want[i]) > big ? fabs(want[i]) : big;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs(get(got, i, t) - want[i]) / big;
        if (!(d <= worst)) {
            worst = isnan(d) ? INFINITY : d;
            at = i;
        }
    }
    MX_CHECK(worst <= tol, "%s[%ld] is %g, expected %g; type %d N%ld d%ld V%ld cap %g "
             "z %g scale %g", what, (long)at, get(got, at, t), want[at], c->type,
             (long)c->n, (long)c->dim, (long)c->vocab, c->softcap, c->z_loss, c->scale);
}

static void check(mx_arena *m, mx_xent c, uint32_t *s)
{
    mx_num t = c.type, st = t == MX_NUM_F64 ? t : MX_NUM_F32;
    double tol = t == MX_NUM_F64 ? 1e-12 : 2e-5, grad_tol = t == MX_NUM_BF16 ? 2e-2 : tol;
    c.x = random_array(m, c.n * c.dim, t, s);
    c.w = random_array(m, c.vocab * c.dim, t, s);
    int32_t *labels = MX_NEW_N(m, int32_t, c.n);
    for (int64_t i = 0; i < c.n; i++)
        labels[i] = next(s) % 4 == 0 || i / 256 == 1 ? -100
                                                     : (int32_t)(next(s) % (uint32_t)c.vocab);
    c.labels = labels;
    void *dloss = random_array(m, c.n, st, s);
    expected e = {MX_NEW_N(m, double, c.n), MX_NEW_N(m, double, c.n),
                  MX_NEW_N(m, double, c.n *c.dim), MX_NEW_N(m, double, c.vocab *c.dim)};
    reference(&c, dloss, st, &e, MX_NEW_N(m, double, c.vocab));
    void *loss = random_array(m, c.n, st, s), *lse = random_array(m, c.n, st, s);
    mx_xent_forward(&c, loss, lse, mx_arena_alloc(m, mx_xent_work_bytes(&c, false)));
    compare("forward loss", &c, loss, st, e.loss, c.n, tol);
    compare("forward lse", &c, lse, st, e.lse, c.n, tol);
    void *work = mx_arena_alloc(m, mx_xent_work_bytes(&c, true));
    mx_xent_grads g = {.dloss = dloss, .loss = random_array(m, c.n, st, s),
                       .lse = random_array(m, c.n, st, s), .dx = random_array(m, c.n * c.dim, t, s),
                       .dw = random_array(m, c.vocab * c.dim, st, s)};
    mx_xent_backward(&c, &g, work);
    compare("train loss", &c, g.loss, st, e.loss, c.n, tol);
    compare("train lse", &c, g.lse, st, e.lse, c.n, tol);
    compare("dx", &c, g.dx, t, e.dx, c.n * c.dim, grad_tol);
    compare("dw", &c, g.dw, st, e.dw, c.vocab * c.dim, grad_tol);
    mx_xent_grads h = {.dloss = dloss, .lse_in = lse, .dx = g.dx, .dw = g.dw, .add_dw = true};
    mx_xent_backward(&c, &h, work);
    for (int64_t i = 0; i < c.vocab * c.dim; i++)
        e.dw[i] *= 2;
    compare("dx given lse", &c, h.dx, t, e.dx, c.n * c.dim, grad_tol);
    compare("dw added to", &c, h.dw, st, e.dw, c.vocab * c.dim, grad_tol);
}

MX_TEST(xent_matches_plain_computation)
{
    uint32_t s = 1;
    for (int i = 0; i < 36; i++) {
        mx_arena m = {0};
        mx_xent c = {.type = i % 3 == 0   ? MX_NUM_F32
                             : i % 3 == 1 ? MX_NUM_BF16
                                          : MX_NUM_F64};
        c.n = 1 + next(&s) % 40;
        c.dim = 1 + next(&s) % 40;
        c.vocab = 2 + next(&s) % 90;
        c.softcap = next(&s) % 3 == 0 ? 3.0f : 0;
        c.scale = next(&s) % 3 == 0 ? 0.5f : 0;
        c.z_loss = next(&s) % 2 ? 0.01f : 0;
        c.threads = (int)(next(&s) % 3);
        check(&m, c, &s);
        mx_arena_fini(&m);
    }
}

/* More rows than a chunk (one of them all ignored), more words than a tile. */
MX_TEST(xent_crosses_chunks_and_tiles)
{
    uint32_t s = 2;
    mx_arena m = {0};
    check(&m, (mx_xent){.type = MX_NUM_F32, .n = 700, .dim = 5, .vocab = 33}, &s);
    check(&m, (mx_xent){.type = MX_NUM_F32, .n = 9, .dim = 6, .vocab = 9000, .z_loss = 0.001f}, &s);
    check(&m, (mx_xent){.type = MX_NUM_BF16, .n = 70, .dim = 6, .vocab = 5000}, &s);
    mx_arena_fini(&m);
}

MX_TEST(xent_of_only_ignored_labels_is_zero)
{
    float x[4] = {1, 2, 3, 4}, w[6] = {1, 2, 3, 4, 5, 6}, one[2] = {1, 1};
    float loss[2] = {7, 7}, lse[2] = {7, 7}, dx[4] = {7, 7, 7, 7}, dw[6] = {7, 7, 7, 7, 7, 7};
    int32_t labels[2] = {-100, -1};
    mx_arena m = {0};
    mx_xent c = {.n = 2, .dim = 2, .vocab = 3, .x = x, .w = w, .labels = labels};
    mx_xent_grads g = {.dloss = one, .loss = loss, .lse = lse, .dx = dx, .dw = dw};
    mx_xent_backward(&c, &g, mx_arena_alloc(&m, mx_xent_work_bytes(&c, true)));
    for (int i = 0; i < 6; i++)
        MX_CHECK(dw[i] == 0, "dw[%d]=%g", i, dw[i]);
    for (int i = 0; i < 4; i++)
        MX_CHECK(dx[i] == 0, "dx[%d]=%g", i, dx[i]);
    MX_CHECK(loss[0] == 0 && loss[1] == 0 && lse[1] == 0, "loss %g", loss[0]);
    mx_arena_fini(&m);
}
