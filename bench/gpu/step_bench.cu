/* step_bench.cu - a hand-assembled training step of a Llama shape, to find the reachable speed.
 *
 *     step_bench [1b|3b|8bx8|8b] [steps]
 *
 * Forward, loss over the full vocabulary, backward, global-norm clip and AdamW, from the plug-in's
 * blocks, captured as one CUDA graph and replayed. First one step runs with events around every
 * call and a table shows time by kind against its floor (FLOPs over 989 TFLOP/s, bytes over 4.3
 * TB/s). The same random tokens are used in every step, so the loss must start near ln V and fall.
 * Activations are all kept (no recomputation). Gradients are bf16; master and moments f32, or all
 * bf16 with stochastic rounding for the 8B shape. MFU = (6 x weights in matrix products x tokens +
 * attention, causal counted once) / time / 989e12.
 */
#include "gpu.cuh"
#include <map>

struct shape {
    const char *name;
    int layers, d, heads, kv, hd, f, vocab, batch, seq;
    bool tied, bf16_state;
};
static const shape shapes[] = {
    {"1b", 16, 2048, 32, 8, 64, 8192, 128256, 4, 4096, true, false},
    {"3b", 28, 3072, 24, 8, 128, 8192, 128256, 2, 4096, true, false},
    {"8bx8", 8, 4096, 32, 8, 128, 14336, 128256, 4, 4096, false, false},
    {"8b", 32, 4096, 32, 8, 128, 14336, 128256, 1, 8192, false, true},
    {"tiny", 2, 512, 8, 2, 64, 1024, 4096, 2, 512, true, false},
};

struct kind_time {
    int calls = 0;
    double ms = 0, flops = 0, bytes = 0;
};

struct layer {
    int64_t n1, n2, wqkv, wo, wgu, wd; /* offsets into the parameters */
    mx_bf16 *x, *h1, *qkv, *o, *mid, *h2, *gu, *act;
    float *lse;
};

struct step {
    shape c;
    int64_t T, width; /* tokens, q+k+v columns */
    cudaStream_t stream;
    mx_cuda_libs libs = {};
    mx_gemm_lt *lt;
    mx_sdpa *dnn;
    mx_sdpa_plan *fwd, *bwd;
    void *ws_gemm, *ws_sdpa, *embed_scratch;
    std::map<std::string, mx_gemm_plan *> plans;
    std::vector<layer> layers;
    int64_t embed, head, norm_f, n_params;
    mx_bf16 *w, *g;
    std::vector<mx_opt_tensor> tensors;
    mx_opt_table opt;
    mx_opt_step *opt_step;
    double *partial;
    float *norm, *rms_partial, *rope, *loss_row, *lse_row, *loss, *inv_tokens;
    int32_t *tokens, *targets;
    mx_bf16 *xf, *hf, *logits, *tmp, *dx, *dbig, *dqkv;
    bool timing = false, search = true;
    std::map<std::string, kind_time> times;
    std::vector<std::string> order;
};

template <class F> static void timed(step &s, const char *kind, double flops, double bytes, F f)
{
    if (!s.timing) {
        f();
        return;
    }
    cudaEvent_t a, b;
    CU(cudaEventCreate(&a));
    CU(cudaEventCreate(&b));
    CU(cudaEventRecord(a, s.stream));
    f();
    CU(cudaEventRecord(b, s.stream));
    CU(cudaEventSynchronize(b));
    float ms;
    CU(cudaEventElapsedTime(&ms, a, b));
    if (!s.times.count(kind))
        s.order.push_back(kind);
    kind_time &t = s.times[kind];
    t.calls++;
    t.ms += ms;
    t.flops += flops;
    t.bytes += bytes;
    CU(cudaEventDestroy(a));
    CU(cudaEventDestroy(b));
}

