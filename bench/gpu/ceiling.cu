/* ceiling.cu - what a step would reach if all but its GEMMs and its attention were free.
 *     ceiling [CHOICES [ROW...]]      CHOICES: gemm_search's file, added to where it lacks a shape
 *
 * For each row of bench/gpu/train: every GEMM (forward, dx and dW of each layer and of the head,
 * cuBLASLt's best algorithm by the timed search) and every attention (cuDNN, and our own backward
 * where it is chosen) of a step, in the step's order, on random normal numbers, again and again
 * until the chip is hot; then for two seconds with the energy counter read (NVML; nothing is set;
 * the counter's steps make the watts a few per cent too low). A GPU at its power limit does as many
 * FLOPs as its joules buy, so the time of these kernels together is not the sum of their times
 * alone, and no step built from them is faster. Layers share their operands here, so memory traffic
 * is flattered a little.
 */
#include "gpu.cuh"
#include "device/cuda/attention/flash_hopper_backward.h"
#include <dlfcn.h>
#include <functional>
#include <map>
#include <time.h>

struct row {
    const char *name;
    int64_t width, mlp;
    bool gated; /* gate and up as GEMMs of their own */
    int64_t layers, heads, kv, vocab, batch, length;
    double aim; /* of MFU */
};
static const row rows[] = {
    {"gpt2-124m-64x1024", 768, 3072, false, 12, 12, 12, 50257, 64, 1024, 0.525},
    {"llama3.2-1b-4x4096", 2048, 8192, true, 16, 32, 8, 128256, 4, 4096, 0.60},
    {"llama3.2-3b-2x4096", 3072, 8192, true, 28, 24, 8, 128256, 2, 4096, 0.62},
    {"llama3.1-8b-8layers-4x4096", 4096, 14336, true, 8, 32, 8, 128256, 4, 4096, 0.66},
    {"llama3.1-8b-1x8192", 4096, 14336, true, 32, 32, 8, 128256, 1, 8192, 0.62},
};

/* --- the energy counter --- */
static int (*read_energy)(void *, unsigned long long *);
static void *card;
static void open_counter()
{
    void *so = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    auto init = (int (*)())(so ? dlsym(so, "nvmlInit_v2") : 0);
    auto find = (int (*)(unsigned, void **))(so ? dlsym(so, "nvmlDeviceGetHandleByIndex_v2") : 0);
    if (init && find && init() == 0 && find(0, &card) == 0)
        read_energy = (decltype(read_energy))dlsym(so, "nvmlDeviceGetTotalEnergyConsumption");
}
static double seconds()
{
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
/* Joules used so far, read the moment the counter moves (it does so some times a second). */
static double joules(double *when)
{
    unsigned long long first = 0, mj = 0;
    double start = seconds();
    if (read_energy)
        read_energy(card, &first);
    do {
        if (read_energy)
            read_energy(card, &mj);
        *when = seconds();
    } while (read_energy && mj == first && *when - start < 0.5);
    return 1e-3 * (double)mj;
}

/* --- the kernels of a step --- */
struct step {
    mx_gemm_lt *lt;
    mx_sdpa *dnn;
    char *work, *a, *b, *c; /* operands, shared by all */
    std::map<std::string, mx_gemm_plan *> plans;
    std::vector<std::function<void()>> kernels;
    std::vector<void *> owned; /* device memory */
    double flops = 0;
};
template <class T> static T *scratch(step *s, int64_t n)
{
    s->owned.push_back(device_alloc<T>(n));
    return (T *)s->owned.back();
}

static void gemm(step *s, int64_t m, int64_t n, int64_t k, bool ta, bool tb, bool f32 = false)
{
    std::string key = std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k) +
                      (ta ? "t" : "n") + (tb ? "t" : "n") + (f32 ? "f" : "");
    mx_gemm_plan *&p = s->plans[key];
    if (!p) {
        mx_gemm_shape shape = {};
        shape.m = m, shape.n = n, shape.k = k, shape.trans_a = ta, shape.trans_b = tb;
        shape.alpha = 1, shape.in = MX_GEMM_BF16, shape.out = f32 ? MX_GEMM_F32 : MX_GEMM_BF16;
        shape.lda = ta ? m : k; /* said as a training run says it, whose choices are then found */
        if (!f32)
            shape.ldb = tb ? k : n, shape.ldc = n, shape.batch = 1;
        OK(mx_gemm_plan_new(&p, s->lt, &shape));
        OK(mx_gemm_plan_search(p, s->a, s->b, s->c, s->work, 0));
    }
    mx_gemm_plan *plan = p;
    s->kernels.push_back([=] { OK(mx_gemm_plan_launch(plan, s->a, s->b, s->c, s->work, 0)); });
    s->flops += 2.0 * m * n * k;
}
static void forward(step *s, int64_t t, int64_t in, std::vector<int64_t> outs)
{
    for (int64_t out : outs)
        gemm(s, t, out, in, false, true);
}
static void backward(step *s, int64_t t, int64_t in, std::vector<int64_t> outs, bool f32 = false)
{
    for (int64_t out : outs) {
        gemm(s, t, in, out, false, false);
        gemm(s, out, in, t, true, false, f32);
    }
}

