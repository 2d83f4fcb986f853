/* bench_calibrate.c - maxc bench calibrate: what this machine's kernels reach, as a chip for maxc
 * plan.
 *
 *     maxc bench calibrate output=mine.yml dtype=bfloat16
 *     maxc plan model_name=gpt2-124m compile_topology=minex1 chip_file=mine.yml
 *
 * GEMMs by shape, attention by length, an elementwise kernel over memory: each alone, compiled and
 * run as a program of one op, in a row until it has taken long enough. Values are random, since the
 * power that a GPU draws, and so its clock, depends on them.
 */
#include "cmd/bench.h"

#include "base/clock.h"
#include "base/io.h"
#include "compile/compile.h"
#include "device/device.h"
#include "ops.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

typedef struct {
    mx_session *session;
    mx_dtype dtype;
    double enough; /* seconds of one measurement */
    bool gpu;
} machine;

/* A program with one small root, `out`. */
typedef struct {
    mx_graph graph;
    mx_program program;
    mx_exec *exec;
} trial;

static mx_node *random_tensor(mx_graph *g, const char *name, mx_shape shape)
{
    return mx_param(g, name, shape, NULL, MX_NORMAL(0.05));
}

/* One element: reading it waits for all of x. */
static void watch(mx_graph *g, mx_node *x)
{
    for (int d = 0; d < x->type.ndim; d++)
        x = mx_slice(g, x, d, 0, 1);
    mx_graph_root(g, "out", mx_cast(g, x, MX_F32));
}

/* On the CPU the time that its threads computed, which other programs change little. */
static double now(const machine *m)
{
    if (m->gpu)
        return mx_clock_now();
    return mx_clock_of(CLOCK_PROCESS_CPUTIME_ID) / mx_session_threads(m->session);
}

static mx_status run_trial(const machine *m, trial *t, double *seconds)
{
    float out[1];
    MX_TRY(mx_session_add(m->session, &t->program, &t->exec));
    MX_TRY(mx_session_init(m->session, 1));
    double best = INFINITY;
    for (int64_t times = 1; times < 1 << 20; times *= 2) {
        double start = now(m);
        for (int64_t i = 0; i < times; i++)
            MX_TRY(mx_exec_run(t->exec));
        MX_TRY(mx_exec_read(t->exec, "out", out));
        double took = now(m) - start;
        best = fmin(best, took / (double)times);
        if (took > m->enough && (times > 1 || took > 10 * m->enough))
            break;
    }
    *seconds = best;
    return MX_OK;
}

/* Compiles and times what `build` makes; each trial has a session's variables of its own names. */
static mx_status measure(const machine *m, void (*build)(mx_graph *g, const int64_t *size),
                         const int64_t *size, bool backward, double *seconds)
{
    trial t = {0};
    mx_compile_options o = {.compute = m->dtype,
                            .n_threads = mx_session_threads(m->session),
                            .device = m->gpu ? &mx_cuda_traits : &mx_cpu_traits,
                            .weights_fixed = !backward};
    mx_graph_init(&t.graph);
    build(&t.graph, size);
    mx_node *loss = t.graph.n_roots ? t.graph.root[0] : NULL;
    mx_status st = mx_graph_check(&t.graph);
    if (!st)
        st = backward ? mx_compile_training(&t.graph, loss, MX_GRADS_KEEP, NULL, &o, &t.program)
                      : mx_compile_forward(&t.graph, &o, &t.program);
    if (!st)
        st = run_trial(m, &t, seconds);
    mx_exec_close(t.exec);
    mx_program_fini(&t.program);
    mx_graph_fini(&t.graph);
    return st;
}

/* (m, k) x (n, k), as weights lie. */
static void build_gemm(mx_graph *g, const int64_t *size)
{
    char x[64], w[64];
    snprintf(x, sizeof x, "x%lldx%lld", (long long)size[0], (long long)size[2]);
    snprintf(w, sizeof w, "w%lldx%lld", (long long)size[1], (long long)size[2]);
    watch(g, mx_matmul(g, "*d,fd->*f", random_tensor(g, x, MX_SHAPE(size[0], size[2])),
                       random_tensor(g, w, MX_SHAPE(size[1], size[2]))));
}

enum { HEADS = 16, HEAD_DIM = 128 };

static mx_node *attention_of(mx_graph *g, int64_t length)
{
    mx_node *in[3];
    for (int i = 0; i < 3; i++) {
        char name[32];
        snprintf(name, sizeof name, "%c%lld", "qkv"[i], (long long)length);
        in[i] = random_tensor(g, name, MX_SHAPE(1, length, HEADS, HEAD_DIM));
    }
    mx_attention_attr a = {.causal = true, .scale = 1 / sqrt(HEAD_DIM)};
    return mx_attention(g, in[0], in[1], in[2], a, (mx_attention_extra){0});
}

static void build_attention(mx_graph *g, const int64_t *size)
{
    watch(g, attention_of(g, size[0]));
}

static void build_attention_loss(mx_graph *g, const int64_t *size)
{
    mx_graph_root(g, "out", mx_cast(g, mx_sum_all(g, attention_of(g, size[0])), MX_F32));
}

