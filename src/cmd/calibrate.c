/* calibrate.c - see calibrate.h.
 *
 * A trial runs in a row until it has taken long enough. Values are random, since the power that a
 * GPU draws, and so its clock, depends on them. What cannot run alone (a GEMM of 8-bit numbers
 * needs them made, a backward pass its forward pass) is timed with and without.
 */
#include "cmd/calibrate.h"

#include "base/clock.h"
#include "compile/compile.h"
#include "compile/quantize.h"
#include "ops.h"
#include "ops/recurrent.h"
#include "plan/kernels.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { SIZES = 6, STARTS = 129 };

/* What a trial computes: the sizes mean what `build` says. */
typedef struct {
    void (*build)(mx_graph *g, const int64_t *size);
    int64_t size[SIZES];
    bool backward;  /* the root is a loss: its gradients as well */
    int64_t groups; /* > 0: the input `start` has this many equal parts of size[0] rows */
} trial;

/* A program with one small root, `out`. */
typedef struct {
    mx_graph graph;
    mx_program program;
    mx_exec *exec;
} compiled;

static mx_node *random_tensor(mx_graph *g, const char *name, mx_shape shape)
{
    return mx_param(g, name, shape, NULL, MX_NORMAL(0.05));
}

/* One element: reading it waits for all of x. */
static mx_node *corner(mx_graph *g, mx_node *x)
{
    for (int d = 0; d < x->type.ndim; d++)
        x = mx_slice(g, x, d, 0, 1);
    return mx_reshape(g, mx_cast(g, x, MX_F32), MX_SHAPE(1));
}

static void watch(mx_graph *g, mx_node *x)
{
    mx_graph_root(g, "out", corner(g, x));
}

/* On the CPU the time that its threads computed, which other programs change little. */
static double now(const mx_calibration *m)
{
    if (m->accelerator)
        return mx_clock_now();
    return mx_clock_of(CLOCK_PROCESS_CPUTIME_ID) / mx_session_threads(m->session);
}

static mx_status write_starts(const trial *t, mx_exec *exec)
{
    int32_t start[STARTS] = {0};
    MX_ASSERT(t->groups < STARTS, "%lld groups", (long long)t->groups);
    for (int64_t e = 0; e <= t->groups; e++)
        start[e] = (int32_t)(e * t->size[0]);
    return t->groups ? mx_exec_write(exec, "start", start) : MX_OK;
}

static mx_status time_program(const mx_calibration *m, const trial *t, compiled *c, double *seconds)
{
    float out[1];
    MX_TRY(mx_session_add(m->session, &c->program, &c->exec));
    MX_TRY(mx_session_init(m->session, 1));
    MX_TRY(write_starts(t, c->exec));
    double best = INFINITY;
    for (int64_t times = 1; times < 1 << 20; times *= 2) {
        double start = now(m);
        for (int64_t i = 0; i < times; i++)
            MX_TRY(mx_exec_run(c->exec));
        MX_TRY(mx_exec_read(c->exec, "out", out));
        double took = now(m) - start;
        best = fmin(best, took / (double)times);
        if (took > m->enough && (times > 1 || took > 10 * m->enough))
            break;
    }
    *seconds = best;
    return MX_OK;
}

/* Compiles and times a trial; each has a session's variables of its own names. */
static mx_status measure(const mx_calibration *m, const trial *t, double *seconds)
{
    compiled c = {0};
    mx_compile_options o = {.compute = m->dtype,
                            .n_threads = mx_session_threads(m->session),
                            .device = mx_session_traits(m->session),
                            .weights_fixed = !t->backward,
                            .narrow_weights = m->dtype == MX_BF16};
    mx_graph_init(&c.graph);
    t->build(&c.graph, t->size);
    mx_node *loss = c.graph.n_roots ? c.graph.root[0] : NULL;
    mx_status st = mx_graph_check(&c.graph);
    if (!st)
        st = t->backward
                 ? mx_compile_training(&c.graph, loss, MX_GRADS_KEEP, NULL, &o, &c.program)
                 : mx_compile_forward(&c.graph, &o, &c.program);
    if (!st)
        st = time_program(m, t, &c, seconds);
    mx_exec_close(c.exec);
    mx_program_fini(&c.program);
    mx_graph_fini(&c.graph);
    return st;
}

static double gemm_flops(const int64_t *s)
{
    return 2.0 * (double)s[0] * (double)s[1] * (double)s[2];
}

/* ---- GEMMs ---- */

