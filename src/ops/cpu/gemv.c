/* gemv.c - y (m, n) = alpha x (m, k) W (n, k)^T for m <= MX_GEMV_MAX_M: decoding.
 *
 * Bound by reading W once. Each step takes four rows of W against all rows of x, so x is read
 * from L1 n/4 times and W streams; a sum is 64 lanes wide (four vectors of 16) and folded at the
 * end, in one fixed order. W of bf16 is widened in registers: half the bytes, half the time.
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

/* Folding halves: the same tree whatever the vector width of the level. */
MX_INLINE float fold(const lanes *v)
{
    float s[LANES];
    for (int i = 0; i < LANES; i++)
        s[i] = (*v)[i];
    for (int w = LANES / 2; w > 0; w /= 2)
        for (int i = 0; i < w; i++)
            s[i] += s[i + w];
    return s[0];
}

typedef struct {
    const void *x, *w; /* row 0 of x; the first of the rows of W */
    int64_t ldx, ldw, k;
} dot_args;

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
    for (int i = 0; i < m; i++)
        for (int r = 0; r < rows; r++) {
            float s = fold(&acc[i][r]);
            for (int64_t j = k; j < d->k; j++)
                s += element(d->x, i * d->ldx + j, x_bf16) * element(d->w, r * d->ldw + j, w_bf16);
            sums[i][r] = s;
        }
}

/* m in {1, 2, 4, 8}: other counts run the next larger one in parts. */
MX_INLINE void dots_rows(float (*sums)[W_ROWS], const dot_args *d, int64_t m, const int rows,
                         const bool x_bf16, const bool w_bf16)
{
    dot_args e = *d;
    const int bytes = x_bf16 ? 2 : 4;
    for (int64_t i = 0; i < m;) {
        e.x = (const char *)d->x + i * d->ldx * bytes;
        if (m - i >= 4) {
            dots(sums + i, &e, 4, rows, x_bf16, w_bf16);
            i += 4;
        } else if (m - i >= 2) {
            dots(sums + i, &e, 2, rows, x_bf16, w_bf16);
            i += 2;
        } else {
            dots(sums + i, &e, 1, rows, x_bf16, w_bf16);
            i += 1;
        }
    }
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

void mx_gemv_run(const mx_gemm_tile *t)
{
    bool x = t->g->a_type == MX_NUM_BF16, w = t->g->b_type == MX_NUM_BF16;
    if (x)
        (w ? run_bb : run_bf)(t);
    else
        (w ? run_fb : run_ff)(t);
}
