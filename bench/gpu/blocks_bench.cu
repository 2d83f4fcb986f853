/* blocks_bench.cu - each block alone at the sizes of a real model, against its floor.
 *     blocks_bench [experts|packed|blocks|codes]      all of them, or one kind alone
 * Floors: bytes over 4.3 TB/s (a device-to-device copy), FLOPs over 989 TFLOP/s.
 */
#include "gpu.cuh"
#include "packed.cuh"
#include "device/cuda/attention/flash.h"
#include "device/cuda/attention/flash_hopper_backward.h"
#include "device/cuda/gemm/dequant.h"
#include "device/cuda/gemm/gemm_blocks.h"
#include "device/cuda/gemm/quantize.h"
#include "device/cuda/moe/moe_kernels.h"

static void line(const char *name, double ms, double flops, double bytes)
{
    double floor = std::max(flops / 989e12, bytes / 4.3e12) * 1e3;
    printf("%-44s %9.4f ms %8.1f TFLOP/s %6.2f TB/s  %5.2f x floor\n", name, ms, flops / ms / 1e9,
           bytes / ms / 1e9, ms / floor);
    fflush(stdout);
}

static void bench_memory()
{
    const int64_t n = 1ll << 31;
    char *a = device_alloc<char>(n), *b = device_alloc<char>(n);
    line("copy 2 GiB", time_ms([&] { cudaMemcpyAsync(b, a, n, cudaMemcpyDeviceToDevice, 0); }), 0,
         2.0 * n);
    cudaFree(a), cudaFree(b);
}

static void bench_gemm(mx_cuda_libs *libs, int64_t m, int64_t n, int64_t k, bool ta, bool tb)
{
    mx_gemm_lt *lt;
    char name[96];
    OK(mx_gemm_lt_open(&lt, libs, 64u << 20, NULL));
    void *ws = device_alloc<char>(64u << 20);
    mx_bf16 *a = device_random<mx_bf16>(m * k, 1, 1), *b = device_random<mx_bf16>(n * k, 2, 1);
    mx_bf16 *c = device_alloc<mx_bf16>(m * n);
    mx_gemm_shape s = {};
    s.m = m, s.n = n, s.k = k, s.trans_a = ta, s.trans_b = tb, s.alpha = 1,
    s.in = s.out = MX_GEMM_BF16;
    mx_gemm_plan *p;
    OK(mx_gemm_plan_new(&p, lt, &s));
    double first = time_ms([&] { OK(mx_gemm_plan_launch(p, a, b, c, ws, 0)); }, 15);
    OK(mx_gemm_plan_search(p, a, b, c, ws, 0));
    double best = time_ms([&] { OK(mx_gemm_plan_launch(p, a, b, c, ws, 0)); }, 15);
    double held = time_ms(
                      [&] { /* long enough for the power limit to bite */
                            for (int i = 0; i < 100; i++)
                                OK(mx_gemm_plan_launch(p, a, b, c, ws, 0));
                      },
                      5) /
                  100;
    snprintf(name, sizeof name, "gemm %lldx%lldx%lld %c%c: first %.3f, best", (long long)m,
             (long long)n, (long long)k, ta ? 'T' : 'N', tb ? 'T' : 'N', first);
    line(name, best, 2.0 * m * n * k, 0);
    line("   sustained", held, 2.0 * m * n * k, 0);
    mx_gemm_plan_free(p);
    cudaFree(a), cudaFree(b), cudaFree(c), cudaFree(ws);
    mx_gemm_lt_close(lt);
}

