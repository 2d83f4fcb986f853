/* gemv.c - y (m, n) = alpha x (m, k) W (n, k)^T for m <= MX_GEMV_MAX_M: decoding.
 *
 * Bound by reading W once, so W is read as it lies, row after row: the hardware's prefetcher then
 * keeps up with memory, which it does not with four rows at a time. x stays in L1. A sum is 64
 * lanes wide (four vectors of 16) and folded at the end, in one fixed order that does not depend on
 * m: the bits of a sequence do not change with the batch. W of bf16 is widened in registers, or
 * multiplied as it is (VDPBF16PS).
 */
#include "base/simd.h"
#include "ops/cpu/gemm_tile.h"
#include "ops/cpu/lanes.h"

#define W_ROWS 4 /* folded together */
#define SUMS 4   /* vectors of one sum: adds that do not wait for each other */

bool mx_gemv_can(const mx_gemm_args *g)
{
    return g->m <= MX_GEMV_MAX_M && g->trans_b && !g->trans_a && g->c_type != MX_NUM_F64;
}

typedef struct {
    const void *x, *w; /* row 0 of x; the first of the rows of W */
    int64_t ldx, ldw, k;
} dot_args;

/* Folds the vectors and adds the elements from k on. A single row folds as four equal ones do, so
 * that its bits do not depend on its neighbours. */
MX_INLINE void finish(float (*sums)[W_ROWS], const dot_args *d, lanes (*acc)[W_ROWS], int64_t k0,
                      const int m, const int rows, const bool x_bf16, const bool w_bf16)
{
    for (int i = 0; i < m; i++) {
        for (int r = rows; r < W_ROWS; r++)
            acc[i][r] = acc[i][0];
        fold4(sums[i], acc[i]);
        for (int r = 0; r < rows; r++)
            for (int64_t k = k0; k < d->k; k++)
                sums[i][r] += element(d->x, i * d->ldx + k, x_bf16)
                              * element(d->w, r * d->ldw + k, w_bf16);
    }
}

/* sums[m][r] = x_m . w_r; m, rows and the types are constants where this is inlined */
MX_INLINE void dots(float (*sums)[W_ROWS], const dot_args *d, const int m, const int rows,
                    const bool x_bf16, const bool w_bf16)
{
    lanes total[MX_GEMV_MAX_M][W_ROWS];
    int64_t whole = d->k / LANES * LANES;
    for (int r = 0; r < rows; r++) {
        lanes acc[MX_GEMV_MAX_M][SUMS];
        for (int i = 0; i < m; i++)
            for (int u = 0; u < SUMS; u++)
                acc[i][u] = (lanes){0};
        int64_t k = 0;
        for (; k + SUMS * LANES <= whole; k += SUMS * LANES) {
#pragma GCC unroll 4
            for (int u = 0; u < SUMS; u++) {
                lanes w, x;
                load(&w, d->w, r * d->ldw + k + u * LANES, w_bf16);
#pragma GCC unroll 8
                for (int i = 0; i < m; i++) {
                    load(&x, d->x, i * d->ldx + k + u * LANES, x_bf16);
                    acc[i][u] += x * w;
                }
            }
        }
        for (; k < whole; k += LANES) {
            lanes w, x;
            load(&w, d->w, r * d->ldw + k, w_bf16);
            for (int i = 0; i < m; i++) {
                load(&x, d->x, i * d->ldx + k, x_bf16);
                acc[i][0] += x * w;
            }
        }
        for (int i = 0; i < m; i++)
            total[i][r] = (acc[i][0] + acc[i][1]) + (acc[i][2] + acc[i][3]);
    }
    finish(sums, d, total, whole, m, rows, x_bf16, w_bf16);
}

#define BF16_LANES 32
/* The same for bf16 on a CPU that multiplies it: two products per lane and step. */
MX_INLINE MX_TARGET_BF16 void dots_of_bf16(float (*sums)[W_ROWS], const dot_args *d, const int m,
                                           const int rows)
{
    lanes total[MX_GEMV_MAX_M][W_ROWS];
    const uint16_t *x = d->x;
    int64_t whole = d->k / BF16_LANES * BF16_LANES;
    for (int r = 0; r < rows; r++) {
        const uint16_t *w = (const uint16_t *)d->w + r * d->ldw;
        lanes acc[MX_GEMV_MAX_M][SUMS];
        for (int i = 0; i < m; i++)
            for (int u = 0; u < SUMS; u++)
                acc[i][u] = (lanes){0};
        int64_t k = 0;
        for (; k + SUMS * BF16_LANES <= whole; k += SUMS * BF16_LANES) {
#pragma GCC unroll 4
            for (int u = 0; u < SUMS; u++) {
                pairs_any wv = *(const pairs_any *)(w + k + u * BF16_LANES);
#pragma GCC unroll 8
                for (int i = 0; i < m; i++) {
                    pairs_any xv = *(const pairs_any *)(x + i * d->ldx + k + u * BF16_LANES);
                    acc[i][u] = MX_BF16_DOT(acc[i][u], xv, wv);
                }
            }
        }
        for (; k < whole; k += BF16_LANES) {
            pairs_any wv = *(const pairs_any *)(w + k);
            for (int i = 0; i < m; i++)
                acc[i][0] =
                    MX_BF16_DOT(acc[i][0], *(const pairs_any *)(x + i * d->ldx + k), wv);
        }
        for (int i = 0; i < m; i++)
            total[i][r] = (acc[i][0] + acc[i][1]) + (acc[i][2] + acc[i][3]);
    }
    finish(sums, d, total, whole, m, rows, true, true);
}

