/* gemv.c - y (m, n) = alpha x (m, k) W (n, k)^T for m <= MX_GEMV_MAX_M: decoding.
 *
 * Bound by reading W once. Each step takes four rows of W against all rows of x, so x is read
 * from L1 n/4 times and W streams; a sum is 64 lanes wide (four vectors of 16) and folded at the
 * end, in one fixed order. W of bf16 is widened in registers, or multiplied as it is (VDPBF16PS):
 * half the bytes, half the time.
 */
#include "base/simd.h"
#include "base/vmath.h"
#include "ops/cpu/gemm_tile.h"

#define LANES 16
#define W_ROWS 4

bool mx_gemv_can(const mx_gemm_args *g)
{
    return g->m <= MX_GEMV_MAX_M && g->trans_b && !g->trans_a && g->c_type != MX_NUM_F64;
}

typedef float lanes __attribute__((vector_size(4 * LANES)));
typedef float lanes_any __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t words __attribute__((vector_size(4 * LANES)));
typedef uint32_t pairs_any __attribute__((vector_size(4 * LANES), aligned(2), may_alias));
typedef uint16_t halves_any __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

MX_INLINE float element(const void *p, int64_t i, bool bf16)
{
    return bf16 ? mx_float_of_bf16(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}

/* Through a pointer: a 64-byte vector as a result has no ABI at the baseline level. */
MX_INLINE void load(lanes *v, const void *p, int64_t i, bool bf16)
{
    if (bf16)
        *v = (lanes)(__builtin_convertvector(*(const halves_any *)((const uint16_t *)p + i), words)
                     << 16);
    else
        *v = *(const lanes_any *)((const float *)p + i);
}

/* Sums of the lanes of four vectors at once, in one fixed order. */
#define PICK(v, w, ...) __builtin_shuffle(v, w, (words){__VA_ARGS__})
MX_INLINE void fold4(float *sums, const lanes *v)
{
    lanes a = PICK(v[0], v[1], 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30)
              + PICK(v[0], v[1], 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
    lanes b = PICK(v[2], v[3], 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30)
              + PICK(v[2], v[3], 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
    lanes c = PICK(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29)
              + PICK(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
    c += PICK(c, c, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
    c += PICK(c, c, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
    for (int i = 0; i < 4; i++)
        sums[i] = c[i];
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
    lanes acc[MX_GEMV_MAX_M][W_ROWS];
    for (int i = 0; i < m; i++)
        for (int r = 0; r < rows; r++)
            acc[i][r] = (lanes){0};
    int64_t k = 0;
    for (; k + LANES <= d->k; k += LANES) {
        lanes w[W_ROWS];
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
            load(&w[r], d->w, r * d->ldw + k, w_bf16);
#pragma GCC unroll 8
        for (int i = 0; i < m; i++) {
            lanes x;
            load(&x, d->x, i * d->ldx + k, x_bf16);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++)
                acc[i][r] += x * w[r];
        }
    }
    finish(sums, d, acc, k, m, rows, x_bf16, w_bf16);
}

#define BF16_LANES 32
/* The same for bf16 on a CPU that multiplies it: two products per lane and step. */
MX_INLINE MX_TARGET_BF16 void dots_of_bf16(float (*sums)[W_ROWS], const dot_args *d, const int m,
                                           const int rows)
{
    lanes acc[MX_GEMV_MAX_M][W_ROWS];
    for (int i = 0; i < m; i++)
        for (int r = 0; r < rows; r++)
            acc[i][r] = (lanes){0};
    const uint16_t *x = d->x, *w = d->w;
    int64_t k = 0;
    for (; k + BF16_LANES <= d->k; k += BF16_LANES) {
        pairs_any wv[W_ROWS];
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
            wv[r] = *(const pairs_any *)(w + r * d->ldw + k);
#pragma GCC unroll 8
        for (int i = 0; i < m; i++) {
            pairs_any xv = *(const pairs_any *)(x + i * d->ldx + k);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++)
                acc[i][r] = MX_BF16_DOT(acc[i][r], xv, wv[r]);
        }
    }
    finish(sums, d, acc, k, m, rows, true, true);
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
