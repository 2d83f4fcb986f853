/* gemm_test.cuh - GEMMs with a fused epilogue (hopper_gemm.cuh), against float64. */
#ifndef MX_BENCH_TESTS_PRODUCTS_CUH
#define MX_BENCH_TESTS_PRODUCTS_CUH

#include "device/cuda/gemm/gemm_gelu.h"
#include "device/cuda/gemm/gemm_gelu_grad.h"
#include "device/cuda/gemm/gemm_swiglu.h"
#include "device/cuda/train/train_kernels.h"

struct gemm_case {
    int m, n, k, step; /* every step-th row is compared: large GEMMs have several tiles a block */
    bool b_outside;
};
/* Random factors, on the device and here. */
struct factors {
    mx_bf16 *a, *b;
    vec ha, hb;
};
static factors make_factors(const gemm_case &c)
{
    factors f;
    f.a = device_random<mx_bf16>((int64_t)c.m * c.k, 1, 1);
    f.b = device_random<mx_bf16>((int64_t)c.n * c.k, 2, 2 / sqrtf((float)c.k));
    f.ha = host(f.a, (int64_t)c.m * c.k), f.hb = host(f.b, (int64_t)c.n * c.k);
    return f;
}
static double sum_at(const gemm_case &c, const factors &f, size_t i, size_t j)
{
    double sum = 0;
    for (size_t q = 0; q < (size_t)c.k; q++)
        sum += f.ha[i * c.k + q] * f.hb[c.b_outside ? q * c.n + j : j * c.k + q];
    return sum;
}
static double gate_at(double x)
{
    return 1 / (1 + exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)));
}
static double gelu_grad_at(double x)
{
    double s = gate_at(x);
    return s + x * s * (1 - s) * 1.5957691216057308 * (1 + 3 * 0.044715 * x * x);
}
static std::string gemm_name(const gemm_case &c, const char *end)
{
    char name[96];
    snprintf(name, sizeof name, "GEMM %dx%dx%d%s with %s", c.m, c.n, c.k,
             c.b_outside ? " NN" : " NT", end);
    return name;
}

static void test_gemm_gelu(const gemm_case &c)
{
    int64_t mn = (int64_t)c.m * c.n;
    factors f = make_factors(c);
    mx_epilogue_gemm g = {c.m, c.n, c.k, c.b_outside};
    mx_bf16 *bias = device_random<mx_bf16>(c.n, 3, 1), *y = device_alloc<mx_bf16>(mn);
    mx_bf16 *u = device_alloc<mx_bf16>(mn);
    vec hbias = host(bias, c.n), want_y, want_u, got_y, got_u;
    mx_gemm_gelu_args args = {f.a, f.b, bias, y, u};
    cudaError_t e = mx_gemm_gelu_launch(&g, &args, 0);
    if (e == cudaErrorNotSupported)
        printf("     GEMMs with a GELU: not on this device\n");
    else
        CU(e);
    vec hy = host(y, mn), hu = host(u, mn);
    for (int i = 0; i < c.m && e == cudaSuccess; i += c.step)
        for (int j = 0; j < c.n; j++) {
            size_t at = (size_t)i * c.n + j;
            double x = sum_at(c, f, i, j) + hbias[j];
            want_y.push_back(x * gate_at(x));
            want_u.push_back(x), got_y.push_back(hy[at]), got_u.push_back(hu[at]);
        }
    if (e == cudaSuccess) {
        check(gemm_name(c, "GELU").c_str(), rel_error(got_y, want_y), 6e-3);
        check("  u", rel_error(got_u, want_u), 4e-3);
    }
    cudaFree(f.a), cudaFree(f.b), cudaFree(bias), cudaFree(y), cudaFree(u);
}

static vec sums_of(const float *parts, int64_t rows, int64_t n)
{
    float *sums = device_alloc<float>(n);
    mx_column_sums s = {{sums}, parts, 1, rows, n};
    CU(mx_cuda_column_sums(&s, 0));
    vec r = host(sums, n);
    cudaFree(sums);
    return r;
}

