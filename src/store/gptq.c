/* gptq.c - see gptq.h. */
#include "store/gptq.h"

#include "base/arena.h"
#include "base/simd.h"
#include "ops/cpu/gemm.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 128 };

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* --- U of H --- */

/* c (m, n) += alpha a (m, k) op(b); matrices inside larger ones with rows of `ld`. */
typedef struct {
    int64_t m, n, k, lda, ldb, ldc;
    const float *a, *b;
    float *c;
    bool trans_b;
} sum_of;

static void add(const sum_of *s, double alpha, bool accumulate)
{
    if (s->m > 0 && s->n > 0 && s->k > 0)
        mx_gemm(&(mx_gemm_args){.m = s->m, .n = s->n, .k = s->k, .a = s->a, .b = s->b, .c = s->c,
                                .lda = s->lda, .ldb = s->ldb, .ldc = s->ldc, .trans_b = s->trans_b,
                                .alpha = alpha, .accumulate = accumulate, .one_path = true});
}

static MX_CLONES float dot(const float *a, const float *b, int64_t n)
{
    float lane[16] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int k = 0; k < 16; k++)
            lane[k] += a[i + k] * b[i + k];
    for (int k = 0; k < 16; k++)
        sum += lane[k];
    for (; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* H = R R^T, R upper, in place in the upper triangle, from the last block of columns to the first.
 * False: H is not positive definite. */
static bool factorize(float *h, int64_t n)
{
    for (int64_t j0 = (n - 1) / BLOCK * BLOCK; j0 >= 0; j0 -= BLOCK) {
        int64_t j1 = least(j0 + BLOCK, n), width = j1 - j0;
        add(&(sum_of){j1, width, n - j1, n, n, n, h + j1, h + j0 * n + j1, h + j0, true}, -1, true);
        for (int64_t j = j1 - 1; j >= j0; j--) {
            float *row = h + j * n, d = row[j] - dot(row + j + 1, row + j + 1, j1 - j - 1);
            if (!(d > 0) || !isfinite(d))
                return false;
            row[j] = sqrtf(d);
#pragma omp parallel for schedule(static) if (j * width > 1 << 14)
            for (int64_t i = 0; i < j; i++)
                h[i * n + j] = (h[i * n + j] -
                                dot(h + i * n + j + 1, row + j + 1, j1 - j - 1)) / row[j];
        }
    }
    return true;
}

/* The upper triangle R becomes R^-1, in place, from the last block of rows to the first:
 * U[I, >I] = -R[I, I]^-1 R[I, >I] U[>I, >I]. */
static void invert(float *r, int64_t n, float *work)
{
    for (int64_t i = 0; i < n; i++)
        memset(r + i * n, 0, sizeof *r * (size_t)i);
    for (int64_t i0 = (n - 1) / BLOCK * BLOCK; i0 >= 0; i0 -= BLOCK) {
        int64_t i1 = least(i0 + BLOCK, n), m = i1 - i0, rest = n - i1;
        float inverse[BLOCK * BLOCK] = {0};
        for (int64_t j = 0; j < m; j++) {
            inverse[j * BLOCK + j] = 1 / r[(i0 + j) * n + i0 + j];
            for (int64_t i = j - 1; i >= 0; i--) {
                float sum = 0;
                for (int64_t k = i + 1; k <= j; k++)
                    sum += r[(i0 + i) * n + i0 + k] * inverse[k * BLOCK + j];
                inverse[i * BLOCK + j] = -sum / r[(i0 + i) * n + i0 + i];
            }
        }
        add(&(sum_of){m, rest, rest, n, n, n, r + i0 * n + i1, r + i1 * n + i1, work, false}, 1,
            false);
        add(&(sum_of){m, rest, m, BLOCK, n, n, inverse, work, r + i0 * n + i1, false}, -1, false);
        for (int64_t i = 0; i < m; i++)
            memcpy(r + (i0 + i) * n + i0, inverse + i * BLOCK, sizeof *r * (size_t)m);
    }
}

typedef struct {
    float diagonal;
    int32_t column;
} ranked;

static int by_diagonal(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    if (x->diagonal != y->diagonal)
        return x->diagonal > y->diagonal ? -1 : 1;
    return x->column - y->column;
}

static void find_order(mx_gptq_factor *f, const float *h)
{
    ranked *all = mx_realloc(NULL, sizeof *all * (size_t)f->n);
    for (int64_t i = 0; i < f->n; i++)
        all[i] = (ranked){h[i * f->n + i], (int32_t)i};
    if (f->act_order)
        qsort(all, (size_t)f->n, sizeof *all, by_diagonal);
    for (int64_t i = 0; i < f->n; i++)
        f->order[i] = all[i].column;
    mx_free(all);
}

/* Inputs that never were anything but 0 leave their columns to themselves. */
static void raise_diagonal(float *h, int64_t n, double by)
{
    for (int64_t i = 0; i < n; i++)
        h[i * n + i] += (float)by;
}

static double mean_diagonal(const float *h, int64_t n)
{
    double mean = 0;
    for (int64_t i = 0; i < n; i++)
        mean += (double)h[i * n + i] / (double)n;
    return mean > 0 ? mean : 1;
}

/* h in the order of the factor. */
static void arrange(const mx_gptq_factor *f, float *out)
{
    int64_t n = f->n;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++)
            out[i * n + j] = f->h[(int64_t)f->order[i] * n + f->order[j]];
}