static void bench_attention(mx_sdpa *dnn, int b, int s, int hq, int hk, int d, bool deterministic)
{
    int64_t T = (int64_t)b * s, w = (int64_t)(hq + 2 * hk) * d, ow = (int64_t)hq * d;
    mx_bf16 *qkv = device_random<mx_bf16>(T * w, 1, 1), *o = device_alloc<mx_bf16>(T * ow);
    mx_bf16 *dqkv = device_alloc<mx_bf16>(T * w), *dout = device_random<mx_bf16>(T * ow, 2, 1);
    float *lse = device_alloc<float>(T * hq), *dot = device_alloc<float>(T * hq);
    double flops = 2.0 * T * s * ow;
    char name[128];
    snprintf(name, sizeof name, "b%d s%d h%d/%d d%d causal", b, s, hq, hk, d);
    mx_flash_shape f = {};
    f.batch = b, f.seq_q = f.seq_kv = s, f.heads_q = hq, f.heads_kv = hk, f.dim_qk = f.dim_v = d;
    f.q = f.k = f.v = f.dq = f.dk = f.dv = {s * w, w, d}, f.o = f.dout = {s * ow, ow, d};
    f.causal = true, f.scale = 1 / sqrtf((float)d);
    mx_flash_args fa = {};
    fa.q = qkv, fa.k = qkv + hq * d, fa.v = qkv + (hq + hk) * d, fa.o = o, fa.stats = lse,
    fa.row_dot = dot;
    fa.dout = dout, fa.dq = dqkv, fa.dk = dqkv + hq * d, fa.dv = dqkv + (hq + hk) * d;
    if (!deterministic) {
        printf("%s\n", name);
        line("   own forward, any machine",
             time_ms([&] { CU(mx_flash_mma_forward(&f, &fa, 0)); }, 5), flops, 0);
        line("   own forward", time_ms([&] { CU(mx_flash_forward(&f, &fa, 0)); }, 5), flops, 0);
        line("   own backward, any machine",
             time_ms([&] { CU(mx_flash_backward(&f, &fa, 0)); }, 5), 2 * flops, 0);
        if (mx_flash_hopper_backward_can(&f, &fa)) {
            char *scratch = device_alloc<char>((int64_t)mx_flash_hopper_backward_bytes(&f));
            line("   own backward on Hopper",
                 time_ms([&] { CU(mx_flash_hopper_backward(&f, &fa, scratch, 0)); }, 5), 2 * flops,
                 0);
            cudaFree(scratch);
        }
    }
    mx_sdpa_shape sh = {};
    sh.batch = b, sh.seq_q = sh.seq_kv = s, sh.heads_q = hq, sh.heads_kv = hk,
    sh.dim_qk = sh.dim_v = d;
    sh.q = sh.k = sh.v = sh.dq = sh.dk = sh.dv = {s * w, w, d}, sh.o = sh.dout = {s * ow, ow, d};
    sh.causal = sh.stats = true, sh.scale = f.scale, sh.deterministic = deterministic;
    mx_sdpa_args a = {};
    a.q = fa.q, a.k = fa.k, a.v = fa.v, a.o = o, a.stats = lse, a.dout = dout;
    a.dq = fa.dq, a.dk = fa.dk, a.dv = fa.dv;
    for (int back = deterministic; back < 2; back++)
        for (int c = 0, n = 1; c < n; c++) {
            mx_sdpa_plan *p;
            sh.backward = back, sh.choice = c;
            mx_status st = mx_sdpa_plan_new(&p, dnn, &sh);
            if (st) {
                mx_status_free(st);
                break;
            }
            c = mx_sdpa_plan_choice(p, &n);
            void *ws = device_alloc<char>(mx_sdpa_plan_workspace(p));
            snprintf(name, sizeof name, "   cudnn %s choice %d/%d%s, %.0f MiB",
                     back ? "backward" : "forward", c, n, deterministic ? " deterministic" : "",
                     mx_sdpa_plan_workspace(p) / 1048576.0);
            line(name, time_ms([&] { OK(mx_sdpa_plan_launch(p, &a, ws, 0)); }, 5),
                 (1 + back) * flops, 0);
            cudaFree(ws);
            mx_sdpa_plan_free(p);
        }
    cudaFree(qkv), cudaFree(o), cudaFree(dqkv), cudaFree(dout), cudaFree(lse), cudaFree(dot);
}