/* Sums are compared with those of du as it was stored: all rows count. */
static void test_gemm_gelu_grad(const gemm_case &c)
{
    int64_t mn = (int64_t)c.m * c.n, rows = mx_gemm_gelu_grad_rows(c.m);
    factors f = make_factors(c);
    mx_epilogue_gemm s = {c.m, c.n, c.k, c.b_outside};
    mx_bf16 *u = device_random<mx_bf16>(mn, 3, 4), *du = device_alloc<mx_bf16>(mn);
    float *parts = device_alloc<float>(rows * c.n);
    vec hu = host(u, mn), want, got, sums(c.n);
    mx_gemm_gelu_grad_args args = {f.a, f.b, u, du, parts};
    cudaError_t e = mx_gemm_gelu_grad_launch(&s, &args, 0);
    if (e == cudaErrorNotSupported)
        printf("     GEMMs with GELU's derivative: not on this device\n");
    else
        CU(e);
    vec all = host(du, mn);
    for (int i = 0; i < c.m && e == cudaSuccess; i++)
        for (int j = 0; j < c.n; j++) {
            size_t at = (size_t)i * c.n + j;
            sums[j] += all[at];
            if (i % c.step)
                continue;
            want.push_back(sum_at(c, f, i, j) * gelu_grad_at(hu[at])), got.push_back(all[at]);
        }
    if (e == cudaSuccess) {
        check(gemm_name(c, "gelu_grad").c_str(), rel_error(got, want), 6e-3);
        check("  sums", rel_error(sums_of(parts, rows, c.n), sums), 1e-5);
    }
    cudaFree(f.a), cudaFree(f.b), cudaFree(u), cudaFree(du), cudaFree(parts);
}

/* The kernel that follows a GEMM which cannot have gelu_grad as its epilogue. */
template <class T> static void test_gelu_grad(int m, int n, double limit)
{
    int64_t mn = (int64_t)m * n, rows = mx_gelu_grad_rows(m);
    mx_epilogue_gemm s = {m, n, 0, false};
    T *u = device_random<T>(mn, 1, 4), *du = device_random<T>(mn, 2, 1);
    float *parts = device_alloc<float>(rows * n);
    vec hu = host(u, mn), want = host(du, mn), sums(n);
    mx_gemm_gelu_grad_args args = {nullptr, nullptr, u, du, parts};
    for (int64_t i = 0; i < mn; i++)
        want[i] *= gelu_grad_at(hu[i]), sums[i % n] += want[i];
    CU(mx_gelu_grad_launch(&s, &args, sizeof(T) == 4, 0));
    check(sizeof(T) == 4 ? "gelu_grad f32" : "gelu_grad bf16", rel_error(host(du, mn), want),
          limit);
    check("  sums", rel_error(sums_of(parts, rows, n), sums), 1e-5);
    cudaFree(u), cudaFree(du), cudaFree(parts);
}

static double sigmoid_at(double x)
{
    return 1 / (1 + exp(-x));
}
static void test_gemm_swiglu(const gemm_case &c)
{
    int64_t mn = (int64_t)c.m * c.n;
    factors f = make_factors(c), f2 = f;
    f2.b = device_random<mx_bf16>((int64_t)c.n * c.k, 5, 2 / sqrtf((float)c.k));
    f2.hb = host(f2.b, (int64_t)c.n * c.k);
    mx_epilogue_gemm s = {c.m, c.n, c.k, c.b_outside};
    mx_bf16 *y[3] = {device_alloc<mx_bf16>(mn), device_alloc<mx_bf16>(mn),
                     device_alloc<mx_bf16>(mn)};
    mx_swiglu_forward_args a = {f.a, f.b, f2.b, y[0], y[1], y[2]};
    cudaError_t e = mx_gemm_swiglu(&s, &a, 0);
    if (e != cudaErrorNotSupported)
        CU(e);
    vec all[3] = {host(y[0], mn), host(y[1], mn), host(y[2], mn)}, got[3], want[3];
    for (int i = 0; i < c.m && e == cudaSuccess; i += c.step)
        for (int j = 0; j < c.n; j++) {
            double g = sum_at(c, f, i, j), u = sum_at(c, f2, i, j);
            want[0].push_back(g), want[1].push_back(u), want[2].push_back(g * sigmoid_at(g) * u);
            for (int k = 0; k < 3; k++)
                got[k].push_back(all[k][(size_t)i * c.n + j]);
        }
    if (e == cudaSuccess) {
        check(gemm_name(c, "SwiGLU").c_str(), rel_error(got[2], want[2]), 6e-3);
        check("  g", rel_error(got[0], want[0]), 4e-3);
        check("  u", rel_error(got[1], want[1]), 4e-3);
    }
    cudaFree(f.a), cudaFree(f.b), cudaFree(f2.b), cudaFree(y[0]), cudaFree(y[1]), cudaFree(y[2]);
}