mx_status mx_gptq_factor_make(mx_gptq_factor *f, float *h, int64_t n, bool act_order,
                              const char *what)
{
    float *work = NULL;
    *f = (mx_gptq_factor){.n = n, .u = h, .act_order = act_order};
    mx_status st;
    MX_TRY_OUT(st, mx_alloc((void **)&f->order, sizeof *f->order * (size_t)n, what));
    MX_TRY_OUT(st, mx_alloc((void **)&f->diagonal, sizeof *f->diagonal * (size_t)n, what));
    MX_TRY_OUT(st, mx_alloc((void **)&work, sizeof *work * (size_t)(BLOCK * n), what));
    MX_TRY_OUT(st, mx_alloc((void **)&f->h, sizeof *f->h * (size_t)(n * n), what));
    for (int64_t i = 0; i < n * n; i++)
        if (!isfinite(h[i]))
            MX_TRY_OUT(st, mx_fail(MX_INPUT, "%s: its inputs are not finite numbers on the "
                                   "calibration text; take another text, or leave the weight as it "
                                   "is (keep=)", what));
    memcpy(f->h, h, sizeof *f->h * (size_t)(n * n));
    find_order(f, f->h);
    double mean = mean_diagonal(f->h, n), raised = 0;
    bool good = false;
    for (double damp = MX_GPTQ_DAMP; damp < 2 && !good; damp *= 10) {
        raise_diagonal(f->h, n, damp * mean - raised);
        raised = damp * mean;
        arrange(f, h);
        good = factorize(h, n);
    }
    if (!good)
        MX_TRY_OUT(st, mx_fail(MX_INPUT, "%s: the sum of squares of its inputs is not positive "
                               "definite, however much its diagonal is raised; take more of a "
                               "calibration text (calibration_tokens=)", what));
    for (int64_t i = 0; i < n; i++)
        f->diagonal[i] = f->h[i * n + i];
    invert(h, n, work);
out:
    mx_free(work);
    if (st)
        mx_gptq_factor_close(f);
    return st;
}

void mx_gptq_factor_close(mx_gptq_factor *f)
{
    mx_free(f->order);
    mx_free(f->h);
    mx_free(f->diagonal);
    *f = (mx_gptq_factor){0};
}

/* --- rounding --- */

static mx_code_grid grid_at(const mx_gptq_weight *w, int64_t g)
{
    return (mx_code_grid){w->scale[g], w->zero ? w->zero[g] : 0};
}

/* The grid of group g of all rows' groups, from the n numbers that it is for. */
static void fit_grid(const mx_gptq_weight *w, int64_t g, const float *x, const float *importance)
{
    mx_code_grid grid = mx_code_fit(w->kind, x, importance, w->group, w->zero != NULL);
    w->scale[g] = grid.scale;
    if (w->zero)
        w->zero[g] = (int8_t)grid.zero;
}

