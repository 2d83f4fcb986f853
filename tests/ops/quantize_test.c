/* quantize_test.c - 8-bit casts against torch's, quantize and scaled_matmul against plain double
 * arithmetic, and the gradients of every recipe against high precision. */
#include "base/crc32c.h"
#include "base/fp8.h"
#include "compile/compile.h"
#include "../compile/graph_run.h"
#include "nn/nn.h"
#include "ops.h"
#include "../test.h"
#include <math.h>
#include <string.h>

/* --- casts --- */

/* Every upper half of a float, with lower halves that decide how it is rounded: checksums of what
 * torch 2.15 makes of them on the CPU. */
MX_TEST(fp8_casts_are_torchs)
{
    static const uint32_t low[] = {0, 0x8000, 0x7fff, 1};
    enum { N = 4 << 16 };
    uint8_t *e4m3 = mx_realloc(NULL, N), *e5m2 = mx_realloc(NULL, N);
    for (uint32_t i = 0; i < N; i++) {
        float x = mx_float_of_bits((i & 0xffff) << 16 | low[i >> 16]);
        e4m3[i] = mx_e4m3_of_float(x);
        e5m2[i] = mx_e5m2_of_float(x);
    }
    MX_CHECK(mx_crc32c(e4m3, N) == 0x01aeff77, "e4m3: %x", mx_crc32c(e4m3, N));
    MX_CHECK(mx_crc32c(e5m2, N) == 0x5b65634f, "e5m2: %x", mx_crc32c(e5m2, N));
    mx_free(e4m3);
    mx_free(e5m2);
}

MX_TEST(fp8_values_are_torchs)
{
    float e4m3[256], e5m2[256];
    for (int i = 0; i < 256; i++) {
        float a = mx_float_of_e4m3((uint8_t)i), b = mx_float_of_e5m2((uint8_t)i);
        e4m3[i] = isnan(a) ? 12345 : a;
        e5m2[i] = isnan(b) ? 12345 : b;
    }
    MX_CHECK(mx_crc32c(e4m3, sizeof e4m3) == 0x224facd2);
    MX_CHECK(mx_crc32c(e5m2, sizeof e5m2) == 0x7f716035);
}

/* The cast op stores what the conversion gives. */
MX_TEST(cast_to_fp8_rounds_and_saturates)
{
    const double x[] = {448, 464, 470, 1e9, -1e9, 0.0009765, 0.0009766, 17, 19};
    const double want[] = {448, 448, 448, 448, -448, 0, 0.001953125, 16, 20};
    double y[9];
    mx_graph_run r;
    mx_graph_run_init(&r);
    mx_node *in = mx_input(&r.graph, "x", MX_SHAPE(9), MX_F32);
    mx_graph_root(&r.graph, "y", mx_cast(&r.graph, in, MX_F8_E4M3));
    MX_CHECK_OK(mx_graph_run_compile(&r, true));
    mx_graph_run_write(&r, "x", x);
    mx_graph_run_go(&r);
    mx_graph_run_read(&r, "y", y);
    for (int i = 0; i < 9; i++)
        MX_CHECK(y[i] == want[i], "%g became %g", x[i], y[i]);
    mx_graph_run_fini(&r);
}

/* --- quantize --- */

static double rounded(double x, mx_dtype d)
{
    return d == MX_F8_E4M3   ? mx_float_of_e4m3(mx_e4m3_of_float((float)x))
           : d == MX_F8_E5M2 ? mx_float_of_e5m2(mx_e5m2_of_float((float)x))
           : d == MX_I8      ? rint(x) : (float)x;
}

enum { ROWS = 7, COLS = 300, MOST_BLOCKS = ROWS * COLS };

typedef struct {
    double q[ROWS * COLS], scale[MOST_BLOCKS], amax;
} quantized;