/* Variables of one name have one type in all trials, which depends on what reads them. */
static void two_factors(mx_graph *g, const char *what, const int64_t *size, mx_node *out[2])
{
    char x[64], w[64];
    snprintf(x, sizeof x, "%s_x%lldx%lld", what, (long long)size[0], (long long)size[2]);
    snprintf(w, sizeof w, "%s_w%lldx%lld", what, (long long)size[1], (long long)size[2]);
    out[0] = random_tensor(g, x, MX_SHAPE(size[0], size[2]));
    out[1] = random_tensor(g, w, MX_SHAPE(size[1], size[2]));
}

/* (m, k) x (n, k), as weights lie. */
static void build_gemm(mx_graph *g, const int64_t *size)
{
    mx_node *in[2];
    two_factors(g, "gemm", size, in);
    watch(g, mx_matmul(g, "*d,fd->*f", in[0], in[1]));
}

mx_status mx_calibrate_gemms(const mx_calibration *m, mx_str *out, double *best)
{
    static const int64_t on_cpu[][3] = {{512, 768, 768},   {2048, 768, 768},   {2048, 2304, 768},
                                        {2048, 3072, 768}, {2048, 768, 3072},  {768, 768, 2048},
                                        {3072, 768, 2048}, {2048, 2048, 2048}, {2048, 4096, 1024},
                                        {2048, 32000, 768}};
    static const int64_t on_gpu[][3] = {
        {4096, 4096, 4096},   {8192, 8192, 8192},  {16384, 4096, 4096}, {8192, 28672, 4096},
        {8192, 4096, 14336},  {4096, 14336, 8192}, {65536, 2304, 768},  {65536, 768, 3072},
        {2048, 8192, 16384},  {4096, 2048, 2048},  {1024, 4096, 4096},  {2048, 1536, 2048},
        {16384, 16384, 2048}, {8192, 128256, 4096}};
    const int64_t(*shape)[3] = m->accelerator ? on_gpu : on_cpu;
    size_t n = m->accelerator ? sizeof on_gpu / sizeof *on_gpu : sizeof on_cpu / sizeof *on_cpu;
    *best = 0;
    mx_str_add(out, "  gemm:\n");
    for (size_t i = 0; i < n; i++) {
        const int64_t *s = shape[i];
        trial t = {build_gemm, {s[0], s[1], s[2]}, false, 0};
        double seconds = 0;
        MX_TRY(measure(m, &t, &seconds));
        double flops = gemm_flops(s) / seconds;
        *best = fmax(*best, flops);
        mx_str_addf(out, "    - [%lld, %lld, %lld, %.6g]\n", (long long)s[0], (long long)s[1],
                    (long long)s[2], flops / 1e12);
    }
    return MX_OK;
}

/* Recipes that differ in the GEMM, and what their rate is called. */
static const struct {
    const char *recipe, *rate;
} narrow[] = {{"fp8_tensorwise", "float8"},
              {"fp8_rowwise", "float8_rows"},
              {"fp8_blockwise", "float8_blocks"},
              {"int8_rowwise", "int8"}};
enum { RECIPE = 3, MULTIPLIED, SQUARE };

/* size: m, n, k; which recipe; whether the GEMM runs, or only what makes its factors; whether the
 * second one is a weight, whose blocks are squares. */
static void build_narrow(mx_graph *g, const int64_t *size)
{
    mx_node *in[2];
    mx_quantized q[2];
    const mx_quant_recipe *r = mx_quant_recipe_find(narrow[size[RECIPE]].recipe);
    two_factors(g, narrow[size[RECIPE]].rate, size, in);
    for (int i = 0; i < 2; i++) {
        mx_quant_operand o = {.recipe = r,
                              .grain = r->forward,
                              .dtype = r->value,
                              .weight = i && size[SQUARE],
                              .of = in[1],
                              .role = i ? "weight" : "input"};
        q[i] = mx_quant_operand_make(g, in[i], &o);
    }
    if (size[MULTIPLIED])
        watch(g, mx_scaled_matmul(g, q[0], q[1], MX_BF16, NULL));
    else
        watch(g, mx_add(g, corner(g, q[0].scale), corner(g, q[1].scale)));
}

/* The three GEMMs of a layer: forward, to the input, to the weight. */
mx_status mx_calibrate_narrow(const mx_calibration *m, double bytes_per_second, mx_str *out)
{
    const mx_plan_chip here = {.bytes_per_second = bytes_per_second, .memory_share = 1};
    static const int64_t shape[3][4] = {
        {16384, 14336, 4096, 1}, {16384, 4096, 14336, 1}, {4096, 14336, 16384, 0}};
    for (size_t r = 0; m->accelerator && r < sizeof narrow / sizeof *narrow; r++) {
        double flops = 0, seconds = 0;
        for (int i = 0; i < 3; i++) {
            const int64_t *s = shape[i];
            double both = 0, made = 0;
            trial t = {build_narrow, {s[0], s[1], s[2], (int64_t)r, 1, s[3]}, false, 0};
            MX_TRY(measure(m, &t, &both));
            t.size[MULTIPLIED] = 0;
            MX_TRY(measure(m, &t, &made));
            bool sums = strcmp(narrow[r].rate, "int8") == 0;
            double scaled =
                sums ? mx_int8_sums_seconds(&here, (double)s[0] * (double)s[1]) : 0;
            flops += gemm_flops(s);
            seconds += fmax(both - made - scaled, 0.1 * both);
        }
        mx_str_addf(out, ", %s: %.6g", narrow[r].rate, flops / seconds / 1e12);
    }
    return MX_OK;
}

