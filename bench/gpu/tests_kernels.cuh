/* tests_kernels.cuh - the hand-written kernels against the formulas in kernels.h, in double. */
#ifndef MX_TESTS_KERNELS_CUH
#define MX_TESTS_KERNELS_CUH

#include "check.cuh"

static void test_rms(int rows, int d, bool residual)
{
    int64_t n = (int64_t)rows * d;
    char name[96];
    mx_bf16 *x = device_random<mx_bf16>(n, 1, 1), *delta = device_random<mx_bf16>(n, 2, 1);
    mx_bf16 *w = device_random<mx_bf16>(d, 3, 1), *dy = device_random<mx_bf16>(n, 4, 1);
    mx_bf16 *dres = device_random<mx_bf16>(n, 5, 1);
    mx_bf16 *y = device_alloc<mx_bf16>(n), *sum = device_alloc<mx_bf16>(n),
            *dx = device_alloc<mx_bf16>(n);
    mx_bf16 *dw = device_alloc<mx_bf16>(d);
    float *part = (float *)device_alloc<char>(mx_cuda_rms_partial_bytes(d));
    CU(cudaMemset(y, 0xff, n * 2));
    CU(cudaMemset(dx, 0xff, n * 2));
    mx_rms_shape s = {rows, d, 1e-5f, residual};
    CU(mx_cuda_rms_forward(&s, y, sum, x, residual ? delta : NULL, w, 0));
    const mx_bf16 *in = residual ? sum : x;
    CU(mx_cuda_rms_backward(&s, dx, dw, dy, residual ? dres : NULL, in, w, part, 0));
    CU(cudaDeviceSynchronize());
    vec hx = host(in, n), hw = host(w, d), hdy = host(dy, n), hres = host(dres, n);
    vec h0 = host(x, n), h1 = host(delta, n);
    vec ry(n), rdx(n), rdw(d, 0.0), rs(n);
    for (int t = 0; t < rows; t++) {
        double ss = 0, hxs = 0;
        for (int c = 0; c < d; c++) {
            int64_t i = (int64_t)t * d + c;
            rs[i] = h0[i] + h1[i];
            ss += hx[i] * hx[i];
            hxs += hdy[i] * (hw[c] + residual) * hx[i];
        }
        double r = 1 / sqrt(ss / d + 1e-5);
        for (int c = 0; c < d; c++) {
            int64_t i = (int64_t)t * d + c;
            ry[i] = hx[i] * r * (hw[c] + residual);
            rdx[i] = r * (hdy[i] * (hw[c] + residual) - hx[i] * r * r * hxs / d) +
                     (residual ? hres[i] : 0);
            rdw[c] += hdy[i] * hx[i] * r;
        }
    }
    snprintf(name, sizeof name, "rms forward %dx%d residual %d", rows, d, residual);
    check(name, rel_error(host(y, n), ry), 4e-3);
    if (residual)
        check("rms residual sum", rel_error(host(sum, n), rs), 4e-3);
    snprintf(name, sizeof name, "rms backward dx %dx%d residual %d", rows, d, residual);
    check(name, rel_error(host(dx, n), rdx), 4e-3);
    snprintf(name, sizeof name, "rms backward dw %dx%d residual %d", rows, d, residual);
    check(name, rel_error(host(dw, d), rdw), 4e-3);
    for (void *p : {(void *)x, (void *)delta, (void *)w, (void *)dy, (void *)dres, (void *)y,
                    (void *)sum, (void *)dx, (void *)dw, (void *)part})
        cudaFree(p);
}

