/* ops_table.c - every op of the table against its own test cases, with no list of ops here.
 *
 *   gradients   mx_gradients in float64 against central differences
 *   float32     against float64 on the same values; bfloat16 likewise
 *   fusion      fused and unfused programs give the same bits
 *   splits      every placement that the notation allows: run on halves, joined, against the whole
 *   cost        finite, not negative
 * An op without a case fails the coverage test unless it is named there with a reason.
 */
#include "compile/passes.h"
#include "graph_run.h"
#include "ir/notation.h"
#include "ops.h"
#include "test.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One case with its types and values. */
typedef struct {
    const mx_op *op;
    const mx_case *c;
    int index;
    mx_type type[MX_MAX_IN];
    double *x[MX_MAX_IN];
    mx_arena arena;
    mx_session *gpu; /* borrows; where float32 and bfloat16 run (float64 never does); NULL: CPU */
} trial;

/* What a run gave. Values are in the trial's arena. */
typedef struct {
    int n;
    mx_type type[MX_MAX_OUT];
    double *y[MX_MAX_OUT];
} outcome;

static void trial_init(trial *t, const mx_op *op, int index)
{
    *t = (trial){.op = op, .c = &op->cases[index], .index = index};
    for (int i = 0; i < t->c->n_in; i++) {
        const mx_case_in *in = &t->c->in[i];
        t->type[i] = (mx_type){.dtype = in->dtype, .ndim = in->ndim};
        memcpy(t->type[i].dim, in->dim, sizeof in->dim);
        int64_t n = mx_type_count(&t->type[i]);
        bool real = mx_dtype_is_float(in->dtype), given = in->lo != 0 || in->hi != 0;
        t->x[i] = MX_NEW_N(&t->arena, double, n + 1);
        mx_test_fill(t->x[i], n, given ? in->lo : real ? -1 : 0, given ? in->hi : real ? 1 : 0,
                     (uint64_t)(index * 100 + i + 1));
        for (int64_t k = 0; k < n && !real; k++)
            t->x[i][k] = floor(t->x[i][k]);
    }
}

/* The values as this dtype can hold them, so that runs in two dtypes see the same numbers. */
static void trial_round(trial *t, mx_dtype d)
{
    for (int i = 0; i < t->c->n_in; i++)
        for (int64_t k = 0; k < mx_type_count(&t->type[i]); k++) {
            uint32_t bits;
            float f = (float)t->x[i][k];
            memcpy(&bits, &f, sizeof f);
            bits = d == MX_BF16 ? (bits + 0x8000u) & 0xffff0000u : bits;
            memcpy(&f, &bits, sizeof f);
            t->x[i][k] = f;
        }
}

/* Runs `body` for every case of every op, or of those that MX_TEST_OPS names. */
static void each_case_on(mx_session *gpu, void (*body)(trial *t))
{
    const char *only = getenv("MX_TEST_OPS");
    for (int o = 0; o < mx_op_count; o++) {
        const mx_op *op = mx_op_table[o];
        bool wanted = op->cases && (!only || strstr(only, op->name));
        for (int i = 0; wanted && op->cases[i].n_in; i++) {
            trial t;
            trial_init(&t, op, i);
            t.gpu = gpu;
            body(&t);
            mx_arena_fini(&t.arena);
        }
    }
}

static void each_case(void (*body)(trial *t))
{
    each_case_on(NULL, body);
}

/* The op on inputs named x0, x1, ...; floats in the given dtype. With `wrapped`, float inputs pass
 * through elementwise nodes first, so that there is something to fuse with. */
static mx_node *build(mx_graph *g, const trial *t, mx_dtype real, bool wrapped)
{
    mx_node *in[MX_MAX_IN] = {0};
    for (int i = 0; i < t->c->n_in; i++) {
        if (t->c->in[i].absent)
            continue;
        bool is_float = mx_dtype_is_float(t->type[i].dtype) && !t->c->in[i].fixed;
        char name[16];
        snprintf(name, sizeof name, "x%d", i);
        bool cast = real != MX_BF16 || !t->op->n_cast || i < t->op->n_cast;
        mx_dtype dt = !is_float ? t->type[i].dtype : cast ? real : MX_F32;
        in[i] = mx_input(g, name, mx_shape_of(&t->type[i]), dt);
        if (wrapped && is_float)
            in[i] = mx_add(g, mx_affine(g, in[i], 0.5, 0.25), mx_affine(g, in[i], 0.5, -0.25));
    }
    int n_out = t->op->n_out < 0 ? t->c->n_out : t->op->n_out ? t->op->n_out : 1;
    return mx_apply_n(g, t->op, t->c->attr, t->c->n_in, in, n_out);
}