static quantized *quantize(const double *x, const mx_quantize_attr *a, double factor)
{
    quantized *out = mx_realloc(NULL, sizeof *out);
    mx_graph_run r;
    mx_graph_run_init(&r);
    mx_graph *g = &r.graph;
    mx_node *in = mx_input(g, "x", MX_SHAPE(ROWS, COLS), MX_F32);
    mx_node *f = factor != 0 ? mx_constant(g, MX_SCALAR, MX_F32, factor) : NULL;
    mx_node *q = mx_quantize(g, in, f, a);
    mx_graph_root(g, "q", q);
    mx_graph_root(g, "scale", mx_affine(g, mx_output(g, q, 1), 1, 0));
    mx_graph_root(g, "amax", mx_affine(g, mx_output(g, q, 2), 1, 0));
    MX_CHECK_OK(mx_graph_run_compile(&r, true));
    mx_graph_run_write(&r, "x", x);
    mx_graph_run_go(&r);
    mx_graph_run_read(&r, "q", out->q);
    mx_graph_run_read(&r, "scale", out->scale);
    mx_graph_run_read(&r, "amax", &out->amax);
    mx_graph_run_fini(&r);
    return out;
}

/* The largest block, element by element: what quantize's vectors and threads must find. */
static void check_blocks(const double *x, const mx_quantize_attr *a)
{
    quantized *got = quantize(x, a, 0);
    int64_t br = a->block_rows ? a->block_rows : ROWS, bc = a->block_cols ? a->block_cols : COLS;
    int64_t wide = (COLS + bc - 1) / bc, bad = 0;
    for (int64_t i = 0; i < ROWS * COLS; i++) {
        int64_t r0 = i / COLS / br * br, c0 = i % COLS / bc * bc;
        float most = 0;
        for (int64_t r = r0; r < r0 + br && r < ROWS; r++)
            for (int64_t c = c0; c < c0 + bc && c < COLS; c++)
                most = fmaxf(most, fabsf((float)x[r * COLS + c]));
        float f = mx_quant_most(a->dtype) / most;
        int exponent;
        frexpf(f, &exponent);
        f = a->power_of_two ? ldexpf(1, exponent - 1) : f;
        float v = (float)x[i] * f;
        double want = rounded(v, a->dtype);
        bad += got->q[i] != want || got->scale[r0 / br * wide + c0 / bc] != 1 / f;
    }
    MX_CHECK(!bad, "%s in blocks of %lld x %lld: %lld are wrong", mx_dtype_name(a->dtype),
             (long long)a->block_rows, (long long)a->block_cols, (long long)bad);
    mx_free(got);
}

MX_TEST(quantize_is_what_its_formula_says)
{
    static const mx_dtype dtype[] = {MX_F8_E4M3, MX_F8_E5M2, MX_I8};
    static const int64_t block[][2] = {{0, 0}, {1, 0}, {0, 1}, {1, 128}, {128, 128}, {128, 1},
                                       {2, 16}, {3, 1}};
    double x[ROWS * COLS];
    mx_test_fill(x, ROWS * COLS, -3, 5, 1);
    for (int i = 0; i < ROWS * COLS; i++)
        x[i] = (float)(x[i] * exp(i % 13)); /* blocks that differ */
    for (int d = 0; d < 3; d++)
        for (size_t b = 0; b < sizeof block / sizeof *block; b++)
            for (int p = 0; p < 2; p++)
                check_blocks(x, &(mx_quantize_attr){dtype[d], block[b][0], block[b][1], p});
}

MX_TEST(quantize_of_zeros_overflow_and_what_is_no_number)
{
    double x[ROWS * COLS] = {0};
    mx_quantize_attr rows = {MX_F8_E4M3, 1, 0}, ints = {MX_I8, 1, 0}, whole = {MX_F8_E4M3};
    x[COLS] = 1e-42; /* a number whose factor would be infinite */
    x[2 * COLS] = 3e38;
    x[3 * COLS + 5] = INFINITY;
    x[4 * COLS + 7] = NAN;
    quantized *a = quantize(x, &rows, 0), *b = quantize(x, &ints, 0);
    quantized *c = quantize(x, &whole, 1); /* with 0, the default here, it is the tensor's own */
    MX_CHECK(a->scale[0] == 1 && a->q[0] == 0 && b->scale[0] == 1 && b->q[0] == 0);
    MX_CHECK(isnormal(a->scale[1]) && isfinite(a->q[COLS]));
    MX_CHECK(a->q[2 * COLS] == 448 && b->q[2 * COLS] == 127);
    MX_CHECK(isnan(a->scale[3]) && isnan(b->scale[3]) && isnan(a->scale[4]) && isnan(b->scale[4]));
    MX_CHECK(a->scale[5] == 1 && isnan(a->amax), "amax %g", a->amax);
    /* with a factor from elsewhere: too large saturates, infinity and NaN are NaN */
    MX_CHECK(c->q[2 * COLS] == 448 && isnan(c->q[3 * COLS + 5]) && isnan(c->q[4 * COLS + 7]));
    MX_CHECK(c->scale[0] == 1 && c->q[3 * COLS + 4] == 0);
    mx_free(a);
    mx_free(b);
    mx_free(c);
}