/* Milliseconds of the forward and the backward pass, as an op runs them. */
static void time_packed(const packed_case &c, bool packed, double ms[2])
{
    packed_data p(c, 3);
    char *scratch = device_alloc<char>((int64_t)mx_flash_hopper_backward_bytes(&p.s));
    const int32_t *ids = packed ? p.ids : NULL;
    bool hopper = mx_flash_hopper_backward_can(&p.s, &p.a);
    p.a.q_seg = p.a.k_seg = ids;
    ms[0] = time_ms([&] {
        if (packed)
            CU(mx_flash_segments_find(&p.s, &p.a, 0, p.tables, 0));
        CU(mx_flash_forward(&p.s, &p.a, 0));
    });
    ms[1] = time_ms([&] {
        CU(hopper ? mx_flash_hopper_backward(&p.s, &p.a, scratch, 0)
                  : mx_flash_backward(&p.s, &p.a, 0));
    });
    cudaFree(scratch);
}
/* Packed rows against one document a row with the same kernels, and against none. */
static void bench_packed()
{
    printf("%-28s %22s %22s %22s\n", "packed: forward, backward ms", "unpacked", "one document",
           "mixed documents");
    for (int d : {64, 128, 256})
        for (int s : {1024, 4096, 16384, 32768}) {
            int b = 16384 / s > 0 ? 16384 / s : 1;
            packed_case c = {b, s, 32, 8, d, d, PACK_ONE}, mixed = c;
            mixed.how = PACK_MIXED;
            double ms[3][2];
            if (d == 256 && s > 4096)
                continue;
            time_packed(c, false, ms[0]), time_packed(c, true, ms[1]);
            time_packed(mixed, true, ms[2]);
            char name[64];
            snprintf(name, sizeof name, "b%d s%d h32/8 d%d", b, s, d);
            printf("%-28s", name);
            for (auto &m : ms)
                printf(" %11.4f %10.4f", m[0], m[1]);
            printf("\n");
            fflush(stdout);
        }
}

static void bench_decode()
{
    const struct {
        int m;
        int64_t n, k;
    } sizes[] = {
        {1, 16384, 2048}, {1, 2048, 8192}, {1, 128256, 2048}, {4, 16384, 2048}, {8, 28672, 4096}};
    for (auto z : sizes) {
        mx_bf16 *x = device_random<mx_bf16>(z.m * z.k, 1, 1), *y = device_alloc<mx_bf16>(z.m * z.n);
        int sets =
            (int)std::max<int64_t>(1, (256ll << 20) / (z.n * z.k * 2)) + 1; /* out of the cache */
        mx_bf16 *w = device_random<mx_bf16>(z.n * z.k * sets, 2, 1);
        char name[64];
        snprintf(name, sizeof name, "gemv %dx%lldx%lld", z.m, (long long)z.n, (long long)z.k);
        line(name, time_ms([&] {
                       for (int i = 0; i < sets; i++)
                           CU(mx_cuda_gemv(y, NULL, x, w + z.n * z.k * i, z.m, z.n, z.k, 0));
                   }) / sets,
             0, 2.0 * z.n * z.k);
        cudaFree(x), cudaFree(y), cudaFree(w);
    }
    for (int b : {1, 16})
        for (int cap : {4096, 65536}) {
            if (b * (int64_t)cap > 1 << 19)
                continue;
            mx_decode_shape s = {};
            s.batch = b, s.heads_q = 32, s.heads_kv = 8, s.dim_qk = s.dim_v = 128, s.capacity = cap;
            s.k_seq = s.v_seq = 1024, s.k_batch = s.v_batch = 1024ll * cap,
            s.k_head = s.v_head = 128;
            s.scale = 0.088f;
            int64_t nk = s.k_batch * b;
            mx_bf16 *q = device_random<mx_bf16>(b * 4096, 1, 1),
                    *o = device_alloc<mx_bf16>(b * 4096);
            int sets = (int)std::max<int64_t>(1, (128ll << 20) / (nk * 4)) + 1;
            mx_bf16 *k = device_random<mx_bf16>(nk * sets, 2, 1),
                    *v = device_random<mx_bf16>(nk * sets, 3, 1);
            std::vector<int32_t> len(b, cap);
            int32_t *l = device_copy(len);
            void *scratch = device_alloc<char>(mx_cuda_decode_scratch_bytes(&s));
            char name[64];
            snprintf(name, sizeof name, "decode attention b%d, %d keys, h32/8 d128", b, cap);
            line(name, time_ms([&] {
                           for (int i = 0; i < sets; i++)
                               CU(mx_cuda_decode_attention(&s, o, q, k + nk * i, v + nk * i, {l},
                                                           NULL, scratch, 0));
                       }) / sets,
                 0, nk * 4.0);
            cudaFree(q), cudaFree(o), cudaFree(k), cudaFree(v), cudaFree(l), cudaFree(scratch);
        }
    const int rows = 64, vocab = 128256;
    std::vector<float> greedy, full; /* of each row: temperature, top_k, top_p, a random number */
    for (int i = 0; i < rows; i++)
        for (int k = 0; k < 4; k++) {
            const float one[] = {0, 0, 1, 0}, all[] = {0.8f, 50, 0.9f, (i + 0.5f) / rows};
            greedy.push_back(one[k]), full.push_back(all[k]);
        }
    float *x = device_random<float>((int64_t)rows * vocab, 1, 5);
    float *settings[] = {device_copy(greedy), device_copy(full)};
    const char *names[] = {"sample greedy, V 128256", "sample t 0.8 top_k 50 top_p 0.9"};
    int32_t *t = device_alloc<int32_t>(rows);
    for (int b : {1, rows})
        for (int k = 0; k < 2; k++) {
            mx_sample_rows s = {t, x, settings[k], b, vocab, vocab};
            line(names[k], time_ms([&] { CU(mx_cuda_sample(&s, 0)); }), 0, b * vocab * 4.0);
        }
    cudaFree(x), cudaFree(settings[0]), cudaFree(settings[1]), cudaFree(t);
}

