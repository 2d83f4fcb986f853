/* ops_table_test.c - every op of the table against its own test cases, with no list of ops here.
 *
 *   gradients   mx_gradients in float64 against central differences
 *   float32     against float64 on the same values; bfloat16 likewise
 *   fusion      fused and unfused programs give the same bits
 *   cost        finite, not negative
 * ops_splits_test.c runs them on halves. An op without a case fails the coverage test unless it is
 * named there with a reason.
 */
#include "compile/passes.h"
#include "op_trial.h"
#include "../test.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- gradients --- */

static bool wants_grad(const op_trial *t, int i)
{
    const mx_case_in *in = &t->c->in[i];
    return !in->absent && !in->no_grad && mx_dtype_is_float(in->dtype);
}

/* loss = sum over float outputs of y * w, with w from inputs named w0, w1, ...; or of y * y * w,
 * whose gradient depends on y itself (some gradient builders tell the two apart). */
static mx_node *weighted_sum(mx_graph *g, mx_node *n, bool square)
{
    mx_node *loss = NULL;
    for (int k = 0; k < n->n_out; k++) {
        const mx_type *y = mx_node_type(n, k);
        char name[16];
        if (!mx_dtype_is_float(y->dtype) || n->op->saved >> k & 1)
            continue;
        snprintf(name, sizeof name, "w%d", k);
        mx_node *w = mx_input(g, name, mx_shape_of(y), y->dtype), *out = mx_output(g, n, k);
        mx_node *s = mx_sum_all(g, mx_mul(g, square ? mx_mul(g, out, out) : out, w));
        loss = loss ? mx_add(g, loss, s) : s;
    }
    return loss;
}

static double loss_of(mx_graph_run *r, const op_trial *t)
{
    double loss;
    op_trial_write(r, t);
    mx_graph_run_go(r);
    mx_graph_run_read(r, "loss", &loss);
    return loss;
}

static void compare_gradient(mx_graph_run *r, op_trial *t, int i)
{
    enum { MOST = 200 };
    const double h = 1e-5;
    int64_t n = mx_type_count(&t->type[i]), step = n > MOST ? n / MOST + 1 : 1, m = 0;
    double *want = MX_NEW_N(&t->arena, double, n + 1), *have = MX_NEW_N(&t->arena, double, n + 1);
    char name[16];
    snprintf(name, sizeof name, "dx%d", i);
    loss_of(r, t);
    mx_graph_run_read(r, name, have);
    for (int64_t k = 0; k < n; k += step, m++) {
        double x = t->x[i][k];
        t->x[i][k] = x + h;
        double up = loss_of(r, t);
        t->x[i][k] = x - h;
        double down = loss_of(r, t);
        t->x[i][k] = x;
        want[m] = (up - down) / (2 * h);
        have[m] = have[k];
    }
    double far = mx_test_distance(have, want, m, 1e-2);
    double limit = t->c->tolerance != 0 ? t->c->tolerance : 1e-6;
    MX_CHECK(far <= limit, "%s, case %d: gradient of input %d is off by %.2g (limit %.2g)",
             t->op->name, t->index, i, far, limit);
}