/* Rounded at random, a number is its own mean; the same tensor is rounded the same way again. */
MX_TEST(quantize_at_random_is_unbiased_and_repeats)
{
    double x[ROWS * COLS], sum = 0;
    for (int i = 0; i < ROWS * COLS; i++)
        x[i] = i % COLS ? 20.3 : 127;
    mx_quantize_attr attr = {.dtype = MX_I8, .stochastic = true, .salt = 3};
    quantized *a = quantize(x, &attr, 0), *b = quantize(x, &attr, 0);
    attr.salt = 4;
    quantized *c = quantize(x, &attr, 0);
    int differ = 0, other = 0;
    for (int i = 0; i < ROWS * COLS; i++) {
        sum += i % COLS ? a->q[i] : 0;
        differ += a->q[i] != b->q[i];
        other += a->q[i] != c->q[i];
        MX_CHECK(!(i % COLS) || a->q[i] == 20 || a->q[i] == 21, "%g", a->q[i]);
    }
    double mean = sum / (ROWS * (COLS - 1));
    MX_CHECK(fabs(mean - 20.3) < 0.05, "mean %g", mean);
    MX_CHECK(!differ && other > 100, "%d and %d", differ, other);
    mx_free(a);
    mx_free(b);
    mx_free(c);
}

/* --- scaled_matmul --- */

typedef struct {
    mx_dtype a, b;
    int64_t m, n, k, grid[4]; /* rows and cols of a's and of b's scales */
    double limit;
} job;

static double scale_of(const double *s, const int64_t *grid, int64_t rows, int64_t r, int64_t k)
{
    int64_t block = grid[0] == rows ? 1 : grid[0] == 1 ? rows : 128;
    return s[r / block * grid[1] + (grid[1] == 1 ? 0 : k / 128)];
}

static void check_product(const job *j)
{
    mx_graph_run r;
    mx_graph_run_init(&r);
    mx_graph *g = &r.graph;
    mx_quantized a = {mx_input(g, "a", MX_SHAPE(j->m, j->k), j->a),
                      mx_input(g, "sa", MX_SHAPE(j->grid[0], j->grid[1]), MX_F32)};
    mx_quantized b = {mx_input(g, "b", MX_SHAPE(j->n, j->k), j->b),
                      mx_input(g, "sb", MX_SHAPE(j->grid[2], j->grid[3]), MX_F32)};
    mx_graph_root(g, "y", mx_scaled_matmul(g, a, b, MX_F32, NULL));
    MX_CHECK_OK(mx_graph_run_compile(&r, true));
    double *v[5];
    int64_t count[] = {j->m * j->k, j->n * j->k, j->grid[0] * j->grid[1], j->grid[2] * j->grid[3],
                       j->m * j->n};
    static const char *const name[] = {"a", "b", "sa", "sb"};
    for (int i = 0; i < 5; i++)
        v[i] = mx_realloc(NULL, sizeof(double) * (size_t)count[i]);
    for (int i = 0; i < 4; i++) {
        mx_test_fill(v[i], count[i], i < 2 ? -127 : 0.25, i < 2 ? 127 : 2, (uint64_t)i);
        mx_dtype d = i == 0 ? j->a : i == 1 ? j->b : MX_F32;
        for (int64_t k = 0; k < count[i]; k++)
            v[i][k] = rounded(v[i][k], d);
        mx_graph_run_write(&r, name[i], v[i]);
    }
    mx_graph_run_go(&r);
    mx_graph_run_read(&r, "y", v[4]);
    double far = 0, most = 0;
    for (int64_t m = 0; m < j->m; m++)
        for (int64_t n = 0; n < j->n; n++) {
            double sum = 0;
            for (int64_t k = 0; k < j->k; k++)
                sum += v[0][m * j->k + k] * scale_of(v[2], j->grid, j->m, m, k) *
                       v[1][n * j->k + k] * scale_of(v[3], j->grid + 2, j->n, n, k);
            far = fmax(far, fabs(sum - v[4][m * j->n + n]));
            most = fmax(most, fabs(sum));
        }
    MX_CHECK(far <= j->limit * most, "%s, k = %lld: off by %.2g of %.2g", mx_dtype_name(j->a),
             (long long)j->k, far, most);
    for (int i = 0; i < 5; i++)
        mx_free(v[i]);
    mx_graph_run_fini(&r);
}

