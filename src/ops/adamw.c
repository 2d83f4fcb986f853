/* adamw.c - one AdamW update of one variable, in place.
 *
 *     w (*) float32 or bfloat16    g (*)    m, v (*) float32 or bfloat16
 *     hyper (4): lr, clip, step, -    c (*) the weight in the compute dtype, optional
 *     m <- b1 m + (1-b1) s g         v <- b2 v + (1-b2) (s g)^2          s: clip scale
 *     w <- w - lr (m/(1-b1^t) / (sqrt(v/(1-b2^t)) + eps) + wd w)
 *
 * Decoupled weight decay; eps outside the root (as AdamW), or inside as well (eps_root, as
 * adam_pax). The scale, learning rate and step are inputs so that one compiled program serves every
 * step. When the clip scale is not finite (a gradient was NaN or infinite) nothing is changed.
 * Memory-bound: 7 words per parameter; runs of RUN elements keep the conversions in cache.
 */
#include "ops.h"
#include "base/simd.h"
#include "ops/load.h"

#include <math.h>

typedef struct {
    double b1, b2, eps, eps_root, weight_decay;
} adamw_attr;

enum { RUN = 1024 };

typedef struct {
    float lr, scale, b1, b2, eps, eps_root, wd, fix1, fix2; /* fix: 1 / (1 - b^t) */
} rates;

static MX_CLONES void update(int64_t n, const rates *r, float *w, const float *g, float *m,
                             float *v)
{
    for (int64_t i = 0; i < n; i++) {
        float gi = g[i] * r->scale;
        m[i] = r->b1 * m[i] + (1 - r->b1) * gi;
        v[i] = r->b2 * v[i] + (1 - r->b2) * gi * gi;
        float step = m[i] * r->fix1 / (sqrtf(v[i] * r->fix2 + r->eps_root) + r->eps);
        w[i] -= r->lr * (step + r->wd * w[i]);
    }
}

/* The pointer to elements of a float32 tensor, or a buffer filled from it. */
static float *open_run(const mx_tensor *t, int64_t at, int64_t n, float *buffer)
{
    if (t->type.dtype == MX_F32)
        return (float *)t->data + at;
    mx_load_run_f32(t, at, n, buffer);
    return buffer;
}

static void close_run(const mx_tensor *t, int64_t at, int64_t n, const float *run)
{
    if (t->type.dtype != MX_F32)
        mx_store_run_f32(t, at, n, run);
}

static void adamw_cpu(const mx_call *c)
{
    const adamw_attr *a = c->attr;
    const mx_tensor *w = &c->in[0], *g = &c->in[1], *m = &c->in[2], *v = &c->in[3];
    const mx_tensor *copy = c->n_in > 5 && c->in[5].data ? &c->in[5] : NULL;
    const float *hyper = c->in[4].data;
    double t = hyper[2];
    rates r = {.lr = hyper[0], .scale = hyper[1], .b1 = (float)a->b1, .b2 = (float)a->b2,
               .eps = (float)a->eps, .eps_root = (float)a->eps_root, .wd = (float)a->weight_decay,
               .fix1 = (float)(1 / (1 - pow(a->b1, t))), .fix2 = (float)(1 / (1 - pow(a->b2, t)))};
    if (!isfinite(r.scale))
        return;
    int64_t n = mx_type_count(&w->type);
#pragma omp parallel for schedule(static)
    for (int64_t at = 0; at < n; at += RUN) {
        float bw[RUN], bg[RUN], bm[RUN], bv[RUN];
        int64_t k = n - at < RUN ? n - at : RUN;
        float *pw = open_run(w, at, k, bw), *pg = open_run(g, at, k, bg);
        float *pm = open_run(m, at, k, bm), *pv = open_run(v, at, k, bv);
        update(k, &r, pw, pg, pm, pv);
        close_run(w, at, k, pw);
        close_run(m, at, k, pm);
        close_run(v, at, k, pv);
        if (copy)
            mx_store_run_f32(copy, at, k, pw);
    }
}

mx_node *mx_adamw(mx_graph *g, mx_node *const in[6], mx_adamw_rates rates_)
{
    adamw_attr a = {rates_.b1, rates_.b2, rates_.eps, rates_.eps_root, rates_.weight_decay};
    return mx_apply(g, &mx_op_adamw, &a, 6, in);
}

static mx_cost cost(const mx_node *n)
{
    return (mx_cost){.flops = 12.0 * (double)mx_type_count(&n->type)};
}

static void infer(mx_graph *g, mx_node *n)
{
    for (int i = 1; i < 4; i++)
        if (!mx_shape_equal(&n->in[0]->type, &n->in[i]->type))
            mx_graph_fail(g, "adamw: weight, gradient and moments of %s differ in shape",
                          n->in[0]->name ? n->in[0]->name : "a variable");
    n->type = n->in[0]->type;
    n->more[0] = n->in[2]->type;
    n->more[1] = n->in[3]->type;
    n->more[2] = n->in[5] ? n->in[5]->type : (mx_type){0};
}

const mx_op mx_op_adamw = {
    .name = "adamw",
    .doc = "one AdamW update, in place",
    .attr_size = sizeof(adamw_attr),
    .fields = (const mx_attr_field[]){
        MX_FIELD(adamw_attr, MX_ATTR_F64, b1), MX_FIELD(adamw_attr, MX_ATTR_F64, b2),
        MX_FIELD(adamw_attr, MX_ATTR_F64, eps), MX_FIELD(adamw_attr, MX_ATTR_F64, eps_root),
        MX_FIELD(adamw_attr, MX_ATTR_F64, weight_decay), {0}},
    .n_out = 4,
    .alias = {1, 3, 4, 6},
    .no_cast = true,
    .infer = infer,
    .dims = "*,*,*,*,!h,*->*,*,*,*",
    .cost = cost,
    .cpu = adamw_cpu,
    .cases = (const mx_case[]){
        {6, {{2, {4, 6}, .no_grad = true}, {2, {4, 6}, .no_grad = true},
             {2, {4, 6}, .no_grad = true}, {2, {4, 6}, .lo = 0.1, .hi = 1, .no_grad = true},
             {1, {4}, .lo = 1, .hi = 2, .no_grad = true, .fixed = true},
             {2, {4, 6}, .no_grad = true}},
         &(adamw_attr){0.9, 0.95, 1e-8, 0, 0.1}},
        {6, {{1, {2100}, .no_grad = true}, {1, {2100}, .no_grad = true},
             {1, {2100}, .no_grad = true}, {1, {2100}, .lo = 0.1, .hi = 1, .no_grad = true},
             {1, {4}, .lo = 1, .hi = 2, .no_grad = true, .fixed = true}, {.absent = true}},
         &(adamw_attr){0.9, 0.999, 0, 1e-6, 0}}, {0}},
};
