/* xent_kernel.c - see xent_kernel.h.
 *
 * The GEMMs use all threads (gemm.h); between them the rows of a chunk are shared out.
 */
#include "ops/cpu/xent_kernel.h"

#include "base/simd.h"
#include "base/status.h"
#include "base/vmath.h"
#include "ops/cpu/narrow.h"
#include <math.h>
#include <omp.h>
#include <string.h>

enum {
    ROWS = 512,             /* rows of a chunk in the forward pass, at most */
    TILE = MX_XENT_TILE,
    BACK_ROWS = 1024,       /* rows of a chunk in the backward pass, at most */
    CHUNK_LOGITS = 1 << 25  /* logits of a chunk in the backward pass, at most */
};

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Rows of a backward chunk: the more, the less often weights are packed and their gradients summed.
 * A function of the vocabulary alone, so that sums over chunks do not depend on the batch, and a
 * power of two, so that batches are whole chunks. */
static int64_t chunk_rows(const mx_xent *c)
{
    int64_t r = BACK_ROWS;
    while (r > 32 && r * c->vocab > CHUNK_LOGITS)
        r /= 2;
    return r;
}

/* Numbers from a row of a backward chunk to the next: whole cache lines, and an odd number of them,
 * so that rows do not share sets of the cache. */
static int64_t row_stride(const mx_xent *c)
{
    return ((c->vocab + 15) / 16 | 1) * 16;
}

static bool all_ignored(const mx_xent *c, int64_t i0, int64_t n)
{
    bool all = true;
    for (int64_t i = i0; i < i0 + n; i++) {
        MX_ASSERT(c->slice || c->labels[i] < c->vocab, "label %d of token %ld, vocabulary %ld",
                  c->labels[i], (long)i, (long)c->vocab);
        all &= c->labels[i] < 0;
    }
    return all;
}

static double scale_of(const mx_xent *c)
{
    return c->scale == 0 ? 1 : (double)c->scale;
}

/* The label as a number of the words that are here; another number where it is not. */
static int32_t label_here(const mx_xent *c, int64_t i)
{
    return (int32_t)(c->labels[i] - c->first);
}

static mx_num sums_type(const mx_xent *c)
{
    return c->type == MX_NUM_F64 ? MX_NUM_F64 : MX_NUM_F32;
}

static const void *x_row(const mx_xent *c, int64_t i)
{
    return (const char *)c->x + i * c->dim * MX_NUM_BYTES(c->type);
}

MX_CLONES static void scale_row(float *restrict s, int64_t n, float f)
{
    for (int64_t j = 0; j < n; j++)
        s[j] *= f;
}

/* logits (rows, n) of rows i0.. and words v0.. In float32 the scale multiplies whole sums, as that
 * of a model's logits does when it decodes. */
static void logits(const mx_xent *c, int64_t i0, int64_t rows, int64_t v0, int64_t n, void *s,
                   int64_t lds)
{
    bool wide = c->type == MX_NUM_F64, scaled = scale_of(c) != 1 && !wide;
    mx_gemm(&(mx_gemm_args){.m = rows, .n = n, .k = c->dim, .a = x_row(c, i0), .lda = c->dim,
                            .b = (const char *)c->w + v0 * c->dim * MX_NUM_BYTES(c->type),
                            .ldb = c->dim, .trans_b = true, .c = s, .ldc = lds, .a_type = c->type,
                            .b_type = c->type, .c_type = sums_type(c), .one_path = true,
                            .alpha = wide ? scale_of(c) : 1, .threads = c->threads});
    if (!scaled)
        return;
#pragma omp parallel for schedule(static) num_threads(mx_kernel_threads(c->threads))
    for (int64_t i = 0; i < rows; i++)
        scale_row((float *)s + i * lds, n, c->scale);
}

static void put(const mx_xent *c, void *p, int64_t i, double v)
{
    if (p && c->type == MX_NUM_F64)
        ((double *)p)[i] = v;
    else if (p)
        ((float *)p)[i] = (float)v;
}

static void put_row(const mx_xent *c, const mx_xent_grads *g, int64_t i, double loss, double lse)
{
    put(c, g->loss, i, loss);
    put(c, g->lse, i, lse);
}

