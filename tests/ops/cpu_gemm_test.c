/* cpu_gemm_test.c - the GEMMs of ops/cpu/gemm.h against a plain triple loop in double.
 *
 * Shapes are small and odd so that every edge of the register tile is met; flags, types, leading
 * dimensions, batch and accumulation are drawn at random from a fixed seed. Guard values around C
 * catch a write outside of it.
 */
#include "../test.h"
#include "numbers.h"

#include "ops/cpu/gemm_tile.h"
#include "ops.h"
#include "ops/panels.h"
#include <math.h>
#include <string.h>

typedef void gemm_fn(const mx_gemm_args *g);
static double reference(const mx_gemm_args *g, int64_t p, int64_t i, int64_t j, double *magnitude)
{
    double sum = 0, mag = 0;
    for (int64_t k = 0; k < g->k; k++) {
        int64_t ia = p * g->a_step + (g->trans_a ? k * g->lda + i : i * g->lda + k);
        int64_t ib = p * g->b_step + (g->trans_b ? j * g->ldb + k : k * g->ldb + j);
        double x = get(g->a, ia, g->a_type) * get(g->b, ib, g->b_type);
        sum += x;
        mag += fabs(x);
    }
    *magnitude = 1e-6 + mag;
    return sum * g->alpha;
}

/* Runs g on a copy of c0 and compares every element, guards included. */
static void check(gemm_fn *run, const mx_gemm_args *g0, const void *c0, int64_t c_elems,
                  const char *what)
{
    mx_arena a = {0};
    mx_gemm_args g = *g0;
    int64_t batch = g.batch > 1 ? g.batch : 1;
    g.c = mx_arena_copy(&a, c0, (size_t)(c_elems * MX_NUM_BYTES(g.c_type)));
    run(&g);
    double unit = g.c_type == MX_NUM_F64 ? 1e-15 : 2e-7 * sqrt((double)g.k + 4);
    double last = g.c_type == MX_NUM_BF16 ? 0.0042 : 0; /* half a unit in the last place of bf16 */
    int bad = 0;
    for (int64_t p = 0; p < batch; p++)
        for (int64_t i = 0; i < g.m; i++)
            for (int64_t j = 0; j < g.ldc; j++) {
                int64_t at = p * g.c_step + i * g.ldc + j;
                double got = get(g.c, at, g.c_type), old = get(c0, at, g.c_type), mag = 0;
                double want = old, tol = 0;
                if (j < g.n) {
                    want = reference(&g, p, i, j, &mag) + (g.accumulate ? old : 0);
                    tol = unit * (mag + fabs(old)) + last * (fabs(want) + fabs(old));
                }
                if (!(fabs(got - want) <= tol) && bad++ < 3)
                    MX_CHECK(0, "%s m=%ld n=%ld k=%ld %c%c types %d%d%d add=%d: C[%ld,%ld,%ld]=%g, "
                             "expected %g", what, (long)g.m, (long)g.n, (long)g.k,
                             g.trans_a ? 'T' : 'N', g.trans_b ? 'T' : 'N', g.a_type, g.b_type,
                             g.c_type, g.accumulate, (long)p, (long)i, (long)j, got, want);
            }
    mx_arena_fini(&a);
}

static void random_case(uint32_t *s, int64_t m, int64_t n, int64_t k, const mx_num types[3])
{
    mx_arena a = {0};
    mx_gemm_args g = {.m = m, .n = n, .k = k, .a_type = types[0], .b_type = types[1],
                      .c_type = types[2], .alpha = next(s) % 2 ? 1.0 : 0.5};
    g.trans_a = next(s) % 2;
    g.trans_b = next(s) % 2;
    g.accumulate = next(s) % 2;
    g.batch = next(s) % 3;
    g.threads = (int)(next(s) % 3);
    g.lda = (g.trans_a ? m : k) + next(s) % 3;
    g.ldb = (g.trans_b ? k : n) + next(s) % 3;
    g.ldc = n + next(s) % 3;
    g.a_step = (g.trans_a ? k : m) * g.lda + next(s) % 3;
    g.b_step = next(s) % 4 ? (g.trans_b ? n : k) * g.ldb + next(s) % 3 : 0;
    g.c_step = m * g.ldc + next(s) % 3;
    int64_t batch = g.batch > 1 ? g.batch : 1;
    g.a = random_array(&a, batch * g.a_step + 1, g.a_type, s);
    g.b = random_array(&a, batch * (g.trans_b ? n : k) * g.ldb + 8, g.b_type, s);
    int64_t c_elems = batch * g.c_step + 1;
    void *c = random_array(&a, c_elems, g.c_type, s);
    check(mx_gemm, &g, c, c_elems, "random");
    mx_arena_fini(&a);
}