static void write_inputs(mx_graph_run *r, const trial *t)
{
    for (int i = 0; i < t->c->n_in; i++) {
        char name[16];
        snprintf(name, sizeof name, "x%d", i);
        if (!t->c->in[i].absent)
            mx_graph_run_write(r, name, t->x[i]);
    }
}

static bool compile(mx_graph_run *r, const trial *t, bool merge)
{
    mx_status st = mx_graph_run_compile(r, merge);
    MX_CHECK(!st, "%s, case %d: %s", t->op->name, t->index, mx_status_text(st));
    bool ok = !st;
    mx_status_free(st);
    return ok;
}

/* The forward pass. False when it could not be built (which has been reported). */
static bool forward(trial *t, mx_dtype real, outcome *out)
{
    mx_graph_run r;
    mx_graph_run_init(&r);
    r.shared = real == MX_F64 ? NULL : t->gpu;
    mx_node *n = build(&r.graph, t, real, false);
    char name[16];
    out->n = n->n_out;
    for (int k = 0; k < n->n_out; k++) {
        snprintf(name, sizeof name, "y%d", k);
        mx_graph_root(&r.graph, name, mx_output(&r.graph, n, k));
        out->type[k] = *mx_node_type(n, k);
    }
    bool ok = compile(&r, t, true);
    if (ok) {
        write_inputs(&r, t);
        mx_graph_run_go(&r);
    }
    for (int k = 0; ok && k < out->n; k++) {
        out->y[k] = MX_NEW_N(&t->arena, double, mx_type_count(&out->type[k]) + 1);
        snprintf(name, sizeof name, "y%d", k);
        mx_graph_run_read(&r, name, out->y[k]);
    }
    mx_graph_run_fini(&r);
    return ok;
}

/* An output that would overwrite an input which is absent holds nothing. */
static bool has_output(const trial *t, int k)
{
    int a = t->op->alias[k];
    return !a || !t->c->in[a - 1].absent;
}

/* --- gradients --- */

static bool wants_grad(const trial *t, int i)
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

static double loss_of(mx_graph_run *r, const trial *t)
{
    double loss;
    write_inputs(r, t);
    mx_graph_run_go(r);
    mx_graph_run_read(r, "loss", &loss);
    return loss;
}

static void compare_gradient(mx_graph_run *r, trial *t, int i)
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