static void gemm(step &s, const char *kind, mx_bf16 *c, const mx_bf16 *a, const mx_bf16 *b,
                 int64_t m, int64_t n, int64_t k, bool ta, bool tb, const mx_bf16 *addend = NULL)
{
    char key[128];
    snprintf(key, sizeof key, "%s %lldx%lldx%lld %d%d", kind, (long long)m, (long long)n,
             (long long)k, ta, tb);
    mx_gemm_plan *&p = s.plans[key];
    if (!p) {
        mx_gemm_shape shape = {};
        shape.m = m, shape.n = n, shape.k = k, shape.trans_a = ta, shape.trans_b = tb;
        shape.in = shape.out = MX_GEMM_BF16, shape.alpha = 1, shape.beta = addend ? 1.f : 0.f;
        OK(mx_gemm_plan_new(&p, s.lt, &shape));
        if (s.search)
            OK(mx_gemm_plan_search(p, a, b, c, s.ws_gemm, s.stream));
    }
    timed(s, kind, 2.0 * m * n * k, 2.0 * (m * k + k * n + m * n), [&] {
        OK(mx_gemm_plan_launch_add(p, a, b, addend ? addend : c, c, s.ws_gemm, s.stream));
    });
}

static int64_t param(step &s, int64_t n, float decay)
{
    int64_t at = s.n_params;
    mx_opt_tensor t = {};
    t.n = n, t.decay = decay, t.lr_scale = 1;
    s.tensors.push_back(t);
    s.n_params += (n + 63) / 64 * 64;
    return at;
}

static void make_params(step &s)
{
    const shape &c = s.c;
    s.n_params = 0;
    std::vector<int64_t> at;
    auto add = [&](int64_t n, float decay) {
        int64_t o = param(s, n, decay);
        at.push_back(o);
        return o;
    };
    s.embed = add((int64_t)c.vocab * c.d, 0.1f);
    s.head = c.tied ? s.embed : add((int64_t)c.vocab * c.d, 0.1f);
    s.norm_f = add(c.d, 0);
    s.layers.resize(c.layers);
    for (layer &l : s.layers) {
        l.n1 = add(c.d, 0);
        l.n2 = add(c.d, 0);
        l.wqkv = add(s.width * c.d, 0.1f);
        l.wo = add((int64_t)c.heads * c.hd * c.d, 0.1f);
        l.wgu = add((int64_t)2 * c.f * c.d, 0.1f);
        l.wd = add((int64_t)c.f * c.d, 0.1f);
    }
    int64_t n = s.n_params;
    s.w = device_random<mx_bf16>(n, 1, 0.035f);
    s.g = device_alloc<mx_bf16>(n);
    CU(cudaMemset(s.g, 0, n * 2));
    size_t state = c.bf16_state ? 2 : 4;
    char *master = c.bf16_state ? (char *)s.w : (char *)device_alloc<float>(n);
    char *m = (char *)device_alloc<char>(n * state), *v = (char *)device_alloc<char>(n * state);
    CU(cudaMemset(m, 0, n * state));
    CU(cudaMemset(v, 0, n * state));
    fill(s.w + s.norm_f, c.d, 2, 0, 1);
    for (layer &l : s.layers) {
        fill(s.w + l.n1, c.d, 2, 0, 1);
        fill(s.w + l.n2, c.d, 2, 0, 1);
    }
    if (!c.bf16_state)
        CU(mx_cuda_cast_bf16_f32((float *)master, s.w, n, 0));
    std::vector<int32_t> ct, ci;
    for (size_t i = 0; i < s.tensors.size(); i++) {
        mx_opt_tensor &t = s.tensors[i];
        t.master = master + at[i] * state, t.m = m + at[i] * state, t.v = v + at[i] * state;
        t.grad = s.g + at[i], t.copy = c.bf16_state ? NULL : s.w + at[i];
        for (int64_t k = 0; k * MX_OPT_CHUNK < t.n; k++) {
            ct.push_back((int32_t)i);
            ci.push_back((int32_t)k);
        }
    }
    s.opt.tensors = device_copy(s.tensors);
    s.opt.chunk_tensor = device_copy(ct);
    s.opt.chunk_index = device_copy(ci);
    s.opt.n_chunks = (int64_t)ct.size();
    s.opt.master = s.opt.moments = c.bf16_state ? MX_OPT_BF16 : MX_OPT_F32;
    s.opt.grad = MX_OPT_BF16;
    s.partial = device_alloc<double>(s.opt.n_chunks);
    s.norm = device_alloc<float>(2);
    s.opt_step = device_alloc<mx_opt_step>(1);
}

