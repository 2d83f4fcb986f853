/* fuse_test.c - what becomes one kernel, what must not, and that nothing but the speed changes. The
 * random graphs of passes_test.c run through the same pass. */
#include "compile/passes.h"

#include "graph_run.h"
#include "ops.h"
#include "../test.h"
#include <stdio.h>
#include <string.h>

static int count_groups(const mx_graph_run *r)
{
    int n = 0;
    for (int i = 0; i < r->exec->n_steps; i++)
        n += r->exec->step[i].op == &mx_op_fused;
    return n;
}

/* A chain of which every value is a result: more than a node can have. */
MX_TEST(fuse_keeps_groups_within_the_limit_of_outputs)
{
    mx_graph_run r;
    mx_graph_run_init(&r);
    mx_graph *g = &r.graph;
    mx_node *x = mx_input(g, "x", MX_SHAPE(5), MX_F64);
    char name[16];
    for (int i = 0; i < 3 * MX_MAX_OUT; i++) {
        x = mx_affine(g, x, 1, 1);
        snprintf(name, sizeof name, "y%d", i);
        mx_graph_root(g, name, x);
    }
    MX_CHECK_OK(mx_graph_run_compile(&r, true));
    mx_graph_run_write(&r, "x", (double[]){0, 1, 2, 3, 4});
    mx_graph_run_go(&r);
    for (int i = 0; i < 3 * MX_MAX_OUT; i++) {
        double y[5];
        snprintf(name, sizeof name, "y%d", i);
        mx_graph_run_read(&r, name, y);
        MX_CHECK(y[2] == 2 + i + 1, "%s is %g", name, y[2]);
    }
    MX_CHECK(count_groups(&r) == 3, "%d groups of at most %d results", count_groups(&r),
             MX_MAX_OUT);
    mx_graph_run_fini(&r);
}

/* Integers have no fractions, fused or not. */
MX_TEST(fuse_truncates_integers)
{
    for (int merge = 0; merge < 2; merge++) {
        mx_graph_run r;
        mx_graph_run_init(&r);
        mx_graph *g = &r.graph;
        mx_node *x = mx_input(g, "x", MX_SHAPE(2, 2), MX_F32);
        mx_node *half = mx_affine(g, mx_cast(g, x, MX_I32), 0.5, 0);
        mx_graph_root(g, "y", mx_cast(g, mx_add(g, half, mx_row_sum(g, half)), MX_F32));
        MX_CHECK_OK(mx_graph_run_compile(&r, merge));
        double y[4];
        mx_graph_run_write(&r, "x", (double[]){3.9, -3.9, 7.5, 1});
        mx_graph_run_go(&r);
        mx_graph_run_read(&r, "y", y);
        MX_CHECK(y[0] == 1 && y[1] == -1 && y[2] == 6 && y[3] == 3, "merge=%d: %g %g %g %g", merge,
                 y[0], y[1], y[2], y[3]);
        mx_graph_run_fini(&r);
    }
}

/* x = 2 cache; the cache is written; y = x + cache. The group {x, y} would have to run both before
 * and after the update. */
MX_TEST(fuse_does_not_put_a_read_off_past_an_update)
{
    for (int merge = 0; merge < 2; merge++) {
        mx_graph_run r;
        mx_graph_run_init(&r);
        mx_graph *g = &r.graph;
        mx_type t = mx_type_of(MX_F32, MX_SHAPE(1, 3));
        mx_node *cache = mx_variable(g, "cache", t, (mx_var_attr){.kind = MX_VAR_CACHE});
        mx_node *fresh = mx_input(g, "fresh", MX_SHAPE(1, 1), MX_F32);
        mx_node *slot = mx_input(g, "slot", MX_SHAPE(1, 1), MX_I32);
        mx_node *x = mx_affine(g, mx_reshape(g, cache, MX_SHAPE(1, 3)), 2, 0);
        mx_node *now = mx_cache_write(g, cache, fresh, slot);
        mx_graph_root(g, "y", mx_add(g, x, now));
        MX_CHECK_OK(mx_graph_run_compile(&r, merge));
        mx_graph_run_write(&r, "fresh", (double[]){5});
        mx_graph_run_write(&r, "slot", (double[]){1});
        double y[3];
        for (int i = 0; i < 2; i++)
            mx_graph_run_go(&r);
        mx_graph_run_read(&r, "y", y);
        MX_CHECK(y[0] == 0 && y[1] == 15 && y[2] == 0, "%g %g %g", y[0], y[1], y[2]);
        mx_graph_run_fini(&r);
    }
}