static const mx_num type_sets[][3] = {
    {MX_NUM_F32, MX_NUM_F32, MX_NUM_F32},    {MX_NUM_BF16, MX_NUM_BF16, MX_NUM_F32},
    {MX_NUM_BF16, MX_NUM_BF16, MX_NUM_BF16}, {MX_NUM_F32, MX_NUM_BF16, MX_NUM_F32},
    {MX_NUM_BF16, MX_NUM_F32, MX_NUM_BF16},  {MX_NUM_F64, MX_NUM_F64, MX_NUM_F64}};

MX_TEST(gemm_matches_triple_loop)
{
    uint32_t s = 1;
    for (int t = 0; t < 6; t++)
        for (int i = 0; i < 60; i++)
            random_case(&s, 1 + next(&s) % 40, 1 + next(&s) % 80, 1 + next(&s) % 70, type_sets[t]);
}

MX_TEST(gemm_crosses_block_edges)
{
    uint32_t s = 2;
    for (int t = 0; t < 6; t++)
        for (int i = 0; i < 4; i++) {
            random_case(&s, 15 + next(&s) % 9, 30 + next(&s) % 9, 800 + next(&s) % 900,
                        type_sets[t]);
            random_case(&s, 5 + next(&s) % 9, 380 + next(&s) % 400, 5 + next(&s) % 9, type_sets[t]);
            random_case(&s, 250 + next(&s) % 50, 33, 9 + next(&s) % 9, type_sets[t]);
            random_case(&s, 15 + next(&s) % 20, 500 + next(&s) % 100, 257 + next(&s) % 520,
                        type_sets[t]);
        }
}

static void run_base(const mx_gemm_args *g)
{
    mx_gemm_tile t = {g, g->a, g->b, g->c, 0, g->m, 0, g->n};
    mx_gemm_level_at(g->a_type, g->b_type, MX_SIMD_BASE)->run(&t);
}
static void run_v3(const mx_gemm_args *g)
{
    mx_gemm_tile t = {g, g->a, g->b, g->c, 0, g->m, 0, g->n};
    mx_gemm_level_at(g->a_type, g->b_type, MX_SIMD_V3)->run(&t);
}
static void run_v4(const mx_gemm_args *g)
{
    mx_gemm_tile t = {g, g->a, g->b, g->c, 0, g->m, 0, g->n};
    mx_gemm_level_at(g->a_type, g->b_type, MX_SIMD_V4)->run(&t);
}

/* The code that other machines would run, as far as this one can. */
MX_TEST(gemm_lower_cpu_levels_match_triple_loop)
{
    mx_arena a = {0};
    uint32_t s = 4;
    gemm_fn *const runs[] = {run_base, run_v3, run_v4};
    const mx_simd levels[] = {MX_SIMD_BASE, MX_SIMD_V3, MX_SIMD_V4};
    for (int l = 0; l < 3; l++)
        for (int i = 0; i < 24 && mx_simd_level() >= levels[l]; i++) {
            const mx_num *t = type_sets[i % 6];
            mx_gemm_args g = {.m = 1 + next(&s) % 30, .n = 1 + next(&s) % 60,
                              .k = 1 + next(&s) % 500, .trans_a = i & 1,
                              .trans_b = i / 2 & 1, .alpha = 1, .a_type = t[0],
                              .b_type = t[1], .c_type = t[2]};
            g.lda = g.trans_a ? g.m : g.k;
            g.ldb = g.trans_b ? g.k : g.n;
            g.ldc = g.n;
            g.a = random_array(&a, g.m * g.k, t[0], &s);
            g.b = random_array(&a, g.n * g.k, t[1], &s);
            void *c = random_array(&a, g.m * g.n, t[2], &s);
            check(runs[l], &g, c, g.m * g.n, l == 0 ? "baseline" : l == 1 ? "AVX2" : "AVX-512");
        }
    mx_arena_fini(&a);
}

