/* ops_values_test.c - ops that move, choose and count, against values worked out another way.
 *
 * The table test (ops_table_test.c) proves that gradients fit the forward pass; it would accept a
 * transpose that permutes wrongly both ways. These tests say what the values are.
 */
#include "base/rng.h"
#include "compile/passes.h"
#include "../compile/graph_run.h"
#include "ops.h"
#include "../test.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Compiles, writes inputs x0.. and runs. */
static void start(mx_graph_run *r, int n, const double *const *x)
{
    MX_CHECK_OK(mx_graph_run_compile(r, true));
    for (int i = 0; i < n; i++) {
        char name[16];
        snprintf(name, sizeof name, "x%d", i);
        mx_graph_run_write(r, name, x[i]);
    }
    mx_graph_run_go(r);
}

#define START(r, ...)                                                                              \
    start((r), (int)(sizeof((const double *[]){__VA_ARGS__}) / sizeof(double *)),                  \
          (const double *[]){__VA_ARGS__})

static void expect(mx_graph_run *r, const char *name, int n, const double *want)
{
    double have[4096];
    MX_ASSERT(n <= 4096);
    mx_graph_run_read(r, name, have);
    for (int i = 0; i < n; i++)
        MX_CHECK(have[i] == want[i] || (isnan(have[i]) && isnan(want[i])),
                 "%s[%d] is %g, expected %g", name, i, have[i], want[i]);
}
#define EXPECT(r, name, ...)                                                                       \
    expect((r), (name), (int)(sizeof((double[]){__VA_ARGS__}) / sizeof(double)),                   \
           (double[]){__VA_ARGS__})

/* Where element `i` of a permuted tensor comes from, one index at a time. */
static int64_t source_of(const mx_shape *in, const char *dims, int64_t i)
{
    int64_t at = 0, stride[MX_MAX_DIMS], step = 1;
    for (int d = in->ndim - 1; d >= 0; step *= in->dim[d--])
        stride[d] = step;
    for (int d = in->ndim - 1; d >= 0; d--) {
        int from = (int)(strchr(dims, dims[in->ndim + 2 + d]) - dims);
        at += i % in->dim[from] * stride[from];
        i /= in->dim[from];
    }
    return at;
}

MX_TEST(transpose_moves_every_element)
{
    static const struct {
        mx_shape shape;
        const char *dims;
    } job[] = {
        {{2, {37, 70}}, "ab->ba"},           {{3, {3, 40, 33}}, "abc->acb"},
        {{3, {3, 40, 33}}, "abc->cba"},      {{4, {2, 5, 3, 8}}, "bshd->bhsd"},
        {{4, {2, 5, 3, 8}}, "abcd->dcab"},   {{5, {2, 3, 1, 4, 5}}, "abcde->ebcda"},
        {{6, {2, 3, 2, 3, 2, 3}}, "abcdef->fbdace"}, {{3, {4, 5, 6}}, "abc->abc"},
        {{3, {4, 0, 6}}, "abc->cab"},        {{2, {300, 290}}, "ab->ba"},
    };
    static const mx_dtype dtype[] = {MX_F64, MX_F32, MX_BF16, MX_I8};
    for (size_t j = 0; j < sizeof job / sizeof *job; j++)
        for (int d = 0; d < 4; d++) {
            mx_graph_run r;
            mx_graph_run_init(&r);
            mx_node *x = mx_input(&r.graph, "x0", job[j].shape, dtype[d]);
            mx_node *y = mx_graph_root(&r.graph, "y", mx_transpose(&r.graph, x, job[j].dims));
            int64_t n = mx_type_count(&x->type), bad = 0;
            MX_CHECK(mx_type_count(&y->type) == n);
            double *in = mx_realloc(NULL, sizeof *in * (size_t)(n + 1));
            double *out = mx_realloc(NULL, sizeof *out * (size_t)(n + 1));
            for (int64_t i = 0; i < n; i++)
                in[i] = (double)(i % 101);
            START(&r, in);
            mx_graph_run_read(&r, "y", out);
            for (int64_t i = 0; i < n; i++)
                bad += out[i] != in[source_of(&job[j].shape, job[j].dims, i)];
            MX_CHECK(!bad, "%s: %lld elements are wrong", job[j].dims, (long long)bad);
            mx_graph_run_fini(&r);
            mx_free(in);
            mx_free(out);
        }
}