MX_TEST(scaled_matmul_is_the_product_of_what_its_factors_mean)
{
    static const job jobs[] = {
        {MX_F8_E4M3, MX_F8_E4M3, 33, 48, 200, {1, 1, 1, 1}, 1e-6},
        {MX_F8_E5M2, MX_F8_E4M3, 33, 48, 200, {33, 1, 48, 1}, 1e-6},
        {MX_F8_E4M3, MX_F8_E4M3, 16, 200, 300, {16, 3, 2, 3}, 1e-6},
        {MX_F8_E4M3, MX_F8_E4M3, 140, 130, 260, {140, 3, 130, 3}, 1e-6},
        {MX_F8_E4M3, MX_F8_E4M3, 3, 2100, 64, {3, 1, 1, 1}, 1e-6}, /* more columns than at a time */
        {MX_I8, MX_I8, 5, 9, 5000, {5, 1, 9, 1}, 2e-7}, /* sums that float32 would round */
        {MX_I8, MX_I8, 17, 9, 64, {1, 1, 1, 1}, 2e-7},
    };
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++)
        check_product(&jobs[i]);
}

MX_TEST(scaled_matmul_refuses_what_does_not_fit)
{
    static const struct {
        mx_dtype a, b;
        mx_shape sa;
        const char *says;
    } bad[] = {{MX_I8, MX_F8_E4M3, {2, {1, 1}}, "two int8 tensors, or two of float8"},
               {MX_F32, MX_F32, {2, {1, 1}}, "two int8 tensors, or two of float8"},
               {MX_I8, MX_I8, {2, {3, 1}}, "expected scales for all"}};
    for (int i = 0; i < 3; i++) {
        mx_graph g;
        mx_graph_init(&g);
        mx_quantized a = {mx_input(&g, "a", MX_SHAPE(16, 32), bad[i].a),
                          mx_input(&g, "sa", bad[i].sa, MX_F32)};
        mx_quantized b = {mx_input(&g, "b", MX_SHAPE(8, 32), bad[i].b),
                          mx_input(&g, "sb", MX_SHAPE(1, 1), MX_F32)};
        mx_scaled_matmul(&g, a, b, MX_F32, NULL);
        MX_CHECK_ERROR(mx_graph_check(&g), bad[i].says);
        mx_graph_fini(&g);
    }
}

/* --- recipes --- */

enum { B = 2, S = 64, D = 160, F = 192, N_WEIGHTS = 3, MAX_SIZE = D * F };
static const char *const weight[N_WEIGHTS] = {"layers.0.up", "layers.0.down", "layers.0.odd"};

/* Two layers, one stored (in, out), and one whose size no recipe takes. */
static mx_node *model(mx_graph *g)
{
    mx_node *x = mx_input(g, "x", MX_SHAPE(B, S, D), MX_F32);
    mx_node *up = mx_param(g, weight[0], MX_SHAPE(F, D), NULL, MX_NORMAL(0.1));
    mx_node *down = mx_param(g, weight[1], MX_SHAPE(F, D), NULL, MX_NORMAL(0.1));
    mx_node *odd = mx_param(g, weight[2], MX_SHAPE(9, D), NULL, MX_NORMAL(0.1));
    mx_node *h = mx_silu(g, mx_matmul(g, "*d,fd->*f", x, up));
    mx_node *y = mx_add(g, x, mx_matmul(g, "*f,fd->*d", h, down));
    mx_node *z = mx_matmul(g, "*d,fd->*f", y, odd);
    mx_node *all = mx_add(g, mx_sum_all(g, mx_mul(g, y, y)), mx_sum_all(g, mx_mul(g, z, z)));
    return mx_graph_root(g, "loss", mx_affine(g, all, 1. / (B * S), 0));
}

