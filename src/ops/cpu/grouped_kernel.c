/* grouped_kernel.c - see grouped_kernel.h.
 *
 * The GEMM of expert e is one mx_gemm_args; a strip of its columns is the same GEMM with b
 * and c moved, so the pieces need no code of their own.
 */
#include "ops/cpu/grouped_kernel.h"

#include <omp.h>

/* Columns of a piece. Each piece packs its expert's rows again, so pieces are as wide as a tile of
 * the GEMM may be where there are enough of them to fill the threads evenly. */
enum { WIDE = 768, STRIP = 384, ENOUGH = 16 };

static const void *at(const void *p, int64_t element, mx_num type)
{
    return (const char *)p + element * MX_NUM_BYTES(type);
}

/* All experts: `one` with a, b, c, of expert 0; a_step, b_step, c_step are per row of the expert's
 * rows where the flag is set, otherwise per expert. rows_are_k: the rows are summed over (dw). */
typedef struct {
    mx_gemm_args one;
    bool a_by_row, b_by_row, c_by_row, rows_are_k;
} grouped_gemm;

static void run(const mx_grouped *g, const grouped_gemm *p)
{
    int threads = mx_kernel_threads(g->threads);
    int64_t wide = (p->one.n + WIDE - 1) / WIDE;
    int64_t strip = g->groups * wide >= ENOUGH * threads ? WIDE : STRIP;
    int64_t strips = (p->one.n + strip - 1) / strip;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t i = 0; i < g->groups * strips; i++) {
        int64_t e = i / strips, j = i % strips * strip, first = g->offsets[e];
        int64_t rows = g->offsets[e + 1] - first;
        mx_gemm_args m = p->one;
        m.a = at(m.a, m.a_step * (p->a_by_row ? first : e), m.a_type);
        m.b = at(m.b, m.b_step * (p->b_by_row ? first : e) + (m.trans_b ? j * m.ldb : j), m.b_type);
        m.c = (char *)m.c + (m.c_step * (p->c_by_row ? first : e) + j) * MX_NUM_BYTES(m.c_type);
        m.n = m.n - j < strip ? m.n - j : strip;
        *(p->rows_are_k ? &m.k : &m.m) = rows;
        m.batch = 1;
        m.threads = 1;
        mx_gemm(&m);
    }
}

void mx_grouped_forward(const mx_grouped *g, const void *x, const void *w, void *y)
{
    grouped_gemm p = {.a_by_row = true, .c_by_row = true};
    p.one = (mx_gemm_args){.n = g->d_out, .k = g->d_in, .a = x, .lda = g->d_in, .b = w, .c = y,
                           .ldb = g->w_in_out ? g->d_out : g->d_in, .trans_b = !g->w_in_out,
                           .ldc = g->d_out, .a_step = g->d_in, .b_step = g->d_in * g->d_out,
                           .c_step = g->d_out, .a_type = g->type, .b_type = g->type,
                           .c_type = g->out_type, .one_path = g->one_path, .alpha = 1};
    run(g, &p);
}

void mx_grouped_dx(const mx_grouped *g, const void *dy, const void *w, void *dx)
{
    grouped_gemm p = {.a_by_row = true, .c_by_row = true};
    p.one = (mx_gemm_args){.n = g->d_in, .k = g->d_out, .a = dy, .lda = g->d_out, .b = w, .c = dx,
                           .ldb = g->w_in_out ? g->d_out : g->d_in, .trans_b = g->w_in_out,
                           .ldc = g->d_in, .a_step = g->d_out, .b_step = g->d_in * g->d_out,
                           .c_step = g->d_in, .a_type = g->type, .b_type = g->type,
                           .c_type = g->out_type, .alpha = 1};
    run(g, &p);
}

void mx_grouped_dw(const mx_grouped *g, const void *dy, const void *x, void *dw, bool add)
{
    /* (d_out, d_in) = dy^T x, or (d_in, d_out) = x^T dy */
    int64_t m = g->w_in_out ? g->d_in : g->d_out, n = g->w_in_out ? g->d_out : g->d_in;
    grouped_gemm p = {.a_by_row = true, .b_by_row = true, .rows_are_k = true};
    p.one = (mx_gemm_args){.m = m, .n = n, .a = g->w_in_out ? x : dy, .lda = m, .trans_a = true,
                           .b = g->w_in_out ? dy : x, .ldb = n, .c = dw, .ldc = n, .a_step = m,
                           .b_step = n, .c_step = m * n, .a_type = g->type, .b_type = g->type,
                           .c_type = g->out_type, .alpha = 1, .accumulate = add};
    run(g, &p);
}