static void build_stream(mx_graph *g, const int64_t *size)
{
    mx_node *x = random_tensor(g, "stream", MX_SHAPE(size[0], 1024));
    watch(g, mx_affine(g, mx_mul(g, x, x), 0.5, 1));
}

/* ---- the file ---- */

static mx_status gemm_points(const machine *m, mx_str *out, double *best)
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
    const int64_t(*shape)[3] = m->gpu ? on_gpu : on_cpu;
    size_t n = m->gpu ? sizeof on_gpu / sizeof *on_gpu : sizeof on_cpu / sizeof *on_cpu;
    *best = 0;
    mx_str_add(out, "  gemm:\n");
    for (size_t i = 0; i < n; i++) {
        const int64_t *s = shape[i];
        double seconds = 0;
        MX_TRY(measure(m, build_gemm, s, false, &seconds));
        double flops = 2.0 * (double)s[0] * (double)s[1] * (double)s[2] / seconds;
        *best = fmax(*best, flops);
        mx_str_addf(out, "    - [%lld, %lld, %lld, %.6g]\n", (long long)s[0], (long long)s[1],
                    (long long)s[2], flops / 1e12);
    }
    return MX_OK;
}

static mx_status attention_points(const machine *m, mx_str *out)
{
    static const int64_t lengths[] = {512, 1024, 2048, 4096, 8192, 16384};
    mx_str text[3] = {{0}};
    mx_status st = MX_OK;
    for (size_t i = 0; i < (m->gpu ? 6 : 3) && !st; i++) {
        double forward = 0, both = 0, L = (double)lengths[i];
        double flops = 2 * L * L * HEADS * HEAD_DIM; /* causal: half of 4 L^2 */
        st = measure(m, build_attention, &lengths[i], false, &forward);
        if (!st)
            st = measure(m, build_attention_loss, &lengths[i], true, &both);
        double backward = fmax(both - forward, 0.5 * forward);
        const char *sep = i ? ", " : "";
        mx_str_addf(&text[0], "%s%lld", sep, (long long)lengths[i]);
        mx_str_addf(&text[1], "%s%.5g", sep, flops / forward / 1e12);
        mx_str_addf(&text[2], "%s%.5g", sep, 2.5 * flops / backward / 1e12);
    }
    mx_str_addf(out, "  attention: {length: [%s], forward: [%s], backward: [%s]}\n",
                mx_str_text(&text[0]), mx_str_text(&text[1]), mx_str_text(&text[2]));
    for (int i = 0; i < 3; i++)
        mx_str_fini(&text[i]);
    return st;
}

static mx_status write_chip(const mx_invocation *inv, const machine *m, mx_str *out)
{
    const char *name = mx_config_text(inv->config, "name");
    int64_t rows = m->gpu ? 1 << 18 : 1 << 15;
    double best, stream = 0, room = (double)mx_session_memory_available(m->session).bytes;
    mx_str points = {0};
    MX_TRY(gemm_points(m, &points, &best));
    mx_status st = measure(m, build_stream, &rows, false, &stream);
    double bytes = 2.0 * (double)rows * 1024 * (double)mx_dtype_bytes(m->dtype);
    mx_str_addf(out,
                "# Measured by maxc bench calibrate, in %s.\n%s:\n  memory_gib: %.4g\n"
                "  memory_gbs: %.5g\n  memory_share: 1\n  tflops: {bfloat16: %.6g, float32: %.6g}\n"
                "  sustained: {bfloat16: %.6g, float32: %.6g}\n  units: %d\n  k_half: %d\n%s",
                mx_config_text(inv->config, "dtype"), name, room / 0x1p30, bytes / stream / 1e9,
                best / 1e12, best / 1e12, best / 1e12, best / 1e12, m->gpu ? 132 : 1,
                m->gpu ? 64 : 0, mx_str_text(&points));
    mx_str_fini(&points);
    return st ? st : attention_points(m, out);
}

static mx_status run(mx_invocation *inv)
{
    const mx_config *c = inv->config;
    const char *path = mx_config_text(c, "output");
    machine m = {0};
    mx_str out = {0};
    mx_status st;
    if (!*path)
        return mx_fail(MX_USAGE, "say output=FILE: the chip that maxc plan then takes as "
                                 "chip_file=FILE");
    if (!mx_dtype_parse(mx_config_text(c, "dtype"), &m.dtype))
        return mx_fail(MX_USAGE, "dtype `%s` cannot be measured; use float32 or bfloat16",
                       mx_config_text(c, "dtype"));
    MX_TRY_OUT(st, mx_session_open(&m.session, mx_config_text(c, "device"),
                                   (int)mx_config_int(c, "num_threads")));
    m.gpu = !mx_session_traits(m.session)->host_memory;
    m.enough = mx_config_float(c, "seconds");
    MX_TRY_OUT(st, write_chip(inv, &m, &out));
    MX_TRY_OUT(st, mx_io_write_file(NULL, path, out.text, out.len));
    printf("%s%s: use it with maxc plan compile_topology=%sx1 chip_file=%s\n", out.text, path,
           mx_config_text(c, "name"), path);
out:
    mx_session_close(m.session);
    mx_str_fini(&out);
    return st;
}

const mx_bench mx_bench_calibrate = {"calibrate", "this machine's kernels, as a chip for maxc plan",
                                     run};
