/* ops_gpu_test.c - ops on the GPU that the table's small cases do not reach: shapes of several
 * tiles, and gradients, in float32 and bfloat16 against float64 on the CPU. `make test-gpu` asks
 * for it; elsewhere there is nothing to run on.
 */
#include "compile/passes.h"
#include "../compile/graph_run.h"
#include "ir/attention.h"
#include "ops.h"
#include "ops/dequant_matmul.h"
#include "ops/linear_xent.h"
#include "op_trial.h"
#include "../test.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const mx_op *op;
    const mx_case *c;
    int index;
    mx_arena arena;
} trial;

static bool present(const trial *t, int i)
{
    return !t->c->in[i].absent;
}

static bool is_real(const trial *t, int i)
{
    return mx_dtype_is_float(t->c->in[i].dtype);
}

static bool wants_grad(const trial *t, int i)
{
    return present(t, i) && is_real(t, i) && !t->c->in[i].no_grad;
}

static mx_type type_of(const trial *t, int i)
{
    const mx_case_in *in = &t->c->in[i];
    mx_type type = {.dtype = in->dtype, .ndim = in->ndim};
    memcpy(type.dim, in->dim, sizeof in->dim);
    return type;
}

static int ascending(const void *a, const void *b)
{
    double d = *(const double *)a - *(const double *)b;
    return d < 0 ? -1 : d > 0;
}

/* Input i, as `real` can hold it. Whole numbers from 0 on are ids of segments: runs. */
static double *values_of(trial *t, int i, mx_dtype real)
{
    const mx_case_in *in = &t->c->in[i];
    mx_type type = type_of(t, i);
    int64_t n = mx_type_count(&type), row = type.ndim ? type.dim[type.ndim - 1] : 1;
    bool given = in->lo != 0 || in->hi != 0;
    double *x = MX_NEW_N(&t->arena, double, n + 1);
    mx_test_fill(x, n, given ? in->lo : is_real(t, i) ? -1 : 0, given ? in->hi : is_real(t, i),
                 (uint64_t)(i + 7));
    for (int64_t k = 0; k < n; k++)
        x[k] = is_real(t, i) ? mx_test_round(x[k], real) : floor(x[k]);
    for (int64_t k = 0; !is_real(t, i) && in->lo == 0 && type.ndim == 2 && k < n; k += row)
        qsort(x + k, (size_t)row, sizeof *x, ascending);
    return x;
}

/* Outputs y0, y1, ... and gradients dx0, dx1, ... as roots. */
static void build(mx_graph *g, trial *t, mx_dtype real, bool gradients)
{
    mx_node *in[MX_MAX_IN] = {0}, *x[MX_MAX_IN], *dx[MX_MAX_IN], *loss = NULL;
    int which[MX_MAX_IN], n_x = 0;
    char name[16];
    for (int i = 0; i < t->c->n_in; i++) {
        mx_type type = type_of(t, i);
        if (!present(t, i))
            continue;
        snprintf(name, sizeof name, "x%d", i);
        in[i] = mx_input(g, name, mx_shape_of(&type), op_case_dtype(t->op, t->c, i, real));
        if (wants_grad(t, i)) {
            which[n_x] = i;
            x[n_x++] = in[i];
        }
    }
    int n_out = t->op->n_out < 0 ? t->c->n_out : t->op->n_out ? t->op->n_out : 1;
    mx_node *n = mx_apply_n(g, t->op, t->c->attr, t->c->n_in, in, n_out);
    for (int k = 0; k < n->n_out && !g->error; k++) {
        const mx_type *y = mx_node_type(n, k);
        snprintf(name, sizeof name, "y%d", k);
        mx_graph_root(g, name, mx_output(g, n, k));
        if (!mx_dtype_is_computed(y->dtype) || n->op->saved >> k & 1)
            continue;
        snprintf(name, sizeof name, "w%d", k);
        mx_node *w = mx_input(g, name, mx_shape_of(y), y->dtype);
        mx_node *s = mx_sum_all(g, mx_mul(g, mx_output(g, n, k), w));
        loss = loss ? mx_add(g, loss, s) : s;
    }
    if (!gradients || !loss || !n_x || g->error)
        return;
    mx_gradients(g, loss, NULL, x, n_x, dx);
    for (int k = 0; k < n_x; k++) {
        snprintf(name, sizeof name, "dx%d", which[k]);
        if (dx[k])
            mx_graph_root(g, name, mx_affine(g, dx[k], 1, 0));
    }
}