static void test_gemm_swiglu_grad(const gemm_case &c)
{
    int64_t mn = (int64_t)c.m * c.n;
    factors f = make_factors(c);
    mx_epilogue_gemm s = {c.m, c.n, c.k, c.b_outside};
    mx_bf16 *g = device_random<mx_bf16>(mn, 3, 4), *u = device_random<mx_bf16>(mn, 4, 1);
    mx_bf16 *dg = device_alloc<mx_bf16>(mn), *du = device_alloc<mx_bf16>(mn);
    mx_swiglu_backward_args a = {f.a, f.b, g, u, dg, du};
    cudaError_t e = mx_gemm_swiglu_grad(&s, &a, 0);
    if (e != cudaErrorNotSupported)
        CU(e);
    vec hg = host(g, mn), hu = host(u, mn), all_g = host(dg, mn), all_u = host(du, mn);
    vec got_g, got_u, want_g, want_u;
    for (int i = 0; i < c.m && e == cudaSuccess; i += c.step)
        for (int j = 0; j < c.n; j++) {
            size_t at = (size_t)i * c.n + j;
            double d = sum_at(c, f, i, j), q = sigmoid_at(hg[at]);
            want_g.push_back(d * hu[at] * q * (1 + hg[at] * (1 - q))), got_g.push_back(all_g[at]);
            want_u.push_back(d * hg[at] * q), got_u.push_back(all_u[at]);
        }
    if (e == cudaSuccess) {
        check(gemm_name(c, "SwiGLU's gradient").c_str(), rel_error(got_g, want_g), 6e-3);
        check("  du", rel_error(got_u, want_u), 6e-3);
    }
    cudaFree(f.a), cudaFree(f.b), cudaFree(g), cudaFree(u), cudaFree(dg), cudaFree(du);
}

/* The kernels that follow GEMMs which cannot have SwiGLU or its gradient as epilogue. */
template <class T> static void test_swiglu(int64_t n, double limit)
{
    T *g = device_random<T>(n, 1, 4), *u = device_random<T>(n, 2, 1), *h = device_alloc<T>(n);
    T *dg = device_random<T>(n, 3, 1), *du = device_alloc<T>(n);
    vec hg = host(g, n), hu = host(u, n), d = host(dg, n), wh(n), wg(n), wu(n);
    for (int64_t i = 0; i < n; i++) {
        double q = sigmoid_at(hg[i]);
        wh[i] = hg[i] * q * hu[i], wu[i] = d[i] * hg[i] * q;
        wg[i] = d[i] * hu[i] * q * (1 + hg[i] * (1 - q));
    }
    mx_swiglu_backward_args b = {nullptr, nullptr, g, u, dg, du};
    mx_swiglu_forward_args f = {nullptr, nullptr, nullptr, g, u, h};
    CU(mx_swiglu_launch(&f, n, sizeof(T) == 4, 0));
    CU(mx_swiglu_grad_launch(&b, n, sizeof(T) == 4, 0));
    check(sizeof(T) == 4 ? "SwiGLU f32" : "SwiGLU bf16", rel_error(host(h, n), wh), limit);
    check("  dg", rel_error(host(dg, n), wg), limit);
    check("  du", rel_error(host(du, n), wu), limit);
    cudaFree(g), cudaFree(u), cudaFree(h), cudaFree(dg), cudaFree(du);
}

static void test_gemms()
{
    for (bool form : {false, true}) /* k of 2, 4, 9, 12 and 26 steps; ragged edges */
        for (gemm_case c : {gemm_case{300, 520, 72, 1}, gemm_case{129, 264, 200, 1},
                               gemm_case{5000, 2312, 72, 41}, gemm_case{9000, 1544, 520, 83},
                               gemm_case{8192, 3072, 768, 151},
                               gemm_case{3000, 2056, 1640, 211}}) {
            c.b_outside = form;
            test_gemm_gelu(c);
            test_gemm_gelu_grad(c);
            test_gemm_swiglu(c);
            test_gemm_swiglu_grad(c);
        }
    test_gelu_grad<float>(1000, 1036, 1e-5);
    test_gelu_grad<mx_bf16>(1000, 1036, 4e-3);
    test_swiglu<float>(100004, 1e-5);
    test_swiglu<mx_bf16>(100004, 4e-3);
}

#endif