static void check_gradient(op_trial *t, bool square)
{
    bool any = false;
    for (int i = 0; i < t->c->n_in; i++)
        any |= wants_grad(t, i);
    if (!any)
        return;
    mx_graph_run r;
    mx_graph_run_init(&r);
    r.n_threads = 1; /* thousands of small runs */
    mx_graph *g = &r.graph;
    mx_node *n = op_trial_build(g, t, MX_F64, false), *x[MX_MAX_IN], *dx[MX_MAX_IN];
    mx_node *loss = g->error ? NULL : weighted_sum(g, n, square);
    int n_x = 0, which[MX_MAX_IN];
    for (int i = 0; i < t->c->n_in; i++)
        if (wants_grad(t, i)) {
            x[n_x] = n->in[i];
            which[n_x++] = i;
        }
    if (loss) {
        mx_gradients(g, loss, NULL, x, n_x, dx);
        mx_graph_root(g, "loss", loss);
    }
    bool ok = loss != NULL;
    MX_CHECK(ok, "%s, case %d: %s", t->op->name, t->index, g->error ? g->error : "no float output");
    for (int k = 0; ok && k < n_x; k++) {
        char name[16];
        snprintf(name, sizeof name, "dx%d", which[k]);
        MX_CHECK(dx[k], "%s, case %d: input %d gets no gradient (mark it no_grad if that is right)",
                 t->op->name, t->index, which[k]);
        ok = dx[k] != NULL;
        /* A gradient may be one of the inputs itself: roots get a node of their own to be named. */
        if (ok)
            mx_graph_root(g, name, mx_affine(g, dx[k], 1, 0));
    }
    if (ok && op_trial_compile(&r, t, true)) {
        for (int k = 0; k < n->n_out; k++) {
            char name[16];
            int64_t count = mx_type_count(mx_node_type(n, k));
            double *w = MX_NEW_N(&t->arena, double, count + 1);
            mx_test_fill(w, count, -1, 1, (uint64_t)(50 + k));
            snprintf(name, sizeof name, "w%d", k);
            mx_graph_run_write(&r, name, w);
        }
        for (int k = 0; k < n_x; k++)
            compare_gradient(&r, t, which[k]);
    }
    mx_graph_run_fini(&r);
}

static void check_linear(op_trial *t)
{
    check_gradient(t, false);
}

static void check_square(op_trial *t)
{
    check_gradient(t, true);
}

MX_TEST(ops_gradients_match_central_differences)
{
    op_each_case(check_linear);
}

MX_TEST(ops_gradients_that_depend_on_the_value)
{
    op_each_case(check_square);
}

/* --- dtypes --- */

static void compare_outcomes(const op_trial *t, const op_outcome *a, const op_outcome *b,
                             double limit, const char *what)
{
    if (t->gpu && t->c->on_device > limit)
        limit = t->c->on_device;
    for (int k = 0; k < a->n; k++) {
        bool exact = !mx_dtype_is_float(a->type[k].dtype);
        double far = mx_test_distance(a->y[k], b->y[k], mx_type_count(&a->type[k]), 1e-3);
        MX_CHECK(!op_trial_has_output(t, k) || far <= (exact ? 0 : limit),
                 "%s, case %d: output %d, %s: off by %.2g", t->op->name, t->index, k, what, far);
    }
}

static void check_float32(op_trial *t)
{
    op_outcome narrow, wide;
    op_trial_round(t, MX_F32);
    if (op_trial_forward(t, MX_F32, &narrow) && op_trial_forward(t, MX_F64, &wide))
        compare_outcomes(t, &narrow, &wide, 1e-5, "float32 against float64");
}

MX_TEST(ops_float32_matches_float64)
{
    op_each_case(check_float32);
}

static void check_bfloat16(op_trial *t)
{
    op_outcome narrow, wide;
    op_trial_round(t, MX_BF16);
    if (op_trial_forward(t, MX_BF16, &narrow) && op_trial_forward(t, MX_F64, &wide))
        compare_outcomes(t, &narrow, &wide, 1.0 / 128, "bfloat16 against float64");
}

MX_TEST(ops_bfloat16_matches_float64)
{
    op_each_case(check_bfloat16);
}

/* --- fusion --- */

/* x -> elementwise -> op -> elementwise and a row sum, read twice. */
static bool composed(op_trial *t, mx_dtype real, bool merge, op_outcome *out)
{
    mx_graph_run r;
    mx_graph_run_init(&r);
    r.shared = real == MX_F64 ? NULL : t->gpu;
    mx_graph *g = &r.graph;
    mx_node *n = op_trial_build(g, t, real, true);
    char name[16];
    out->n = 0;
    for (int k = 0; k < n->n_out && !g->error; k++) {
        mx_node *y = mx_output(g, n, k);
        if (!(MX_NUMBERS >> y->type.dtype & 1))
            y = mx_cast(g, y, MX_F32);
        if (mx_dtype_is_computed(y->type.dtype) && y->type.ndim)
            y = mx_mul(g, mx_silu(g, y), mx_add(g, y, mx_row_sum(g, y)));
        else
            y = mx_affine(g, y, 3, 1);
        snprintf(name, sizeof name, "y%d", out->n);
        mx_graph_root(g, name, y);
        out->type[out->n++] = y->type;
    }
    return op_trial_finish(&r, t, merge, out);
}