static void test_rope()
{
    const int rows = 96, seq = 48, heads = 3, dim = 64, stride = 5 * 64;
    std::vector<float> table(seq * dim);
    for (int p = 0; p < seq; p++)
        for (int i = 0; i < dim / 2; i++) {
            double a = p * pow(10000.0, -2.0 * i / dim);
            table[(p * dim / 2 + i) * 2] = (float)cos(a),
                                      table[(p * dim / 2 + i) * 2 + 1] = (float)sin(a);
        }
    float *t = device_copy(table);
    mx_bf16 *x = device_random<mx_bf16>(rows * stride, 1, 1);
    vec before = host(x, rows * stride), r = before;
    mx_rope_shape s = {rows, seq, stride, heads, dim, false};
    CU(mx_cuda_rope(&s, x, NULL, t, 0));
    for (int i = 0; i < rows; i++)
        for (int h = 0; h < heads; h++)
            for (int j = 0; j < dim / 2; j++) {
                double c = table[(i % seq * dim / 2 + j) * 2],
                       n = table[(i % seq * dim / 2 + j) * 2 + 1];
                size_t p = (size_t)i * stride + h * dim + j;
                r[p] = before[p] * c - before[p + dim / 2] * n;
                r[p + dim / 2] = before[p + dim / 2] * c + before[p] * n;
            }
    check("rope forward", rel_error(host(x, rows * stride), r), 4e-3);
    s.inverse = true;
    CU(mx_cuda_rope(&s, x, NULL, t, 0));
    check("rope there and back", rel_error(host(x, rows * stride), before), 6e-3);
    cudaFree(t), cudaFree(x);
}

static void test_swiglu()
{
    const int rows = 37, f = 328;
    mx_bf16 *gu = device_random<mx_bf16>(rows * 2 * f, 1, 4),
            *dy = device_random<mx_bf16>(rows * f, 2, 1);
    mx_bf16 *y = device_alloc<mx_bf16>(rows * f);
    vec g = host(gu, rows * 2 * f), d = host(dy, rows * f), ry(rows * f), rd(rows * 2 * f);
    CU(mx_cuda_swiglu_forward(y, gu, rows, f, 0));
    CU(mx_cuda_swiglu_backward(gu, dy, gu, rows, f, 0));
    for (int i = 0; i < rows; i++)
        for (int c = 0; c < f; c++) {
            double a = g[i * 2 * f + c], u = g[i * 2 * f + f + c], s = 1 / (1 + exp(-a));
            ry[i * f + c] = a * s * u;
            rd[i * 2 * f + c] = d[i * f + c] * u * (s + a * s * (1 - s));
            rd[i * 2 * f + f + c] = d[i * f + c] * a * s;
        }
    check("swiglu forward", rel_error(host(y, rows * f), ry), 4e-3);
    check("swiglu backward", rel_error(host(gu, rows * 2 * f), rd), 4e-3);
    cudaFree(gu), cudaFree(dy), cudaFree(y);
}

static void test_embed()
{
    const int rows = 1000, d = 136, vocab = 301;
    std::vector<int32_t> tok(rows);
    for (int i = 0; i < rows; i++)
        tok[i] = i % 3 ? (i * 7919) % vocab : 5; /* a third of all rows share one token */
    int32_t *t = device_copy(tok);
    mx_bf16 *table = device_random<mx_bf16>(vocab * d, 1, 1),
            *dy = device_random<mx_bf16>(rows * d, 2, 1);
    mx_bf16 *y = device_alloc<mx_bf16>(rows * d);
    vec ht = host(table, vocab * d), hd = host(dy, rows * d), ry(rows * d), rt = ht;
    CU(mx_cuda_embed_forward(y, table, t, rows, d, 2, 0));
    vec got = host(y, rows * d);
    void *scratch = device_alloc<char>(mx_cuda_embed_scratch_bytes(rows));
    CU(mx_cuda_embed_backward(table, dy, t, rows, d, vocab, 0.5f, scratch, 0));
    for (int i = 0; i < rows; i++)
        for (int c = 0; c < d; c++) {
            ry[i * d + c] = 2 * ht[tok[i] * d + c];
            rt[tok[i] * d + c] += 0.5 * hd[i * d + c];
        }
    check("embedding forward", rel_error(got, ry), 4e-3);
    check("embedding backward", rel_error(host(table, vocab * d), rt), 4e-3);
    cudaFree(t), cudaFree(table), cudaFree(dy), cudaFree(y), cudaFree(scratch);
}