typedef struct {
    float loss, grad[N_WEIGHTS][MAX_SIZE];
    int n_scaled, n_quantize;
} outcome;

static outcome *gradients(const mx_quant_recipe *recipe, mx_dtype compute, const char *policy)
{
    outcome *out = mx_realloc(NULL, sizeof *out);
    mx_graph g;
    mx_program p;
    mx_quant_report report = {0};
    mx_quant_rule rule = {"*", recipe};
    mx_quantization q = {&rule, 1, &report};
    *out = (outcome){0};
    mx_graph_init(&g);
    mx_node *loss = model(&g);
    mx_compile_options o = {.n_threads = 2, .compute = compute, .remat = {policy},
                            .quantization = recipe ? &q : NULL};
    MX_CHECK_OK(mx_compile_training(&g, loss, MX_GRADS_KEEP, NULL, &o, &p));
    for (int i = 0; i < p.n; i++) {
        out->n_scaled += p.order[i]->op == &mx_op_scaled_matmul;
        out->n_quantize += p.order[i]->op == &mx_op_quantize;
    }
    if (recipe) {
        MX_CHECK(report.n_quantized == 2 && report.n_high == 1);
        MX_CHECK(strstr(report.kept, "layers.*.odd: 128 rows times (9, 160)"), "%s", report.kept);
    }
    out->loss = mx_test_gradients(&p, weight, N_WEIGHTS, out->grad[0], MAX_SIZE);
    mx_program_fini(&p);
    mx_graph_fini(&g);
    return out;
}

/* The distance of two gradients as vectors, of the length of the second. */
static double distance(const float *a, const float *b)
{
    double far = 0, length = 0;
    for (int i = 0; i < MAX_SIZE; i++) {
        far += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        length += (double)b[i] * b[i];
    }
    return sqrt(far / length);
}

static void check_recipe(const char *name, double limit, int n_scaled, int n_quantize)
{
    const mx_quant_recipe *recipe = mx_quant_recipe_find(name);
    outcome *exact = gradients(NULL, MX_F32, "none");
    for (int d = 0; d < 2; d++) {
        outcome *low = gradients(recipe, d ? MX_BF16 : MX_F32, "none");
        outcome *again = gradients(recipe, d ? MX_BF16 : MX_F32, "full");
        MX_CHECK(low->n_scaled == n_scaled, "%s: %d scaled matmuls", name, low->n_scaled);
        MX_CHECK(low->n_quantize == n_quantize, "%s: %d quantized tensors", name, low->n_quantize);
        MX_CHECK(fabsf(low->loss - exact->loss) < 0.01 * exact->loss, "%s: loss %g, exact %g", name,
                 low->loss, exact->loss);
        for (int i = 0; i < 2; i++) {
            double far = distance(low->grad[i], exact->grad[i]);
            MX_CHECK(far < limit && far > limit / 10, "%s: gradient of %s is off by %.3g", name,
                     weight[i], far);
            MX_CHECK(memcmp(low->grad[i], again->grad[i], sizeof low->grad[i]) == 0,
                     "%s: %s differs where activations are computed again", name, weight[i]);
        }
        mx_free(low);
        mx_free(again);
    }
    mx_free(exact);
}

/* Of each layer the input, the weight and the gradient are quantized, twice where both dims are
 * summed over; the input of the first needs no gradient, so its weight is quantized once. */
MX_TEST(recipes_have_gradients_near_those_of_high_precision)
{
    check_recipe("fp8_tensorwise", 0.09, 5, 6);
    check_recipe("fp8_rowwise", 0.06, 5, 10);
    check_recipe("fp8_rowwise_gw_hp", 0.06, 3, 6);
    check_recipe("fp8_blockwise", 0.06, 5, 9);
    check_recipe("fp8_blockwise_hybrid", 0.09, 5, 9);
    check_recipe("fp8_e5m2", 0.12, 5, 10);
    check_recipe("int8", 0.03, 5, 10);
    check_recipe("int8_rowwise", 0.02, 5, 10);
    check_recipe("int8_tensorwise", 0.05, 5, 6);
}

