/* muon_test.c - Muon's first step of every weight of models with stacked and transposed matrices,
 * against the same step by hand in doubles, matrix by matrix. */
#include "../test.h"

#include "ops.h"
#include "train/step.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 2, SEQ = 12 };

typedef struct {
    mx_model_spec model;
    mx_session *session;
    mx_step step, grads;
} bench;

static void bench_open(bench *b, const char *fixture, double rms)
{
    char path[256];
    int32_t ids[ROWS * SEQ];
    float one = 1, scale = 1.0f / (ROWS * SEQ), lr = 0.01f;
    snprintf(path, sizeof path, "tests/fixtures/models/%s/config.json", fixture);
    json_t *json = json_load_file(path, 0, NULL);
    MX_CHECK_OK(mx_model_from_json(&b->model, json, path));
    json_decref(json);
    MX_CHECK_OK(mx_session_open(&b->session, "cpu", 1));
    mx_step_options o = {.kind = MX_STEP_TRAIN,
                         .shape = {.batch = ROWS, .seq = SEQ},
                         .optimizer = {.kind = MX_MUON, .b1 = 0.9, .b2 = 0.95, .eps = 1e-8,
                                       .muon_beta = 0.95, .muon_steps = 5, .muon_rms = rms},
                         .compile = {.n_threads = 1}};
    MX_CHECK_OK(mx_step_open(&b->step, b->session, &b->model, &o));
    o.kind = MX_STEP_GRADS;
    MX_CHECK_OK(mx_step_open(&b->grads, b->session, &b->model, &o));
    MX_CHECK_OK(mx_session_init(b->session, 1));
    for (int i = 0; i < ROWS * SEQ; i++)
        ids[i] = 3 + i * 37 % 140;
    mx_exec *e[2] = {b->step.exec, b->grads.exec};
    for (int i = 0; i < 2; i++) {
        MX_CHECK_OK(mx_exec_write(e[i], "tokens", ids));
        MX_CHECK_OK(mx_exec_write(e[i], "labels", ids));
        MX_CHECK_OK(mx_exec_write(e[i], "loss_scale", &scale));
    }
    MX_CHECK_OK(mx_exec_write(e[0], "lr", &lr));
    MX_CHECK_OK(mx_exec_write(e[0], "step", &one));
}

static void bench_close(bench *b)
{
    mx_session_close(b->session);
    mx_step_close(&b->step);
    mx_step_close(&b->grads);
    mx_model_spec_fini(&b->model);
}

/* c (m, n) = a (m, k) b (k, n); a or b may be given transposed. */
static void product(const double *a, bool ta, const double *b, bool tb, int64_t m, int64_t n,
                    int64_t k, double *c)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0;
            for (int64_t l = 0; l < k; l++)
                sum += (ta ? a[l * m + i] : a[i * k + l]) * (tb ? b[j * k + l] : b[l * n + j]);
            c[i * n + j] = sum;
        }
}

/* x (rows, cols) becomes what Muon goes along, from the gradient of a first step. */
static void orthogonalise(double *x, int64_t rows, int64_t cols)
{
    int64_t n = rows * cols;
    double norm = 0;
    double *gram = calloc((size_t)(rows * rows), sizeof *x), *poly = calloc((size_t)(rows * rows),
                                                                             sizeof *x);
    double *next = calloc((size_t)n, sizeof *x);
    for (int64_t i = 0; i < n; i++)
        norm += x[i] * x[i];
    for (int64_t i = 0; i < n; i++)
        x[i] /= sqrt(norm) + 1e-8;
    for (int s = 0; s < 5; s++) {
        product(x, false, x, true, rows, rows, cols, gram);
        product(gram, false, gram, false, rows, rows, rows, poly);
        for (int64_t i = 0; i < rows * rows; i++)
            poly[i] = -4.7750 * gram[i] + 2.0315 * poly[i];
        product(poly, false, x, false, rows, cols, rows, next);
        for (int64_t i = 0; i < n; i++)
            x[i] = 3.4445 * x[i] + next[i];
    }
    free(gram), free(poly), free(next);
}

/* How the matrices of a weight lie, and what an update is multiplied by. */
typedef struct {
    const char *name; /* a pattern */
    int64_t n;
    bool in_out;
} layout;

