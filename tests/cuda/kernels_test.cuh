/* kernels_test.cuh - the hand-written kernels against the formulas in kernels.h, in double. */
#ifndef MX_TESTS_KERNELS_CUH
#define MX_TESTS_KERNELS_CUH

#include "check.cuh"
#include "device/cuda/train/adamw8.h"
#include "gemm_test.cuh"

static void test_xent(int vocab, float cap, float z_loss)
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
    mx_xent_shape s = {rows, vocab, ld, cap, z_loss, true};
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
        rl[i] = on ? hw[i] * (rs[i] - z[tgt[i]] + z_loss * rs[i] * rs[i]) : 0;
        double more = 1 + 2 * z_loss * rs[i];
        for (int c = 0; c < vocab; c++) {
            double g = on ? (exp(z[c] - rs[i]) * more - (c == tgt[i])) * hw[i] * 0.25 : 0;
            rg[i * vocab + c] = cap > 0 ? g * (1 - z[c] * z[c] / cap / cap) : g;
            got[i * vocab + c] = full[i * ld + c];
        }
        if (!on) /* as everywhere: a token that is not counted has none */
            rs[i] = 0;
    }
    snprintf(name, sizeof name, "cross-entropy V %d cap %.0f z %g: loss", vocab, cap, z_loss);
    check(name, rel_error(host(loss, rows), rl), 1e-5);
    check("  lse", rel_error(host(lse, rows), rs), 1e-5);
    check("  gradient", rel_error(got, rg), 4e-3);
    cudaFree(t), cudaFree(l), cudaFree(w), cudaFree(gs), cudaFree(loss), cudaFree(lse);
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
static void test_sample(float temperature, int top_k, float top_p)
{
    const int vocab = 5000, draws = 4096;
    char name[96];
    std::vector<float> one(vocab), all, how;
    for (int i = 0; i < vocab; i++)
        one[i] = 12.f * sinf(i * 12.9898f) + (i == 77 ? 1.5f : 0.f);
    for (int i = 0; i < draws; i++) {
        all.insert(all.end(), one.begin(), one.end());
        for (float h : {temperature, (float)top_k, top_p, (i + 0.5f) / draws})
            how.push_back(h);
    }
    float *x = device_copy(all), *settings = device_copy(how);
    int32_t *tok = device_alloc<int32_t>(draws);
    mx_sample_rows s = {tok, x, settings, draws, vocab, vocab};
    CU(mx_cuda_sample(&s, 0));
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
    snprintf(name, sizeof name, "sample t %.1f top_k %d top_p %.2f", temperature, top_k, top_p);
    check(name, worst, 4.0 / draws);
    cudaFree(x), cudaFree(settings), cudaFree(tok);
}

/* AdamW with moments of 8 bits: weights and largest magnitudes against double, every code among the
 * nearest ones of its number's sign. The maps are bitsandbytes' but for the last bit. */
static void test_adamw8(int64_t n)
{
    enum { BLOCK = 256, CODES = 256 };
    std::vector<float> map;
    for (bool is_signed : {true, false}) {
        std::vector<float> one = {0, 1};
        for (int i = 0; i < 7; i++)
            for (int items = 1 << (is_signed ? i : i + 1), k = 0; k < items; k++) {
                float x = (float)(pow(10, i - 6) * (0.1 + 0.9 * (k + 0.5) / items));
                one.push_back(x);
                if (is_signed)
                    one.push_back(-x);
            }
        std::sort(one.begin(), one.end());
        map.insert(map.end(), one.begin(), one.end());
    }
    const int64_t blocks = (n + BLOCK - 1) / BLOCK;
    std::vector<uint8_t> hm(n), hv(n);
    for (int64_t i = 0; i < n; i++)
        hm[i] = (uint8_t)(i * 89 % CODES), hv[i] = (uint8_t)(i * 57 % CODES);
    float *w = device_random<float>(n, 1, 1), *g = device_random<float>(n, 2, 1e-3f);
    float *tops = device_random<float>(2 * blocks, 3, 1e-4f, 3e-4f);
    uint8_t *m = device_copy(hm), *v = device_copy(hv);
    const std::vector<float> hyper = {1e-2f, 0.5f, 3, 0};
    float *device_map = device_copy(map), *device_hyper = device_copy(hyper);
    const vec w0 = host(w, n), hg = host(g, n), top = host(tops, 2 * blocks);
    mx_cuda_adamw8_args a = {w,          g,    m,    v,   tops, tops + blocks, device_hyper,
                             device_map, NULL, n,    0,   0.9,  0.99,          1e-8f,
                             0,          0.1f, true, true};
    CU(mx_cuda_adamw8(&a, 0));
    CU(cudaMemcpy(hm.data(), m, n, cudaMemcpyDeviceToHost));
    const std::vector<uint8_t> old_v = hv;
    CU(cudaMemcpy(hv.data(), v, n, cudaMemcpyDeviceToHost));
    vec want(n), want_top(2 * blocks, 0), mv(2 * n), off(2 * n);
    for (int64_t i = 0; i < n; i++) {
        const double x = hg[i] * 0.5, b = i / BLOCK;
        mv[i] = 0.9 * map[i * 89 % CODES] * top[b] + 0.1 * x;
        mv[n + i] = 0.99 * map[CODES + old_v[i]] * top[blocks + b] + 0.01 * x * x;
        const double step =
            mv[i] / (1 - pow(0.9, 3)) / (sqrt(mv[n + i] / (1 - pow(0.99, 3))) + 1e-8);
        want[i] = w0[i] - 1e-2 * (step + 0.1 * w0[i]);
        want_top[b] = std::max(want_top[b], fabs(mv[i]));
        want_top[blocks + b] = std::max(want_top[blocks + b], mv[n + i]);
    }
    for (int64_t i = 0; i < 2 * n; i++) {
        const double x = mv[i] / want_top[i / n * blocks + i % n / BLOCK];
        const float *codes = &map[i / n * CODES], got = codes[i < n ? hm[i] : hv[i - n]];
        double nearest = 2;
        for (int c = 0; c < CODES; c++)
            if (x == 0 || (codes[c] < 0) == (x < 0))
                nearest = std::min(nearest, fabs(codes[c] - x));
        off[i] = x * got < 0 ? 1 : fabs(got - x) - nearest;
    }
    char name[64];
    snprintf(name, sizeof name, "AdamW of 8 bits, %lld: weights", (long long)n);
    check(name, rel_error(host(w, n), want), 1e-5);
    check("  largest magnitudes", rel_error(host(tops, 2 * blocks), want_top), 1e-5);
    check("  codes, beside the nearest", *std::max_element(off.begin(), off.end()), 1e-6);
    cudaFree(w), cudaFree(g), cudaFree(tops), cudaFree(m), cudaFree(v);
    cudaFree(device_map), cudaFree(device_hyper);
}

static void test_kernels()
{
    test_adamw8(1003);
    test_adamw8(3000000);

    for (int m : {1, 2, 3, 4, 5, 6, 7, 8})
        test_gemv(m, 203, 520);
    test_sample(0, 0, 1);
    test_sample(1, 0, 1);
    test_sample(0.7f, 40, 1);
    test_sample(1.3f, 0, 0.9f);
    test_sample(1, 100, 0.8f);
    test_gemms();
    test_casts();
    test_xent(1003, 0, 0);
    test_xent(1003, 0, 0.02f);
    test_xent(32000, 30, 0.01f);
}

#endif
