/* group_tiles_test.c - a fused group against plain loops in double, for each way of cutting a space
 * into tiles (group_run.c): rows that are shorter, as long and longer than a tile, with operands
 * that repeat over rows, of one number per row on either side, and column sums beside them. */
#include "compile/passes.h"
#include "../compile/graph_run.h"
#include "ops.h"
#include "../test.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    int64_t batch, len, heads, cols;
} space;

static int64_t rows_of(const space *s)
{
    return s->batch * s->len * s->heads;
}

/* z = x c + turn(x) - n x, y = z / (1 + sigmoid(z n)) + w, d = n - y, and sums of y over rows and
 * over columns. */
static void build(mx_graph *g, const space *s, mx_dtype dtype, bool row_ops)
{
    mx_node *x = mx_input(g, "x", MX_SHAPE(s->batch, s->len, s->heads, s->cols), dtype);
    mx_node *c = mx_input(g, "c", MX_SHAPE(1, s->len, 1, s->cols), MX_F32);
    mx_node *n = mx_input(g, "n", MX_SHAPE(s->batch, s->len, s->heads, 1), MX_F32);
    mx_node *w = mx_input(g, "w", MX_SHAPE(s->cols), dtype);
    mx_node *turned = row_ops ? mx_rotate_half(g, x, s->cols, false) : mx_affine(g, x, 3, 0);
    mx_node *z = mx_sub(g, mx_add(g, mx_mul(g, x, c), turned), mx_mul(g, n, x));
    mx_node *gate = mx_affine(g, mx_sigmoid(g, mx_mul(g, z, n)), 1, 1);
    mx_node *y = mx_add(g, mx_div(g, z, gate), w);
    mx_graph_root(g, "y", mx_cast(g, y, dtype));
    mx_graph_root(g, "d", mx_sub(g, n, y));
    mx_graph_root(g, "sum", mx_sum_to(g, y, MX_SHAPE(s->cols)));
    if (row_ops)
        mx_graph_root(g, "r", mx_row_sum(g, y));
}

typedef struct {
    double *x, *c, *n, *w, *y, *d, *sum, *r;
} values;

static void expected(const space *s, const values *v, bool row_ops)
{
    memset(v->sum, 0, sizeof(double) * (size_t)s->cols);
    for (int64_t i = 0; i < rows_of(s); i++) {
        const double *x = v->x + i * s->cols, *c = v->c + i / s->heads % s->len * s->cols;
        v->r[i] = 0;
        for (int64_t j = 0; j < s->cols; j++) {
            int64_t half = s->cols / 2;
            double turned = !row_ops ? 3 * x[j] : j < half ? -x[j + half] : x[j - half];
            double z = x[j] * c[j] + turned - v->n[i] * x[j];
            double y = z / (1 + 1 / (1 + exp(-z * v->n[i]))) + v->w[j];
            v->y[i * s->cols + j] = y;
            v->d[i * s->cols + j] = v->n[i] - y;
            v->sum[j] += y;
            v->r[i] += y;
        }
    }
}

static void check(mx_graph_run *r, const char *name, const double *want, int64_t n, double most)
{
    double *got = mx_realloc(NULL, sizeof *got * (size_t)n);
    mx_graph_run_read(r, name, got);
    double far = mx_test_distance(got, want, n, 1e-3);
    MX_CHECK(far <= most, "%s is off by %g of its largest", name, far);
    mx_free(got);
}

static void round_to_bf16(double *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float f = (float)x[i];
        uint32_t u;
        memcpy(&u, &f, 4);
        u &= 0xffff0000u;
        memcpy(&f, &u, 4);
        x[i] = f;
    }
}

static double *filled(int64_t n, uint64_t seed)
{
    double *x = mx_realloc(NULL, sizeof *x * (size_t)n);
    mx_test_fill(x, n, -1, 1, seed);
    round_to_bf16(x, n); /* the same numbers in float32 and bfloat16 */
    return x;
}

static void run(const space *s, mx_dtype dtype, bool row_ops)
{
    int64_t rows = rows_of(s), all = rows * s->cols;
    values v = {filled(all, 1), filled(s->len * s->cols, 2), filled(rows, 3), filled(s->cols, 4),
                filled(all, 5), filled(all, 6), filled(s->cols, 7), filled(rows, 8)};
    mx_graph_run r;
    mx_graph_run_init(&r);
    build(&r.graph, s, dtype, row_ops);
    MX_CHECK_OK(mx_graph_run_compile(&r, true));
    MX_CHECK(r.exec->n_steps == 1, "%d kernels", r.exec->n_steps);
    mx_graph_run_write(&r, "x", v.x);
    mx_graph_run_write(&r, "c", v.c);
    mx_graph_run_write(&r, "n", v.n);
    mx_graph_run_write(&r, "w", v.w);
    mx_graph_run_go(&r);
    expected(s, &v, row_ops);
    double unit = dtype == MX_BF16 ? 0x1p-8 : 1e-6;
    check(&r, "y", v.y, all, unit);
    check(&r, "d", v.d, all, unit);
    check(&r, "sum", v.sum, s->cols, 8 * unit);
    if (row_ops)
        check(&r, "r", v.r, rows, 8 * unit);
    mx_graph_run_fini(&r);
    double *every[] = {v.x, v.c, v.n, v.w, v.y, v.d, v.sum, v.r};
    for (size_t i = 0; i < sizeof every / sizeof *every; i++)
        mx_free(every[i]);
}