enum { MOST_ROOTS = MX_MAX_IN + MX_MAX_OUT };
typedef struct {
    int n;
    char name[MOST_ROOTS][16];
    mx_type type[MOST_ROOTS];
    double *y[MOST_ROOTS];
} outcome;

/* values: the dtype whose numbers the inputs hold. */
static bool run(trial *t, mx_session *gpu, mx_dtype real, mx_dtype values, bool gradients,
                outcome *out)
{
    mx_graph_run r;
    mx_graph_run_init(&r);
    r.shared = gpu;
    build(&r.graph, t, real, gradients);
    out->n = 0;
    for (int i = 0; i < r.graph.n_roots && out->n < MOST_ROOTS; i++) {
        snprintf(out->name[out->n], sizeof out->name[0], "%s", r.graph.root[i]->name);
        out->type[out->n++] = r.graph.root[i]->type;
    }
    mx_status st = mx_graph_run_compile(&r, true);
    bool ok = !st;
    MX_CHECK(ok, "%s, case %d: %s", t->op->name, t->index, mx_status_text(st));
    mx_status_free(st);
    for (int i = 0; ok && i < t->c->n_in; i++) {
        char name[16];
        snprintf(name, sizeof name, "x%d", i);
        if (present(t, i))
            mx_graph_run_write(&r, name, values_of(t, i, values));
    }
    for (int k = 0; ok && k < MX_MAX_OUT; k++) {
        char name[16], out_name[16];
        snprintf(name, sizeof name, "w%d", k);
        snprintf(out_name, sizeof out_name, "y%d", k);
        for (int i = 0; i < out->n; i++)
            if (gradients && strcmp(out->name[i], out_name) == 0 &&
                mx_dtype_is_computed(out->type[i].dtype) && !(t->op->saved >> k & 1)) {
                int64_t n = mx_type_count(&out->type[i]);
                double *w = MX_NEW_N(&t->arena, double, n + 1);
                mx_test_fill(w, n, -1, 1, (uint64_t)(50 + k));
                for (int64_t e = 0; e < n; e++)
                    w[e] = round(w[e] * 64) / 64; /* every dtype holds it */
                mx_graph_run_write(&r, name, w);
            }
    }
    if (ok)
        mx_graph_run_go(&r);
    for (int i = 0; ok && i < out->n; i++) {
        out->y[i] = MX_NEW_N(&t->arena, double, mx_type_count(&out->type[i]) + 1);
        mx_graph_run_read(&r, out->name[i], out->y[i]);
    }
    mx_graph_run_fini(&r);
    return ok;
}

static bool holds_something(const trial *t, const char *name)
{
    int a = name[0] == 'y' ? t->op->alias[name[1] - '0'] : 0;
    return !a || present(t, a - 1);
}

static void compare(const mx_op *op, const mx_case *c, int index, mx_session *gpu, bool gradients)
{
    static const mx_dtype real[] = {MX_F32, MX_BF16};
    static const double limit[] = {2e-5, 1.0 / 64};
    for (int d = 0; d < 2; d++) {
        trial t = {.op = op, .c = c, .index = index};
        outcome narrow, wide;
        if (run(&t, gpu, real[d], real[d], gradients, &narrow) &&
            run(&t, NULL, MX_F64, real[d], gradients, &wide))
            for (int i = 0; i < wide.n; i++) {
                bool exact = !mx_dtype_is_float(wide.type[i].dtype);
                double far = mx_test_distance(narrow.y[i], wide.y[i],
                                              mx_type_count(&wide.type[i]), 1e-3);
                double allowed = exact ? 0 : limit[d] > c->on_device ? limit[d] : c->on_device;
                MX_CHECK(!holds_something(&t, wide.name[i]) || far <= allowed,
                         "%s, case %d, %s: %s is off by %.2g", op->name, index,
                         mx_dtype_name(real[d]), wide.name[i], far);
            }
        mx_arena_fini(&t.arena);
    }
}

/* --- shapes of several tiles --- */

#define NONE {.absent = true}
#define FIXED(...) {__VA_ARGS__, .no_grad = true}
#define SMALL .lo = -0.1, .hi = 0.1
#define GATES(b, s, h)                                                                             \
    {3, {b, s, h}, .lo = -0.3, .hi = -0.001}, {3, {b, s, h}, .lo = 0.1, .hi = 0.9}
typedef struct {
    const char *op;
    mx_case c;
} large_case;

