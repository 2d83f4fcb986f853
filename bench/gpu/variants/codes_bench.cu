/* codes_bench.cu - one vector times weights of codes: kernels alone, and the kernels of a layer in
 * a row, each form against double precision and timed in one run.
 *     codes_bench [alone|layer]
 * Weights go round through more memory than the caches hold; launches are one CUDA graph with early
 * launches, as a step of decoding has them.
 */
#include "device/cuda/gemm/dequant_mma.cuh"
#include "device/cuda/gemm/dequant_stream.cuh"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#define CU(expr)                                                                                   \
    do {                                                                                           \
        cudaError_t e_ = (expr);                                                                   \
        if (e_ != cudaSuccess) {                                                                   \
            printf("%d: %s: %s\n", __LINE__, #expr, cudaGetErrorString(e_));                       \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

using codes_stream::call;
typedef mx_cuda_codes_kind kind_t;
static cudaStream_t stream;
static int sms = 132;
static const char *kind_name[] = {"int8", "fp8", "int4"};

/* --- data --- */

__global__ void fill_codes(uint32_t *p, size_t n, uint64_t seed, int fp8)
{
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    uint32_t u = (uint32_t)random_bits64(seed, i);
    for (int b = 0; fp8 && b < 4; b++)
        if ((u >> 8 * b & 0x7f) == 0x7f) /* NaN */
            u ^= 1u << 8 * b;
    p[i] = u;
}
__global__ void fill_floats(float *p, uint16_t *q, size_t n, uint64_t seed, float scale, float shift)
{
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    float x = (int32_t)random_bits64(seed, i) * (1.f / 2147483648.f) * scale + shift;
    if (p)
        p[i] = x;
    else
        q[i] = f32_to_bf16(x);
}
template <class T> static T *take(size_t n)
{
    void *p;
    CU(cudaMalloc(&p, n * sizeof(T) + 16));
    CU(cudaMemset(p, 0xff, n * sizeof(T) + 16)); /* NaN */
    return (T *)p;
}
static uint16_t *vector_of(size_t n, uint64_t seed, float scale = 1, float shift = 0)
{
    uint16_t *x = take<uint16_t>(n);
    fill_floats<<<(unsigned)((n + 255) / 256), 256>>>(NULL, x, n, seed, scale, shift);
    return x;
}
struct weight {
    mx_cuda_codes w;
    size_t bytes() const
    {
        return (size_t)w.n * w.k / (w.kind == MX_CUDA_CODES_INT4 ? 2 : 1) +
               (size_t)w.n * (w.k / w.group) * 4;
    }
};
static weight make(kind_t kind, int64_t n, int64_t k, uint64_t seed)
{
    weight r = {{kind, NULL, NULL, n, k, kind == MX_CUDA_CODES_INT4 ? 128 : k}};
    size_t bytes = (size_t)n * k / (kind == MX_CUDA_CODES_INT4 ? 2 : 1), scales = n * (k / r.w.group);
    uint32_t *c = take<uint32_t>(bytes / 4);
    float *s = take<float>(scales);
    fill_codes<<<(unsigned)((bytes / 4 + 255) / 256), 256>>>(c, bytes / 4, seed,
                                                             kind == MX_CUDA_CODES_FP8);
    fill_floats<<<(unsigned)((scales + 255) / 256), 256>>>(s, NULL, scales, seed + 1, 0.0005f, 0.001f);
    r.w.codes = c, r.w.scale = s;
    return r;
}

/* --- the reference: a thread a row, double --- */

__global__ void reference(double *y, mx_cuda_codes w, const uint16_t *x)
{
    int64_t row = (int64_t)blockIdx.x * blockDim.x / 32 + threadIdx.x / 32;
    if (row >= w.n)
        return;
    const uint8_t *c = (const uint8_t *)w.codes;
    double s = 0;
    for (int64_t i = threadIdx.x % 32; i < w.k; i += 32) {
        int64_t at = row * w.k + i;
        double v;
        if (w.kind == MX_CUDA_CODES_INT4)
            v = (c[at / 2] >> 4 * (at % 2) & 15) - 8;
        else if (w.kind == MX_CUDA_CODES_INT8)
            v = ((const int8_t *)c)[at];
        else
            v = (double)__half2float(__half(__nv_cvt_fp8_to_halfraw(c[at], __NV_E4M3)));
        s += v * w.scale[row * (w.k / w.group) + i / w.group] * (double)as_float(x[i]);
    }
    for (int o = 16; o; o >>= 1)
        s += __shfl_xor_sync(~0u, s, o);
    if (threadIdx.x % 32 == 0)
        y[row] = s;
}
static std::vector<double> expect(const weight &w, const uint16_t *x)
{
    double *y = take<double>(w.w.n);
    std::vector<double> h(w.w.n);
    reference<<<(unsigned)((w.w.n + 7) / 8), 256>>>(y, w.w, x);
    CU(cudaMemcpy(h.data(), y, h.size() * 8, cudaMemcpyDeviceToHost));
    cudaFree(y);
    return h;
}
static double bf16_of(uint16_t b)
{
    uint32_t u = (uint32_t)b << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static std::vector<double> host(const uint16_t *y, size_t n)
{
    std::vector<uint16_t> h(n);
    std::vector<double> r(n);
    CU(cudaMemcpy(h.data(), y, n * 2, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < n; i++)
        r[i] = bf16_of(h[i]);
    return r;
}
static double off(const std::vector<double> &a, const std::vector<double> &ref)
{
    double d = 0, r = 0;
    for (size_t i = 0; i < ref.size(); i++) {
        if (!std::isfinite(a[i]))
            return INFINITY;
        d += (a[i] - ref[i]) * (a[i] - ref[i]), r += ref[i] * ref[i];
    }
    return sqrt(d / r);
}

/* --- forms --- */

template <kind_t KIND, int WARPS, int AHEAD, int BLOCKS, int GRID>
static cudaError_t run_stream(const call &c)
{
    unsigned room = c.m == 1 ? c.steps * 64 * codes_stream::in_lane(KIND) / 8 : 0;
    unsigned grid = std::min(c.tiles, GRID ? (unsigned)(sms * GRID) : c.tiles);
    return launch_pdl(codes_stream::kernel<KIND, WARPS, AHEAD, true, BLOCKS, 16 / WARPS>, grid,
                      32 * WARPS, room, stream, c);
}
struct form {
    const char *name;
    cudaError_t (*run[3])(const call &);
};
#define FORM(w, a, b, g)                                                                           \
    {                                                                                              \
        #w " warps, " #a " ahead, " #b " fit, " #g " a SM",                                        \
        {                                                                                          \
            run_stream<MX_CUDA_CODES_INT8, w, a, b, g>, run_stream<MX_CUDA_CODES_FP8, w, a, b, g>, \
                run_stream<MX_CUDA_CODES_INT4, w, a, b, g>                                         \
        }                                                                                          \
    }
static const form forms[] = {FORM(8, 4, 2, 2), FORM(8, 4, 3, 3), FORM(8, 4, 3, 2),
                             FORM(8, 7, 2, 2), FORM(8, 4, 3, 0), FORM(4, 4, 5, 5),
                             FORM(8, 2, 4, 4), FORM(8, 2, 4, 3)};
enum { N_FORMS = sizeof forms / sizeof *forms };

static call call_of(const weight *w, int n, const uint16_t *x, uint16_t *const *y, bool swiglu = false)
{
    call c = {};
    const mx_cuda_codes &a = w[0].w;
    int each = codes_stream::in_lane(a.kind);
    c.parts = n, c.m = 1, c.x = x, c.k = (unsigned)a.k, c.vectors = c.k / each;
    c.steps = (c.vectors + 3) / 4, c.groups = (unsigned)(a.k / a.group), c.swiglu = swiglu;
    for (int i = 0; i < n; i++) {
        c.one[i] = {w[i].w.codes, w[i].w.scale, y[swiglu ? 0 : i], (unsigned)w[i].w.n, c.tiles, false};
        c.tiles += swiglu ? (i ? 0 : (unsigned)(w[i].w.n + 7) / 8) : (unsigned)(w[i].w.n + 15) / 16;
    }
    return c;
}
static void run_old(const weight *w, int n, const uint16_t *x, uint16_t *const *y)
{
    for (int i = 0; i < n; i++)
        CU(mx_cuda_dequant_few(y[i], false, x, 1, &w[i].w, stream));
}

/* Microseconds of a graph of what f launches. */
static double time_graph(std::function<void()> f, int reps = 15)
{
    cudaGraph_t g;
    cudaGraphExec_t e;
    cudaEvent_t a, b;
    CU(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    f();
    CU(cudaStreamEndCapture(stream, &g));
    CU(cudaGraphInstantiate(&e, g, 0));
    CU(cudaEventCreate(&a));
    CU(cudaEventCreate(&b));
    std::vector<float> t;
    for (int i = 0; i < reps + 3; i++) {
        CU(cudaEventRecord(a, stream));
        CU(cudaGraphLaunch(e, stream));
        CU(cudaEventRecord(b, stream));
        CU(cudaEventSynchronize(b));
        float ms;
        CU(cudaEventElapsedTime(&ms, a, b));
        if (i >= 3)
            t.push_back(ms);
    }
    CU(cudaGraphExecDestroy(e));
    CU(cudaGraphDestroy(g));
    std::sort(t.begin(), t.end());
    return 1e3 * t[t.size() / 2];
}

/* --- each GEMM alone --- */

struct shape {
    const char *name;
    int parts;
    int64_t n[3], k;
};
static const shape shapes[] = {{"8B qkv", 3, {4096, 1024, 1024}, 4096},
                               {"8B o", 1, {4096}, 4096},
                               {"8B gate/up", 2, {14336, 14336}, 4096},
                               {"8B down", 1, {4096}, 14336},
                               {"8B head", 1, {128256}, 4096},
                               {"1B qkv", 3, {2048, 512, 512}, 2048},
                               {"1B gate/up", 2, {8192, 8192}, 2048},
                               {"1B down", 1, {2048}, 8192}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static void alone()
{
    for (int kind = 0; kind < 3; kind++) {
        printf("\n%s, us (TB/s)%*s", kind_name[kind], 20, "");
        for (const shape &s : shapes)
            printf(" %13s", s.name);
        printf("\n");
        std::vector<std::vector<double>> us(N_FORMS + 1);
        bool wrong = false;
        for (const shape &s : shapes) {
            size_t one = 0;
            for (int i = 0; i < s.parts; i++)
                one += s.n[i] * s.k / (kind == MX_CUDA_CODES_INT4 ? 2 : 1);
            int sets = (int)std::max<size_t>(2, (400u << 20) / one), times = std::max(sets, 8);
            std::vector<std::vector<weight>> w(sets);
            uint16_t *x = vector_of(s.k, 5), *y[3], *z[3];
            double bytes = 0;
            for (int i = 0; i < sets; i++)
                for (int j = 0; j < s.parts; j++)
                    w[i].push_back(make((kind_t)kind, s.n[j], s.k, 100 * i + 10 * j));
            for (int j = 0; j < s.parts; j++)
                y[j] = take<uint16_t>(s.n[j]), z[j] = take<uint16_t>(s.n[j]), bytes += w[0][j].bytes();
            for (int f = 0; f <= N_FORMS; f++) {
                auto go = [&](int i) {
                    if (f == N_FORMS)
                        run_old(w[i].data(), s.parts, x, y);
                    else
                        CU(forms[f].run[kind](call_of(w[i].data(), s.parts, x, y)));
                };
                for (int j = 0; j < s.parts; j++)
                    CU(cudaMemset(y[j], 0xff, s.n[j] * 2));
                go(1);
                CU(cudaStreamSynchronize(stream));
                for (int j = 0; j < s.parts; j++) {
                    double e = off(host(y[j], s.n[j]), expect(w[1][j], x));
                    if (!(e < 4e-3)) {
                        printf("WRONG: %s %s form %d part %d: %.2e\n", kind_name[kind], s.name, f, j, e);
                        wrong = true;
                    }
                }
                double t = time_graph([&] {
                    for (int i = 0; i < times; i++)
                        go(i % sets);
                }) / times;
                us[f].push_back(t);
                us[f].push_back(bytes / t / 1e6);
            }
            for (auto &v : w)
                for (weight &u : v)
                    cudaFree((void *)u.w.codes), cudaFree((void *)u.w.scale);
            for (int j = 0; j < s.parts; j++)
                cudaFree(y[j]), cudaFree(z[j]);
            cudaFree(x);
        }
        for (int f = 0; f <= N_FORMS; f++) {
            printf("%-34s", f == N_FORMS ? "before" : forms[f].name);
            for (int s = 0; s < N_SHAPES; s++)
                printf(" %7.2f(%4.2f)", us[f][2 * s], us[f][2 * s + 1]);
            printf("\n");
        }
        if (wrong)
            printf("SOME ARE WRONG\n");
        fflush(stdout);
    }
}

/* --- the kernels of a layer in a row --- */

/* What a small kernel between GEMMs costs: reads a vector, writes one. */
__global__ void small_kernel(uint16_t *y, const uint16_t *x, const uint16_t *b, unsigned n)
{
    let_next_start();
    wait_for_previous();
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < n; i += gridDim.x * blockDim.x)
        y[i] = f32_to_bf16(as_float(x[i]) * 0.5f + (b ? as_float(b[i]) : 0.f));
}
/* One block, as a norm of one row has it. */
__global__ void norm_kernel(uint16_t *y, uint16_t *sum, const uint16_t *x, const uint16_t *b,
                            const uint16_t *w, unsigned n)
{
    __shared__ float scratch[32];
    let_next_start();
    wait_for_previous();
    float f[2][8] = {}, g[8], squares = 0;
    for (unsigned i = threadIdx.x, u = 0; i < n / 8; i += blockDim.x, u++) {
        unpack8(f[u], ((const uint4 *)x)[i]), unpack8(g, ((const uint4 *)b)[i]);
        for (int j = 0; j < 8; j++)
            f[u][j] += g[j];
        uint4 s = pack8(f[u]);
        ((uint4 *)sum)[i] = s;
        unpack8(f[u], s);
        for (int j = 0; j < 8; j++)
            squares += f[u][j] * f[u][j];
    }
    float factor = rsqrtf(block_sum(squares, scratch) / n + 1e-5f);
    for (unsigned i = threadIdx.x, u = 0; i < n / 8; i += blockDim.x, u++) {
        unpack8(g, ((const uint4 *)w)[i]);
        for (int j = 0; j < 8; j++)
            g[j] *= f[u][j] * factor;
        ((uint4 *)y)[i] = pack8(g);
    }
}

struct model {
    const char *name;
    int64_t d, kv, ff, vocab;
    int layers;
};
static const model models[] = {{"8B", 4096, 1024, 14336, 128256, 32},
                               {"1B", 2048, 512, 8192, 128256, 16}};
struct layer {
    weight qkv[3], o, gu[2], down;
};
struct buffers {
    uint16_t *x, *x2, *h, *q, *k, *v, *a, *gate, *up, *act, *res, *w;
};
enum { NORM = 1, SWIGLU = 2, RESIDUAL = 4, ATTENTION = 8 };

static void launch_layer(const model &m, const layer &l, const buffers &b, const form *f, int fused)
{
    kind_t kind = l.o.w.kind;
    uint16_t *qkv[3] = {b.q, b.k, b.v}, *gu[2] = {b.gate, b.up}, *act[1] = {b.act}, *h1[1] = {b.res};
    auto gemm = [&](const weight *w, int n, const uint16_t *x, uint16_t *const *y, int norm,
                    bool swiglu, bool residual) {
        if (!f) {
            run_old(w, n, x, y);
            return;
        }
        call c = call_of(w, n, x, y, swiglu);
        if (norm)
            c.norm = b.w, c.add = fused & RESIDUAL ? NULL : b.res, c.eps = 1e-5f,
            c.sum = fused & RESIDUAL ? NULL : b.x2;
        if (residual)
            c.residual = b.x;
        CU(f->run[kind](c));
    };
    auto small = [&](int blocks, uint16_t *y, const uint16_t *x, const uint16_t *z, int64_t n) {
        CU(launch_pdl(small_kernel, blocks, 128, 0, stream, y, x, z, (unsigned)n));
    };
    auto norm = [&] {
        CU(launch_pdl(norm_kernel, 1, 256, 0, stream, b.h, b.x2, b.x, b.res, b.w, (unsigned)m.d));
    };
    if (!(fused & NORM))
        norm();
    gemm(l.qkv, 3, fused & NORM ? b.x : b.h, qkv, fused & NORM, false, false);
    if (!(fused & ATTENTION))
        small(32, b.q, b.q, NULL, m.d); /* RoPE and the cache */
    small(64, b.a, b.q, NULL, m.d);     /* attention */
    small(32, b.h, b.a, NULL, m.d);     /* its splits */
    gemm(&l.o, 1, b.h, h1, 0, false, fused & RESIDUAL);
    if (!(fused & NORM))
        norm();
    gemm(l.gu, 2, fused & NORM ? b.x : b.h, fused & SWIGLU ? act : gu, fused & NORM, fused & SWIGLU,
         false);
    if (!(fused & SWIGLU))
        small(32, b.act, b.gate, b.up, m.ff);
    gemm(&l.down, 1, b.act, h1, 0, false, fused & RESIDUAL);
}

static void layers()
{
    for (const model &m : models)
        for (int kind = 0; kind < 3; kind++) {
            enum { SETS = 6 };
            std::vector<layer> l(SETS);
            double bytes = 0;
            for (int i = 0; i < SETS; i++) {
                kind_t k = (kind_t)kind;
                l[i] = {{make(k, m.d, m.d, 1), make(k, m.kv, m.d, 2), make(k, m.kv, m.d, 3)},
                        make(k, m.d, m.d, 4),
                        {make(k, m.ff, m.d, 5), make(k, m.ff, m.d, 6)},
                        make(k, m.d, m.ff, 7)};
                for (const weight *w : {&l[i].qkv[0], &l[i].qkv[1], &l[i].qkv[2], &l[i].o,
                                        &l[i].gu[0], &l[i].gu[1], &l[i].down})
                    bytes += w->bytes() / SETS;
            }
            buffers b;
            for (uint16_t **p : {&b.x, &b.x2, &b.h, &b.q, &b.k, &b.v, &b.a, &b.gate, &b.up, &b.act,
                                 &b.res, &b.w})
                *p = vector_of(m.ff, 9);
            printf("\nlayer of %s, %s: %.1f MB, %.2f us at 4.27 TB/s; us\n", m.name, kind_name[kind],
                   bytes / 1e6, bytes / 4.27e6);
            struct {
                const char *name;
                int form, fused;
            } const way[] = {{"before: 14 kernels", -1, 0},
                             {"merged: 10 kernels", 0, 0},
                             {"merged, 3 blocks", 1, 0},
                             {"merged, 2 of 3 blocks", 2, 0},
                             {"merged, 7 ahead", 3, 0},
                             {"merged, a block a tile", 4, 0},
                             {"merged, 4 warps", 5, 0},
                             {"merged, 2 ahead, 4 blocks", 6, 0},
                             {"merged, 2 ahead, 3 of 4 blocks", 7, 0},
                             {"+ swiglu: 9", 0, SWIGLU},
                             {"+ swiglu, norm: 7", 0, SWIGLU | NORM},
                             {"+ swiglu, residual: 9", 0, SWIGLU | RESIDUAL},
                             {"+ all: 7", 0, SWIGLU | NORM | RESIDUAL},
                             {"+ all, RoPE in attention: 6", 0, SWIGLU | NORM | RESIDUAL | ATTENTION},
                             {"the same, 3 blocks", 1, SWIGLU | NORM | RESIDUAL | ATTENTION},
                             {"the same, 2 of 3 blocks", 2, SWIGLU | NORM | RESIDUAL | ATTENTION},
                             {"the same, a block a tile", 4, SWIGLU | NORM | RESIDUAL | ATTENTION},
                             {"the same, 4 warps", 5, SWIGLU | NORM | RESIDUAL | ATTENTION}};
            std::vector<double> want; /* of the kernels before; what is added up twice is not compared */
            for (auto &w : way) {
                fill_floats<<<(unsigned)(m.ff / 256), 256>>>(NULL, b.res, m.ff, 9, 1, 0);
                CU(cudaDeviceSynchronize());
                launch_layer(m, l[0], b, w.form < 0 ? NULL : &forms[w.form], w.fused);
                CU(cudaStreamSynchronize(stream));
                std::vector<double> got = host(b.res, m.d);
                if (want.empty())
                    want = got;
                double e = w.fused & RESIDUAL ? 0 : off(got, want);
                if (!(e < 2e-2))
                    printf("  WRONG: %s: %.2e\n", w.name, e);
                double t = time_graph([&] {
                    for (int i = 0; i < 4 * SETS; i++)
                        launch_layer(m, l[i % SETS], b, w.form < 0 ? NULL : &forms[w.form], w.fused);
                }) / (4 * SETS);
                printf("  %-32s %7.2f  %5.2f TB/s  %6.0f tokens/s of layers alone\n", w.name, t,
                       bytes / t / 1e6, 1e6 / t / m.layers);
            }
            fflush(stdout);
            for (layer &i : l)
                for (weight *w : {&i.qkv[0], &i.qkv[1], &i.qkv[2], &i.o, &i.gu[0], &i.gu[1], &i.down})
                    cudaFree((void *)w->w.codes), cudaFree((void *)w->w.scale);
            for (uint16_t *p : {b.x, b.x2, b.h, b.q, b.k, b.v, b.a, b.gate, b.up, b.act, b.res, b.w})
                cudaFree(p);
        }
}

int main(int argc, char **argv)
{
    int n = 0;
    const char *what = argc > 1 ? argv[1] : "";
    if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) {
        printf("skipped: no CUDA device\n");
        return 0;
    }
    CU(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
    CU(cudaStreamCreate(&stream));
    if (!*what || !strcmp(what, "alone"))
        alone();
    if (!*what || !strcmp(what, "layer"))
        layers();
    return 0;
}