static void test_xent(int vocab, float cap)
{
    const int rows = 24;
    int ld = (vocab + 7) / 8 * 8;
    char name[96];
    std::vector<int32_t> tgt(rows);
    for (int i = 0; i < rows; i++)
        tgt[i] = i % 5 == 4 ? -100 : (i * 131) % vocab;
    int32_t *t = device_copy(tgt);
    mx_bf16 *l = device_random<mx_bf16>(rows * ld, 1, 8);
    float *w = device_random<float>(rows, 2, 0.5, 1), *gs = device_random<float>(1, 3, 0, 0.25f);
    float *loss = device_alloc<float>(rows), *lse = device_alloc<float>(rows);
    vec hl = host(l, rows * ld), hw = host(w, rows), rg(rows * vocab), rl(rows), rs(rows);
    mx_xent_shape s = {rows, vocab, ld, cap, true};
    CU(mx_cuda_xent(&s, l, t, w, gs, loss, lse, 0));
    vec full = host(l, rows * ld), got(rows * vocab);
    for (int i = 0; i < rows; i++) {
        double m = -1e300, sum = 0;
        std::vector<double> z(vocab);
        for (int c = 0; c < vocab; c++) {
            z[c] = cap > 0 ? cap * tanh(hl[i * ld + c] / cap) : hl[i * ld + c];
            m = std::max(m, z[c]);
        }
        for (int c = 0; c < vocab; c++)
            sum += exp(z[c] - m);
        rs[i] = m + log(sum);
        bool on = tgt[i] >= 0;
        rl[i] = on ? hw[i] * (rs[i] - z[tgt[i]]) : 0;
        for (int c = 0; c < vocab; c++) {
            double g = on ? (exp(z[c] - rs[i]) - (c == tgt[i])) * hw[i] * 0.25 : 0;
            rg[i * vocab + c] = cap > 0 ? g * (1 - z[c] * z[c] / cap / cap) : g;
            got[i * vocab + c] = full[i * ld + c];
        }
    }
    snprintf(name, sizeof name, "cross-entropy V %d cap %.0f: loss", vocab, cap);
    check(name, rel_error(host(loss, rows), rl), 1e-5);
    check("  lse", rel_error(host(lse, rows), rs), 1e-5);
    check("  gradient", rel_error(got, rg), 4e-3);
    cudaFree(t), cudaFree(l), cudaFree(w), cudaFree(gs), cudaFree(loss), cudaFree(lse);
}

static double master_after(bool bf16_state, double *norm_out, double *want_norm, vec *got,
                           vec *want)
{
    const int64_t sizes[3] = {40000, 7, 16384};
    std::vector<mx_opt_tensor> ts;
    std::vector<int32_t> ct, ci;
    vec ref;
    mx_opt_step st = {};
    st.lr = 0.01f, st.beta1 = 0.9f, st.beta2 = 0.95f, st.eps = 1e-8f, st.bias1 = 0.19f,
    st.bias2 = 0.0975f;
    st.max_norm = 1, st.grad_mul = 0.5f, st.seed = 9;
    double ss = 0;
    std::vector<vec> hp, hm, hv, hg;
    for (int i = 0; i < 3; i++) {
        mx_opt_tensor t = {};
        int64_t n = sizes[i];
        t.n = n, t.decay = i == 1 ? 0.f : 0.1f, t.lr_scale = 1;
        mx_bf16 *g = device_random<mx_bf16>(n, 20 + i, 1);
        t.grad = g;
        hg.push_back(host(g, n));
        if (bf16_state) {
            t.master = device_random<mx_bf16>(n, 30 + i, 1),
            t.m = device_random<mx_bf16>(n, 40 + i, 0.1f);
            t.v = device_random<mx_bf16>(n, 50 + i, 0.05f, 0.1f);
            hp.push_back(host((mx_bf16 *)t.master, n)), hm.push_back(host((mx_bf16 *)t.m, n));
            hv.push_back(host((mx_bf16 *)t.v, n));
        } else {
            t.master = device_random<float>(n, 30 + i, 1),
            t.m = device_random<float>(n, 40 + i, 0.1f);
            t.v = device_random<float>(n, 50 + i, 0.05f, 0.1f), t.copy = device_alloc<mx_bf16>(n);
            hp.push_back(host((float *)t.master, n)), hm.push_back(host((float *)t.m, n));
            hv.push_back(host((float *)t.v, n));
        }
        for (double x : hg[i])
            ss += x * x;
        for (int k = 0; k * MX_OPT_CHUNK < n; k++)
            ct.push_back(i), ci.push_back(k);
        ts.push_back(t);
    }
    mx_opt_table tab = {device_copy(ts),
                        device_copy(ct),
                        device_copy(ci),
                        (int64_t)ct.size(),
                        bf16_state ? MX_OPT_BF16 : MX_OPT_F32,
                        bf16_state ? MX_OPT_BF16 : MX_OPT_F32,
                        MX_OPT_BF16};
    std::vector<mx_opt_step> sv(1, st);
    mx_opt_step *ds = device_copy(sv);
    double *partial = device_alloc<double>(tab.n_chunks);
    float *norm = device_alloc<float>(2);
    CU(mx_cuda_global_norm(&tab, ds, partial, norm, 0));
    CU(mx_cuda_adamw(&tab, ds, norm, 0));
    CU(cudaDeviceSynchronize());
    vec nn = host(norm, 2);
    *norm_out = nn[0], *want_norm = sqrt(ss) * 0.5;
    double clip = 1 / (*want_norm + 1e-6), copy_error = 0;
    for (int i = 0; i < 3; i++) {
        vec p = bf16_state ? host((mx_bf16 *)ts[i].master, sizes[i])
                           : host((float *)ts[i].master, sizes[i]);
        for (int64_t k = 0; k < sizes[i]; k++) {
            double g = hg[i][k] * 0.5 * clip, m = 0.9 * hm[i][k] + 0.1 * g,
                   v = 0.95 * hv[i][k] + 0.05 * g * g;
            double x = hp[i][k];
            want->push_back(x - 0.01 * (m / 0.19 / (sqrt(v / 0.0975) + 1e-8) + ts[i].decay * x));
            got->push_back(p[k]);
        }
        if (!bf16_state)
            copy_error = std::max(copy_error, rel_error(host(ts[i].copy, sizes[i]), p));
    }
    return copy_error;
}