/* The same row of A must give the same bits whatever the rows beside it and the thread count. */
MX_TEST(gemm_bits_do_not_depend_on_m_or_threads)
{
    mx_arena a = {0};
    uint32_t s = 3;
    enum { M = 600, N = 540 }; /* enough to be cut by rows and by columns */
    for (int t = 0; t < 4; t++) {
        mx_num type = t & 1 ? MX_NUM_BF16 : MX_NUM_F32;
        const int64_t K = t < 2 ? 1000 : 700;
        mx_gemm_args g = {.m = M, .n = N, .k = K, .lda = K, .ldb = K, .ldc = N, .trans_b = true,
                          .a_type = type, .b_type = type, .alpha = 1};
        g.a = random_array(&a, M * K, type, &s);
        g.b = random_array(&a, N * K, type, &s);
        float *whole = MX_NEW_N(&a, float, M *N), *part = MX_NEW_N(&a, float, M *N);
        g.c = whole;
        mx_gemm(&g);
        for (int threads = 1; threads <= 3; threads++) {
            g.c = part;
            g.threads = threads;
            mx_gemm(&g);
            MX_CHECK(memcmp(whole, part, sizeof(float) * M * N) == 0, "%d threads", threads);
        }
        for (int64_t m = 9; m < 60; m += 7) {
            g.m = m;
            mx_gemm(&g);
            MX_CHECK(memcmp(whole, part, sizeof(float) * (size_t)m * N) == 0, "m=%ld", (long)m);
        }
    }
    mx_arena_fini(&a);
}

/* B packed for more columns and more of k than a GEMM takes: the bits of the plain GEMM. */
MX_TEST(gemm_packed_b_gives_the_same_bits)
{
    uint32_t s = 77;
    for (int i = 0; i < 60; i++) {
        mx_arena a = {0};
        const mx_num *t = type_sets[i % 2];
        int64_t k_all = 2 + next(&s) % 250, n_all = 1 + next(&s) % 100;
        mx_gemm_args g = {.m = 9 + next(&s) % 60, .n = n_all, .k = k_all, .a_type = t[0],
                          .b_type = t[1], .c_type = MX_NUM_F32, .alpha = 0.5, .threads = 1};
        g.trans_b = next(&s) % 2;
        g.ldb = (g.trans_b ? g.k : g.n) + 1;
        g.b = random_array(&a, (g.trans_b ? g.n : g.k) * g.ldb, t[1], &s);
        void *packed = mx_arena_alloc(&a, mx_gemm_pack_bytes(&g));
        mx_gemm_pack(&g, packed);
        g.n -= next(&s) % (uint32_t)g.n;
        g.k -= next(&s) % (uint32_t)g.k;
        g.lda = next(&s) % 2 ? 544 : g.k; /* where rows are read where they lie, and anything */
        g.a = random_array(&a, g.m * g.lda, t[0], &s);
        g.ldc = g.n;
        size_t bytes = (size_t)(g.m * g.n) * sizeof(float);
        mx_gemm_args p = g;
        g.c = mx_arena_alloc(&a, bytes);
        p.c = mx_arena_alloc(&a, bytes);
        p.b = packed, p.ldb = k_all, p.b_packed = true;
        mx_gemm(&g);
        mx_gemm(&p);
        MX_CHECK(memcmp(g.c, p.c, bytes) == 0, "m=%ld n=%ld of %ld k=%ld of %ld types %d",
                 (long)g.m, (long)g.n, (long)n_all, (long)g.k, (long)k_all, t[0]);
        mx_arena_fini(&a);
    }
}

/* A weight laid out in place (ops/panels.h), over several blocks of k, for C of both types: the
 * bits of the GEMM that packs it, whatever m is. */
MX_TEST(gemm_of_a_weight_in_panels_gives_the_same_bits)
{
    uint32_t s = 5;
    for (int i = 0; i < 12; i++) {
        mx_arena a = {0};
        mx_dtype type = i % 2 ? MX_BF16 : MX_F32;
        mx_num t = i % 2 ? MX_NUM_BF16 : MX_NUM_F32;
        int64_t m = i < 4 ? 1 : 1 + next(&s) % 40, n = 96;
        int64_t k = i % 3 ? 2 * (1200 + next(&s) % 400) : 96;
        mx_gemm_args g = {.m = m, .n = n, .k = k, .a_type = t, .b_type = t, .alpha = 1,
                          .c_type = i % 4 == 3 ? MX_NUM_BF16 : MX_NUM_F32, .one_path = true,
                          .trans_b = true, .lda = k, .ldb = k, .ldc = n, .threads = 1 + i % 2};
        size_t bytes = (size_t)(m * n) * (size_t)MX_NUM_BYTES(g.c_type);
        g.a = random_array(&a, m * k, t, &s);
        void *w = random_array(&a, n * k, t, &s);
        mx_type of = mx_type_of(type, MX_SHAPE(n, k));
        MX_CHECK(mx_panels_fit(mx_panels_of(type), &of), "panels of %d", mx_panels_of(type).cols);
        g.b = w;
        mx_gemm_args p = g;
        g.c = mx_arena_alloc(&a, bytes);
        p.c = mx_arena_alloc(&a, bytes);
        p.b_packed = true;
        mx_gemm(&g);
        MX_CHECK_OK(mx_panels_lay(w, &of));
        mx_gemm(&p);
        MX_CHECK(memcmp(g.c, p.c, bytes) == 0, "m=%d k=%d %s", (int)m, (int)k, mx_dtype_name(type));
        mx_arena_fini(&a);
    }
}