struct attention {
    mx_sdpa_plan *plan[2];
    mx_sdpa_args args;
    void *work[2];
    bool own; /* the backward pass */
    mx_flash_shape shape;
    mx_flash_args own_args;
    void *own_work;
    double flops;
};
static void take_own(step *s, attention *a, const mx_sdpa_shape &h)
{
    auto stride = [](const mx_sdpa_stride &x) { return mx_flash_stride{x.batch, x.seq, x.head}; };
    mx_flash_shape f = {};
    f.batch = (int)h.batch, f.seq_q = f.seq_kv = (int)h.seq_q, f.heads_q = (int)h.heads_q;
    f.heads_kv = (int)h.heads_kv, f.dim_qk = f.dim_v = (int)h.dim_qk, f.causal = true;
    f.q = f.k = f.v = f.dq = f.dk = f.dv = stride(h.q), f.o = f.dout = stride(h.o);
    f.scale = h.scale;
    mx_flash_args p = {};
    p.q = a->args.q, p.k = a->args.k, p.v = a->args.v, p.o = a->args.o, p.stats = a->args.stats;
    p.dout = a->args.dout, p.dq = a->args.dq, p.dk = a->args.dk, p.dv = a->args.dv;
    a->shape = f, a->own_args = p, a->own = mx_flash_hopper_backward_can(&f, &p);
    if (a->own)
        a->own_work = scratch<char>(s, (int64_t)mx_flash_hopper_backward_bytes(&f));
}
/* Lives as long as the program, but for its memory. */
static attention *attend(step *s, const row *r)
{
    int64_t d = r->width / r->heads, w = (r->heads + 2 * r->kv) * d, tokens = r->batch * r->length;
    attention *a = new attention();
    mx_sdpa_shape h = {};
    h.batch = r->batch, h.seq_q = h.seq_kv = r->length, h.heads_q = r->heads, h.heads_kv = r->kv;
    h.dim_qk = h.dim_v = d, h.causal = h.stats = true, h.scale = 1 / sqrtf((float)d);
    h.q = h.k = h.v = h.dq = h.dk = h.dv = {r->length * w, w, d};
    h.o = h.dout = {r->length * r->width, r->width, d};
    for (int i = 0; i < 2; i++) {
        h.backward = i;
        OK(mx_sdpa_plan_new(&a->plan[i], s->dnn, &h));
        a->work[i] = scratch<char>(s, (int64_t)mx_sdpa_plan_workspace(a->plan[i]));
    }
    mx_bf16 *qkv = (mx_bf16 *)s->a, *grad = scratch<mx_bf16>(s, tokens * w);
    a->args.q = qkv, a->args.k = qkv + r->heads * d, a->args.v = qkv + (r->heads + r->kv) * d;
    a->args.dq = grad, a->args.dk = grad + r->heads * d;
    a->args.dv = grad + (r->heads + r->kv) * d;
    a->args.o = scratch<mx_bf16>(s, tokens * r->width), a->args.dout = s->b;
    a->args.stats = scratch<float>(s, tokens * r->heads);
    a->flops = 2.0 * tokens * r->length * r->width;
    take_own(s, a, h);
    return a;
}
static void add_attention(step *s, attention *a, int back)
{
    if (back && a->own)
        s->kernels.push_back(
            [=] { CU(mx_flash_hopper_backward(&a->shape, &a->own_args, a->own_work, 0)); });
    else
        s->kernels.push_back(
            [=] { OK(mx_sdpa_plan_launch(a->plan[back], &a->args, a->work[back], 0)); });
    s->flops += (1 + back) * a->flops;
}

