/* sgd.c - w <- w - lr (s g + wd w), in place. hyper (4): lr, clip scale s, step, -. */
#include "ops.h"
#include "base/simd.h"
#include "ops/inputs.h"
#include "ops/load.h"

#include <math.h>

enum { MX_INPUTS_SGD };

typedef struct {
    double weight_decay;
} sgd_attr;

enum { RUN = 1024 };

static void sgd_cpu(const mx_call *c)
{
    const mx_tensor *w = &c->in[SGD_W], *g = &c->in[SGD_G];
    const mx_tensor *copy = c->in[SGD_COPY].data ? &c->in[SGD_COPY] : NULL;
    const float *hyper = c->in[SGD_HYPER].data;
    float lr = hyper[0], scale = hyper[1], wd = (float)((const sgd_attr *)c->attr)->weight_decay;
    int64_t n = mx_type_count(&w->type);
    if (!isfinite(scale))
        return;
#pragma omp parallel for schedule(static)
    for (int64_t at = 0; at < n; at += RUN) {
        float bw[RUN], bg[RUN];
        int64_t k = n - at < RUN ? n - at : RUN;
        mx_load_run_f32(w, at, k, bw);
        mx_load_run_f32(g, at, k, bg);
        for (int64_t i = 0; i < k; i++)
            bw[i] -= lr * (scale * bg[i] + wd * bw[i]);
        mx_store_run_f32(w, at, k, bw);
        if (copy)
            mx_store_run_f32(copy, at, k, bw);
    }
}

mx_node *mx_sgd(mx_graph *g, mx_node *const in[4], double weight_decay)
{
    return mx_apply(g, &mx_op_sgd, &(sgd_attr){weight_decay}, 4, in);
}

static void infer(mx_graph *g, mx_node *n)
{
    if (!mx_shape_equal(&n->in[SGD_W]->type, &n->in[SGD_G]->type))
        mx_graph_fail(g, "sgd: weight and gradient differ in shape");
    n->type = n->in[SGD_W]->type;
    n->more[0] = n->in[SGD_COPY] ? n->in[SGD_COPY]->type : (mx_type){0};
}

const mx_op mx_op_sgd = {
    .name = "sgd",
    .doc = "one SGD update, in place",
    .dtypes = MX_REALS,
    .dtypes_at = {[SGD_HYPER] = MX_F32_ONLY},
    .attr_size = sizeof(sgd_attr),
    .fields = (const mx_attr_field[]){MX_FIELD(sgd_attr, MX_ATTR_F64, weight_decay), {0}},
    .n_out = 2,
    .alias = {1, 4},
    .no_cast = true,
    .infer = infer,
    .dims = "*,*,!h,*->*,*",
    .cpu = sgd_cpu,
    .cases = (const mx_case[]){
        {4, {{2, {4, 6}, .no_grad = true}, {2, {4, 6}, .no_grad = true},
             {1, {4}, .lo = 0.1, .hi = 1, .no_grad = true, .fixed = true},
             {2, {4, 6}, .no_grad = true}}, &(sgd_attr){0.1}},
        {4, {{1, {300}, .no_grad = true}, {1, {300}, .no_grad = true},
             {1, {4}, .lo = 0.1, .hi = 1, .no_grad = true, .fixed = true}, {.absent = true}},
         &(sgd_attr){0}}, {0}},
};