/* Is (i, k) beyond the diagonal of g? */
static bool beyond(const mx_gemm_args *g, int64_t i, int64_t k)
{
    return g->shape == MX_GEMM_UPPER_A ? k < i - g->diagonal : k > i + g->diagonal;
}

/* Triangles: what is left out changes nothing that counts. */
MX_TEST(gemm_leaves_out_what_is_beyond_the_diagonal)
{
    uint32_t s = 78;
    for (int n = 0; n < 90; n++) {
        mx_arena a = {0};
        const mx_num *t = type_sets[n % 2];
        mx_gemm_args g = {.m = 1 + next(&s) % 70, .n = 1 + next(&s) % 80, .k = 1 + next(&s) % 70,
                          .a_type = t[0], .b_type = t[1], .c_type = MX_NUM_F32, .alpha = 1,
                          .accumulate = true, .threads = 1};
        g.shape = (mx_gemm_sizes)(MX_GEMM_LOWER_C + n % 3);
        g.diagonal = (int64_t)(next(&s) % 60) - 20;
        g.trans_a = g.shape == MX_GEMM_UPPER_A;
        g.lda = g.trans_a ? g.m : g.k, g.ldb = g.ldc = g.n;
        void *x = random_array(&a, g.m * g.k, t[0], &s);
        for (int64_t i = 0; i < g.m && g.shape != MX_GEMM_LOWER_C; i++)
            for (int64_t k = 0; k < g.k; k++)
                if (beyond(&g, i, k))
                    put(x, g.trans_a ? k * g.lda + i : i * g.lda + k, t[0], 0);
        g.a = x;
        g.b = random_array(&a, g.k * g.n, t[1], &s);
        float *c = random_array(&a, g.m * g.n, MX_NUM_F32, &s);
        float *whole = mx_arena_copy(&a, c, sizeof *c * (size_t)(g.m * g.n));
        g.c = c;
        mx_gemm(&g);
        mx_gemm_args w = g;
        w.shape = MX_GEMM_WHOLE, w.c = whole;
        mx_gemm(&w);
        for (int64_t i = 0; i < g.m; i++)
            for (int64_t j = 0; j < g.n; j++)
                if (g.shape != MX_GEMM_LOWER_C || !beyond(&g, i, j))
                    MX_CHECK(c[i * g.n + j] == whole[i * g.n + j],
                             "shape %d m=%ld n=%ld k=%ld diagonal %ld: C[%ld,%ld] %g, whole %g",
                             g.shape, (long)g.m, (long)g.n, (long)g.k, (long)g.diagonal, (long)i,
                             (long)j, (double)c[i * g.n + j], (double)whole[i * g.n + j]);
        mx_arena_fini(&a);
    }
}

MX_TEST(gemm_handles_empty_products)
{
    float c[6] = {1, 2, 3, 4, 5, 6}, x[1] = {0};
    mx_gemm_args g = {.m = 2, .n = 3, .k = 0, .a = x, .b = x, .c = c, .ldc = 3, .alpha = 1,
                      .accumulate = true};
    mx_gemm(&g);
    MX_CHECK(c[5] == 6);
    g.accumulate = false;
    mx_gemm(&g);
    MX_CHECK(c[0] == 0 && c[5] == 0);
    g.m = 0;
    mx_gemm(&g);
}

/* A row of a table that lies in panels, as the embedding reads it. */
MX_TEST(embedding_of_a_table_in_panels_gives_its_rows)
{
    enum { ROWS = 6, D = 8, N = 4 };
    float rows[ROWS * D], table[ROWS * D], out[N * D];
    int32_t id[N] = {5, 0, -1, 3};
    mx_panels p = {3, 2};
    for (int i = 0; i < ROWS * D; i++)
        rows[i] = (float)i;
    for (int r = 0; r < ROWS; r++)
        for (int k = 0; k < D; k++)
            table[mx_panel_at(p, D, r, k)] = rows[r * D + k];
    mx_tensor in[2] = {{.data = table, .type = {MX_F32, 2, {ROWS, D}}},
                       {.data = id, .type = {MX_I32, 1, {N}}}};
    mx_tensor y = {.data = out, .type = {MX_F32, 2, {N, D}}};
    mx_op_embed.cpu(&(mx_call){.in = in, .out = &y, .attr = &p});
    for (int i = 0; i < N; i++)
        for (int k = 0; k < D; k++)
            MX_CHECK(out[i * D + k] == (id[i] < 0 ? 0 : rows[id[i] * D + k]), "row %d", id[i]);
}