MX_TEST(slices_pads_splits_and_concats)
{
    mx_graph_run r;
    mx_graph_run_init(&r);
    mx_graph *g = &r.graph;
    mx_node *x = mx_input(g, "x0", MX_SHAPE(2, 4), MX_F32);
    mx_node *y = mx_input(g, "x1", MX_SHAPE(2, 1), MX_F32);
    mx_node *parts = mx_split(g, x, 3, (int64_t[]){1, 2, 1});
    mx_graph_root(g, "slice", mx_slice(g, x, -1, 1, 2));
    mx_graph_root(g, "row", mx_slice(g, x, 0, 1, 1));
    mx_graph_root(g, "pad", mx_pad(g, mx_slice(g, x, -1, 0, 1), 1, 1, 2));
    mx_graph_root(g, "top", mx_pad(g, mx_slice(g, x, 0, 0, 1), 0, 1, 0));
    mx_graph_root(g, "wide", mx_concat(g, 2, (mx_node *[]){x, y}, -1));
    mx_graph_root(g, "tall", mx_concat(g, 3, (mx_node *[]){x, x, x}, 0));
    mx_graph_root(g, "mixed", mx_concat(g, 2, (mx_node *[]){y, mx_cast(g, x, MX_BF16)}, -1));
    mx_graph_root(g, "s1", mx_output(g, parts, 1));
    mx_graph_root(g, "s2", mx_output(g, parts, 2));
    START(&r, (double[]){1, 2, 3, 4, 5, 6, 7, 8}, (double[]){9, 10});
    EXPECT(&r, "slice", 2, 3, 6, 7);
    EXPECT(&r, "row", 5, 6, 7, 8);
    EXPECT(&r, "pad", 0, 1, 0, 0, 0, 5, 0, 0);
    EXPECT(&r, "top", 0, 0, 0, 0, 1, 2, 3, 4);
    EXPECT(&r, "wide", 1, 2, 3, 4, 9, 5, 6, 7, 8, 10);
    EXPECT(&r, "tall", 1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8);
    EXPECT(&r, "mixed", 9, 1, 2, 3, 4, 10, 5, 6, 7, 8);
    MX_CHECK(mx_exec_type(r.exec, "mixed")->dtype == MX_BF16);
    EXPECT(&r, "s1", 2, 3, 6, 7);
    EXPECT(&r, "s2", 4, 8);
    mx_graph_run_fini(&r);
}

MX_TEST(copies_are_whole_when_shared_by_threads)
{
    enum { ROWS = 3, COLS = 100000 };
    mx_graph_run r;
    mx_graph_run_init(&r);
    mx_graph *g = &r.graph;
    mx_node *x = mx_input(g, "x0", MX_SHAPE(ROWS, COLS), MX_F32);
    mx_node *both = mx_concat(g, 2, (mx_node *[]){x, x}, 1);
    mx_graph_root(g, "y", mx_slice(g, both, 1, COLS / 2, COLS));
    double *in = mx_realloc(NULL, sizeof *in * ROWS * COLS), bad = 0;
    double *out = mx_realloc(NULL, sizeof *out * ROWS * COLS);
    mx_test_fill(in, ROWS * COLS, 0, 1, 3);
    START(&r, in);
    mx_graph_run_read(&r, "y", out);
    for (int i = 0; i < ROWS; i++)
        for (int c = 0; c < COLS; c++)
            bad += out[i * COLS + c] != (float)in[i * COLS + (c + COLS / 2) % COLS];
    MX_CHECK(bad == 0, "%g elements are wrong", bad);
    mx_graph_run_fini(&r);
    mx_free(in);
    mx_free(out);
}

MX_TEST(embed_gives_zeros_outside_the_table)
{
    mx_graph_run r;
    mx_graph_run_init(&r);
    mx_graph *g = &r.graph;
    mx_node *table = mx_input(g, "x0", MX_SHAPE(3, 2), MX_BF16);
    mx_node *ids = mx_input(g, "x1", MX_SHAPE(2, 3), MX_I32);
    mx_graph_root(g, "y", mx_embed(g, table, ids));
    mx_graph_root(g, "dt", mx_embed_grad(g, ids, mx_embed(g, table, ids), 3));
    START(&r, (double[]){1, 2, 3, 4, 5, 6}, (double[]){2, -1, 0, 3, 2147483647, 2});
    EXPECT(&r, "y", 5, 6, 0, 0, 1, 2, 0, 0, 0, 0, 5, 6);
    EXPECT(&r, "dt", 1, 2, 0, 0, 10, 12);
    mx_graph_run_fini(&r);
}