static const large_case large[] = {
    {"causal_conv", {5, {{3, {2, 70, 24}}, {2, {24, 4}}, NONE, NONE, NONE}}},
    {"causal_conv", {5, {{3, {2, 70, 9}}, {2, {9, 5}}, {2, {2, 70}, MX_I32, 0, 5}, NONE, NONE}}},
    {"causal_conv", {5, {{3, {2, 150, 520}}, {2, {520, 4}}, {2, {2, 150}, MX_I32, 0, 2}, NONE,
                         NONE}}},
    {"causal_conv", {5, {{3, {300, 5, 9}}, {2, {9, 4}}, NONE, NONE, NONE}}},
    {"causal_conv", {5, {FIXED(3, {2, 70, 24}), FIXED(2, {24, 4}), NONE, FIXED(3, {2, 3, 24}),
                         {2, {2, 70}, MX_I32, 1, 9}}}},
    {"causal_conv", {5, {FIXED(3, {2, 7, 264}), FIXED(2, {264, 4}), NONE, FIXED(3, {2, 3, 264}),
                         {2, {2, 7}, MX_I32, 1, 9}}}},
    {"causal_conv", {5, {FIXED(3, {2, 40, 9}), FIXED(2, {9, 16}), NONE, FIXED(3, {2, 15, 9}),
                         {2, {2, 40}, MX_I32, 1, 9}}}},
};

static const struct { int64_t chunk; double scale; } delta = {64, 0.3};
static const large_case large_delta[] = {
    {"delta_rule", {9, {{4, {2, 150, 2, 24}, SMALL}, {4, {2, 150, 2, 24}, .lo = -0.3, .hi = 0.3},
                        {4, {2, 150, 4, 40}}, GATES(2, 150, 4), NONE, NONE, NONE, NONE}, &delta}},
    {"delta_rule", {9, {{4, {1, 130, 1, 128}, SMALL}, {4, {1, 130, 1, 128}, SMALL},
                        {4, {1, 130, 2, 128}}, GATES(1, 130, 2), {2, {1, 130}, MX_I32, 0, 4}, NONE,
                        NONE, NONE}, &delta}},
    {"delta_rule", {9, {{4, {1, 64, 2, 64}, SMALL}, {4, {1, 64, 2, 64}, SMALL}, {4, {1, 64, 2, 6}},
                        GATES(1, 64, 2), NONE, NONE, NONE, NONE}, &delta}},
    {"delta_rule", {9, {FIXED(4, {2, 80, 1, 128}, SMALL), FIXED(4, {2, 80, 1, 128}, SMALL),
                        FIXED(4, {2, 80, 2, 128}), FIXED(3, {2, 80, 2}, .lo = -0.3, .hi = -0.001),
                        FIXED(3, {2, 80, 2}, .lo = 0.1, .hi = 0.9), NONE,
                        FIXED(4, {2, 2, 128, 128}, SMALL), {2, {2, 80}, MX_I32, 1, 9}, NONE},
                    &delta}},
};

static const struct { int64_t n; double scale; int64_t page; } best = {20, 0.5, 0};
static const mx_attention_attr causal = {.causal = true, .scale = 0.3};
static const large_case large_sparse[] = {
    {"select_keys", {9, {FIXED(4, {2, 90, 3, 16}), FIXED(3, {2, 90, 3}), FIXED(3, {2, 90, 16}),
                         NONE, NONE, NONE, NONE, NONE, NONE}, &best}},
    {"select_keys", {9, {FIXED(4, {1, 90, 70, 80}), FIXED(3, {1, 90, 70}), FIXED(3, {1, 600, 80}),
                         {2, {1, 90}, MX_I32, 1, 600}, {2, {1, 600}, MX_I32, -1, 600}, NONE, NONE,
                         NONE, NONE}, &best}},
    {"attention", {11, {{4, {2, 90, 4, 24}}, {4, {2, 90, 2, 24}}, {4, {2, 90, 2, 16}}, NONE, NONE,
                        NONE, NONE, NONE, NONE, NONE, {3, {2, 90, 20}, MX_I32, -1, 90}}, &causal}},
    {"attention", {11, {FIXED(4, {2, 1, 4, 24}), FIXED(4, {2, 90, 1, 24}), FIXED(4, {2, 90, 1, 16}),
                        {2, {2, 1}, MX_I32, 40, 90}, {2, {2, 90}, MX_I32, -1, 90}, NONE, NONE, NONE,
                        NONE, NONE, {3, {2, 1, 20}, MX_I32, -1, 90}}, &causal}},
};