static void make_activations(step &s)
{
    const shape &c = s.c;
    int64_t T = s.T, d = c.d, q = (int64_t)c.heads * c.hd;
    for (layer &l : s.layers) {
        l.x = device_alloc<mx_bf16>(T * d);
        l.h1 = device_alloc<mx_bf16>(T * d);
        l.qkv = device_alloc<mx_bf16>(T * s.width);
        l.o = device_alloc<mx_bf16>(T * q);
        l.mid = device_alloc<mx_bf16>(T * d);
        l.h2 = device_alloc<mx_bf16>(T * d);
        l.gu = device_alloc<mx_bf16>(T * 2 * c.f);
        l.act = device_alloc<mx_bf16>(T * c.f);
        l.lse = device_alloc<float>(T * c.heads);
    }
    s.xf = device_alloc<mx_bf16>(T * d);
    s.hf = device_alloc<mx_bf16>(T * d);
    s.logits = device_alloc<mx_bf16>(T * c.vocab);
    s.tmp = device_alloc<mx_bf16>(T * std::max(d, q));
    s.dx = device_alloc<mx_bf16>(T * d);
    s.dbig = device_alloc<mx_bf16>(T * c.f);
    s.dqkv = device_alloc<mx_bf16>(T * s.width);
    s.rms_partial = (float *)device_alloc<char>(mx_cuda_rms_partial_bytes(d));
    s.loss_row = device_alloc<float>(T);
    s.lse_row = device_alloc<float>(T);
    s.loss = device_alloc<float>(1);
    s.inv_tokens = device_alloc<float>(1);
    s.embed_scratch = device_alloc<char>(mx_cuda_embed_scratch_bytes(T));
    float inv = 1.f / T;
    CU(cudaMemcpy(s.inv_tokens, &inv, 4, cudaMemcpyHostToDevice));
    std::vector<int32_t> tok(T), tgt(T);
    uint64_t z = 12345;
    for (int64_t i = 0; i < T; i++) {
        z = z * 6364136223846793005ull + 1442695040888963407ull;
        tok[i] = (int32_t)((z >> 33) % c.vocab);
    }
    for (int64_t i = 0; i < T; i++)
        tgt[i] = (i + 1) % c.seq ? tok[i + 1] : -1;
    s.tokens = device_copy(tok);
    s.targets = device_copy(tgt);
    std::vector<float> table((size_t)c.seq * c.hd);
    for (int p = 0; p < c.seq; p++)
        for (int i = 0; i < c.hd / 2; i++) {
            double a = p * pow(500000.0, -2.0 * i / c.hd);
            table[((size_t)p * c.hd / 2 + i) * 2] = (float)cos(a);
            table[((size_t)p * c.hd / 2 + i) * 2 + 1] = (float)sin(a);
        }
    s.rope = device_copy(table);
}

static void make_attention(step &s)
{
    const shape &c = s.c;
    OK(mx_sdpa_open(&s.dnn, &s.libs));
    mx_sdpa_shape a = {};
    a.batch = c.batch, a.seq_q = a.seq_kv = c.seq, a.heads_q = c.heads, a.heads_kv = c.kv;
    a.dim_qk = a.dim_v = c.hd;
    mx_sdpa_stride in = {c.seq * s.width, s.width, c.hd};
    mx_sdpa_stride out = {(int64_t)c.seq * c.heads * c.hd, (int64_t)c.heads * c.hd, c.hd};
    a.q = a.k = a.v = a.dq = a.dk = a.dv = in;
    a.o = a.dout = out;
    a.scale = 1 / sqrtf((float)c.hd);
    a.causal = a.stats = true;
    OK(mx_sdpa_plan_new(&s.fwd, s.dnn, &a));
    a.backward = true;
    OK(mx_sdpa_plan_new(&s.bwd, s.dnn, &a));
    s.ws_sdpa =
        device_alloc<char>(std::max(mx_sdpa_plan_workspace(s.fwd), mx_sdpa_plan_workspace(s.bwd)));
    printf("attention workspace: forward %.1f MiB, backward %.1f MiB\n",
           mx_sdpa_plan_workspace(s.fwd) / 1048576.0, mx_sdpa_plan_workspace(s.bwd) / 1048576.0);
}