/* The gradients of a product gate: made from the same three tensors, read by different matmuls. */
MX_TEST(fuse_joins_what_reads_the_same)
{
    mx_graph_run r;
    mx_graph_run_init(&r);
    mx_graph *g = &r.graph;
    mx_node *in[3];
    static const char *const name[] = {"a", "b", "c"};
    for (int i = 0; i < 3; i++)
        in[i] = mx_input(g, name[i], MX_SHAPE(4, 4), MX_F64);
    mx_node *first = mx_matmul(g, "mk,kn->mn", mx_mul(g, in[0], in[1]), in[2]);
    mx_node *second = mx_matmul(g, "mk,kn->mn", mx_mul(g, in[0], mx_silu(g, in[1])), in[2]);
    mx_graph_root(g, "y", first);
    mx_graph_root(g, "z", second);
    MX_CHECK_OK(mx_graph_run_compile(&r, true));
    MX_CHECK(count_groups(&r) == 1, "%d groups", count_groups(&r));
    mx_graph_run_fini(&r);
}

/* y = x + sum(x) w: the sum lies between the two, so they cannot be one kernel. */
MX_TEST(fuse_leaves_apart_what_something_lies_between)
{
    mx_graph_run r;
    mx_graph_run_init(&r);
    mx_graph *g = &r.graph;
    mx_node *a = mx_input(g, "a", MX_SHAPE(4, 4), MX_F64);
    mx_node *x = mx_exp(g, a), *m = mx_matmul(g, "mk,kn->mn", x, a);
    mx_graph_root(g, "y", mx_add(g, mx_add(g, x, m), a));
    MX_CHECK_OK(mx_graph_run_compile(&r, true));
    MX_CHECK(count_groups(&r) == 2, "%d groups", count_groups(&r));
    mx_graph_run_fini(&r);
}

/* Sums over 300 rows beside what is summed, over threads and blocks: the bits of the op alone. */
MX_TEST(fuse_sums_columns_on_the_side)
{
    enum { ROWS = 300, COLS = 40 };
    static double x[ROWS * COLS], sum[2][2][COLS], y[ROWS * COLS];
    mx_test_fill(x, ROWS * COLS, -1, 1, 3);
    for (int merge = 0; merge < 2; merge++) {
        mx_graph_run r;
        mx_graph_run_init(&r);
        mx_graph *g = &r.graph;
        mx_node *in = mx_input(g, "x", MX_SHAPE(3, ROWS / 3, COLS), MX_F32);
        mx_node *z = mx_mul(g, in, mx_row_sum(g, in));
        mx_graph_root(g, "y", mx_exp(g, z));
        mx_graph_root(g, "s", mx_sum_to(g, z, MX_SHAPE(COLS)));
        mx_graph_root(g, "t", mx_sum_to(g, in, MX_SHAPE(1, COLS)));
        MX_CHECK_OK(mx_graph_run_compile(&r, merge));
        MX_CHECK(!merge || r.exec->n_steps == 1, "%d steps", r.exec->n_steps);
        mx_graph_run_write(&r, "x", x);
        mx_graph_run_go(&r);
        mx_graph_run_read(&r, "s", sum[merge][0]);
        mx_graph_run_read(&r, "t", sum[merge][1]);
        mx_graph_run_read(&r, "y", y);
        mx_graph_run_fini(&r);
    }
    MX_CHECK(memcmp(sum[0], sum[1], sizeof sum[0]) == 0, "fused and unfused sums differ");
    MX_CHECK(sum[1][1][5] != 0, "nothing was summed");
}

/* What the backward pass computes again from x must not move into the forward pass's group, which
 * reads x as well: it would be kept from there on. */
MX_TEST(fuse_leaves_recomputation_where_it_is)
{
    mx_graph_run r;
    mx_graph_run_init(&r);
    mx_graph *g = &r.graph;
    mx_node *x = mx_input(g, "x", MX_SHAPE(4, 4), MX_F64);
    mx_graph_root(g, "y", mx_matmul(g, "mk,kn->mn", mx_exp(g, x), x));
    g->backward = true;
    mx_graph_root(g, "dy", mx_matmul(g, "mk,kn->mn", mx_tanh(g, x), x));
    MX_CHECK_OK(mx_graph_run_compile(&r, true));
    MX_CHECK(count_groups(&r) == 2, "%d groups", count_groups(&r));
    mx_graph_run_fini(&r);
}

/* A group over rows that are many to a tile, the last tile not full: operands of every kind (whole,
 * one row for all, one row for some, a number per row, one number), a row op, sums of rows and of
 * columns, results of two dtypes. The same bits from 1, 2 and 3 threads. */
enum { GB = 9, GS = 7, GH = 3, GD = 24, GROWS = GB * GS * GH };