MX_TEST(top_k_orders_ties_and_nan)
{
    mx_graph_run r;
    mx_graph_run_init(&r);
    mx_graph *g = &r.graph;
    mx_node *x = mx_input(g, "x0", MX_SHAPE(3, 6), MX_F32), *t = mx_top_k(g, x, 4);
    mx_graph_root(g, "v", t);
    mx_graph_root(g, "i", mx_output(g, t, 1));
    START(&r, (double[]){1, 3, 2, 3, 0, 3, -1, NAN, INFINITY, 5, NAN, -INFINITY, 7, 7, 7, 7, 7, 7});
    EXPECT(&r, "v", 3, 3, 3, 2, NAN, NAN, INFINITY, 5, 7, 7, 7, 7);
    EXPECT(&r, "i", 1, 3, 5, 2, 1, 4, 2, 3, 0, 1, 2, 3);
    mx_graph_run_fini(&r);
}

/* Against a full sort of (value, index). */
MX_TEST(top_k_agrees_with_sorting)
{
    enum { D = 1000, K = 130 };
    double x[2 * D], v[2 * K], at[2 * K];
    mx_graph_run r;
    mx_graph_run_init(&r);
    mx_node *t = mx_top_k(&r.graph, mx_input(&r.graph, "x0", MX_SHAPE(2, D), MX_F32), K);
    mx_graph_root(&r.graph, "v", t);
    mx_graph_root(&r.graph, "i", mx_output(&r.graph, t, 1));
    mx_test_fill(x, 2 * D, 0, 300, 5);
    for (int i = 0; i < 2 * D; i++)
        x[i] = floor(x[i]); /* many ties */
    START(&r, x);
    mx_graph_run_read(&r, "v", v);
    mx_graph_run_read(&r, "i", at);
    for (int row = 0; row < 2; row++)
        for (int k = 0; k < K; k++) {
            int j = (int)at[row * K + k], ahead = 0;
            for (int i = 0; i < D; i++)
                ahead += x[row * D + i] > x[row * D + j] ||
                         (x[row * D + i] == x[row * D + j] && i < j);
            MX_CHECK(ahead == k, "row %d: number %d is %d, behind %d others", row, k, j,
                     ahead);
            MX_CHECK(v[row * K + k] == x[row * D + j]);
        }
    mx_graph_run_fini(&r);
}

MX_TEST(gather_and_scatter_are_opposites)
{
    mx_graph_run r;
    mx_graph_run_init(&r);
    mx_graph *g = &r.graph;
    mx_node *x = mx_input(g, "x0", MX_SHAPE(2, 3), MX_F32);
    mx_node *at = mx_input(g, "x1", MX_SHAPE(2, 2), MX_I32);
    mx_node *y = mx_gather_last(g, x, at);
    mx_graph_root(g, "y", y);
    mx_graph_root(g, "z", mx_scatter_last(g, at, y, 4));
    START(&r, (double[]){1, 2, 3, 4, 5, 6}, (double[]){2, 0, 1, 1});
    EXPECT(&r, "y", 3, 1, 5, 5);
    EXPECT(&r, "z", 1, 0, 3, 0, 0, 10, 0, 0);
    mx_graph_run_fini(&r);
}

MX_TEST(tokens_sort_by_expert_and_come_back)
{
    mx_graph_run r;
    mx_graph_run_init(&r);
    mx_graph *g = &r.graph;
    mx_node *x = mx_input(g, "x0", MX_SHAPE(3, 2), MX_F32);
    mx_node *expert = mx_input(g, "x1", MX_SHAPE(3, 2), MX_I32);
    mx_node *w = mx_input(g, "x2", MX_SHAPE(6, 2), MX_F32);
    mx_node *order = mx_sort_by_expert(g, expert, 3), *place = mx_output(g, order, 2), *dx;
    mx_node *rows = mx_permute_rows(g, x, order, place);
    mx_node *back = mx_unpermute_rows(g, mx_mul(g, rows, w), order, place, 3);
    mx_gradients(g, back, mx_constant(g, MX_SHAPE(3, 2), MX_F32, 1), &x, 1, &dx);
    mx_graph_root(g, "order", order);
    mx_graph_root(g, "start", mx_output(g, order, 1));
    mx_graph_root(g, "place", place);
    mx_graph_root(g, "rows", rows);
    mx_graph_root(g, "back", back);
    mx_graph_root(g, "dx", dx);
    /* Token 0 goes to experts 2 and 0, token 1 to 0 and nowhere, token 2 to 2 and 0. */
    START(&r, (double[]){1, 2, 3, 4, 5, 6}, (double[]){2, 0, 0, -1, 2, 0},
          (double[]){1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 0, 0});
    EXPECT(&r, "order", 1, 2, 5, 0, 4, 3);
    EXPECT(&r, "start", 0, 3, 3, 5);
    EXPECT(&r, "place", 3, 0, 1, 5, 4, 2);
    EXPECT(&r, "rows", 1, 2, 3, 4, 5, 6, 1, 2, 5, 6, 3, 4);
    EXPECT(&r, "back", 5, 10, 6, 8, 40, 48);
    EXPECT(&r, "dx", 5, 5, 2, 2, 8, 8);
    mx_graph_run_fini(&r);
}