static mx_sdpa_args attention_args(step &s, layer &l)
{
    int64_t k_at = (int64_t)s.c.heads * s.c.hd, v_at = k_at + (int64_t)s.c.kv * s.c.hd;
    mx_sdpa_args a = {};
    a.q = l.qkv, a.k = l.qkv + k_at, a.v = l.qkv + v_at, a.o = l.o, a.stats = l.lse;
    a.dout = s.tmp, a.dq = s.dqkv, a.dk = s.dqkv + k_at, a.dv = s.dqkv + v_at;
    return a;
}

static void rms(step &s, mx_bf16 *y, mx_bf16 *sum, const mx_bf16 *x, const mx_bf16 *delta,
                int64_t w)
{
    mx_rms_shape r = {s.T, s.c.d, 1e-5f, false};
    timed(s, "rms forward", 0, s.T * s.c.d * 2.0 * (delta ? 4 : 2),
          [&] { CU(mx_cuda_rms_forward(&r, y, sum, x, delta, s.w + w, s.stream)); });
}

static void rms_grad(step &s, const mx_bf16 *dy, const mx_bf16 *x, int64_t w, bool residual)
{
    mx_rms_shape r = {s.T, s.c.d, 1e-5f, false};
    timed(s, "rms backward", 0, s.T * s.c.d * 2.0 * (residual ? 4 : 3), [&] {
        CU(mx_cuda_rms_backward(&r, s.dx, s.g + w, dy, residual ? s.dx : NULL, x, s.w + w,
                                s.rms_partial, s.stream));
    });
}

static void rope(step &s, mx_bf16 *qkv, bool inverse)
{
    mx_rope_shape r = {s.T, s.c.seq, s.width, s.c.heads + s.c.kv, s.c.hd, inverse};
    timed(s, "rope", 0, s.T * (double)(s.c.heads + s.c.kv) * s.c.hd * 4,
          [&] { CU(mx_cuda_rope(&r, qkv, NULL, s.rope, s.stream)); });
}

static void forward(step &s)
{
    const shape &c = s.c;
    int64_t T = s.T, d = c.d, q = (int64_t)c.heads * c.hd;
    double att = 2.0 * T * c.seq * q;
    timed(s, "embedding", 0, T * d * 4.0, [&] {
        CU(mx_cuda_embed_forward(s.layers[0].x, s.w + s.embed, s.tokens, T, d, 1, s.stream));
    });
    for (size_t i = 0; i < s.layers.size(); i++) {
        layer &l = s.layers[i];
        rms(s, l.h1, NULL, l.x, NULL, l.n1);
        gemm(s, "gemm qkv", l.qkv, l.h1, s.w + l.wqkv, T, s.width, d, false, true);
        rope(s, l.qkv, false);
        mx_sdpa_args a = attention_args(s, l);
        timed(s, "attention forward", att, T * 2.0 * (s.width + q),
              [&] { OK(mx_sdpa_plan_launch(s.fwd, &a, s.ws_sdpa, s.stream)); });
        gemm(s, "gemm o", l.mid, l.o, s.w + l.wo, T, d, q, false, true, l.x);
        rms(s, l.h2, NULL, l.mid, NULL, l.n2);
        gemm(s, "gemm gate+up", l.gu, l.h2, s.w + l.wgu, T, 2 * c.f, d, false, true);
        timed(s, "swiglu forward", 0, T * 6.0 * c.f,
              [&] { CU(mx_cuda_swiglu_forward(l.act, l.gu, T, c.f, s.stream)); });
        mx_bf16 *out = i + 1 < s.layers.size() ? s.layers[i + 1].x : s.xf;
        gemm(s, "gemm down", out, l.act, s.w + l.wd, T, d, c.f, false, true, l.mid);
    }
    rms(s, s.hf, NULL, s.xf, NULL, s.norm_f);
    gemm(s, "gemm head", s.logits, s.hf, s.w + s.head, T, c.vocab, d, false, true);
    mx_xent_shape x = {T, c.vocab, c.vocab, 0, true};
    timed(s, "cross-entropy", 0, T * 4.0 * c.vocab, [&] {
        CU(mx_cuda_xent(&x, s.logits, s.targets, NULL, s.inv_tokens, s.loss_row, s.lse_row,
                        s.stream));
    });
    CU(mx_cuda_sum_f32(s.loss, s.loss_row, T, 1.f / T, s.stream));
}