/* Queries that are two pieces of the sequence, with keys that nobody sees; packed; in one piece. */
static const mx_attention_attr moved[] = {
    {.causal = true, .scale = 0.2, .q_offset = 128, .q_jump = 384},
    {.causal = true, .scale = 0.2, .q_offset = 192, .q_jump = 0},
    {.causal = true, .scale = 0.2, .q_offset = 7, .q_jump = 33},
};
#define MOVED(q, k, d) {4, {2, q, 4, d}}, {4, {2, k, 2, d}}, {4, {2, k, 2, d}}, NONE, NONE
#define DOCUMENTS(q, k) {2, {2, q}, MX_I32, 0, 2}, {2, {2, k}, MX_I32, 0, 2}
static const large_case large_moved[] = {
    {"attention", {11, {MOVED(256, 960, 64), NONE, NONE, NONE, NONE, NONE, NONE}, &moved[0]}},
    {"attention", {11, {MOVED(256, 960, 128), NONE, NONE, NONE, NONE, NONE, NONE}, &moved[0]}},
    {"attention", {11, {MOVED(256, 960, 64), DOCUMENTS(256, 960), NONE, NONE, NONE, NONE},
                   &moved[0]}},
    {"attention", {11, {MOVED(256, 960, 128), DOCUMENTS(256, 960), NONE, NONE, NONE, NONE},
                   &moved[0]}},
    {"attention", {11, {MOVED(128, 500, 64), NONE, NONE, NONE, NONE, NONE, NONE}, &moved[1]}},
    {"attention", {11, {MOVED(90, 200, 64), DOCUMENTS(90, 200), NONE, NONE, NONE, NONE},
                   &moved[2]}},
    {"attention", {11, {MOVED(90, 200, 24), NONE, NONE, NONE, NONE, NONE, NONE}, &moved[2]}},
};

/* Vocabularies that are and are not multiples of what kernels load at a time. */
static const struct { double scale, softcap, z_loss; bool w_fixed; } losses[] = {{1, 0, 0, false},
                                                                                 {0.5, 3, 0.01}};
#define HEAD(rows, d, vocab)                                                                       \
    {2, {rows, d}, .lo = -0.3, .hi = 0.3}, {2, {vocab, d}}, {1, {rows}, MX_I32, -1, vocab}
static const large_case large_head[] = {
    {"linear_xent", {3, {HEAD(300, 72, 1003)}, &losses[0]}},
    {"linear_xent", {3, {HEAD(300, 72, 1003)}, &losses[1]}},
    {"linear_xent", {3, {HEAD(130, 128, 776)}, &losses[1]}},
};

/* Slices of a vocabulary whose logits are kept: the label here or not, words beyond the last. */
static const mx_xent_slice kept[] = {{1, 0, 0, 3000, true}, {0.5, 3, 700, 1500, true},
                                     {1, 0, 2000, 3000, true}};
#define SLICE(rows, d, vocab)                                                                      \
    {2, {rows, d}, .lo = -0.3, .hi = 0.3}, {2, {vocab, d}}, {1, {rows}, MX_I32, -1, 3000}
static const large_case large_slices[] = {
    {"linear_xent_slice", {3, {SLICE(300, 72, 1000)}, &kept[0]}},
    {"linear_xent_slice", {3, {SLICE(300, 72, 1003)}, &kept[1]}},
    {"linear_xent_slice", {3, {SLICE(520, 128, 776)}, &kept[2]}},
};

static const struct { char dims[2 * MX_MAX_DIMS + 4]; } turns[] = {{"abcd->adcb"}, {"abcd->cabd"}};
static const struct { mx_shape shape; } sums[] = {{{4, {6, 1, 5, 1}}}, {{4, {1, 300, 1, 40}}}};
static const struct { bool reverse; } backwards = {true};
static const struct { int64_t rows, parts; } table = {300, 0};
static const struct { int64_t dim; } last = {2};
static const struct { int64_t n, size[MX_MAX_OUT]; } thirds[] = {{3, {64, 64, 128}},
                                                                 {3, {3, 62, 1}}};