MX_TEST(group_tiles_of_every_shape_match_plain_loops)
{
    static const space shapes[] = {
        {2, 5, 3, 64}, /* several rows a tile, the last one short, positions cut by tiles */
        {3, 41, 1, 22}, {1, 3, 200, 2}, {2, 7, 2, 768}, {1, 70, 2, 514}, {1, 9, 1, 1026},
        {2, 3, 2, 2500}, {1, 1, 1, 4096},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int k = 0; k < 4; k++)
            run(&shapes[i], k % 2 ? MX_BF16 : MX_F32, k / 2);
}

/* silu and its derivative, which run as one step: in the order of SwiGLU's backward pass, and with
 * the derivative's operand made too late for that. */
MX_TEST(group_tiles_make_twins_at_once)
{
    enum { ROWS = 7, COLS = 1500, N = ROWS * COLS };
    double *x = filled(N, 1), *d = filled(N, 2), *silu = filled(N, 3), *derivative = filled(N, 4);
    for (int k = 0; k < 4; k++) {
        mx_graph_run r;
        mx_graph_run_init(&r);
        mx_graph *g = &r.graph;
        mx_node *a = mx_input(g, "x", MX_SHAPE(ROWS, COLS), k % 2 ? MX_BF16 : MX_F32);
        mx_node *b = mx_input(g, "d", MX_SHAPE(ROWS, COLS), k % 2 ? MX_BF16 : MX_F32);
        mx_node *early = mx_mul(g, b, b), *y = mx_silu(g, a);
        mx_node *dy = k / 2 ? mx_mul(g, mx_mul(g, y, b), b) : early;
        mx_graph_root(g, "y", mx_mul(g, y, early));
        mx_graph_root(g, "dx", mx_silu_grad(g, a, dy));
        MX_CHECK_OK(mx_graph_run_compile(&r, true));
        MX_CHECK(r.exec->n_steps == 1, "%d kernels", r.exec->n_steps);
        mx_graph_run_write(&r, "x", x);
        mx_graph_run_write(&r, "d", d);
        mx_graph_run_go(&r);
        for (int i = 0; i < N; i++) {
            double s = 1 / (1 + exp(-x[i])), square = d[i] * d[i];
            silu[i] = x[i] * s * square;
            derivative[i] = (k / 2 ? silu[i] : square) * s * (1 + x[i] * (1 - s));
        }
        check(&r, "y", silu, N, k % 2 ? 0x1p-8 : 1e-6);
        check(&r, "dx", derivative, N, k % 2 ? 0x1p-8 : 1e-6);
        mx_graph_run_fini(&r);
    }
    double *every[] = {x, d, silu, derivative};
    for (size_t i = 0; i < sizeof every / sizeof *every; i++)
        mx_free(every[i]);
}

/* Without rows: pieces of the whole, and scalars on either side. */
MX_TEST(group_tiles_of_a_flat_space_match_plain_loops)
{
    enum { N = 5003 };
    double *x = filled(N, 1), *want = filled(N, 2);
    for (int k = 0; k < 2; k++) {
        mx_graph_run r;
        mx_graph_run_init(&r);
        mx_graph *g = &r.graph;
        mx_node *in = mx_input(g, "x", MX_SHAPE(N), k ? MX_BF16 : MX_F32);
        mx_node *one = mx_input(g, "one", MX_SCALAR, MX_F32);
        mx_graph_root(g, "y", mx_sub(g, mx_mul(g, in, one), mx_div(g, one, mx_exp(g, in))));
        MX_CHECK_OK(mx_graph_run_compile(&r, true));
        mx_graph_run_write(&r, "x", x);
        mx_graph_run_write(&r, "one", (double[]){0.5});
        mx_graph_run_go(&r);
        for (int i = 0; i < N; i++)
            want[i] = x[i] * 0.5 - 0.5 / exp(x[i]);
        check(&r, "y", want, N, k ? 0x1p-8 : 1e-6);
        mx_graph_run_fini(&r);
    }
    mx_free(x);
    mx_free(want);
}