/* As the rows of a gated MLP: read twice, so that their gradient is a sum, which is formed while
 * the rows come back and by no node of its own. */
MX_TEST(two_gradients_of_sorted_tokens_come_back_as_one)
{
    for (int dtype = 0; dtype < 2; dtype++) {
        mx_graph_run r;
        mx_graph_run_init(&r);
        mx_graph *g = &r.graph;
        mx_dtype t = dtype ? MX_BF16 : MX_F32;
        mx_node *x = mx_input(g, "x0", MX_SHAPE(3, 2), t);
        mx_node *expert = mx_input(g, "x1", MX_SHAPE(3, 2), MX_I32);
        mx_node *w = mx_input(g, "x2", MX_SHAPE(6, 2), t);
        mx_node *v = mx_input(g, "x3", MX_SHAPE(6, 2), t);
        mx_node *order = mx_sort_by_expert(g, expert, 3), *place = mx_output(g, order, 2), *dx;
        mx_node *rows = mx_permute_rows(g, x, order, place);
        mx_node *both = mx_mul(g, mx_mul(g, rows, w), mx_mul(g, rows, v));
        mx_node *back = mx_unpermute_rows(g, both, order, place, 3);
        mx_gradients(g, back, mx_constant(g, MX_SHAPE(3, 2), t, 1), &x, 1, &dx);
        MX_CHECK(dx->op == &mx_op_unpermute_rows && dx->in[3], "a sum of its own: %s",
                 dx->op->name);
        mx_graph_root(g, "dx", dx);
        START(&r, (double[]){1, 2, 3, 4, 5, 6}, (double[]){2, 0, 0, 1, 2, 0},
              (double[]){1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6},
              (double[]){6, 1, 5, 1, 4, 1, 3, 1, 2, 1, 1, 1});
        /* order 1, 2, 5, 3, 0, 4: 2 x (w v) of the two places of each token, added */
        EXPECT(&r, "dx", 2 * 1 * (10 + 6), 2 * 2 * (5 + 1), 2 * 3 * (10 + 12), 2 * 4 * (2 + 4),
               2 * 5 * (6 + 12), 2 * 6 * (6 + 3));
        mx_graph_run_fini(&r);
    }
}

MX_TEST(running_sums_and_one_hot)
{
    mx_graph_run r;
    mx_graph_run_init(&r);
    mx_graph *g = &r.graph;
    mx_node *x = mx_input(g, "x0", MX_SHAPE(2, 3), MX_I32);
    mx_graph_root(g, "sum", mx_cumsum(g, x, false));
    mx_graph_root(g, "back", mx_cumsum(g, x, true));
    mx_graph_root(g, "hot", mx_one_hot(g, mx_slice(g, x, 1, 0, 1), 4));
    START(&r, (double[]){1, 2, 3, -4, 5, 6});
    EXPECT(&r, "sum", 1, 3, 6, -4, 1, 7);
    EXPECT(&r, "back", 6, 5, 3, 7, 11, 6);
    EXPECT(&r, "hot", 0, 1, 0, 0, 0, 0, 0, 0);
    mx_graph_run_fini(&r);
}