/* Every expert of a layer: the way up (NT), dx (NN) and dw (TN). uneven: the first has half. */
/* Masks that cuDNN lacks: our forward kernel on any machine, and the one that is chosen here. */
struct masked {
    const char *name;
    int b, s, hq, hk, d, window, chunk, document;
    float cap;
    bool sinks;
};
static void bench_masked(const masked &m)
{
    int64_t T = (int64_t)m.b * m.s, q = T * m.hq * m.d, k = T * m.hk * m.d;
    mx_flash_shape f = {};
    f.batch = m.b, f.seq_q = f.seq_kv = m.s, f.heads_q = m.hq, f.heads_kv = m.hk;
    f.dim_qk = f.dim_v = m.d, f.causal = true, f.scale = 1 / sqrtf((float)m.d);
    f.window = m.window, f.chunk = m.chunk, f.softcap = m.cap;
    f.q = f.o = {(int64_t)m.s * m.hq * m.d, (int64_t)m.hq * m.d, m.d};
    f.k = f.v = {(int64_t)m.s * m.hk * m.d, (int64_t)m.hk * m.d, m.d};
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < T && m.document; i++)
        ids.push_back((int32_t)(i % m.s / m.document));
    mx_flash_args a = {};
    a.q = device_random<mx_bf16>(q, 1, 1), a.k = device_random<mx_bf16>(k, 2, 1);
    a.v = device_random<mx_bf16>(k, 3, 1), a.o = device_alloc<mx_bf16>(q);
    a.stats = device_alloc<float>(T * m.hq);
    a.sinks = m.sinks ? device_random<float>(m.hq, 4, 1) : NULL;
    a.q_seg = a.k_seg = m.document ? device_copy(ids) : NULL;
    printf("%s, b%d s%d h%d/%d d%d causal\n", m.name, m.b, m.s, m.hq, m.hk, m.d);
    line("   own forward, any machine",
         time_ms([&] { CU(mx_flash_mma_forward(&f, &a, 0)); }, 5), 0, 4.0 * (q + k));
    line("   own forward", time_ms([&] { CU(mx_flash_forward(&f, &a, 0)); }, 5), 0, 4.0 * (q + k));
    for (const void *p : {a.q, a.k, a.v, (const void *)a.o, (const void *)a.stats,
                          (const void *)a.sinks, (const void *)a.q_seg})
        cudaFree((void *)p);
}
static void bench_masks()
{
    const masked masks[] = {{"sinks", 2, 4096, 64, 8, 64, 0, 0, 0, 0, true},
                            {"sinks, window 128", 2, 4096, 64, 8, 64, 128, 0, 0, 0, true},
                            {"softcap, window 4096", 2, 8192, 32, 16, 128, 4096, 0, 0, 50, false},
                            {"chunks of 8192", 1, 16384, 40, 8, 128, 0, 8192, 0, 0, false},
                            {"documents of 512", 4, 4096, 32, 8, 64, 0, 0, 512, 0, false}};
    for (const masked &m : masks)
        bench_masked(m);
}