static void all_of(step *s, const row *r, bool gemms, bool attentions)
{
    int64_t t = r->batch * r->length, w = r->width, d = w / r->heads, kv = r->kv * d;
    std::vector<int64_t> qkv = {w + 2 * kv}, up = {r->mlp}, head = {(r->vocab + 7) / 8 * 8};
    if (r->gated)
        up = {r->mlp, r->mlp};
    attention *a = attentions ? attend(s, r) : nullptr;
    for (int64_t l = 0; l < r->layers; l++) {
        if (gemms)
            forward(s, t, w, qkv);
        if (a)
            add_attention(s, a, 0);
        if (gemms)
            forward(s, t, w, {w}), forward(s, t, w, up), forward(s, t, r->mlp, {w});
    }
    if (gemms)
        forward(s, t, w, head), backward(s, t, w, head, true);
    for (int64_t l = 0; l < r->layers; l++) {
        if (gemms)
            backward(s, t, r->mlp, {w}), backward(s, t, w, up), backward(s, t, w, {w});
        if (a)
            add_attention(s, a, 1);
        if (gemms)
            backward(s, t, w, qkv);
    }
}

/* Milliseconds of a step and watts, hot. */
static double time_step(step *s, double *watts)
{
    cudaEvent_t from, to;
    CU(cudaEventCreate(&from));
    CU(cudaEventCreate(&to));
    auto run = [&](int n) {
        CU(cudaEventRecord(from, 0));
        for (int i = 0; i < n; i++)
            for (auto &k : s->kernels)
                k();
        CU(cudaEventRecord(to, 0));
    };
    auto ms = [&](int n) {
        float t;
        CU(cudaEventSynchronize(to));
        CU(cudaEventElapsedTime(&t, from, to));
        return (double)t / n;
    };
    run(1);
    int n = 1 + (int)(1000 / ms(1));
    run(n), ms(n); /* a second, to be hot */
    double t0, t1, j0 = joules(&t0);
    run(2 * n); /* launching takes as long as running, so the counter is read around both */
    double one = ms(2 * n), j1 = joules(&t1);
    *watts = (j1 - j0) / (t1 - t0);
    CU(cudaEventDestroy(from));
    CU(cudaEventDestroy(to));
    return one;
}

static char *normals(step *s, int64_t n, uint64_t seed)
{
    mx_cuda_fill f = {MX_CUDA_FILL_NORMAL, 1, n, seed, 0, false};
    char *x = scratch<char>(s, 2 * n);
    CU(mx_cuda_fill_with(x, &f, 0));
    return x;
}

static void bench_row(const row *r, mx_cuda_libs *libs, const char *choices)
{
    step s;
    int64_t t = r->batch * r->length, most = t * std::max(r->vocab + 8, 2 * r->mlp);
    OK(mx_gemm_lt_open(&s.lt, libs, 64u << 20, choices));
    OK(mx_sdpa_open(&s.dnn, libs));
    s.work = scratch<char>(&s, 64u << 20);
    s.a = normals(&s, most, 1), s.b = normals(&s, most, 2), s.c = normals(&s, most, 3);
    double total = 0;
    for (int part = 0; part < 3; part++) { /* GEMMs, attention, both */
        static const char *const names[] = {"GEMMs", "attention", "both"};
        double watts;
        s.kernels.clear(), s.flops = 0;
        all_of(&s, r, part != 1, part != 0);
        double one = time_step(&s, &watts);
        printf("%-28s %-9s %8.1f ms %6.0f TFLOP/s %5.0f W  %.2f J/TFLOP\n", r->name, names[part],
               one, s.flops / one / 1e9, watts, watts * one * 1e9 / s.flops);
        fflush(stdout);
        total = one;
    }
    double mfu = s.flops / (total * 1e-3) / 989e12;
    printf("%-28s ceiling %.1f %% MFU, %.0f k tokens/s; %.1f %% would leave %.1f ms for the rest\n",
           r->name, 100 * mfu, (double)t / total, 100 * r->aim, total * (mfu / r->aim - 1));
    fflush(stdout);
    for (void *p : s.owned)
        cudaFree(p);
    for (auto &p : s.plans)
        mx_gemm_plan_free(p.second);
    mx_gemm_lt_close(s.lt);
    mx_sdpa_close(s.dnn);
}

int main(int argc, char **argv)
{
    if (!device_present())
        return 0;
    mx_cuda_libs libs = {};
    open_counter();
    for (const row &r : rows) {
        bool asked = argc < 3;
        for (int i = 2; i < argc; i++)
            asked = asked || !strcmp(argv[i], r.name);
        if (asked)
            bench_row(&r, &libs, argc > 1 ? argv[1] : NULL);
    }
    return 0;
}