/* All rows of x, four, two or one at a time. */
#define EACH_ROWS(sums, d, m, bytes, call)                                                         \
    for (int64_t i_ = 0; i_ < (m);) {                                                              \
        dot_args e_ = *(d);                                                                        \
        float(*s_)[W_ROWS] = (sums) + i_;                                                          \
        e_.x = (const char *)(d)->x + i_ * (d)->ldx * (bytes);                                     \
        if ((m)-i_ >= 4) {                                                                         \
            call(4);                                                                               \
            i_ += 4;                                                                               \
        } else if ((m)-i_ >= 2) {                                                                  \
            call(2);                                                                               \
            i_ += 2;                                                                               \
        } else {                                                                                   \
            call(1);                                                                               \
            i_ += 1;                                                                               \
        }                                                                                          \
    }

MX_INLINE void dots_rows(float (*sums)[W_ROWS], const dot_args *d, int64_t m, const int rows,
                         const bool x_bf16, const bool w_bf16)
{
#define CALL(n) dots(s_, &e_, n, rows, x_bf16, w_bf16)
    EACH_ROWS(sums, d, m, x_bf16 ? 2 : 4, CALL)
#undef CALL
}

static void store(const mx_gemm_tile *t, int64_t j, int rows, float (*sums)[W_ROWS])
{
    const mx_gemm_args *g = t->g;
    for (int64_t i = 0; i < g->m; i++)
        for (int r = 0; r < rows; r++) {
            int64_t at = i * g->ldc + j + r;
            float y = (float)g->alpha * sums[i][r];
            if (g->c_type == MX_NUM_BF16) {
                uint16_t *c = (uint16_t *)t->c + at;
                *c = mx_bf16_of_float(g->accumulate ? mx_float_of_bf16(*c) + y : y);
            } else {
                float *c = (float *)t->c + at;
                *c = g->accumulate ? *c + y : y;
            }
        }
}

#define RUN(name, x_bf16, w_bf16)                                                                  \
    MX_CLONES static void name(const mx_gemm_tile *t)                                              \
    {                                                                                              \
        const mx_gemm_args *g = t->g;                                                              \
        float sums[MX_GEMV_MAX_M][W_ROWS];                                                         \
        for (int64_t j = t->n0; j < t->n1;) {                                                      \
            dot_args d = {t->a, (const char *)t->b + j * g->ldb * (w_bf16 ? 2 : 4), g->lda,        \
                          g->ldb, g->k};                                                           \
            int rows = t->n1 - j >= W_ROWS ? W_ROWS : 1;                                           \
            if (rows == W_ROWS)                                                                    \
                dots_rows(sums, &d, g->m, W_ROWS, x_bf16, w_bf16);                                 \
            else                                                                                   \
                dots_rows(sums, &d, g->m, 1, x_bf16, w_bf16);                                      \
            store(t, j, rows, sums);                                                               \
            j += rows;                                                                             \
        }                                                                                          \
    }
RUN(run_ff, false, false)
RUN(run_fb, false, true)
RUN(run_bf, true, false)
RUN(run_bb, true, true)

MX_TARGET_BF16 static void run_pairs(const mx_gemm_tile *t)
{
    const mx_gemm_args *g = t->g;
    float sums[MX_GEMV_MAX_M][W_ROWS];
    for (int64_t j = t->n0; j < t->n1;) {
        dot_args d = {t->a, (const uint16_t *)t->b + j * g->ldb, g->lda, g->ldb, g->k};
        int rows = t->n1 - j >= W_ROWS ? W_ROWS : 1;
#define CALL4(n) dots_of_bf16(s_, &e_, n, W_ROWS)
#define CALL1(n) dots_of_bf16(s_, &e_, n, 1)
        if (rows == W_ROWS)
            EACH_ROWS(sums, &d, g->m, 2, CALL4)
        else
            EACH_ROWS(sums, &d, g->m, 2, CALL1)
#undef CALL4
#undef CALL1
        store(t, j, rows, sums);
        j += rows;
    }
}

void mx_gemv_run(const mx_gemm_tile *t)
{
    bool x = t->g->a_type == MX_NUM_BF16, w = t->g->b_type == MX_NUM_BF16;
    if (x && w && mx_simd_level() >= MX_SIMD_BF16)
        run_pairs(t);
    else if (x)
        (w ? run_bb : run_bf)(t);
    else
        (w ? run_fb : run_ff)(t);
}