static void test_adamw()
{
    double norm, want_norm;
    vec got, want;
    double copy = master_after(false, &norm, &want_norm, &got, &want);
    check("global norm", fabs(norm - want_norm) / want_norm, 1e-6);
    check("adamw f32 master", rel_error(got, want), 1e-6);
    check("adamw bf16 copy", copy, 4e-3);
    got.clear(), want.clear();
    master_after(true, &norm, &want_norm, &got, &want);
    check("adamw bf16 state", rel_error(got, want), 6e-3);
    double bias = 0,
           mean = 0; /* stochastic rounding has no drift: errors cancel over 56,391 weights */
    for (size_t i = 0; i < got.size(); i++)
        bias += got[i] - want[i], mean += fabs(want[i]);
    check("stochastic rounding has no drift", fabs(bias) / mean, 5e-5);
}

static void test_casts()
{
    const int64_t n = 100003;
    float *x = device_random<float>(n, 1, 3), *z = device_alloc<float>(n);
    mx_bf16 *y = device_alloc<mx_bf16>(n);
    CU(mx_cuda_cast_f32_bf16(y, x, n, 0));
    CU(mx_cuda_cast_bf16_f32(z, y, n, 0));
    check("cast f32 -> bf16 -> f32", rel_error(host(z, n), host(x, n)), 3e-3);
    check("cast bf16 -> f32 is exact", rel_error(host(z, n), host(y, n)), 0);
    CU(mx_cuda_cast_stochastic(y, x, n, 7, 0));
    check("cast stochastic", rel_error(host(y, n), host(x, n)), 5e-3);
    cudaFree(x), cudaFree(y), cudaFree(z);
}

