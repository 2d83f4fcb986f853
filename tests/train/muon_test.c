/* muon_test.c - Muon's first step of every weight of models with stacked and transposed matrices,
 * against the same step by hand in doubles, matrix by matrix. */
#include "../test.h"
#include "small_step.h"

#include "base/str.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void open_step(small_step *s, const char *fixture, double rms)
{
    mx_muon_rates own = {.beta = 0.95, .steps = 5, .rms = rms};
    small_step_open(s, fixture,
                    (mx_step_options){.optimizer = {.rule = &mx_optimizer_rule_muon, .b1 = 0.9,
                                                    .b2 = 0.95, .eps = 1e-8, .own = &own}});
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

static void check_weight(small_step *b, const mx_var *v, const layout *l, double rms)
{
    const mx_type *t = &v->type;
    char name[512];
    int64_t all = mx_type_count(t), cols = t->dim[t->ndim - 1], rows = all / l->n / cols;
    float *before = small_step_values(b, v), *d = calloc((size_t)all, sizeof *d);
    double out = (double)(l->in_out ? cols : rows), in = (double)(l->in_out ? rows : cols);
    double factor = rms > 0 ? rms * sqrt(fmax(out, in)) : sqrt(fmax(1, out / in));
    double *x = calloc((size_t)all, sizeof *x), worst = 0, moved = 0;
    snprintf(name, sizeof name, "grad:%s", v->name);
    MX_CHECK_OK(mx_exec_run(b->grads.exec));
    MX_CHECK_OK(mx_exec_read(b->grads.exec, name, d));
    MX_CHECK_OK(mx_exec_run(b->step.exec));
    float *after = small_step_values(b, v);
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
        small_step b = {0};
        open_step(&b, fixture, rms);
        const mx_var *v = small_step_weight(&b, l->name);
        if (v)
            check_weight(&b, v, l, rms);
        small_step_close(&b);
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
    check("deepseek-v4", (const layout[]){{"*.attn.wo_a.weight", 2, false}, {0}}, 0); /* groups */
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
        small_step b = {0};
        bool momentum = false, moments = false;
        char name[128];
        open_step(&b, rows[i][0], 0);
        for (int k = 0; k < mx_session_count(b.session); k++) {
            snprintf(name, sizeof name, "%s.momentum", rows[i][1]);
            momentum |= mx_glob_match(name, mx_session_var(b.session, k)->name);
            snprintf(name, sizeof name, "%s.exp_avg", rows[i][1]);
            moments |= mx_glob_match(name, mx_session_var(b.session, k)->name);
        }
        MX_CHECK(moments && !momentum, "%s %s", rows[i][0], rows[i][1]);
        small_step_close(&b);
    }
}