static void bench_grouped(int64_t experts, int64_t rows, int64_t d, int64_t f, bool uneven)
{
    mx_bf16 *x = device_random<mx_bf16>(rows * d, 1, 1),
            *y = device_random<mx_bf16>(rows * f, 2, 1);
    mx_bf16 *w = device_random<mx_bf16>(experts * d * f, 3, 1);
    mx_bf16 *out = device_alloc<mx_bf16>(std::max(rows * std::max(d, f), experts * d * f));
    std::vector<int32_t> start(experts + 1);
    for (int64_t e = 0; e <= experts; e++)
        start[e] = (int32_t)(uneven && e ? rows / 2 + rows / 2 * (e - 1) / (experts - 1)
                                         : rows * e / experts);
    int32_t *s = device_copy(start);
    const char *kinds[] = {"NT", "NN", "TN"}, *ways[] = {"mma", "wgmma", "hopper"};
    for (int way = 2; way >= 0; way--)
        for (mx_grouped_kind kind : {MX_GROUPED_NT, MX_GROUPED_NN, MX_GROUPED_TN}) {
            mx_grouped_call g = {};
            char name[96];
            g.kind = kind, g.experts = experts, g.rows = rows, g.start = s, g.y = out, g.b = w;
            g.n = kind == MX_GROUPED_NT ? f : d, g.k = kind == MX_GROUPED_NT ? d : f, g.m = f;
            g.a = kind == MX_GROUPED_NT ? x : y;
            if (kind == MX_GROUPED_TN)
                g.b = x;
            snprintf(name, sizeof name, "grouped %s %s, %lld%s experts, %lldx%lldx%lld",
                     kinds[kind], ways[way], (long long)experts, uneven ? " uneven" : "",
                     (long long)rows, (long long)d, (long long)f);
            double bytes = 2.0 * (rows * d + rows * f + experts * d * f);
            if (way == 2 && !mx_cuda_grouped_is_hopper(&g))
                continue;
            line(name, time_ms([&] {
                     CU(way == 2 ? mx_cuda_grouped_hopper(&g, 0)
                                 : mx_cuda_grouped_tiled(&g, way, 0));
                 }),
                 2.0 * rows * d * f, bytes);
        }
    cudaFree(x), cudaFree(y), cudaFree(w), cudaFree(out), cudaFree(s);
}

static void bench_experts()
{
    bench_grouped(8, 16384, 4096, 14336, false);
    bench_grouped(8, 16384, 4096, 14336, true);
    bench_grouped(128, 131072, 2048, 768, false);
    bench_grouped(64, 262144, 768, 288, false);
    bench_grouped(64, 262144, 768, 288, true);
    bench_grouped(16, 32768, 768, 512, false);
    bench_grouped(128, 512, 2048, 768, false);
}