static const large_case large_layout[] = {
    {"concat", {3, {{3, {2, 70, 64}}, {3, {2, 70, 64}}, {3, {2, 70, 128}}}, &last}},
    {"concat", {3, {{3, {2, 70, 5}}, {3, {2, 70, 2}}, {3, {2, 70, 33}}}, &last}},
    {"split", {1, {{3, {2, 70, 256}}}, &thirds[0], .n_out = 3}},
    {"split", {1, {{3, {2, 70, 66}}}, &thirds[1], .n_out = 3}},
    {"transpose", {1, {{4, {3, 70, 40, 33}}}, &turns[0]}},
    {"transpose", {1, {{4, {3, 70, 40, 33}}}, &turns[1]}},
    {"sum_to", {1, {{4, {6, 300, 5, 40}}}, &sums[0]}},
    {"sum_to", {1, {{4, {6, 300, 5, 40}}}, &sums[1]}},
    {"cumsum", {1, {{2, {3, 300}, .lo = 0.1, .hi = 0.9}}, &backwards}},
    {"embed_grad", {3, {{1, {3000}, MX_I32, -700, 900}, {2, {3000, 40}}, NONE}, &table}},
};

/* Few rows times codes: a block for each tile of rows, blocks of several tiles, very many tiles. */
#define W8(n, k) {2, {n, k}, MX_I8, -127, 128}
#define W4(n, k) {2, {n, (k) / 2}, MX_U8, 0, 256}
#define F8(n, k) {2, {n, k}, MX_F8_E4M3, -3, 3, .no_grad = true, .fixed = true}
#define SCALES(n, groups) {2, {n, groups}, .lo = 0.001, .hi = 0.01, .no_grad = true, .fixed = true}
static const mx_dequant_attr narrow_y = {.wide = false}, wide_y = {.wide = true};
static const large_case large_codes[] = {
    {"dequant_matmul", {3, {FIXED(2, {1, 512}), W8(4301, 512), SCALES(4301, 1)}, &narrow_y}},
    {"dequant_matmul", {3, {FIXED(2, {3, 512}), F8(4501, 512), SCALES(4501, 1)}, &narrow_y}},
    {"dequant_matmul", {3, {FIXED(2, {16, 512}), W4(4500, 512), SCALES(4500, 4)}, &narrow_y}},
    {"dequant_matmul", {3, {FIXED(2, {1, 256}), W4(4700, 256), SCALES(4700, 4)}, &narrow_y}},
    {"dequant_matmul", {3, {FIXED(2, {1, 32}), W8(68003, 32), SCALES(68003, 1)}, &wide_y}},
    {"dequant_matmul", {3, {FIXED(2, {2, 48}), F8(68003, 48), SCALES(68003, 1)}, &wide_y}},
};

static void compare_all(const large_case *l, size_t n, mx_session *gpu)
{
    for (size_t i = 0; i < n; i++)
        for (int o = 0; o < mx_op_count; o++)
            if (strcmp(mx_op_table[o]->name, l[i].op) == 0)
                compare(mx_op_table[o], &l[i].c, 100 + (int)i, gpu, true);
}

/* Without a GPU (MX_TEST_GPU is not set) the CPU is compared with itself: that tests the tests,
 * whose attributes repeat those of the ops and went wrong unseen when these grew. */
static mx_session *device(void)
{
    mx_session *d = NULL;
    const char *on = getenv("MX_TEST_GPU");
    MX_CHECK_OK(mx_session_open(&d, on && strcmp(on, "cpu") != 0 ? "cuda" : "cpu", 2));
    return d;
}

MX_TEST(ops_on_the_gpu_in_large)
{
    mx_session *gpu = device();
    if (!gpu)
        return;
    compare_all(large, sizeof large / sizeof *large, gpu);
    compare_all(large_delta, sizeof large_delta / sizeof *large_delta, gpu);
    compare_all(large_sparse, sizeof large_sparse / sizeof *large_sparse, gpu);
    compare_all(large_moved, sizeof large_moved / sizeof *large_moved, gpu);
    compare_all(large_head, sizeof large_head / sizeof *large_head, gpu);
    compare_all(large_slices, sizeof large_slices / sizeof *large_slices, gpu);
    compare_all(large_layout, sizeof large_layout / sizeof *large_layout, gpu);
    compare_all(large_codes, sizeof large_codes / sizeof *large_codes, gpu);
    mx_session_close(gpu);
}

MX_TEST(ops_on_the_gpu_have_the_same_gradients)
{
    mx_session *gpu = device();
    if (!gpu)
        return;
    for (int o = 0; o < mx_op_count; o++)
        for (int i = 0; mx_op_table[o]->cases && mx_op_table[o]->cases[i].n_in; i++)
            if (mx_op_table[o]->kind == MX_PLAIN)
                compare(mx_op_table[o], &mx_op_table[o]->cases[i], i, gpu, true);
    mx_session_close(gpu);
}