/* ---- experts ---- */

/* size: rows of an expert, n, k, experts; whether rows are summed over, as in gradients of the
 * experts' weights. */
static void build_grouped(mx_graph *g, const int64_t *size)
{
    int64_t rows = size[0], n = size[1], k = size[2], E = size[3];
    mx_node *start = mx_input(g, "start", MX_SHAPE(E + 1), MX_I32), *x, *w;
    char name[96];
    snprintf(name, sizeof name, "rows%lldx%lldx%lld", (long long)E, (long long)rows, (long long)k);
    x = random_tensor(g, name, MX_SHAPE(E * rows, k));
    snprintf(name, sizeof name, "other%lldx%lldx%lldx%lld", (long long)E, (long long)n,
             (long long)k, (long long)(size[4] ? rows : 0));
    w = random_tensor(g, name, size[4] ? MX_SHAPE(E * rows, n) : MX_SHAPE(E, n, k));
    watch(g, size[4] ? mx_grouped_outer(g, x, w, start, MX_BF16)
                     : mx_grouped_matmul(g, x, w, start, false));
}

mx_status mx_calibrate_grouped(const mx_calibration *m, mx_str *out)
{
    /* experts, rows of each, n, k */
    static const int64_t shape[][4] = {{8, 4096, 14336, 4096}, {8, 4096, 4096, 14336},
                                       {8, 2048, 2048, 2048},  {16, 1024, 1024, 2048},
                                       {64, 4096, 576, 768},   {64, 4096, 768, 288},
                                       {128, 1024, 1536, 2048}, {128, 1024, 2048, 768}};
    if (!m->accelerator)
        return MX_OK;
    mx_str_add(out, "  grouped:\n");
    for (size_t i = 0; i < 2 * sizeof shape / sizeof *shape; i++) {
        const int64_t *s = shape[i / 2];
        bool outer = i % 2;
        trial t = {build_grouped, {s[1], s[2], s[3], s[0], outer}, false, s[0]};
        double seconds = 0;
        MX_TRY(measure(m, &t, &seconds));
        const int64_t as[3] = {outer ? s[2] : s[1], outer ? s[3] : s[2], outer ? s[1] : s[3]};
        mx_str_addf(out, "    - [%lld, %lld, %lld, %lld, %.6g]\n", (long long)s[0],
                    (long long)as[0], (long long)as[1], (long long)as[2],
                    gemm_flops(as) * (double)s[0] / seconds / 1e12);
    }
    return MX_OK;
}

/* ---- attention ---- */

enum { LENGTH, HEAD_DIM, BATCH, PASS, FORWARD = 0, LOSS, LOSS_ALONE };

static mx_node *attention_of(mx_graph *g, const int64_t *size)
{
    mx_node *in[3];
    int64_t heads = 2048 / size[HEAD_DIM];
    for (int i = 0; i < 3; i++) {
        char name[48];
        snprintf(name, sizeof name, "%c%lldx%lld%s", "qkv"[i], (long long)size[LENGTH],
                 (long long)size[HEAD_DIM], size[PASS] == LOSS_ALONE ? "alone" : "");
        in[i] = random_tensor(
            g, name, MX_SHAPE(size[BATCH], size[LENGTH], i ? heads / 4 : heads, size[HEAD_DIM]));
    }
    if (size[PASS] == LOSS_ALONE)
        return in[0];
    mx_attention_attr a = {.causal = true, .scale = 1 / sqrt((double)size[HEAD_DIM])};
    return mx_attention(g, in[0], in[1], in[2], a, (mx_attention_extra){0});
}

static void build_attention(mx_graph *g, const int64_t *size)
{
    if (size[PASS] == FORWARD)
        watch(g, attention_of(g, size));
    else
        mx_graph_root(g, "out", mx_cast(g, mx_sum_all(g, attention_of(g, size)), MX_F32));
}

