/* decode_test.cuh - kernels that are several steps of decoding at once: gate, up and SwiGLU; RoPE
 * and the cache. Against the kernels of single steps (bits), and against float64. */
#ifndef MX_TESTS_DECODE_TEST_CUH
#define MX_TESTS_DECODE_TEST_CUH

#include "codes_test.cuh"
#include "device/cuda/attention/rope_cache.h"
#include "device/cuda/gemm/gemv_swiglu.h"

/* h from what gate and up were rounded to; the results have nothing else in them. */
static void check_swiglu(const char *name, const vec &gate, const vec &up, const vec &h)
{
    vec want(gate.size());
    for (size_t i = 0; i < gate.size(); i++)
        want[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
    check(name, rel_error(h, want), 4e-3);
}

static void test_gemv_swiglu(int64_t n, int64_t k)
{
    mx_bf16 *x = device_random<mx_bf16>(k, 41, 1);
    mx_bf16 *w[2] = {device_random<mx_bf16>(n * k, 42, 0.2),
                     device_random<mx_bf16>(n * k, 43, 0.2)};
    mx_bf16 *y = device_alloc<mx_bf16>(5 * n);
    CU(cudaMemset(y, 0xff, 5 * n * sizeof *y));
    mx_gemv_swiglu p = {w[0], w[1], x, y, y + n, y + 2 * n, n, k};
    mx_gemv_one one[2] = {{w[0], y + 3 * n, NULL, n}, {w[1], y + 4 * n, NULL, n}};
    CU(mx_cuda_gemv_swiglu(&p, 0));
    CU(mx_cuda_gemv_many(one, 2, x, k, 0));
    CU(cudaDeviceSynchronize());
    vec all = host(y, 5 * n);
    auto part = [&](int i) { return vec(all.begin() + i * n, all.begin() + (i + 1) * n); };
    char name[96];
    snprintf(name, sizeof name, "gemv with SwiGLU %ldx%ld", (long)n, (long)k);
    check_swiglu(name, part(0), part(1), part(2));
    check("  the bits of gate and up alone", part(0) != part(3) || part(1) != part(4), 0);
    cudaFree(x), cudaFree(w[0]), cudaFree(w[1]), cudaFree(y);
}

static void test_codes_swiglu(mx_cuda_codes_kind kind, int64_t n, int64_t k, int m)
{
    const int64_t group = kind == MX_CUDA_CODES_INT4 ? 128 : k;
    codes_weight gate(kind, n, k, group, 5), up(kind, n, k, group, 9);
    mx_bf16 *x = device_random<mx_bf16>(m * k, 44, 0.1), *y = device_alloc<mx_bf16>(5 * m * n);
    CU(cudaMemset(y, 0xff, 5 * m * n * sizeof *y));
    mx_cuda_dequant pair[2] = {{gate.w, y, false}, {up.w, y + m * n, false}};
    CU(mx_cuda_dequant_swiglu(pair, x, m, y + 2 * m * n, 0));
    mx_cuda_dequant plain[2] = {{gate.w, y + 3 * m * n, false}, {up.w, y + 4 * m * n, false}};
    CU(mx_cuda_dequant_gemv(plain, 2, x, m, 0));
    CU(cudaDeviceSynchronize());
    vec all = host(y, 5 * m * n);
    auto part = [&](int i) { return vec(all.begin() + i * m * n, all.begin() + (i + 1) * m * n); };
    char name[96];
    snprintf(name, sizeof name, "codes %d with SwiGLU, %d rows, %ldx%ld", kind, m, (long)n,
             (long)k);
    check_swiglu(name, part(0), part(1), part(2));
    check("  the bits of gate and up alone", part(0) != part(3) || part(1) != part(4), 0);
    cudaFree(x), cudaFree(y);
}

struct rope_case {
    int batch, t, heads_q, heads_k, d, s;
    bool one_angle, in_place;
    std::vector<int32_t> slots; /* (batch, t) */
};

static vec rope_of(const vec &x, const vec &cos, const vec &sin, const rope_case &c, int heads)
{
    vec y(x.size());
    for (size_t r = 0; r < x.size() / c.d; r++)
        for (int i = 0; i < c.d; i++) {
            const size_t a = c.one_angle ? 0 : r / heads * c.d;
            const double turned =
                i < c.d / 2 ? -x[r * c.d + i + c.d / 2] : x[r * c.d + i - c.d / 2];
            y[r * c.d + i] = x[r * c.d + i] * cos[a + i] + turned * sin[a + i];
        }
    return y;
}

/* The cache as writing rows one after the other leaves it. */
static vec cache_of(const vec &before, const vec &rows, const rope_case &c)
{
    vec y = before;
    const size_t entry = (size_t)c.heads_k * c.d;
    for (int b = 0; b < c.batch; b++)
        for (int i = 0; i < c.t; i++) {
            const int slot = c.slots[b * c.t + i];
            if (slot >= 0 && slot < c.s)
                std::copy_n(&rows[(b * c.t + i) * entry], entry,
                            &y[((size_t)b * c.s + slot) * entry]);
        }
    return y;
}

static void test_rope_cache(const rope_case &c)
{
    const int64_t n = c.batch * c.t, nq = n * c.heads_q * c.d, nk = n * c.heads_k * c.d;
    const int64_t na = (c.one_angle ? 1 : n) * c.d, nc = (int64_t)c.batch * c.s * c.heads_k * c.d;
    mx_bf16 *q = device_random<mx_bf16>(nq, 51, 1), *k = device_random<mx_bf16>(nk, 52, 1);
    mx_bf16 *v = device_random<mx_bf16>(nk, 53, 1), *to = device_alloc<mx_bf16>(nq + nk);
    mx_bf16 *kc = device_random<mx_bf16>(nc, 54, 1), *vc = device_random<mx_bf16>(nc, 55, 1);
    float *angle = device_random<float>(2 * na, 56, 1);
    int32_t *slots = device_copy(c.slots);
    CU(cudaMemset(to, 0xff, (nq + nk) * sizeof *to));
    vec hq = host(q, nq), hk = host(k, nk), cos = host(angle, na), sin = host(angle + na, na);
    vec want_q = rope_of(hq, cos, sin, c, c.heads_q), want_k = rope_of(hk, cos, sin, c, c.heads_k);
    vec want_kc = cache_of(host(kc, nc), want_k, c),
        want_vc = cache_of(host(vc, nc), host(v, nk), c);
    mx_cuda_rope_cache p = {q, k, v, c.in_place ? q : to, c.in_place ? k : to + nq, kc, vc,
                            angle, angle + na, slots, n, c.t, c.s, c.heads_q, c.heads_k, c.d,
                            c.one_angle};
    CU(mx_cuda_rope_cache_launch(&p, 0));
    CU(cudaDeviceSynchronize());
    char name[96];
    snprintf(name, sizeof name, "RoPE and cache, %d x %d, %d of %d heads of %d", c.batch, c.t,
             c.heads_q, c.heads_k, c.d);
    check(name, rel_error(host((mx_bf16 *)p.q_to, nq), want_q), 4e-3);
    check("  keys", rel_error(host((mx_bf16 *)p.k_to, nk), want_k), 4e-3);
    check("  cached keys", rel_error(host(kc, nc), want_kc), 4e-3);
    check("  cached values", rel_error(host(vc, nc), want_vc), 0);
    cudaFree(q), cudaFree(k), cudaFree(v), cudaFree(to), cudaFree(kc), cudaFree(vc);
    cudaFree(angle), cudaFree(slots);
}

static void test_decode_chains()
{
    for (int64_t k : {8, 264, 1024, 2048, 4096, 5000})
        for (int64_t n : {1, 8, 37, 512})
            test_gemv_swiglu(n, k);
    for (mx_cuda_codes_kind kind : {MX_CUDA_CODES_INT8, MX_CUDA_CODES_FP8, MX_CUDA_CODES_INT4})
        for (int m : {1, 2, 7, 8, 9, 16}) {
            test_codes_swiglu(kind, 1, 128, m);
            test_codes_swiglu(kind, 40, 1280, m);
            test_codes_swiglu(kind, 333, 4096, m);
            test_codes_swiglu(kind, 3000, 2048, m);
        }
    test_rope_cache({1, 1, 32, 8, 128, 50, true, false, {17}});
    test_rope_cache({1, 1, 12, 12, 64, 5, false, true, {4}});
    test_rope_cache({2, 1, 4, 2, 8, 6, true, false, {5, 0}});
    test_rope_cache({3, 2, 5, 1, 256, 9, false, false, {0, 8, -1, 3, 9, 2}});
    test_rope_cache({1, 40, 8, 2, 64, 64, false, false, [] {
                         std::vector<int32_t> s(40, -1);
                         for (int i = 0; i < 30; i++)
                             s[i] = i * 7 % 20; /* some twice: the later one counts */
                         return s;
                     }()});
}

#endif