static void backward(step &s)
{
    const shape &c = s.c;
    int64_t T = s.T, d = c.d, q = (int64_t)c.heads * c.hd;
    double att = 2.0 * T * c.seq * q;
    gemm(s, "gemm head dx", s.tmp, s.logits, s.w + s.head, T, d, c.vocab, false, false);
    gemm(s, "gemm head dW", s.g + s.head, s.logits, s.hf, c.vocab, d, T, true, false);
    rms_grad(s, s.tmp, s.xf, s.norm_f, false);
    for (size_t n = s.layers.size(); n-- > 0;) {
        layer &l = s.layers[n];
        gemm(s, "gemm down dx", s.dbig, s.dx, s.w + l.wd, T, c.f, d, false, false);
        gemm(s, "gemm down dW", s.g + l.wd, s.dx, l.act, d, c.f, T, true, false);
        timed(s, "swiglu backward", 0, T * 10.0 * c.f,
              [&] { CU(mx_cuda_swiglu_backward(l.gu, s.dbig, l.gu, T, c.f, s.stream)); });
        gemm(s, "gemm gate+up dx", s.tmp, l.gu, s.w + l.wgu, T, d, 2 * c.f, false, false);
        gemm(s, "gemm gate+up dW", s.g + l.wgu, l.gu, l.h2, 2 * c.f, d, T, true, false);
        rms_grad(s, s.tmp, l.mid, l.n2, true);
        gemm(s, "gemm o dx", s.tmp, s.dx, s.w + l.wo, T, q, d, false, false);
        gemm(s, "gemm o dW", s.g + l.wo, s.dx, l.o, d, q, T, true, false);
        mx_sdpa_args a = attention_args(s, l);
        timed(s, "attention backward", 2 * att, T * 2.0 * (2 * s.width + 2 * q),
              [&] { OK(mx_sdpa_plan_launch(s.bwd, &a, s.ws_sdpa, s.stream)); });
        rope(s, s.dqkv, true);
        gemm(s, "gemm qkv dx", s.tmp, s.dqkv, s.w + l.wqkv, T, d, s.width, false, false);
        gemm(s, "gemm qkv dW", s.g + l.wqkv, s.dqkv, l.h1, s.width, d, T, true, false);
        rms_grad(s, s.tmp, l.x, l.n1, true);
    }
    if (!c.tied)
        timed(s, "embedding zero", 0, c.vocab * 2.0 * d,
              [&] { CU(cudaMemsetAsync(s.g + s.embed, 0, (size_t)c.vocab * d * 2, s.stream)); });
    timed(s, "embedding dW", 0, T * d * 6.0, [&] {
        CU(mx_cuda_embed_backward(s.g + s.embed, s.dx, s.tokens, T, d, c.vocab, 1, s.embed_scratch,
                                  s.stream));
    });
}

static void update(step &s)
{
    timed(s, "global norm", 0, s.n_params * 2.0,
          [&] { CU(mx_cuda_global_norm(&s.opt, s.opt_step, s.partial, s.norm, s.stream)); });
    timed(s, "adamw", 0, s.n_params * (s.c.bf16_state ? 14.0 : 28.0),
          [&] { CU(mx_cuda_adamw(&s.opt, s.opt_step, s.norm, s.stream)); });
}

static void whole(step &s)
{
    forward(s);
    backward(s);
    update(s);
}

static void set_step(step &s, int n)
{
    mx_opt_step o = {};
    o.lr = 3e-4f, o.beta1 = 0.9f, o.beta2 = 0.95f, o.eps = 1e-8f;
    o.bias1 = 1 - powf(o.beta1, n), o.bias2 = 1 - powf(o.beta2, n);
    o.max_norm = 1, o.grad_mul = 1, o.seed = n;
    CU(cudaMemcpyAsync(s.opt_step, &o, sizeof o, cudaMemcpyHostToDevice, s.stream));
    CU(cudaStreamSynchronize(s.stream));
}

static float read_float(step &s, const float *p)
{
    float v;
    CU(cudaStreamSynchronize(s.stream));
    CU(cudaMemcpy(&v, p, 4, cudaMemcpyDeviceToHost));
    return v;
}

static double step_flops(const step &s)
{
    const shape &c = s.c;
    double per_layer = (double)c.d * (s.width + c.heads * c.hd + 3.0 * c.f);
    double weights = per_layer * c.layers + (double)c.d * c.vocab;
    double att = 3 * 2.0 * s.T * c.seq * c.heads * c.hd * c.layers;
    return 6 * weights * s.T + att;
}