static void check_weight(bench *b, const mx_var *v, const layout *l, double rms)
{
    const mx_type *t = &v->type;
    char name[512];
    int64_t all = mx_type_count(t), cols = t->dim[t->ndim - 1], rows = all / l->n / cols;
    float *before = calloc((size_t)all, sizeof *before), *d = calloc((size_t)all, sizeof *d);
    float *after = calloc((size_t)all, sizeof *after);
    double out = (double)(l->in_out ? cols : rows), in = (double)(l->in_out ? rows : cols);
    double factor = rms > 0 ? rms * sqrt(fmax(out, in)) : sqrt(fmax(1, out / in));
    double *x = calloc((size_t)all, sizeof *x), worst = 0, moved = 0;
    snprintf(name, sizeof name, "grad:%s", v->name);
    MX_CHECK_OK(mx_var_read(b->session, v, before));
    MX_CHECK_OK(mx_exec_read(b->grads.exec, name, d));
    MX_CHECK_OK(mx_exec_run(b->step.exec));
    MX_CHECK_OK(mx_var_read(b->session, v, after));
    for (int64_t i = 0; i < all; i++)
        x[i] = d[i];
    for (int64_t e = 0; e < l->n; e++)
        orthogonalise(x + e * rows * cols, rows, cols);
    for (int64_t i = 0; i < all; i++) {
        worst = fmax(worst, fabs(after[i] - (before[i] - 0.01 * factor * x[i])));
        moved = fmax(moved, fabs(after[i] - before[i]));
    }
    MX_CHECK(worst < 2e-5 && moved > 1e-4, "%s: off by %g of steps up to %g", v->name, worst,
             moved);
    free(before), free(d), free(after), free(x);
}

static void check(const char *fixture, const layout *l, double rms)
{
    for (; l->name; l++) {
        bench b = {0};
        bench_open(&b, fixture, rms);
        MX_CHECK_OK(mx_exec_run(b.grads.exec));
        int n = 0;
        for (int i = 0; i < mx_session_count(b.session) && !n; i++) {
            const mx_var *v = mx_session_var(b.session, i);
            if (v->attr.kind != MX_VAR_WEIGHT || !mx_glob_match(l->name, v->name))
                continue;
            check_weight(&b, v, l, rms);
            n++;
        }
        MX_CHECK(n, "%s has no weight %s", fixture, l->name);
        bench_close(&b);
    }
}

MX_TEST(muon_orthogonalises_each_expert)
{
    check("mixtral", (const layout[]){{"*.w1.weight", 4, false},
                                      {"*.w2.weight", 4, false},
                                      {"*.block_sparse_moe.gate.weight", 1, false}, {0}}, 0);
    check("mixtral", (const layout[]){{"*.w3.weight", 4, false}, {0}}, 0.2);
    check("gpt-oss", (const layout[]){{"*.experts.gate_up_proj", 4, true},
                                      {"*.experts.down_proj", 4, true}, {0}}, 0);
    check("gpt2", (const layout[]){{"*.mlp.c_fc.weight", 1, true},
                                   {"*.mlp.c_proj.weight", 1, true}, {0}}, 0);
}

/* What is no matrix keeps AdamW: biases of experts are vectors, convolutions are not (out, in). */
MX_TEST(muon_leaves_stacks_of_vectors_to_adamw)
{
    static const char *const rows[][2] = {{"gpt-oss", "*.gate_up_proj_bias"},
                                          {"qwen3-next", "*.conv1d.weight"},
                                          {"qwen3-next", "*.embed_tokens.weight"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bench b = {0};
        bool momentum = false, moments = false;
        char name[128];
        bench_open(&b, rows[i][0], 0);
        for (int k = 0; k < mx_session_count(b.session); k++) {
            snprintf(name, sizeof name, "%s.momentum", rows[i][1]);
            momentum |= mx_glob_match(name, mx_session_var(b.session, k)->name);
            snprintf(name, sizeof name, "%s.exp_avg", rows[i][1]);
            moments |= mx_glob_match(name, mx_session_var(b.session, k)->name);
        }
        MX_CHECK(moments && !momentum, "%s %s", rows[i][0], rows[i][1]);
        bench_close(&b);
    }
}