#define NAME(x) x##_f32
#define T float
#define EXP(x) mx_vexpf_nonpositive(x)
#define TANH(x) mx_vtanhf(x)
#define LOG(x) mx_vlogf(x)
#include "ops/cpu/xent_rows.inc"

#define NAME(x) x##_f64
#define T double
#define EXP(x) exp(x)
#define TANH(x) tanh(x)
#define LOG(x) log(x)
#include "ops/cpu/xent_rows.inc"

size_t mx_xent_work_bytes(const mx_xent *c, bool backward)
{
    size_t t = (size_t)MX_NUM_BYTES(sums_type(c));
    return t * (size_t)(backward ? min64(chunk_rows(c), c->n) * row_stride(c) : ROWS * TILE);
}

void mx_xent_forward(const mx_xent *c, void *loss, void *lse, void *work)
{
    bool f64 = c->type == MX_NUM_F64;
    int threads = mx_kernel_threads(c->threads);
    for (int64_t i0 = 0; i0 < c->n; i0 += ROWS) {
        int64_t rows = min64(ROWS, c->n - i0);
        bool skip = all_ignored(c, i0, rows);
        row_state_f32 r32[ROWS];
        row_state_f64 r64[ROWS];
        for (int64_t i = 0; i < rows; i++) {
            r32[i] = (row_state_f32){-INFINITY, 0, 0};
            r64[i] = (row_state_f64){-INFINITY, 0, 0};
        }
        for (int64_t v0 = 0; v0 < c->vocab && !skip; v0 += TILE) {
            int64_t n = min64(TILE, c->vocab - v0);
            logits(c, i0, rows, v0, n, work, TILE);
#pragma omp parallel for schedule(static) num_threads(threads)
            for (int64_t i = 0; i < rows; i++)
                if (f64)
                    row_take_f64(&r64[i], (double *)work + i * TILE, v0, n,
                                 label_here(c, i0 + i), (double)c->softcap);
                else
                    row_take_f32(&r32[i], (float *)work + i * TILE, v0, n, label_here(c, i0 + i),
                                 c->softcap);
        }
        for (int64_t i = 0; i < rows; i++) {
            bool used = c->labels[i0 + i] >= 0;
            double top = f64 ? r64[i].top : (double)r32[i].top, z = (double)c->z_loss;
            double l = top + (f64 ? log(r64[i].sum) : log((double)r32[i].sum));
            double label = f64 ? r64[i].label : (double)r32[i].label;
            put(c, loss, i0 + i, !used ? 0 : c->slice ? label : l - label + z * l * l);
            put(c, lse, i0 + i, used ? l : 0);
        }
    }
}

void mx_xent_row(float *logits, int64_t n, mx_xent_row_facts *out)
{
    row_state_f32 r = {-INFINITY, 0, 0};
    MX_ASSERT(n <= MX_XENT_TILE * (int64_t)MX_XENT_ROW_TILES, "a vocabulary of %ld", (long)n);
    out->n = 0;
    for (int64_t v0 = 0; v0 < n; v0 += TILE) {
        row_take_f32(&r, logits + v0, v0, min64(TILE, n - v0), -1, 0);
        out->top[out->n++] = r.top;
    }
    out->lse = (double)r.top + log((double)r.sum);
}

/* dx of rows i0.. from the gradients of their logits (rows, vocab). */
static void add_dx(const mx_xent *c, const mx_xent_grads *g, int64_t i0, int64_t rows,
                   const void *s, int64_t lds)
{
    mx_gemm(&(mx_gemm_args){.m = rows, .n = c->dim, .k = c->vocab, .a = s, .lda = lds, .b = c->w,
                            .ldb = c->dim, .ldc = c->dim, .a_type = c->type, .b_type = c->type,
                            .c = (char *)g->dx + i0 * c->dim * MX_NUM_BYTES(c->type),
                            .c_type = c->type, .alpha = scale_of(c), .threads = c->threads});
}