static void check_fused(op_trial *t)
{
    static const mx_dtype real[] = {MX_F64, MX_F32};
    for (int d = 0; d < 2; d++) {
        op_outcome one, many;
        if (composed(t, real[d], true, &one) && composed(t, real[d], false, &many))
            compare_outcomes(t, &one, &many, 0, "fused against unfused");
    }
}

MX_TEST(ops_fused_equals_unfused)
{
    op_each_case(check_fused);
}

/* --- the GPU --- */

static void check_composed(op_trial *t)
{
    op_outcome narrow, wide;
    op_trial_round(t, MX_F32);
    if (composed(t, MX_F32, true, &narrow) && composed(t, MX_F64, true, &wide))
        compare_outcomes(t, &narrow, &wide, 1e-4, "composed, float32 against float64");
}

/* Every op on the device, alone and inside groups, against float64 on the CPU. `make test-gpu` asks
 * for it; elsewhere there is nothing to run on. */
MX_TEST(ops_on_the_gpu_match_float64)
{
    mx_session *gpu = NULL;
    if (!getenv("MX_TEST_GPU")) {
        printf("    skipped: MX_TEST_GPU is not set\n");
        return;
    }
    MX_CHECK_OK(mx_session_open(&gpu, "cuda", 2));
    if (!gpu)
        return;
    op_each_case_on(gpu, check_float32);
    op_each_case_on(gpu, check_bfloat16);
    op_each_case_on(gpu, check_composed);
    mx_session_close(gpu);
}

/* --- cost, coverage --- */

static void check_cost(op_trial *t)
{
    mx_graph g;
    mx_graph_init(&g);
    mx_cost c = mx_node_cost(op_trial_build(&g, t, MX_F32, false));
    MX_CHECK(isfinite(c.flops) && c.flops >= 0 && isfinite(c.bytes) && c.bytes >= 0,
             "%s, case %d: %g flops, %g bytes", t->op->name, t->index, c.flops, c.bytes);
    mx_graph_fini(&g);
}

MX_TEST(ops_costs_are_finite)
{
    op_each_case(check_cost);
}

MX_TEST(ops_all_have_cases)
{
    static const struct {
        const char *op, *why;
    } excused[] = {
        {"constant", "a source"}, {"input", "a source"}, {"variable", "a source"},
        {"fused", "made by the fuse pass, which every test here runs"},
        {"output", "read in every case of an op with several outputs"},
        {"attention_grad", "the gradient checks of attention run it"},
        {"causal_conv_grad", "the gradient checks of causal_conv run it"},
        {"delta_rule_grad", "the gradient checks of delta_rule run it"},
        {"linear_xent_grad", "the gradient check of linear_xent on squares runs it"},
        {"linear_xent_slice_grad", "the gradient check of linear_xent_slice runs it"},
        {"linear_xent_slice_keep", "likewise"}, {"linear_xent_slice_back", "likewise"},
        {"linear_xent_train", "the gradient check of linear_xent runs it"},
        {"merge_attention_grad", "the gradient check of merge_attention runs it"},
        {"offload", "of use with wait alone: tests/train/activation_offload_test.c"},
        {"prefetch", "likewise"}, {"wait", "likewise"},
    };
    for (int o = 0; o < mx_op_count; o++) {
        const mx_op *op = mx_op_table[o];
        bool fine = op->cases && op->cases[0].n_in;
        for (size_t e = 0; e < sizeof excused / sizeof *excused; e++)
            fine |= strcmp(op->name, excused[e].op) == 0;
        MX_CHECK(fine, "the op %s has no test case", op->name);
        MX_CHECK(op->doc && *op->doc, "the op %s says nothing about itself", op->name);
    }
}
