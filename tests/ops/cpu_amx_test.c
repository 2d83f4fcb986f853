/* cpu_amx_test.c - GEMMs of bf16 in AMX's tiles (ops/cpu/gemm_amx.inc): the order of their sums,
 * the level below them, and what they must not read. Where there is no AMX the same holds for the
 * level that is there, but for the order. */
#include "../test.h"
#include "numbers.h"

#include "ops/cpu/gemm_tile.h"
#include <math.h>
#include <string.h>

static void run_at(const mx_gemm_args *g, mx_simd level)
{
    mx_gemm_tile t = {g, g->a, g->b, g->c, 0, g->m, 0, g->n};
    mx_gemm_level_at(g->a_type, g->b_type, level)->run(&t);
}

static mx_gemm_args random_gemm(mx_arena *a, int64_t m, int64_t n, int64_t k, int form, uint32_t *s)
{
    mx_gemm_args g = {.m = m, .n = n, .k = k, .alpha = 1, .trans_a = form & 1, .trans_b = form & 2,
                      .a_type = MX_NUM_BF16, .b_type = MX_NUM_BF16, .c_type = MX_NUM_F32,
                      .ldc = n, .one_path = true, .threads = 1};
    g.lda = g.trans_a ? m : k;
    g.ldb = g.trans_b ? k : n;
    g.a = random_array(a, m * k, MX_NUM_BF16, s);
    g.b = random_array(a, n * k, MX_NUM_BF16, s);
    g.c = MX_NEW_N(a, float, m *n);
    return g;
}

static float element(const void *p, int64_t at)
{
    return mx_float_of_bf16(((const uint16_t *)p)[at]);
}

/* One sum as base/simd.h says that tiles form it: steps of 32 from the beginning of each block. */
static float in_order(const mx_gemm_args *g, int64_t i, int64_t j)
{
    int64_t most = 2 * mx_gemm_level_at(MX_NUM_BF16, MX_NUM_BF16, MX_SIMD_AMX)->kc;
    int64_t blocks = (g->k + most - 1) / most, kb = ((g->k + blocks - 1) / blocks + 31) / 32 * 32;
    float all = 0;
    for (int64_t k0 = 0; k0 < g->k; k0 += kb) {
        float block = 0;
        int64_t k1 = k0 + kb < g->k ? k0 + kb : g->k;
        for (int64_t step = k0; step < k1; step += 32) {
            float part[2] = {0, 0};
            for (int64_t k = step; k < step + 32 && k < k1; k++) {
                float x = element(g->a, g->trans_a ? k * g->lda + i : i * g->lda + k);
                float y = element(g->b, g->trans_b ? j * g->ldb + k : k * g->ldb + j);
                part[k & 1] = fmaf(x, y, part[k & 1]);
            }
            block += part[0] + part[1];
        }
        all = k0 ? block + all : block;
    }
    return all;
}

MX_TEST(gemm_amx_sums_in_the_order_that_is_stated)
{
    if (mx_simd_level() < MX_SIMD_AMX)
        return;
    static const int64_t sizes[][3] = {{1, 1, 1},    {3, 5, 31},   {33, 40, 32},
                                       {20, 32, 64}, {47, 65, 95}, {5, 33, 2049}, {34, 3, 4500}};
    uint32_t s = 11;
    for (int c = 0; c < 28; c++) {
        mx_arena a = {0};
        const int64_t *d = sizes[c / 4];
        mx_gemm_args g = random_gemm(&a, d[0], d[1], d[2], c % 4, &s);
        mx_gemm(&g);
        int bad = 0;
        for (int64_t i = 0; i < g.m; i++)
            for (int64_t j = 0; j < g.n; j++) {
                float got = ((float *)g.c)[i * g.ldc + j], want = in_order(&g, i, j);
                if (got != want && bad++ < 2)
                    MX_CHECK(0, "m=%ld n=%ld k=%ld form %d: C[%ld,%ld] %.9g, expected %.9g",
                             (long)g.m, (long)g.n, (long)g.k, c % 4, (long)i, (long)j, (double)got,
                             (double)want);
            }
        mx_arena_fini(&a);
    }
}