/* FP8 with scales of blocks, and with it what quantizes the left factor. */
static void bench_blocks(int64_t m, int64_t n, int64_t k, bool runs)
{
    mx_bf16 *x = device_random<mx_bf16>(m * k, 1, 1), *w = device_random<mx_bf16>(n * k, 2, 1);
    uint8_t *qx = device_alloc<uint8_t>(m * k), *qw = device_alloc<uint8_t>(n * k);
    int64_t most = std::max(m, n) * ((k + 127) / 128);
    float *sx = device_alloc<float>(most), *sw = device_alloc<float>(most);
    float *at = device_alloc<float>(most), *amax = device_alloc<float>(1);
    float *tx = device_alloc<float>(most), *tw = device_alloc<float>(most);
    mx_bf16 *y = device_alloc<mx_bf16>(m * n);
    mx_cuda_quantize_shape s = {1, m, k, 1, 128, MX_CUDA_E4M3, false, true};
    mx_cuda_quantize_args a = {x, NULL, qx, NULL, sx, amax, at};
    double quantize = time_ms([&] { CU(mx_cuda_quantize(&s, &a, 0)); });
    s.rows = n, s.block_rows = runs ? 1 : 128, a.x = w, a.q = qw, a.scale = sw;
    CU(mx_cuda_quantize(&s, &a, 0));
    int64_t deep = (k + 127) / 128;
    CU(mx_cuda_place_scales(tw, sw, runs ? n : (n + 127) / 128, deep, 0));
    double place = time_ms([&] { CU(mx_cuda_place_scales(tx, sx, m, deep, 0)); });
    mx_gemm_blocks_shape g = {m, n, k, false, runs, false};
    mx_gemm_blocks_args p = {qx, qw, tx, runs ? tw : sw, y};
    char name[96];
    snprintf(name, sizeof name, "fp8 %s %lldx%lldx%lld", runs ? "runs" : "squares", (long long)m,
             (long long)n, (long long)k);
    if (mx_gemm_blocks_is_possible(&g)) {
        line(name, time_ms([&] { CU(mx_gemm_blocks_launch(&g, &p, 0)); }, 15), 2.0 * m * n * k, 0);
        double held = time_ms(
            [&] {
                for (int i = 0; i < 50; i++)
                    CU(mx_gemm_blocks_launch(&g, &p, 0));
            },
            5);
        line("   sustained", held / 50, 2.0 * m * n * k, 0);
    }
    line("   quantizing the left factor", quantize, 0, 3.0 * m * k);
    line("   its scales", place, 0, 8.0 * m * deep);
    cudaFree(x), cudaFree(w), cudaFree(qx), cudaFree(qw), cudaFree(sx), cudaFree(sw), cudaFree(y);
    cudaFree(at), cudaFree(amax), cudaFree(tx), cudaFree(tw);
}

/* Qwen2.5-7B at 16 x 1024: forward, gradient of the input, of the weight. */
static void bench_all_blocks(mx_cuda_libs *libs)
{
    const int64_t sizes[][3] = {{16384, 37888, 3584}, {16384, 3584, 18944}, {16384, 4608, 3584},
                                {8192, 8192, 8192}};
    for (auto &z : sizes) {
        bench_gemm(libs, z[0], z[1], z[2], false, true);
        bench_blocks(z[0], z[1], z[2], false);
    }
    bench_gemm(libs, 3584, 18944, 16384, true, false);
    bench_blocks(3584, 18944, 16384, true);
}

/* Milliseconds of one of n launches that a CUDA graph has, as a step of decoding has them. */
template <class F> static double time_in_graph(F launch, int n)
{
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CU(cudaStreamCreate(&stream));
    CU(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < n; i++)
        launch(i, stream);
    CU(cudaStreamEndCapture(stream, &graph));
    CU(cudaGraphInstantiate(&exec, graph, 0));
    double ms = time_ms([&] { CU(cudaGraphLaunch(exec, 0)); }, 15) / n;
    CU(cudaGraphExecDestroy(exec));
    CU(cudaGraphDestroy(graph));
    CU(cudaStreamDestroy(stream));
    return ms;
}

struct codes_shape {
    const char *name;
    int parts;
    int64_t n[3], k;
};