static void test_gemv(int m, int n, int k)
{
    char name[64];
    mx_bf16 *x = device_random<mx_bf16>((int64_t)m * k, 1, 1),
            *w = device_random<mx_bf16>((int64_t)n * k, 2, 1);
    mx_bf16 *y = device_alloc<mx_bf16>((int64_t)m * n);
    float *y32 = device_alloc<float>((int64_t)m * n);
    CU(mx_cuda_gemv(y, NULL, x, w, m, n, k, 0));
    CU(mx_cuda_gemv(NULL, y32, x, w, m, n, k, 0));
    vec hx = host(x, (int64_t)m * k), hw = host(w, (int64_t)n * k), r((size_t)m * n);
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++)
            for (int c = 0; c < k; c++)
                r[i * n + j] += hx[i * k + c] * hw[j * k + c];
    snprintf(name, sizeof name, "gemv %dx%dx%d", m, n, k);
    check(name,
          std::max(rel_error(host(y, (int64_t)m * n), r) / 4e-3,
                   rel_error(host(y32, (int64_t)m * n), r) / 1e-5),
          1);
    cudaFree(x), cudaFree(w), cudaFree(y), cudaFree(y32);
}

/* Draws at evenly spaced uniforms must hit each kept token in proportion to its weight, and no
 * other. */
static void test_sample(float temperature, int top_k, float top_p, float min_p)
{
    const int vocab = 5000, draws = 4096;
    char name[96];
    std::vector<float> one(vocab), all, u;
    for (int i = 0; i < vocab; i++)
        one[i] = 12.f * sinf(i * 12.9898f) + (i == 77 ? 1.5f : 0.f);
    for (int i = 0; i < draws; i++) {
        all.insert(all.end(), one.begin(), one.end());
        u.push_back((i + 0.5f) / draws);
    }
    float *x = device_copy(all), *du = device_copy(u), *lp = device_alloc<float>(draws);
    int32_t *tok = device_alloc<int32_t>(draws);
    mx_sample_shape s = {temperature, top_k, top_p, min_p};
    CU(mx_cuda_sample(tok, lp, x, draws, vocab, &s, du, 0));
    std::vector<int32_t> got(draws);
    CU(cudaMemcpy(got.data(), tok, draws * 4, cudaMemcpyDeviceToHost));
    std::vector<int> order(vocab);
    for (int i = 0; i < vocab; i++)
        order[i] = i;
    std::sort(order.begin(), order.end(), [&](int a, int b) { return one[a] > one[b]; });
    vec w(vocab, 0.0), count(vocab, 0.0);
    double t = temperature > 0 ? temperature : 1e-4, total = 0, cum = 0;
    int keep = top_k > 0 ? top_k : vocab;
    for (int i = 0; i < keep; i++)
        total += exp((one[order[i]] - one[order[0]]) / t);
    for (int i = 0; i < keep && cum < top_p * total; i++) {
        double e = exp((one[order[i]] - one[order[0]]) / t);
        cum += e;
        if (e >= min_p)
            w[order[i]] = e;
    }
    double sum = 0, worst = 0;
    for (double e : w)
        sum += e;
    for (int k : got)
        if (k >= 0 && k < vocab)
            count[k] += 1;
        else
            worst = 1;
    for (int i = 0; i < vocab; i++) {
        worst = std::max(worst, fabs(count[i] / draws - w[i] / sum));
        if (count[i] > 0 && w[i] == 0)
            worst = 1;
    }
    snprintf(name, sizeof name, "sample t %.1f top_k %d top_p %.2f min_p %.2f", temperature, top_k,
             top_p, min_p);
    check(name, worst, 4.0 / draws);
    double z = 0;
    for (float v : one)
        z += exp(v - one[order[0]]);
    check("  log-probability", fabs(host(lp, 1)[0] - (one[got[0]] - one[order[0]] - log(z))), 1e-4);
    cudaFree(x), cudaFree(du), cudaFree(tok), cudaFree(lp);
}

static void test_kernels()
{
    for (int m : {1, 2, 3, 4, 5, 6, 7, 8})
        test_gemv(m, 203, 520);
    test_sample(0, 0, 1, 0);
    test_sample(1, 0, 1, 0);
    test_sample(0.7f, 40, 1, 0);
    test_sample(1.3f, 0, 0.9f, 0);
    test_sample(1, 100, 0.8f, 0.05f);
    test_casts();
    test_rms(33, 64, false);
    test_rms(700, 2048, true);
    test_rms(5, 10240, true);
    test_rope();
    test_swiglu();
    test_embed();
    test_xent(1003, 0);
    test_xent(32000, 30);
    test_adamw();
}

#endif