MX_TEST(cache_write_updates_a_variable_in_place)
{
    mx_graph_run r;
    mx_graph_run_init(&r);
    mx_graph *g = &r.graph;
    mx_type t = mx_type_of(MX_BF16, MX_SHAPE(2, 3, 1, 2)), tp = mx_type_of(MX_I32, MX_SHAPE(2, 3));
    mx_var_attr kind = {.init = {MX_INIT_VALUE, -1}, .kind = MX_VAR_CACHE};
    mx_node *cache = mx_variable(g, "cache", t, kind), *pos = mx_variable(g, "pos", tp, kind);
    mx_node *fresh = mx_input(g, "x0", MX_SHAPE(2, 2, 1, 2), MX_F32);
    mx_node *slots = mx_input(g, "x1", MX_SHAPE(2, 2), MX_I32);
    mx_graph_root(g, "after", mx_cache_write(g, cache, fresh, slots));
    mx_graph_root(g, "before", mx_cast(g, cache, MX_F32)); /* made later, must run earlier */
    mx_graph_root(g, "pos_after", mx_cache_write(g, pos, slots, slots));
    START(&r, (double[]){1, 2, 3, 4, 5, 6, 7, 8}, (double[]){2, 0, -1, 3});
    EXPECT(&r, "before", -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    EXPECT(&r, "after", 3, 4, -1, -1, 1, 2, -1, -1, -1, -1, -1, -1);
    EXPECT(&r, "pos_after", 0, -1, 2, -1, -1, -1);
    mx_graph_run_write(&r, "x1", (double[]){1, -1, 1, 1});
    mx_graph_run_go(&r);
    EXPECT(&r, "before", 3, 4, -1, -1, 1, 2, -1, -1, -1, -1, -1, -1);
    EXPECT(&r, "after", 3, 4, 1, 2, 1, 2, -1, -1, 7, 8, -1, -1);
    uint16_t raw[12];
    MX_CHECK_OK(mx_var_read(r.session, mx_session_find(r.session, "cache"), raw));
    MX_CHECK(raw[2] == 0x3f80, "the variable itself holds %#x, expected 1 as bfloat16", raw[2]);
    mx_graph_run_fini(&r);
}

/* The same graph with one thread and with two. */
MX_TEST(sums_do_not_depend_on_the_number_of_threads)
{
    enum { N = 3000, D = 24 };
    float one[2][1 + 50 * D];
    double *x = mx_realloc(NULL, sizeof *x * N * D), *id = mx_realloc(NULL, sizeof *id * N);
    double squares = 0;
    mx_test_fill(x, N * D, -1, 1, 9);
    mx_test_fill(id, N, 0, 50, 10);
    for (int i = 0; i < N * D; i++)
        squares += (double)(float)x[i] * (float)x[i];
    for (int threads = 1; threads <= 2; threads++) {
        mx_graph_run r;
        mx_graph_run_init(&r);
        mx_node *in = mx_input(&r.graph, "x0", MX_SHAPE(N, D), MX_F32);
        mx_node *ids = mx_input(&r.graph, "x1", MX_SHAPE(N), MX_I32);
        mx_graph_root(&r.graph, "s", mx_sum_squares(&r.graph, in));
        mx_graph_root(&r.graph, "d", mx_embed_grad(&r.graph, ids, in, 50));
        r.n_threads = threads;
        START(&r, x, id);
        MX_CHECK_OK(mx_exec_read(r.exec, "s", &one[threads - 1][0]));
        MX_CHECK_OK(mx_exec_read(r.exec, "d", &one[threads - 1][1]));
        mx_graph_run_fini(&r);
    }
    MX_CHECK(memcmp(one[0], one[1], sizeof one[0]) == 0, "one and two threads differ");
    MX_CHECK(fabs(one[0][0] - squares) < 1e-6 * squares, "%g, expected %g", one[0][0], squares);
    mx_free(x);
    mx_free(id);
}

MX_TEST(random_numbers_are_philox_and_dropout_keeps_the_mean)
{
    enum { N = 40001 };
    mx_graph_run r;
    mx_graph_run_init(&r);
    mx_graph *g = &r.graph;
    mx_node *seed = mx_input(g, "x0", MX_SCALAR, MX_I64);
    mx_graph_root(g, "u", mx_random_uniform(g, seed, 7, MX_SHAPE(N)));
    mx_node *ones = mx_broadcast_to(g, mx_constant(g, MX_SCALAR, MX_F32, 1), MX_SHAPE(N));
    mx_graph_root(g, "y", mx_dropout(g, ones, seed, 7, 0.25));
    double *u = mx_realloc(NULL, sizeof *u * N), *y = mx_realloc(NULL, sizeof *y * N), sum = 0;
    START(&r, (double[]){123456789});
    mx_graph_run_read(&r, "u", u);
    mx_graph_run_read(&r, "y", y);
    for (int i = 0; i < N; i++) {
        float want = mx_uniform_f32(mx_philox(123456789, 7, (uint64_t)i / 4).v[i % 4]);
        MX_CHECK(u[i] == want, "number %d is %g, expected %g", i, u[i], want);
        MX_CHECK(y[i] == (u[i] < 0.25 ? 0 : (float)(1 / 0.75)), "dropout of 1 is %g", y[i]);
        sum += y[i];
    }
    MX_CHECK(fabs(sum / N - 1) < 0.02, "the mean after dropout is %g", sum / N);
    mx_graph_run_fini(&r);
    mx_free(u);
    mx_free(y);
}

/* Every way to keep or sum the dims of a (2, 3, 4, 5) tensor, in three dtypes. */
MX_TEST(sum_to_adds_the_right_elements)
{
    static const mx_dtype dtype[] = {MX_F64, MX_F32, MX_BF16};
    const int64_t full[4] = {2, 3, 4, 5};
    double x[120];
    for (int i = 0; i < 120; i++)
        x[i] = i % 17;
    for (int mask = 0; mask < 16; mask++)
        for (int d = 0; d < 3; d++) {
            mx_shape to = {.ndim = 4};
            double want[120] = {0};
            int64_t count = 1;
            for (int k = 0; k < 4; k++)
                count *= to.dim[k] = mask >> k & 1 ? full[k] : 1;
            for (int i = 0; i < 120; i++) {
                int64_t index[4] = {i / 60, i / 20 % 3, i / 5 % 4, i % 5}, at = 0;
                for (int k = 0; k < 4; k++)
                    at = at * to.dim[k] + (to.dim[k] == 1 ? 0 : index[k]);
                want[at] += x[i];
            }
            mx_graph_run r;
            mx_graph_run_init(&r);
            mx_node *in = mx_input(&r.graph, "x0", MX_SHAPE(2, 3, 4, 5), dtype[d]);
            mx_graph_root(&r.graph, "y", mx_sum_to(&r.graph, mx_affine(&r.graph, in, 1, 0), to));
            START(&r, x);
            expect(&r, "y", (int)count, want);
            mx_graph_run_fini(&r);
        }
}

/* Every visible pair, one at a time: 70 queries are more than a tile, 2 of 4 heads share keys. */
MX_TEST(max_logits_is_the_largest_visible_score)
{
    enum { S = 70, H = 4, K = 2, D = 8, WINDOW = 30 };
    double q[S * H * D], k[S * K * D], seg[S], want[H];
    for (int i = 0; i < S * H * D; i++)
        q[i] = mx_uniform_f64(mx_philox(1, 2, (uint64_t)i).v[0], 0) - 0.5;
    for (int i = 0; i < S * K * D; i++)
        k[i] = mx_uniform_f64(mx_philox(1, 3, (uint64_t)i).v[0], 0) - 0.5;
    for (int i = 0; i < S; i++)
        seg[i] = i < 41 ? 1 : 2;
    for (int h = 0; h < H; h++) {
        want[h] = -INFINITY;
        for (int s = 0; s < S; s++)
            for (int t = s > WINDOW - 1 ? s - WINDOW + 1 : 0; t <= s; t++) {
                double sum = 0;
                for (int i = 0; i < D; i++)
                    sum += q[(s * H + h) * D + i] * k[(t * K + h / 2) * D + i];
                if (seg[s] == seg[t])
                    want[h] = fmax(want[h], 0.5 * sum);
            }
    }
    mx_graph_run r;
    mx_graph_run_init(&r);
    mx_node *x0 = mx_input(&r.graph, "x0", MX_SHAPE(1, S, H, D), MX_F64);
    mx_node *x1 = mx_input(&r.graph, "x1", MX_SHAPE(1, S, K, D), MX_F64);
    mx_node *x2 = mx_input(&r.graph, "x2", MX_SHAPE(1, S), MX_I32);
    mx_graph_root(&r.graph, "y", mx_max_logits(&r.graph, x0, x1, x2, WINDOW, 0.5));
    START(&r, q, k, seg);
    double have[H];
    mx_graph_run_read(&r, "y", have);
    for (int h = 0; h < H; h++)
        MX_CHECK(fabs(have[h] - want[h]) < 1e-12, "head %d: %g, expected %g", h, have[h], want[h]);
    mx_graph_run_fini(&r);
}