/* Weights of one x in one launch; more of them in turn than the caches hold. */
static void bench_codes(mx_cuda_codes_kind kind, const codes_shape &s, int m)
{
    static const char *const kinds[] = {"int8", "fp8", "int4"};
    const bool small = kind == MX_CUDA_CODES_INT4;
    const int64_t group = small ? 128 : s.k;
    int64_t rows = 0;
    for (int i = 0; i < s.parts; i++)
        rows += s.n[i];
    const int64_t bytes = rows * s.k / (small ? 2 : 1), scales = rows * (s.k / group);
    const int sets = (int)std::max<int64_t>(2, (300ll << 20) / bytes);
    char *codes = (char *)device_random<float>(sets * bytes / 4, 1, 1);
    float *scale = device_random<float>(scales, 2, 1);
    mx_bf16 *x = device_random<mx_bf16>(m * s.k, 3, 1), *y = device_alloc<mx_bf16>(m * rows);
    auto launch = [&](int set, cudaStream_t stream) {
        mx_cuda_dequant one[3];
        int64_t at = 0;
        for (int i = 0; i < s.parts; at += s.n[i++])
            one[i] = {{kind, codes + (set % sets) * bytes + at * s.k / (small ? 2 : 1),
                       scale + at * (s.k / group), s.n[i], s.k, group},
                      y + m * at,
                      false};
        CU(mx_cuda_dequant_gemv(one, s.parts, x, m, stream));
    };
    char name[96];
    snprintf(name, sizeof name, "%s, %s, %d row%s", kinds[kind], s.name, m, m > 1 ? "s" : "");
    line(name, time_in_graph(launch, std::max(sets, 16)), 2.0 * m * rows * s.k,
         (double)(bytes + 4 * scales));
    cudaFree(codes), cudaFree(scale), cudaFree(x), cudaFree(y);
}

static void bench_all_codes()
{
    const codes_shape shapes[] = {{"8B qkv", 3, {4096, 1024, 1024}, 4096},
                                  {"8B o", 1, {4096}, 4096},
                                  {"8B gate, up", 2, {14336, 14336}, 4096},
                                  {"8B down", 1, {4096}, 14336},
                                  {"8B head", 1, {128256}, 4096},
                                  {"1B qkv", 3, {2048, 512, 512}, 2048},
                                  {"1B gate, up", 2, {8192, 8192}, 2048},
                                  {"1B down", 1, {2048}, 8192}};
    for (mx_cuda_codes_kind kind : {MX_CUDA_CODES_INT8, MX_CUDA_CODES_FP8, MX_CUDA_CODES_INT4})
        for (int m : {1, 8})
            for (auto &s : shapes)
                bench_codes(kind, s, m);
}

int main(int argc, char **argv)
{
    if (!device_present())
        return 0;
    if (argc > 1 && !strcmp(argv[1], "blocks")) {
        mx_cuda_libs libs = {};
        bench_all_blocks(&libs);
        return 0;
    }
    if (argc > 1 && !strcmp(argv[1], "codes")) {
        bench_all_codes();
        return 0;
    }
    if (argc > 1 && !strcmp(argv[1], "experts")) {
        bench_experts();
        return 0;
    }
    if (argc > 1 && !strcmp(argv[1], "packed")) {
        bench_packed();
        return 0;
    }
    mx_cuda_libs libs = {};
    bench_memory();
    bench_decode();
    bench_all_blocks(&libs);
    bench_all_codes();
    bench_experts();
    mx_sdpa *dnn;
    OK(mx_sdpa_open(&dnn, &libs));
    bench_masks();
    bench_packed();
    bench_attention(dnn, 64, 1024, 12, 12, 64, false);
    bench_attention(dnn, 4, 4096, 32, 8, 64, false);
    bench_attention(dnn, 4, 4096, 32, 8, 64, true);
    bench_attention(dnn, 1, 8192, 32, 8, 128, false);
    bench_attention(dnn, 1, 8192, 32, 8, 128, true);
    bench_attention(dnn, 4, 4096, 32, 8, 128, false);
    bench_gemm(&libs, 8192, 8192, 8192, false, true);
    bench_gemm(&libs, 16384, 16384, 2048, false, true);
    bench_gemm(&libs, 16384, 2048, 8192, false, true);
    bench_gemm(&libs, 2048, 8192, 16384, true, false);
    bench_gemm(&libs, 16384, 2048, 2048, false, true);
    return 0;
}