static void check_gradient(trial *t, bool square)
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
    mx_node *n = build(g, t, MX_F64, false), *x[MX_MAX_IN], *dx[MX_MAX_IN];
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
    if (ok && compile(&r, t, true)) {
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

static void check_linear(trial *t)
{
    check_gradient(t, false);
}

static void check_square(trial *t)
{
    check_gradient(t, true);
}

MX_TEST(ops_gradients_match_central_differences)
{
    each_case(check_linear);
}

MX_TEST(ops_gradients_that_depend_on_the_value)
{
    each_case(check_square);
}

/* --- dtypes --- */

static void compare_outcomes(const trial *t, const outcome *a, const outcome *b, double limit,
                             const char *what)
{
    for (int k = 0; k < a->n; k++) {
        bool exact = !mx_dtype_is_float(a->type[k].dtype);
        double far = mx_test_distance(a->y[k], b->y[k], mx_type_count(&a->type[k]), 1e-3);
        MX_CHECK(!has_output(t, k) || far <= (exact ? 0 : limit), "%s, case %d: output %d, %s: "
                 "off by %.2g", t->op->name, t->index, k, what, far);
    }
}

static void check_float32(trial *t)
{
    outcome narrow, wide;
    trial_round(t, MX_F32);
    if (forward(t, MX_F32, &narrow) && forward(t, MX_F64, &wide))
        compare_outcomes(t, &narrow, &wide, 1e-5, "float32 against float64");
}

MX_TEST(ops_float32_matches_float64)
{
    each_case(check_float32);
}

static void check_bfloat16(trial *t)
{
    outcome narrow, wide;
    trial_round(t, MX_BF16);
    if (forward(t, MX_BF16, &narrow) && forward(t, MX_F64, &wide))
        compare_outcomes(t, &narrow, &wide, 1.0 / 128, "bfloat16 against float64");
}

MX_TEST(ops_bfloat16_matches_float64)
{
    each_case(check_bfloat16);
}

/* --- fusion --- */

/* x -> elementwise -> op -> elementwise and a row sum, read twice. */
static bool composed(trial *t, mx_dtype real, bool merge, outcome *out)
{
    mx_graph_run r;
    mx_graph_run_init(&r);
    r.shared = real == MX_F64 ? NULL : t->gpu;
    mx_graph *g = &r.graph;
    mx_node *n = build(g, t, real, true);
    char name[16];
    out->n = 0;
    for (int k = 0; k < n->n_out && !g->error; k++) {
        mx_node *y = mx_output(g, n, k);
        if (mx_dtype_is_float(y->type.dtype) && y->type.ndim)
            y = mx_mul(g, mx_silu(g, y), mx_add(g, y, mx_row_sum(g, y)));
        else
            y = mx_affine(g, y, 3, 1);
        snprintf(name, sizeof name, "y%d", out->n);
        mx_graph_root(g, name, y);
        out->type[out->n++] = y->type;
    }
    bool ok = compile(&r, t, merge);
    if (ok) {
        write_inputs(&r, t);
        mx_graph_run_go(&r);
    }
    for (int k = 0; ok && k < out->n; k++) {
        out->y[k] = MX_NEW_N(&t->arena, double, mx_type_count(&out->type[k]) + 1);
        snprintf(name, sizeof name, "y%d", k);
        mx_graph_run_read(&r, name, out->y[k]);
    }
    mx_graph_run_fini(&r);
    return ok;
}

static void check_fused(trial *t)
{
    static const mx_dtype real[] = {MX_F64, MX_F32};
    for (int d = 0; d < 2; d++) {
        outcome one, many;
        if (composed(t, real[d], true, &one) && composed(t, real[d], false, &many))
            compare_outcomes(t, &one, &many, 0, "fused against unfused");
    }
}

MX_TEST(ops_fused_equals_unfused)
{
    each_case(check_fused);
}

/* --- the GPU --- */

static void check_composed(trial *t)
{
    outcome narrow, wide;
    trial_round(t, MX_F32);
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
    each_case_on(gpu, check_float32);
    each_case_on(gpu, check_bfloat16);
    each_case_on(gpu, check_composed);
    mx_session_close(gpu);
}

/* --- splits --- */

/* A way to cut a case in two: which dim of each input and output is cut, -1 for none. An output
 * that is not cut is the sum of the halves' outputs. */
typedef struct {
    int in[MX_MAX_IN], out[MX_MAX_OUT];
    bool skip[MX_MAX_OUT]; /* the notation says nothing about this output */
    char what[24];
} cut;

static void copy_half(const mx_type *whole, const double *x, int dim, int half, double *out,
                      bool back)
{
    int64_t run = 1, rows = 1;
    for (int i = 0; i < dim; i++)
        rows *= whole->dim[i];
    for (int i = dim; i < whole->ndim; i++)
        run *= whole->dim[i];
    for (int64_t r = 0; r < rows; r++) {
        const double *big = x + r * run + half * run / 2;
        double *small = out + r * run / 2;
        if (back)
            memcpy((double *)big, small, sizeof(double) * (size_t)run / 2);
        else
            memcpy(small, big, sizeof(double) * (size_t)run / 2);
    }
}

static void check_cut(trial *t, const outcome *whole, const cut *c)
{
    double *joined[MX_MAX_OUT];
    for (int k = 0; k < whole->n; k++)
        joined[k] = MX_NEW_N(&t->arena, double, mx_type_count(&whole->type[k]) + 1);
    for (int half = 0; half < 2; half++) {
        trial h = *t;
        outcome out;
        h.arena = (mx_arena){0};
        for (int i = 0; i < t->c->n_in; i++) {
            if (c->in[i] < 0)
                continue;
            h.x[i] = MX_NEW_N(&h.arena, double, mx_type_count(&t->type[i]) + 1);
            copy_half(&t->type[i], t->x[i], c->in[i], half, h.x[i], false);
            h.type[i].dim[c->in[i]] /= 2;
        }
        bool ok = forward(&h, MX_F64, &out);
        for (int k = 0; ok && k < whole->n; k++) {
            int64_t n = mx_type_count(&out.type[k]);
            int64_t want = mx_type_count(&whole->type[k]) / (c->out[k] >= 0 ? 2 : 1);
            MX_CHECK(n == want || c->skip[k], "%s, case %d, %s: output %d of a half has %lld "
                     "elements, expected %lld", t->op->name, t->index, c->what, k, (long long)n,
                     (long long)want);
            if (n != want)
                continue;
            if (c->out[k] >= 0)
                copy_half(&whole->type[k], joined[k], c->out[k], half, out.y[k], true);
            for (int64_t j = 0; j < n && c->out[k] < 0; j++)
                joined[k][j] += out.y[k][j];
        }
        mx_arena_fini(&h.arena);
    }
    for (int k = 0; k < whole->n; k++) {
        double far = mx_test_distance(joined[k], whole->y[k], mx_type_count(&whole->type[k]), 1e-3);
        MX_CHECK(c->skip[k] || !has_output(t, k) || far < 1e-12, "%s, case %d, %s: the halves' "
                 "output %d is off by %.2g", t->op->name, t->index, c->what, k, far);
    }
}

/* A dim of a tensor counted from the right in the outputs (elementwise and row ops). */
static void cut_from_right(trial *t, const outcome *whole, int from_right)
{
    cut c = {0};
    const mx_type *y = &whole->type[0];
    int64_t size = 1;
    snprintf(c.what, sizeof c.what, "dim -%d cut", from_right);
    for (int i = 0; i < t->c->n_in; i++) {
        c.in[i] = t->type[i].ndim - from_right;
        if (c.in[i] >= 0 && t->type[i].dim[c.in[i]] == 1)
            c.in[i] = -1;
        if (c.in[i] >= 0)
            size = t->type[i].dim[c.in[i]];
    }
    c.out[0] = y->ndim - from_right;
    if (size > 1 && size % 2 == 0)
        check_cut(t, whole, &c);
}

/* `letter` cut, or with letter '*' the leading dim number `lead`. */
static void cut_letter(trial *t, const outcome *whole, const mx_notation *nt, char letter, int lead)
{
    cut c = {0};
    bool whole_dim = false;
    int64_t size = 0;
    snprintf(c.what, sizeof c.what, "'%c' %d cut", letter, lead);
    for (int i = 0; i < nt->n_in + whole->n; i++) {
        bool is_in = i < nt->n_in;
        if (is_in && i >= t->c->n_in)
            continue;
        int term = i; /* outputs follow the notation's inputs */
        const mx_type *x = is_in ? &t->type[i] : &whole->type[i - nt->n_in];
        bool absent = is_in && t->c->in[i].absent, known = term < nt->n_terms;
        int n_lead = known ? x->ndim - nt->term[term].n : 0, d = -1;
        if (known && !absent && letter == '*')
            d = nt->term[term].star && lead < n_lead ? lead : -1;
        else if (known && !absent)
            d = mx_notation_dim(nt, term, x->ndim, letter);
        for (int k = 0; known && k < nt->term[term].n; k++)
            whole_dim |= nt->term[term].letter[k] == letter && nt->term[term].whole[k];
        if (is_in) {
            c.in[i] = d;
            size = d >= 0 ? x->dim[d] : size;
        } else {
            c.out[i - nt->n_in] = d;
            c.skip[i - nt->n_in] = !known || nt->term[term].unknown;
        }
    }
    if (!whole_dim && size > 1 && size % 2 == 0)
        check_cut(t, whole, &c);
}

static bool has_shape_attribute(const mx_op *op)
{
    for (const mx_attr_field *f = op->fields; f && f->name; f++)
        if (f->kind == MX_ATTR_DIMS)
            return true;
    return false;
}

static void check_splits(trial *t)
{
    outcome whole;
    mx_op_kind kind = t->op->kind;
    /* A global shape among the attributes would have to be cut too: the partition pass's affair. */
    if (has_shape_attribute(t->op) || !forward(t, MX_F64, &whole))
        return;
    bool rows = kind == MX_ROW_REDUCE || kind == MX_ROW_MAP;
    if (kind == MX_ELEMENTWISE || rows)
        for (int d = rows ? 2 : 1; d <= whole.type[0].ndim; d++)
            cut_from_right(t, &whole, d);
    mx_graph g;
    mx_graph_init(&g);
    mx_node *n = build(&g, t, MX_F64, false);
    const char *text = t->op->notation ? t->op->notation(n) : t->op->dims;
    mx_notation nt;
    if (text) {
        bool parsed = mx_notation_parse(text, &nt);
        MX_CHECK(parsed, "%s: malformed notation %s", t->op->name, text);
        for (int letter = 'A'; parsed && letter <= 'z'; letter++)
            cut_letter(t, &whole, &nt, (char)letter, 0);
        for (int lead = 0; parsed && lead < MX_MAX_DIMS; lead++)
            cut_letter(t, &whole, &nt, '*', lead);
    }
    mx_graph_fini(&g);
}

MX_TEST(ops_halves_join_to_the_whole)
{
    each_case(check_splits);
}

/* --- cost, coverage --- */

static void check_cost(trial *t)
{
    mx_graph g;
    mx_graph_init(&g);
    mx_cost c = mx_node_cost(build(&g, t, MX_F32, false));
    MX_CHECK(isfinite(c.flops) && c.flops >= 0 && isfinite(c.bytes) && c.bytes >= 0,
             "%s, case %d: %g flops, %g bytes", t->op->name, t->index, c.flops, c.bytes);
    mx_graph_fini(&g);
}

MX_TEST(ops_costs_are_finite)
{
    each_case(check_cost);
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
        {"linear_xent_train", "the gradient check of linear_xent runs it"},
        {"stow", "of use with landed alone: tests/train/stow_test.c"},
        {"fetch", "likewise"}, {"landed", "likewise"},
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