/* The levels of bf16 agree to rounding, in every form of a GEMM. */
MX_TEST(gemm_amx_agrees_with_the_level_below)
{
    if (mx_simd_level() < MX_SIMD_BF16)
        return;
    uint32_t s = 12;
    for (int c = 0; c < 48; c++) {
        mx_arena a = {0};
        mx_gemm_args g = random_gemm(&a, 1 + next(&s) % 150, 1 + next(&s) % 100,
                                     c % 6 ? 1 + next(&s) % 300 : 2000 + next(&s) % 600, c % 4, &s);
        bool half = c / 4 % 2;
        g.c_type = half ? MX_NUM_BF16 : MX_NUM_F32;
        g.alpha = c / 8 % 2 ? 1 : 0.5;
        g.accumulate = c / 16 % 2;
        size_t bytes = (size_t)(g.m * g.n * MX_NUM_BYTES(g.c_type));
        void *below = random_array(&a, g.m * g.n, g.c_type, &s);
        memcpy(g.c, below, bytes);
        mx_gemm_args h = g;
        h.c = below;
        run_at(&g, mx_simd_level());
        run_at(&h, MX_SIMD_BF16);
        double worst = 0, tolerance = 1e-6 * sqrt((double)g.k) + (half ? 0.008 : 0);
        for (int64_t i = 0; i < g.m * g.n; i++) {
            double x = get(g.c, i, g.c_type), y = get(h.c, i, g.c_type);
            double apart = fabs(x - y) / (fabs(y) + sqrt((double)g.k) / 3);
            worst = apart > worst ? apart : worst;
        }
        MX_CHECK(worst <= tolerance, "m=%ld n=%ld k=%ld form %d c_type %d: %g apart", (long)g.m,
                 (long)g.n, (long)g.k, c % 4, g.c_type, worst);
        mx_arena_fini(&a);
    }
}

/* A and B with NaN between and behind their rows: none of it is in C. */
MX_TEST(gemm_reads_nothing_beside_its_operands)
{
    uint32_t s = 13;
    for (int c = 0; c < 48; c++) {
        mx_arena a = {0};
        int64_t m = 1 + next(&s) % 70, n = 1 + next(&s) % 70, k = 1 + next(&s) % 100;
        mx_gemm_args g = random_gemm(&a, m, n, c % 3 ? k : k / 32 * 32 + 32, c % 4, &s);
        int64_t a_rows = g.trans_a ? g.k : m, b_rows = g.trans_b ? n : g.k;
        g.lda += 64, g.ldb += 34;
        uint16_t *x = MX_NEW_N(&a, uint16_t, (a_rows + 40) * g.lda);
        uint16_t *y = MX_NEW_N(&a, uint16_t, (b_rows + 40) * g.ldb);
        for (int64_t i = 0; i < (a_rows + 40) * g.lda; i++)
            x[i] = i / g.lda < a_rows && i % g.lda < g.lda - 64 ? 0x3f80 : 0x7fc0;
        for (int64_t i = 0; i < (b_rows + 40) * g.ldb; i++)
            y[i] = i / g.ldb < b_rows && i % g.ldb < g.ldb - 34 ? 0x3f80 : 0x7fc0;
        g.a = x, g.b = y;
        mx_gemm(&g);
        int64_t bad = 0;
        for (int64_t i = 0; i < m * n; i++)
            bad += ((float *)g.c)[i] != (float)g.k;
        MX_CHECK(bad == 0, "m=%ld n=%ld k=%ld form %d: %ld elements are not k", (long)m, (long)n,
                 (long)g.k, c % 4, (long)bad);
        mx_arena_fini(&a);
    }
}

/* Rows of C have the same bits alone, in any batch and with any number of threads, in every form,
 * and into bf16 as well. */
MX_TEST(gemm_bits_of_a_row_depend_on_that_row)
{
    uint32_t s = 14;
    for (int c = 0; c < 8; c++) {
        mx_arena a = {0};
        enum { M = 700, N = 320 };
        mx_gemm_args g = random_gemm(&a, M, N, c < 4 ? 500 : 2304, c % 4, &s);
        g.c_type = c % 2 ? MX_NUM_BF16 : MX_NUM_F32;
        size_t row = (size_t)(N * MX_NUM_BYTES(g.c_type));
        char *whole = g.c, *part = mx_arena_alloc(&a, M * row);
        mx_gemm(&g);
        g.c = part;
        for (g.threads = 2; g.threads <= 3; g.threads++) {
            memset(part, 0, M * row);
            mx_gemm(&g);
            MX_CHECK(memcmp(whole, part, M * row) == 0, "form %d, %d threads", c % 4, g.threads);
        }
        for (int64_t first = 0; first + 70 < M; first += 137) {
            g.m = 1 + first / 9;
            g.a = (const char *)g.a + 2 * (g.trans_a ? 137 : 137 * g.lda) * (first > 0);
            mx_gemm(&g);
            MX_CHECK(memcmp(whole + (size_t)first * row, part, (size_t)g.m * row) == 0,
                     "form %d, %ld rows from %ld", c % 4, (long)g.m, (long)first);
        }
        mx_arena_fini(&a);
    }
}