/* --- delayed scaling --- */

/* Two programs of a session: the microbatches of a step share one factor, made of earlier steps. */
MX_TEST(amax_history_turns_once_a_step)
{
    enum { N = 5 };
    static const struct {
        double amax, first, factor, history[N];
    } step[] = {
        {3, 1, 0, {3, 0, 0, 0, 0}},         /* nothing seen yet */
        {5, 0, 0, {5, 0, 0, 0, 0}},         /* the same step */
        {2, 1, 448. / 5, {2, 5, 0, 0, 0}},
        {INFINITY, 0, 448. / 5, {2, 5, 0, 0, 0}},
        {1, 1, 448. / 5, {1, 2, 5, 0, 0}},  {1, 1, 448. / 5, {1, 1, 2, 5, 0}},
        {4, 1, 448. / 5, {4, 1, 1, 2, 5}},  {1, 1, 448. / 4, {1, 4, 1, 1, 2}},
        {1, 0, 448. / 4, {1, 4, 1, 1, 2}},
    };
    mx_graph_run r;
    mx_graph_run_init(&r);
    mx_graph *g = &r.graph;
    mx_node *h = mx_variable(g, "h", mx_type_of(MX_F32, MX_SHAPE(N)),
                             (mx_var_attr){.kind = MX_VAR_OPTIMIZER});
    mx_node *amax = mx_input(g, "amax", MX_SCALAR, MX_F32);
    mx_node *first = mx_input(g, "first", MX_SCALAR, MX_F32);
    mx_graph_root(g, "factor", mx_amax_factor(g, h, first, MX_F8_E4M3, false));
    mx_graph_root(g, "history", mx_affine(g, mx_amax_record(g, h, amax, first), 1, 0));
    MX_CHECK_OK(mx_graph_run_compile(&r, true));
    for (size_t i = 0; i < sizeof step / sizeof *step; i++) {
        double factor, history[N];
        mx_graph_run_write(&r, "amax", &step[i].amax);
        mx_graph_run_write(&r, "first", &step[i].first);
        mx_graph_run_go(&r);
        mx_graph_run_read(&r, "factor", &factor);
        mx_graph_run_read(&r, "history", history);
        MX_CHECK(fabs(factor - step[i].factor) < 1e-4, "%d: %g", (int)i, factor);
        for (int k = 0; k < N; k++)
            MX_CHECK(history[k] == step[i].history[k], "%d: entry %d is %g", (int)i, k, history[k]);
    }
    mx_graph_run_fini(&r);
}

/* A step writes three histories for each layer; a forward pass reads them and writes none. */
MX_TEST(delayed_recipes_keep_a_history_for_each_tensor)
{
    mx_quant_rule rule = {"*", mx_quant_recipe_find("fp8")};
    mx_quantization q = {&rule, 1, NULL};
    mx_optimizer adamw = {.b1 = 0.9, .b2 = 0.95, .eps = 1e-8};
    mx_compile_options o = {.n_threads = 1, .compute = MX_BF16, .quantization = &q};
    MX_CHECK(mx_quantization_is_delayed(&q));
    for (int train = 0; train < 2; train++) {
        mx_graph g;
        mx_program p;
        int n = 0;
        mx_graph_init(&g);
        mx_node *loss = model(&g);
        if (train)
            MX_CHECK_OK(mx_compile_training(&g, loss, MX_GRADS_APPLY, &adamw, &o, &p));
        else
            MX_CHECK_OK(mx_compile_forward(&g, &o, &p));
        for (int i = 0; i < p.n; i++)
            n += p.order[i]->op == &mx_op_amax_record;
        MX_CHECK(n == (train ? 6 : 0), "%d histories written", n);
        MX_CHECK(mx_graph_find(&g, "layers.0.up.input_amax") &&
                 !mx_graph_find(&g, "layers.0.up.grad_amax") == !train);
        mx_program_fini(&p);
        mx_graph_fini(&g);
    }
}
