/* accumulate.c - sum <- sum + g (or <- g on the first microbatch), in place. `first` is a scalar
 * float32 input: not 0 starts a new sum, so nothing has to be zeroed between steps. */
#include "ops.h"
#include "ops/inputs.h"
#include "ops/load.h"

enum { MX_INPUTS_ACCUMULATE };

enum { RUN = 1024 };

static void accumulate_cpu(const mx_call *c)
{
    const mx_tensor *sum = &c->in[ACCUMULATE_SUM], *g = &c->in[ACCUMULATE_G];
    bool first = *(const float *)c->in[ACCUMULATE_FIRST].data != 0;
    int64_t n = mx_type_count(&sum->type);
#pragma omp parallel for schedule(static)
    for (int64_t at = 0; at < n; at += RUN) {
        float a[RUN], b[RUN];
        int64_t k = n - at < RUN ? n - at : RUN;
        mx_load_run_f32(g, at, k, b);
        if (!first) {
            mx_load_run_f32(sum, at, k, a);
            for (int64_t i = 0; i < k; i++)
                b[i] += a[i];
        }
        mx_store_run_f32(sum, at, k, b);
    }
}

mx_node *mx_accumulate(mx_graph *g, mx_node *sum, mx_node *x, mx_node *first)
{
    return MX_APPLY(g, &mx_op_accumulate, NULL, sum, x, first);
}

static void infer(mx_graph *g, mx_node *n)
{
    if (!mx_shape_equal(&n->in[ACCUMULATE_SUM]->type, &n->in[ACCUMULATE_G]->type))
        mx_graph_fail(g, "accumulate: shapes differ");
    n->type = n->in[ACCUMULATE_SUM]->type;
}

const mx_op mx_op_accumulate = {
    .name = "accumulate",
    .doc = "sum <- sum + x, in place",
    .dtypes = MX_REALS,
    .dtypes_at = {[ACCUMULATE_FIRST] = MX_F32_ONLY},
    .alias = {1},
    .no_cast = true,
    .infer = infer,
    .dims = "*,*,->*",
    .cpu = accumulate_cpu,
    .cases = (const mx_case[]){
        {3, {{2, {4, 6}, .no_grad = true}, {2, {4, 6}, .no_grad = true},
             {0, {0}, .lo = 1, .hi = 2, .no_grad = true, .fixed = true}}},
        {3, {{1, {2100}, .no_grad = true}, {1, {2100}, .no_grad = true},
             {0, {0}, .hi = 1e-300, .no_grad = true, .fixed = true}}}, {0}},
};