/* FLOP/s of both passes. */
static mx_status attention_rates(const mx_calibration *m, int64_t length, int64_t head_dim,
                                 double rate[2])
{
    int64_t tokens = m->accelerator ? 16384 : length;
    double seconds[3];
    for (int pass = FORWARD; pass <= LOSS_ALONE; pass++) {
        trial t = {build_attention, {length, head_dim, tokens / length, pass}, pass != FORWARD, 0};
        MX_TRY(measure(m, &t, &seconds[pass]));
    }
    /* causal: half of 4 L^2, for all heads together 2,048 wide */
    double flops = 2 * (double)length * (double)tokens * 2048;
    double backward = seconds[LOSS] - seconds[FORWARD] - seconds[LOSS_ALONE];
    rate[0] = flops / seconds[FORWARD];
    rate[1] = 2.5 * flops / fmax(backward, 0.5 * seconds[FORWARD]);
    return MX_OK;
}

static mx_status attention_curve(const mx_calibration *m, const char *name, int64_t head_dim,
                                 mx_str *out)
{
    static const int64_t lengths[] = {512, 1024, 2048, 4096, 8192, 16384};
    mx_str text[3] = {{0}};
    mx_status st = MX_OK;
    for (size_t i = 0; i < (m->accelerator ? 6 : 3) && !st; i++) {
        double rate[2] = {0};
        st = attention_rates(m, lengths[i], head_dim, rate);
        const char *sep = i ? ", " : "";
        mx_str_addf(&text[0], "%s%lld", sep, (long long)lengths[i]);
        for (int k = 0; k < 2; k++)
            mx_str_addf(&text[1 + k], "%s%.5g", sep, rate[k] / 1e12);
    }
    mx_str_addf(out, "  %s: {length: [%s], forward: [%s], backward: [%s]}\n", name,
                mx_str_text(&text[0]), mx_str_text(&text[1]), mx_str_text(&text[2]));
    for (int i = 0; i < 3; i++)
        mx_str_fini(&text[i]);
    return st;
}

mx_status mx_calibrate_attention(const mx_calibration *m, mx_str *out)
{
    MX_TRY(attention_curve(m, "attention", 128, out));
    MX_TRY(attention_curve(m, "attention_64", 64, out));
    return m->accelerator ? attention_curve(m, "attention_256", 256, out) : MX_OK;
}

/* ---- the delta rule ---- */

/* size: batch, length, heads, size of a head; as attention's passes. */
static void build_delta(mx_graph *g, const int64_t *size)
{
    static const char *const names[5] = {"dq", "dk", "dv", "dg", "db"};
    mx_node *in[5];
    for (int i = 0; i < 5; i++) {
        int64_t heads = i < 2 ? size[2] / 2 : size[2];
        in[i] = random_tensor(g, names[i],
                              i < 3 ? MX_SHAPE(size[0], size[1], heads, size[3])
                                    : MX_SHAPE(size[0], size[1], heads));
    }
    /* memories fade: exp(g) is below 1 */
    in[3] = mx_affine(g, mx_mul(g, in[3], in[3]), -1, -0.1);
    mx_recurrent none = {0};
    mx_node *y = mx_delta_rule(g, in, 0.1, 64, NULL, &none);
    if (size[4] == FORWARD)
        watch(g, y);
    else
        mx_graph_root(g, "out", mx_cast(g, mx_sum_all(g, y), MX_F32));
}

mx_status mx_calibrate_recurrence(const mx_calibration *m, mx_str *out)
{
    const bool large = m->accelerator;
    const int64_t batch = large ? 2 : 1, length = large ? 4096 : 512, heads = large ? 32 : 4;
    const double D = 128, tokens = (double)(batch * length * heads);
    double seconds[2] = {0}, flops = tokens * (6 * D * D + 2 * 64 * 2 * D);
    for (int pass = FORWARD; pass <= LOSS; pass++) {
        trial t = {build_delta, {batch, length, heads, (int64_t)D, pass}, pass != FORWARD, 0};
        MX_TRY(measure(m, &t, &seconds[pass]));
    }
    double backward = fmax(seconds[1] - seconds[0], 0.5 * seconds[0]);
    mx_str_addf(out, "  recurrence: {forward: %.5g, backward: %.5g}\n", flops / seconds[0] / 1e12,
                2.5 * flops / backward / 1e12);
    return MX_OK;
}

/* ---- memory ---- */

static void build_stream(mx_graph *g, const int64_t *size)
{
    mx_node *x = random_tensor(g, "stream", MX_SHAPE(size[0], 1024));
    watch(g, mx_affine(g, mx_mul(g, x, x), 0.5, 1));
}

mx_status mx_calibrate_stream(const mx_calibration *m, double *out)
{
    int64_t rows = m->accelerator ? 1 << 18 : 1 << 15;
    trial t = {build_stream, {rows}, false, 0};
    double seconds = 0;
    MX_TRY(measure(m, &t, &seconds));
    /* Read and written in float32, as parameters are that no matmul reads. */
    *out = 2.0 * (double)rows * 1024 * (double)sizeof(float) / seconds;
    return MX_OK;
}