static void add_dw(const mx_xent *c, const mx_xent_grads *g, int64_t i0, int64_t rows,
                   const void *s, int64_t lds, bool add)
{
    mx_gemm(&(mx_gemm_args){.m = c->vocab, .n = c->dim, .k = rows, .a = s, .lda = lds,
                            .trans_a = true, .b = x_row(c, i0), .ldb = c->dim, .c = g->dw,
                            .ldc = c->dim, .a_type = c->type, .b_type = c->type,
                            .c_type = sums_type(c), .alpha = scale_of(c), .accumulate = add,
                            .threads = c->threads});
}

void mx_xent_keep(const mx_xent *c, const mx_xent_kept *k, void *work)
{
    int threads = mx_kernel_threads(c->threads);
    int64_t chunk = chunk_rows(c), stride = row_stride(c);
    for (int64_t i0 = 0; i0 < c->n; i0 += chunk) {
        int64_t rows = min64(chunk, c->n - i0);
        if (c->vocab && !all_ignored(c, i0, rows))
            logits(c, i0, rows, 0, c->vocab, work, stride);
#pragma omp parallel for schedule(static) num_threads(threads)
        for (int64_t i = 0; i < rows; i++)
            if (c->type == MX_NUM_F64)
                keep_row_f64(c, k, i0 + i, (double *)work + i * stride);
            else
                keep_row_f32(c, k, i0 + i, (float *)work + i * stride);
    }
}

void mx_xent_back(const mx_xent *c, const mx_xent_kept *k, const mx_xent_grads *g)
{
    int threads = mx_kernel_threads(c->threads);
    int64_t chunk = chunk_rows(c);
    bool add = g->add_dw;
    for (int64_t i0 = 0; i0 < c->n; i0 += chunk) {
        int64_t rows = min64(chunk, c->n - i0);
        const char *kept = (const char *)k->kept + i0 * k->ld * MX_NUM_BYTES(c->type);
        if (!c->vocab || all_ignored(c, i0, rows)) {
            memset((char *)g->dx + i0 * c->dim * MX_NUM_BYTES(c->type), 0,
                   (size_t)(rows * c->dim * MX_NUM_BYTES(c->type)));
            continue;
        }
#pragma omp parallel for schedule(static) num_threads(threads)
        for (int64_t i = 0; i < rows; i++)
            (c->type == MX_NUM_F64 ? back_row_f64 : back_row_f32)(c, k, g, i0 + i);
        add_dx(c, g, i0, rows, kept, k->ld);
        add_dw(c, g, i0, rows, kept, k->ld, add);
        add = true;
    }
    if (!add)
        memset(g->dw, 0, (size_t)(c->vocab * c->dim * MX_NUM_BYTES(sums_type(c))));
}

void mx_xent_backward(const mx_xent *c, const mx_xent_grads *g, void *work)
{
    int threads = mx_kernel_threads(c->threads);
    int64_t chunk = chunk_rows(c);
    int64_t stride = row_stride(c);
    int64_t lds = c->type == MX_NUM_BF16 ? 2 * stride : stride; /* of the gradients */
    bool add = g->add_dw;
    for (int64_t i0 = 0; i0 < c->n; i0 += chunk) {
        int64_t rows = min64(chunk, c->n - i0);
        if (all_ignored(c, i0, rows)) {
            for (int64_t i = i0; i < i0 + rows; i++)
                put_row(c, g, i, 0, 0);
            if (g->dx)
                memset((char *)g->dx + i0 * c->dim * MX_NUM_BYTES(c->type), 0,
                       (size_t)(rows * c->dim * MX_NUM_BYTES(c->type)));
            continue;
        }
        logits(c, i0, rows, 0, c->vocab, work, stride);
#pragma omp parallel for schedule(static) num_threads(threads)
        for (int64_t i = 0; i < rows; i++)
            if (c->type == MX_NUM_F64)
                (c->slice ? slice_grad_f64 : row_grad_f64)(c, g, i0 + i,
                                                           (double *)work + i * stride);
            else
                (c->slice ? slice_grad_f32 : row_grad_f32)(c, g, i0 + i,
                                                           (float *)work + i * stride);
        if (g->dx)
            add_dx(c, g, i0, rows, work, lds);
        if (g->dw)
            add_dw(c, g, i0, rows, work, lds, add);
        add = true;
    }
    if (g->dw && !add)
        memset(g->dw, 0, (size_t)(c->vocab * c->dim * MX_NUM_BYTES(sums_type(c))));
}
