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

/* h in the order of the factor, with its diagonal raised; inputs that never were anything but 0
 * leave their columns to themselves. */
static void arrange(const mx_gptq_factor *f, const float *h, double damp, float *out)
{
    int64_t n = f->n;
    double mean = 0;
    for (int64_t i = 0; i < n; i++)
        mean += (double)h[i * n + i] / (double)n;
    mean = mean > 0 ? mean : 1;
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < n; j++)
            out[i * n + j] = h[(int64_t)f->order[i] * n + f->order[j]];
        out[i * n + i] += (float)(damp * mean);
    }
}

mx_status mx_gptq_factor_make(mx_gptq_factor *f, float *h, int64_t n, bool act_order,
                              const char *what)
{
    float *work = NULL, *kept = NULL;
    *f = (mx_gptq_factor){.n = n, .u = h, .act_order = act_order};
    mx_status st;
    MX_TRY_OUT(st, mx_alloc((void **)&f->order, sizeof *f->order * (size_t)n, what));
    MX_TRY_OUT(st, mx_alloc((void **)&work, sizeof *work * (size_t)(BLOCK * n), what));
    MX_TRY_OUT(st, mx_alloc((void **)&kept, sizeof *kept * (size_t)(n * n), what));
    for (int64_t i = 0; i < n * n; i++)
        if (!isfinite(h[i]))
            MX_TRY_OUT(st, mx_fail(MX_INPUT, "%s: its inputs are not finite numbers on the "
                                   "calibration text; take another text, or leave the weight as it "
                                   "is (keep=)", what));
    memcpy(kept, h, sizeof *kept * (size_t)(n * n));
    find_order(f, kept);
    bool good = false;
    for (double damp = MX_GPTQ_DAMP; damp < 2 && !good; damp *= 10) {
        arrange(f, kept, damp, h);
        good = factorize(h, n);
    }
    if (!good)
        MX_TRY_OUT(st, mx_fail(MX_INPUT, "%s: the sum of squares of its inputs is not positive "
                               "definite, however much its diagonal is raised; take more of a "
                               "calibration text (calibration_tokens=)", what));
    invert(h, n, work);
out:
    mx_free(work);
    mx_free(kept);
    if (st)
        mx_gptq_factor_close(f);
    return st;
}

void mx_gptq_factor_close(mx_gptq_factor *f)
{
    mx_free(f->order);
    *f = (mx_gptq_factor){0};
}

/* --- rounding --- */

/* The columns [j0, j1) of one row, x, in the order of the factor: codes, and errors e over U[j, j].
 */
static void round_row(const mx_gptq_factor *f, const mx_gptq_weight *w, int64_t row, int64_t j0,
                      float *x, float *e)
{
    int64_t n = f->n, j1 = least(j0 + BLOCK, n), groups = n / w->group;
    float *scale = w->scale + row * groups;
    for (int64_t j = j0; j < j1; j++) {
        const float *u = f->u + j * n;
        int64_t column = f->order[j], g = column / w->group;
        if (!f->act_order && column % w->group == 0)
            scale[g] = mx_code_scale(w->kind, x + j, w->group);
        uint8_t q = mx_code_of(w->kind, x[j] / scale[g]);
        float value = mx_code_value(w->kind, q) * scale[g], err = (x[j] - value) / u[j];
        w->codes[row * n + column] = q;
        w->w[row * n + column] = value;
        e[j - j0] = err;
        for (int64_t k = j + 1; k < j1; k++)
            x[k] -= err * u[k];
    }
}

mx_status mx_gptq_round(const mx_gptq_factor *f, const mx_gptq_weight *w)
{
    int64_t n = f->n, rows = w->rows;
    float *x = NULL, *e = NULL;
    mx_status st;
    MX_TRY_OUT(st, mx_alloc((void **)&x, sizeof *x * (size_t)(rows * n), "GPTQ"));
    MX_TRY_OUT(st, mx_alloc((void **)&e, sizeof *e * (size_t)(rows * BLOCK), "GPTQ"));
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t g = 0; g < n / w->group && f->act_order; g++)
            w->scale[r * (n / w->group) + g] =
                mx_code_scale(w->kind, w->w + r * n + g * w->group, w->group);
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
out:
    mx_free(x);
    mx_free(e);
    return st;
}