static void run_tiles(int n_threads, const double *const in[5], double *y, double *sum, double *col)
{
    mx_graph_run r;
    mx_graph_run_init(&r);
    r.n_threads = n_threads;
    mx_graph *g = &r.graph;
    mx_node *x = mx_input(g, "x", MX_SHAPE(GB, GS, GH, GD), MX_BF16);
    mx_node *some = mx_input(g, "some", MX_SHAPE(GS, 1, GD), MX_F32);
    mx_node *all = mx_input(g, "all", MX_SHAPE(GD), MX_F32);
    mx_node *row = mx_input(g, "row", MX_SHAPE(GB, GS, GH, 1), MX_F32);
    mx_node *one = mx_input(g, "one", MX_SCALAR, MX_F32);
    mx_node *z = mx_mul(g, mx_add(g, mx_mul(g, mx_cast(g, x, MX_F32), all), some), row);
    mx_node *total = mx_add(g, mx_row_sum(g, z), one);
    mx_node *out = mx_add(g, mx_cumsum(g, z, false), total);
    mx_graph_root(g, "y", mx_cast(g, out, MX_BF16));
    mx_graph_root(g, "total", total);
    mx_graph_root(g, "col", mx_sum_to(g, z, MX_SHAPE(GD)));
    MX_CHECK_OK(mx_graph_run_compile(&r, true));
    MX_CHECK(count_groups(&r) == 1, "%d groups", count_groups(&r));
    const char *name[5] = {"x", "some", "all", "row", "one"};
    for (int i = 0; i < 5; i++)
        mx_graph_run_write(&r, name[i], in[i]);
    mx_graph_run_go(&r);
    mx_graph_run_read(&r, "y", y);
    mx_graph_run_read(&r, "total", sum);
    mx_graph_run_read(&r, "col", col);
    mx_graph_run_fini(&r);
}

MX_TEST(fuse_runs_many_short_rows_at_a_time)
{
    static double x[GROWS * GD], some[GS * GD], all[GD], row[GROWS], one[1] = {3};
    static double y[4][GROWS * GD], sum[4][GROWS], col[4][GD];
    const double *const in[5] = {x, some, all, row, one};
    for (int64_t i = 0; i < GROWS * GD; i++) /* small integers: float32 and bfloat16 are exact */
        x[i] = (double)(i * 7 % 5 - 2);
    for (int i = 0; i < GS * GD; i++)
        some[i] = i % 5;
    for (int i = 0; i < GD; i++)
        all[i] = i % 2 + 1;
    for (int i = 0; i < GROWS; i++)
        row[i] = i % 4 - 1;
    for (int r = 0; r < GROWS; r++) {
        double run = 0, z[GD];
        for (int d = 0; d < GD; d++) {
            z[d] = (x[r * GD + d] * all[d] + some[r / GH % GS * GD + d]) * row[r];
            sum[0][r] += z[d];
            col[0][d] += z[d];
        }
        sum[0][r] += one[0];
        for (int d = 0; d < GD; d++)
            y[0][r * GD + d] = (run += z[d]) + sum[0][r];
    }
    for (int threads = 1; threads <= 3; threads++) {
        run_tiles(threads, in, y[threads], sum[threads], col[threads]);
        MX_CHECK(memcmp(y[threads], y[0], sizeof y[0]) == 0, "%d threads", threads);
        MX_CHECK(memcmp(sum[threads], sum[0], sizeof sum[0]) == 0, "%d threads", threads);
        MX_CHECK(memcmp(col[threads], col[0], sizeof col[0]) == 0, "%d threads", threads);
    }
}

/* {g1, g2} -> m -> {p, b} -> x -> {g1, g2}: neither group leads back to itself when it is closed,
 * and one of the two waits for itself. */
MX_TEST(fuse_takes_groups_apart_that_wait_for_each_other)
{
    mx_graph_run r;
    mx_graph_run_init(&r);
    mx_graph *g = &r.graph;
    mx_node *w = mx_input(g, "w", MX_SHAPE(2, 2), MX_F64);
    mx_node *i1 = mx_input(g, "i1", MX_SHAPE(2, 2), MX_F64);
    mx_node *i2 = mx_input(g, "i2", MX_SHAPE(2, 2), MX_F64);
    mx_node *p = mx_affine(g, i1, 2, 0);
    mx_node *x = mx_matmul(g, "mk,kn->mn", p, w);
    mx_node *g1 = mx_affine(g, i2, 3, 0);
    mx_node *m = mx_matmul(g, "mk,kn->mn", g1, w);
    mx_graph_root(g, "b", mx_mul(g, p, m));
    mx_graph_root(g, "g2", mx_mul(g, g1, x));
    MX_CHECK_OK(mx_graph_run_compile(&r, true));
    mx_graph_run_write(&r, "w", (double[]){1, 2, 3, 4});
    mx_graph_run_write(&r, "i1", (double[]){1, 0, 0, 1});
    mx_graph_run_write(&r, "i2", (double[]){1, 1, 1, 1});
    mx_graph_run_go(&r);
    double b[4], g2[4];
    mx_graph_run_read(&r, "b", b);
    mx_graph_run_read(&r, "g2", g2);
    MX_CHECK(b[0] == 24 && b[1] == 0 && b[3] == 36, "b is %g %g %g", b[0], b[1], b[3]);
    MX_CHECK(g2[0] == 6 && g2[3] == 24, "g2 is %g %g", g2[0], g2[3]);
    mx_graph_run_fini(&r);
}