static void report(step &s)
{
    double total = 0, gemm_ms = 0, gemm_flops = 0;
    printf("%-20s %6s %9s %9s %8s %8s %7s\n", "kind", "calls", "ms", "floor ms", "TFLOP/s", "TB/s",
           "x floor");
    for (const std::string &k : s.order) {
        kind_time &t = s.times[k];
        double floor = std::max(t.flops / 989e12, t.bytes / 4.3e12) * 1e3;
        printf("%-20s %6d %9.3f %9.3f %8.1f %8.2f %7.2f\n", k.c_str(), t.calls, t.ms, floor,
               t.flops / t.ms / 1e9, t.bytes / t.ms / 1e9, t.ms / floor);
        total += t.ms;
        if (k.compare(0, 4, "gemm") == 0) {
            gemm_ms += t.ms;
            gemm_flops += t.flops;
        }
    }
    printf("%-20s %6s %9.3f   (matrix products %.3f ms at %.1f TFLOP/s)\n", "sum", "", total,
           gemm_ms, gemm_flops / gemm_ms / 1e9);
}

static void run_graph(step &s, int steps)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CU(cudaStreamBeginCapture(s.stream, cudaStreamCaptureModeThreadLocal));
    whole(s);
    CU(cudaStreamEndCapture(s.stream, &graph));
    CU(cudaGraphInstantiate(&exec, graph, 0));
    std::vector<double> ms;
    cudaEvent_t a, b;
    CU(cudaEventCreate(&a));
    CU(cudaEventCreate(&b));
    printf("loss:");
    for (int i = 0; i < steps; i++) {
        set_step(s, i + 3);
        CU(cudaEventRecord(a, s.stream));
        CU(cudaGraphLaunch(exec, s.stream));
        CU(cudaEventRecord(b, s.stream));
        CU(cudaEventSynchronize(b));
        float t;
        CU(cudaEventElapsedTime(&t, a, b));
        if (i >= 2)
            ms.push_back(t);
        printf(" %.3f", read_float(s, s.loss));
    }
    std::sort(ms.begin(), ms.end());
    double med = ms[ms.size() / 2], flops = step_flops(s);
    printf("\nstep %s: %.2f ms median of %zu (min %.2f, max %.2f), %.0f tokens/s, %.1f TFLOP a "
           "step, MFU %.1f %%\n",
           s.c.name, med, ms.size(), ms.front(), ms.back(), s.T / med * 1e3, flops / 1e12,
           flops / (med / 1e3) / 989e12 * 100);
}

int main(int argc, char **argv)
{
    if (!device_present())
        return 0;
    step s;
    s.c = shapes[0];
    for (const shape &c : shapes)
        if (argc > 1 && !strcmp(argv[1], c.name))
            s.c = c;
    int steps = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 12;
    s.search = !getenv("NO_SEARCH");
    s.T = (int64_t)s.c.batch * s.c.seq;
    s.width = (int64_t)(s.c.heads + 2 * s.c.kv) * s.c.hd;
    CU(cudaStreamCreate(&s.stream));
    const size_t ws = 64u << 20;
    OK(mx_gemm_lt_open(&s.lt, &s.libs, ws, getenv("MAXC_GEMM_CACHE")));
    s.ws_gemm = device_alloc<char>(ws);
    make_params(s);
    make_activations(s);
    make_attention(s);
    size_t free_b, total_b;
    CU(cudaMemGetInfo(&free_b, &total_b));
    printf("%s: %.3f G parameters, %.1f GiB used, %.2f TFLOP a step\n", s.c.name, s.n_params / 1e9,
           (total_b - free_b) / 1073741824.0, step_flops(s) / 1e12);
    CU(cudaDeviceSynchronize());
    set_step(s, 1);
    whole(s); /* plans and searches */
    printf("first loss %.4f (ln V = %.4f), gradient norm %.4f\n", read_float(s, s.loss),
           log(s.c.vocab), read_float(s, s.norm));
    s.timing = true;
    set_step(s, 2);
    whole(s);
    s.timing = false;
    report(s);
    run_graph(s, steps);
    return 0;
}