/* The columns [j0, j1) of one row, x, in the order of the factor: codes, and errors e over U[j, j].
 */
static void round_row(const mx_gptq_factor *f, const mx_gptq_weight *w, int64_t row, int64_t j0,
                      float *x, float *e)
{
    int64_t n = f->n, j1 = least(j0 + BLOCK, n), groups = n / w->group;
    for (int64_t j = j0; j < j1; j++) {
        const float *u = f->u + j * n;
        int64_t column = f->order[j], g = row * groups + column / w->group;
        if (!f->act_order && column % w->group == 0)
            fit_grid(w, g, x + j, f->diagonal + j);
        uint8_t q = mx_grid_code(w->kind, grid_at(w, g), x[j]);
        float value = mx_grid_value(w->kind, grid_at(w, g), q), err = (x[j] - value) / u[j];
        w->codes[row * n + column] = q;
        w->w[row * n + column] = value;
        e[j - j0] = err;
        for (int64_t k = j + 1; k < j1; k++)
            x[k] -= err * u[k];
    }
}

/* Rounds all columns; x (rows, n) and e (rows, BLOCK) are work. */
static void round_all(const mx_gptq_factor *f, const mx_gptq_weight *w, float *x, float *e)
{
    int64_t n = f->n, rows = w->rows, groups = n / w->group;
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t g = 0; g < groups && f->act_order; g++)
            fit_grid(w, r * groups + g, w->w + r * n + g * w->group, f->diagonal + g * w->group);
        for (int64_t j = 0; j < n; j++)
            x[r * n + j] = w->w[r * n + f->order[j]];
    }
    for (int64_t j0 = 0; j0 < n; j0 += BLOCK) {
        int64_t j1 = least(j0 + BLOCK, n);
#pragma omp parallel for schedule(static)
        for (int64_t r = 0; r < rows; r++)
            round_row(f, w, r, j0, x + r * n, e + r * BLOCK);
        add(&(sum_of){rows, n - j1, j1 - j0, BLOCK, n, n, e, f->u + j0 * n + j1, x + j1, false}, -1,
            true);
    }
}

/* --- coordinate descent: g (rows, n) is (W - what codes stand for) H throughout --- */

/* The codes [j0, j1) of one row, each set to the nearest of its best place; by how much they have
 * moved in e. True: some did. */
static bool descend_row(const mx_gptq_factor *f, const mx_gptq_weight *w, int64_t row, int64_t j0,
                        const float *g, float *e)
{
    int64_t n = f->n, j1 = least(j0 + BLOCK, n);
    float here[BLOCK];
    bool moved = false;
    memcpy(here, g + row * n + j0, sizeof here[0] * (size_t)(j1 - j0));
    for (int64_t j = j0; j < j1; j++) {
        const float *h = f->h + j * n;
        mx_code_grid grid = grid_at(w, row * (n / w->group) + j / w->group);
        float *value = w->w + row * n + j, best = here[j - j0] / h[j];
        uint8_t q = mx_grid_code(w->kind, grid, *value + best);
        float next = mx_grid_value(w->kind, grid, q), by = next - *value;
        e[j - j0] = 0;
        if (!(by * (by - 2 * best) < 0))
            continue;
        moved = true;
        w->codes[row * n + j] = q;
        *value = next;
        e[j - j0] = by;
        for (int64_t k = j; k < j1; k++)
            here[k - j0] -= by * h[k];
    }
    return moved;
}

static bool descend(const mx_gptq_factor *f, const mx_gptq_weight *w, float *g, float *e)
{
    int64_t n = f->n, rows = w->rows;
    bool moved = false;
    for (int64_t j0 = 0; j0 < n; j0 += BLOCK) {
#pragma omp parallel for schedule(static) reduction(|| : moved)
        for (int64_t r = 0; r < rows; r++)
            moved = descend_row(f, w, r, j0, g, e + r * BLOCK) || moved;
        add(&(sum_of){rows, n, least(BLOCK, n - j0), BLOCK, n, n, e, f->h + j0 * n, g, false}, -1,
            true);
    }
    return moved;
}

/* The scale of one group of a row, where another fits its codes better. p = the group's codes
 * times H. */
