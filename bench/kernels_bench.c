/* kernels_bench.c - the CPU kernels against what the machine can do, in one run.
 *
 *     kernels_bench [gemm|gemv|attention|xent|grouped|delta]      everything when no name is given
 *
 * First a loop of independent fused multiply-adds (f32) and bf16 dot products, in AMX's tiles where
 * there are such, gives the peak, and a copy gives the bandwidth; then every kernel is printed in
 * GFLOP/s or GB/s and as a share of that. MX_SIMD=bf16 shows a lower level.
 * Best of several repetitions: other programs can only make a figure worse.
 */
#include "base/arena.h"
#include "base/clock.h"
#include "base/simd.h"
#include "base/vmath.h"
#include "ops/cpu/attention_kernel.h"
#include "ops/cpu/delta_kernel.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/grouped_kernel.h"
#include "ops/cpu/xent_kernel.h"
#include <dlfcn.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* One thread: CPU time, which other programs change little. Several: the time of day. */
static double now(void)
{
    struct timespec t;
    if (omp_get_max_threads() > 1)
        return mx_clock_now();
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Runs `body` until half a second or 3 times have passed; the best time in seconds. */
#define BEST(out, body)                                                                            \
    do {                                                                                           \
        double end_ = now() + 0.5;                                                                 \
        (out) = 1e30;                                                                              \
        for (int rep_ = 0; rep_ < 3 || now() < end_; rep_++) {                                     \
            double t_ = now();                                                                     \
            body;                                                                                  \
            t_ = now() - t_;                                                                       \
            (out) = t_ < (out) ? t_ : (out);                                                       \
        }                                                                                          \
    } while (0)

typedef float v16f __attribute__((vector_size(64)));

/* 12 independent chains keep every multiply-add unit busy; KEEP stops the compiler from folding. */
#define CHAINS 12
#define STEPS 400000
#define KEEP(v) __asm__ volatile("" : "+v"(v))
#define EACH(f) f(0) f(1) f(2) f(3) f(4) f(5) f(6) f(7) f(8) f(9) f(10) f(11)
#define DECLARE(i) v16f a##i = {0};
#define FMA(i) a##i += x * y; KEEP(a##i);
#define DOT(i) a##i = MX_BF16_DOT(a##i, x, y); KEEP(a##i);
#define ADD(i) sum += a##i[0];
#define CHAIN_LOOP(name, target, step)                                                             \
    target static float name(void)                                                                 \
    {                                                                                              \
        v16f x = {0}, y = {0};                                                                     \
        float sum = 0;                                                                             \
        EACH(DECLARE)                                                                              \
        for (int i = 0; i < STEPS; i++) {                                                          \
            KEEP(x);                                                                               \
            KEEP(y);                                                                               \
            EACH(step)                                                                             \
        }                                                                                          \
        EACH(ADD)                                                                                  \
        return sum;                                                                                \
    }
CHAIN_LOOP(f32_chains, MX_TARGET_V4, FMA)
CHAIN_LOOP(bf16_chains, MX_TARGET_BF16, DOT)

/* Products of AMX's tiles, four sums in turn. */
MX_TARGET_BF16 static float tile_chains(void)
{
    mx_tile_shape shape = {.palette = 1};
    for (int i = 0; i < 8; i++)
        shape.row_bytes[i] = 64, shape.rows[i] = 16;
    MX_TILES_OPEN(shape);
    for (int i = 0; i < STEPS; i++) {
        MX_TILE_BF16(0, 4, 6);
        MX_TILE_BF16(1, 4, 7);
        MX_TILE_BF16(2, 5, 6);
        MX_TILE_BF16(3, 5, 7);
    }
    MX_TILES_CLOSE();
    return 0;
}

typedef struct {
    double f32, bf16, bytes; /* per second, all threads */
} peaks;

static peaks measure_peaks(void)
{
    peaks p = {0};
    double t, threads = omp_get_max_threads();
    volatile float sink = 0;
    if (mx_simd_level() >= MX_SIMD_V4) {
        BEST(t, _Pragma("omp parallel") { sink = f32_chains(); });
        p.f32 = threads * CHAINS * STEPS * 32.0 / t;
    }
    if (mx_simd_level() >= MX_SIMD_BF16) {
        BEST(t, _Pragma("omp parallel") { sink = bf16_chains(); });
        p.bf16 = threads * CHAINS * STEPS * 64.0 / t;
    }
    if (mx_simd_level() >= MX_SIMD_AMX) {
        BEST(t, _Pragma("omp parallel") { sink = tile_chains(); });
        p.bf16 = threads * 4 * STEPS * (2.0 * 16 * 16 * 32) / t;
    }
    (void)sink;
    enum { BIG = 1 << 26 };
    float *a, *b;
    if (mx_alloc((void **)&a, BIG * 4ul, "copy") || mx_alloc((void **)&b, BIG * 4ul, "copy"))
        exit(1);
    BEST(t, _Pragma("omp parallel for schedule(static)") for (int i = 0; i < BIG; i += 4096)
                memcpy(b + i, a + i, 16384););
    p.bytes = BIG * 8.0 / t;
    mx_free(a);
    mx_free(b);
    printf("%s, %d threads: peak f32 %.0f, bf16 %.0f GFLOP/s; copy %.1f GB/s\n",
           mx_simd_name(mx_simd_level()), omp_get_max_threads(), p.f32 / 1e9, p.bf16 / 1e9,
           p.bytes / 1e9);
    return p;
}

static void *fill(int64_t n, mx_num type)
{
    void *p;
    if (mx_alloc(&p, (size_t)n * (size_t)MX_NUM_BYTES(type), "matrix"))
        exit(1);
    uint32_t s = 12345;
    for (int64_t i = 0; i < n; i++) {
        s = s * 1664525u + 1013904223u;
        float v = (float)(s >> 8) * 0x1p-24f - 0.5f;
        if (type == MX_NUM_F32)
            ((float *)p)[i] = v;
        else if (type == MX_NUM_BF16)
            ((uint16_t *)p)[i] = mx_bf16_of_float(v);
        else
            ((double *)p)[i] = v;
    }
    return p;
}

/* oneDNN's GEMM, where the library is installed: a peer to compare with, needed for nothing. */
typedef int sgemm_fn(char ta, char tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                     int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc);
static sgemm_fn *find_sgemm(void)
{
    void *lib = dlopen("libdnnl.so.2", RTLD_NOW | RTLD_LOCAL);
    lib = lib ? lib : dlopen("libdnnl.so.3", RTLD_NOW | RTLD_LOCAL);
    return lib ? (sgemm_fn *)dlsym(lib, "dnnl_sgemm") : 0;
}

typedef struct {
    int64_t m, n, k;
    bool ta, tb;
    const char *what;
} shape;

static void bench_shape(const shape *s, mx_num type, mx_num c_type, const peaks *p)
{
    void *a = fill(s->m * s->k, type), *b = fill(s->n * s->k, type), *c = fill(s->m * s->n, c_type);
    mx_gemm_args g = {.m = s->m, .n = s->n, .k = s->k, .a = a, .b = b, .c = c, .trans_a = s->ta,
                      .trans_b = s->tb, .lda = s->ta ? s->m : s->k, .ldb = s->tb ? s->k : s->n,
                      .ldc = s->n, .a_type = type, .b_type = type, .c_type = c_type, .alpha = 1};
    double t, lib = 0, flops = 2.0 * (double)s->m * (double)s->n * (double)s->k;
    sgemm_fn *sgemm = type == MX_NUM_F32 ? find_sgemm() : 0;
    if (sgemm) /* turn by turn, so that a busy machine hurts both alike */
        lib = 1e30;
    BEST(t, {
        mx_gemm(&g);
        if (sgemm) {
            double u = now();
            sgemm(s->ta ? 'T' : 'N', s->tb ? 'T' : 'N', s->m, s->n, s->k, 1, a, g.lda, b,
                       g.ldb, 0, c, s->n);
            u = now() - u;
            lib = u < lib ? u : lib;
            t_ += u;
        }
    });
    double peak = type == MX_NUM_BF16 ? p->bf16 : type == MX_NUM_F32 ? p->f32 : p->f32 / 2;
    double bytes = (double)(s->n * s->k) * MX_NUM_BYTES(type);
    printf("  %-8s %-4s %c%c %6ld %6ld %6ld  %6.0f GFLOP/s %3.0f %%", s->what,
           type == MX_NUM_BF16 ? c_type == MX_NUM_BF16 ? "b->b" : "b->f"
           : type == MX_NUM_F32 ? "f32" : "f64",
           s->ta ? 'T' : 'N', s->tb ? 'T' : 'N', (long)s->m, (long)s->n, (long)s->k,
           flops / t / 1e9, 100 * flops / t / peak);
    if (s->m <= 8)
        printf("  %5.1f GB/s", bytes / t / 1e9);
    if (lib > 0)
        printf("   oneDNN %4.0f GFLOP/s %3.0f %%", flops / lib / 1e9, 100 * flops / lib / peak);
    printf("\n");
    mx_free(a);
    mx_free(b);
    mx_free(c);
}

static const shape train_shapes[] = {
    {2048, 768, 768, false, true, "x W^T"},    {2048, 3072, 768, false, true, "x W^T"},
    {2048, 768, 3072, false, true, "x W^T"},   {2048, 768, 3072, false, false, "dy W"},
    {768, 3072, 2048, true, false, "dy^T x"},  {256, 50257, 768, false, true, "logits"},
    {256, 768, 50257, false, false, "dlog W"}, {50257, 768, 256, true, false, "dW"},
    {1024, 1024, 1024, false, false, "cube"},  {256, 256, 64, false, true, "q k^T"},
    {511, 2047, 513, false, false, "odd"}};
static const shape decode_shapes[] = {{1, 4096, 4096, false, true, "decode"},
                                      {4, 4096, 4096, false, true, "decode"},
                                      {8, 4096, 4096, false, true, "decode"},
                                      {1, 4096, 4096, false, false, "decode"}};
#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

static void bench_gemm(const peaks *p)
{
    for (int i = 0; i < COUNT(train_shapes); i++)
        bench_shape(&train_shapes[i], MX_NUM_F32, MX_NUM_F32, p);
    for (int i = 0; i < COUNT(train_shapes); i++)
        bench_shape(&train_shapes[i], MX_NUM_BF16, MX_NUM_F32, p);
    for (int i = 0; i < 5; i++)
        bench_shape(&train_shapes[i], MX_NUM_BF16, MX_NUM_BF16, p);
    for (int i = 0; i < 2; i++)
        bench_shape(&train_shapes[i], MX_NUM_F64, MX_NUM_F64, p);
}

static void bench_gemv(const peaks *p)
{
    for (int i = 0; i < COUNT(decode_shapes); i++)
        bench_shape(&decode_shapes[i], MX_NUM_F32, MX_NUM_F32, p);
    for (int i = 0; i < COUNT(decode_shapes) - 1; i++)
        bench_shape(&decode_shapes[i], MX_NUM_BF16, MX_NUM_F32, p);
}

static void bench_attention_at(int64_t len, mx_num type, const peaks *p)
{
    enum { H = 12, D = 64 };
    mx_attn a = {.batch = 1, .q_len = len, .k_len = len, .q_heads = H, .k_heads = H, .qk_dim = D,
                 .v_dim = D, .type = type, .mask = {.causal = true, .scale = 0.125f}};
    int64_t n = len * H * D;
    void *q = fill(n, type), *k = fill(n, type), *v = fill(n, type), *dout = fill(n, type);
    void *out = fill(n, type), *lse = fill(len * H, MX_NUM_F32);
    void *dq = fill(n, type), *dk = fill(n, type), *dv = fill(n, type);
    size_t bytes = mx_attn_forward_work_bytes(&a) + mx_attn_backward_work_bytes(&a);
    void *work = fill((int64_t)bytes / 4, MX_NUM_F32);
    double f, b, flops = 2.0 * H * D * (double)len * (double)(len + 1); /* both matmuls, once */
    BEST(f, mx_attn_forward(&a, &(mx_attn_forward_args){q, k, v, out, lse}, work));
    mx_attn_backward_args g = {q, k, v, out, lse, dout, dq, dk, dv, 0};
    BEST(b, mx_attn_backward(&a, &g, work));
    printf("  S=%-5ld %-4s forward %4.0f GFLOP/s %3.0f %%, backward %4.0f GFLOP/s %3.0f %%, both "
           "%3.0f %% of f32 peak\n", (long)len, type == MX_NUM_F32 ? "f32" : "bf16",
           flops / f / 1e9, 100 * flops / f / p->f32, 2.5 * flops / b / 1e9,
           250 * flops / b / p->f32,
           350 * flops / (f + b) / p->f32);
    void *all[] = {q, k, v, dout, out, lse, dq, dk, dv, work};
    for (int i = 0; i < COUNT(all); i++)
        mx_free(all[i]);
}

static void bench_decode(mx_num type, const peaks *p)
{
    enum { B = 4, S = 4096, H = 32, HK = 8, D = 128 };
    mx_attn a = {.batch = B, .q_len = 1, .k_len = S, .q_heads = H, .k_heads = HK, .qk_dim = D,
                 .v_dim = D, .type = type};
    a.mask = (mx_attn_mask){.causal = true, .scale = 0.1f, .q_offset = S - 1};
    void *q = fill(B * H * D, type), *k = fill(B * S * HK * D, type);
    void *v = fill(B * S * HK * D, type);
    void *out = fill(B * H * D, type);
    void *work = fill((int64_t)mx_attn_forward_work_bytes(&a) / 4, MX_NUM_F32);
    double t, bytes = 2.0 * B * S * HK * D * MX_NUM_BYTES(type);
    BEST(t, mx_attn_forward(&a, &(mx_attn_forward_args){q, k, v, out, 0}, work));
    printf("  decode B=%d S=%d %-4s %5.1f GB/s of the cache, copy reads at %.1f\n", B, S,
           type == MX_NUM_F32 ? "f32" : "bf16", bytes / t / 1e9, p->bytes / 2e9);
    void *all[] = {q, k, v, out, work};
    for (int i = 0; i < COUNT(all); i++)
        mx_free(all[i]);
}

static void bench_attention(const peaks *p)
{
    for (int64_t len = 512; len <= 2048; len *= 2)
        for (int t = 0; t < 2; t++)
            bench_attention_at(len, t ? MX_NUM_BF16 : MX_NUM_F32, p);
    bench_decode(MX_NUM_F32, p);
    bench_decode(MX_NUM_BF16, p);
}

static void bench_xent(const peaks *p)
{
    enum { N = 512, D = 768, V = 50257 };
    for (int t = 0; t < 2; t++) {
        mx_num type = t ? MX_NUM_BF16 : MX_NUM_F32;
        mx_xent c = {.n = N, .dim = D, .vocab = V, .type = type};
        int32_t labels[N];
        for (int i = 0; i < N; i++)
            labels[i] = i * 37;
        void *x = fill(N * D, type), *w = fill((int64_t)V * D, type), *dx = fill(N * D, type);
        void *dw = fill((int64_t)V * D, MX_NUM_F32), *loss = fill(N, MX_NUM_F32);
        void *work = fill((int64_t)mx_xent_work_bytes(&c, true) / 4, MX_NUM_F32);
        c.x = x, c.w = w, c.labels = labels;
        double f, b, flops = 2.0 * N * D * (double)V, peak = t ? p->bf16 : p->f32;
        BEST(f, mx_xent_forward(&c, loss, 0, work));
        mx_xent_grads g = {.dloss = loss, .loss = loss, .dx = dx, .dw = dw, .add_dw = true};
        BEST(b, mx_xent_backward(&c, &g, work));
        printf("  %-4s forward %4.0f GFLOP/s %3.0f %%, train step %4.0f GFLOP/s %3.0f %%\n",
               t ? "bf16" : "f32", flops / f / 1e9, 100 * flops / f / peak, 3 * flops / b / 1e9,
               300 * flops / b / peak);
        void *all[] = {x, w, dx, dw, loss, work};
        for (int i = 0; i < COUNT(all); i++)
            mx_free(all[i]);
    }
}

/* E experts of `rows` tokens each; `dense` is one GEMM of the same size. */
static void bench_experts(const peaks *p, int64_t E, int64_t rows, int64_t di, int64_t d_o)
{
    int32_t *offsets = mx_realloc(NULL, sizeof *offsets * (size_t)(E + 1));
    for (int64_t e = 0; e <= E; e++)
        offsets[e] = (int32_t)(e * rows);
    printf("  %ld experts x %ld tokens, %ld x %ld\n", (long)E, (long)rows, (long)di, (long)d_o);
    for (int i = 0; i < 2; i++) {
        mx_num type = i ? MX_NUM_BF16 : MX_NUM_F32;
        mx_grouped g = {.groups = E, .d_in = di, .d_out = d_o, .offsets = offsets, .type = type,
                        .out_type = MX_NUM_F32};
        void *x = fill(E * rows * di, type), *w = fill(E * di * d_o, type);
        void *dy = fill(E * rows * d_o, type);
        void *y = fill(E * di * d_o, MX_NUM_F32), *out = fill(E * rows * (di + d_o), MX_NUM_F32);
        mx_gemm_args d = {.m = E * rows, .n = d_o, .k = di, .a = x, .lda = di, .b = w, .ldb = di,
                          .trans_b = true, .c = out, .ldc = d_o, .a_type = type, .b_type = type,
                          .alpha = 1};
        double f, dx, dw, dense, flops = 2.0 * (double)(E * rows) * (double)(di * d_o);
        double peak = i ? p->bf16 : p->f32;
        BEST(dense, mx_gemm(&d));
        BEST(f, mx_grouped_forward(&g, x, w, out));
        BEST(dx, mx_grouped_dx(&g, dy, w, out));
        BEST(dw, mx_grouped_dw(&g, dy, x, y, false));
        printf("  %-4s dense %3.0f %%, forward %3.0f %%, dx %3.0f %%, dw %3.0f %% of peak\n",
               i ? "bf16" : "f32", 100 * flops / dense / peak, 100 * flops / f / peak,
               100 * flops / dx / peak, 100 * flops / dw / peak);
        void *all[] = {x, w, dy, y, out};
        for (int k = 0; k < COUNT(all); k++)
            mx_free(all[k]);
    }
    mx_free(offsets);
}

static void bench_grouped(const peaks *p)
{
    bench_experts(p, 8, 256, 768, 2048);
    bench_experts(p, 64, 128, 768, 288);
    bench_experts(p, 128, 80, 512, 128);
}

/* The heads of Qwen3-Next 80B. Gates: a memory that keeps e^-1/8 a token, half of a correction. */
static void bench_delta(const peaks *p)
{
    enum { S = 1024, K = 16, H = 32, D = 128 };
    float *q = fill(S * K * D, MX_NUM_F32), *k = fill(S * K * D, MX_NUM_F32);
    float *v = fill(S * H * D, MX_NUM_F32), *o = fill(S * H * D, MX_NUM_F32);
    float *g = fill(S * H, MX_NUM_F32), *beta = fill(S * H, MX_NUM_F32);
    float *dq = fill(S * K * D, MX_NUM_F32), *dk = fill(S * K * D, MX_NUM_F32);
    float *dv = fill(S * H * D, MX_NUM_F32), *dg = fill(S * H, MX_NUM_F32);
    float *dbeta = fill(S * H, MX_NUM_F32), *all[] = {q, k, v, o, g, beta, dq, dk, dv, dg, dbeta};
    for (int64_t i = 0; i < S * K * D; i++)
        q[i] /= 8, k[i] /= 8;
    for (int i = 0; i < S * H; i++)
        g[i] = -0.125f, beta[i] = 0.5f;
    mx_delta d = {.batch = 1, .len = S, .k_heads = K, .v_heads = H, .k_dim = D, .v_dim = D,
                  .chunk = 64, .scale = 0.088, .q = q, .k = k, .v = v, .g = g, .beta = beta};
    mx_delta_grads grads = {.dout = v, .dq = dq, .dk = dk, .dv = dv, .dg = dg, .dbeta = dbeta};
    size_t a = mx_delta_forward_work_bytes(&d), b = mx_delta_backward_work_bytes(&d);
    void *work = fill((int64_t)((a > b ? a : b) / sizeof(float)), MX_NUM_F32);
    double forward, backward, flops = 1.0 * S * H * (6.0 * D * D + 2.0 * 64 * 2 * D);
    BEST(forward, mx_delta_forward(&d, o, NULL, work));
    BEST(backward, mx_delta_backward(&d, &grads, work));
    printf("  f32  forward %.4f s, %3.0f %% of peak, backward %.4f s, %3.0f %% (3 x forward)\n",
           forward, 100 * flops / forward / p->f32, backward, 300 * flops / backward / p->f32);
    for (int i = 0; i < COUNT(all); i++)
        mx_free(all[i]);
    mx_free(work);
}

typedef struct {
    const char *name;
    void (*run)(const peaks *p);
} bench;
static const bench benches[] = {
    {"gemm", bench_gemm}, {"gemv", bench_gemv}, {"attention", bench_attention},
    {"xent", bench_xent},
    {"grouped", bench_grouped}, {"delta", bench_delta}};

int main(int argc, char **argv)
{
    peaks p = measure_peaks();
    for (int i = 0; i < COUNT(benches); i++)
        if (argc < 2 || strcmp(argv[1], benches[i].name) == 0) {
            printf("%s\n", benches[i].name);
            benches[i].run(&p);
        }
    return 0;
}