static void rescale_row(const mx_gptq_weight *w, int64_t n, int64_t row, int64_t group, float *g,
                        const float *p)
{
    int64_t first = group * w->group, at = row * (n / w->group) + group;
    float *value = w->w + row * n + first, *scale = w->scale + at;
    float a = dot(p + first, value, w->group) / *scale;
    float b = dot(g + first, value, w->group) / *scale;
    float next = mx_code_round_scale(*scale + (a > 0 ? b / a : 0)), by = next - *scale;
    if (!(next * *scale > 0) || !(by * (by * a - 2 * b) < 0))
        return;
    *scale = next;
    for (int64_t j = 0; j < w->group; j++)
        value[j] = mx_grid_value(w->kind, grid_at(w, at), w->codes[row * n + first + j]);
    for (int64_t k = 0; k < n; k++)
        g[k] -= by * p[k];
}

static void rescale(const mx_gptq_factor *f, const mx_gptq_weight *w, float *g, float *p)
{
    int64_t n = f->n, rows = w->rows;
    for (int64_t k = 0; k < n / w->group; k++) {
        int64_t first = k * w->group;
        add(&(sum_of){rows, n, w->group, n, n, n, w->w + first, f->h + first * n, p, false}, 1,
            false);
#pragma omp parallel for schedule(static)
        for (int64_t r = 0; r < rows; r++) {
            float s = w->scale[r * (n / w->group) + k];
            for (int64_t j = 0; j < n; j++)
                p[r * n + j] /= s;
            rescale_row(w, n, r, k, g + r * n, p + r * n);
        }
    }
}

/* sum of a b, over all elements. */
static double inner(const float *a, const float *b, int64_t rows, int64_t n)
{
    double sum = 0;
    for (int64_t r = 0; r < rows; r++)
        sum += (double)dot(a + r * n, b + r * n, n);
    return sum;
}

typedef struct {
    float *x, *p, *was; /* (rows, n) */
    float *e;           /* (rows, BLOCK) */
} work_of;

/* From the codes of round_all to better ones. */
static void refine(const mx_gptq_factor *f, const mx_gptq_weight *w, const work_of *k)
{
    enum { SWEEPS = 4 };
    int64_t n = f->n, rows = w->rows;
    for (int64_t i = 0; i < rows * n; i++)
        k->p[i] = k->was[i] - w->w[i];
    add(&(sum_of){rows, n, n, n, n, n, k->p, f->h, k->x, false}, 1, false);
    for (int i = 0; i < SWEEPS && descend(f, w, k->x, k->e); i++)
        rescale(f, w, k->x, k->p);
}

static void count_outputs(const mx_gptq_factor *f, const mx_gptq_weight *w, const work_of *k,
                          mx_gptq_outputs *out)
{
    int64_t n = f->n, rows = w->rows;
    add(&(sum_of){rows, n, n, n, n, n, k->was, f->h, k->p, false}, 1, false);
    out->whole += inner(k->p, k->was, rows, n);
    out->lost += inner(k->x, k->was, rows, n) - inner(k->x, w->w, rows, n);
}

mx_status mx_gptq_round(const mx_gptq_factor *f, const mx_gptq_weight *w, mx_gptq_outputs *out)
{
    int64_t n = f->n;
    size_t bytes = sizeof(float) * (size_t)(w->rows * n);
    work_of k = {0};
    mx_status st;
    MX_TRY_OUT(st, mx_alloc((void **)&k.x, bytes, "GPTQ"));
    MX_TRY_OUT(st, mx_alloc((void **)&k.p, bytes, "GPTQ"));
    MX_TRY_OUT(st, mx_alloc((void **)&k.was, bytes, "GPTQ"));
    MX_TRY_OUT(st, mx_alloc((void **)&k.e, sizeof *k.e * (size_t)(w->rows * BLOCK), "GPTQ"));
    memcpy(k.was, w->w, bytes);
    round_all(f, w, k.x, k.e);
    refine(f, w, &k);
    count_outputs(f, w, &k, out);
out:
    mx_free(k.x);
    mx_free(k.p);
    mx_free(k.was);
    mx_free(k.e);
    return st;
}
