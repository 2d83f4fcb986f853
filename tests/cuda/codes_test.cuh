/* codes_test.cuh - few vectors times weights of 8 and 4 bits: against float64, and the bits of a
 * row beside others and other weights against those it has alone. */
#ifndef MX_TESTS_CODES_TEST_CUH
#define MX_TESTS_CODES_TEST_CUH

#include "check.cuh"
#include "device/cuda/gemm/dequant.h"
#include <cuda_fp8.h>
#include <memory>

struct codes_weight {
    mx_cuda_codes w;
    std::vector<uint8_t> codes;
    std::vector<float> scale;

    codes_weight(mx_cuda_codes_kind kind, int64_t n, int64_t k, int64_t group, uint32_t seed)
        : w{kind, NULL, NULL, n, k, group}, codes(n * k / (kind == MX_CUDA_CODES_INT4 ? 2 : 1)),
          scale(n * (k / group))
    {
        auto next = [&] { return (seed = seed * 1664525u + 1013904223u) >> 16; };
        for (uint8_t &c : codes) {
            c = (uint8_t)next();
            if (kind == MX_CUDA_CODES_FP8 && (c & 0x7f) == 0x7f) /* NaN */
                c ^= 1;
        }
        for (float &s : scale)
            s = 0.001f + 1e-7f * (float)next();
        w.codes = device_copy(codes), w.scale = device_copy(scale);
    }
    codes_weight(const codes_weight &) = delete;
    ~codes_weight()
    {
        cudaFree((void *)w.codes), cudaFree((void *)w.scale);
    }
    double value(int64_t row, int64_t i) const
    {
        int64_t at = row * w.k + i;
        double s = scale[row * (w.k / w.group) + i / w.group];
        if (w.kind == MX_CUDA_CODES_INT4)
            return s * ((codes[at / 2] >> 4 * (at % 2) & 15) - 8);
        if (w.kind == MX_CUDA_CODES_INT8)
            return s * (int8_t)codes[at];
        return s * (double)__half2float(__half(__nv_cvt_fp8_to_halfraw(codes[at], __NV_E4M3)));
    }
};

/* A result with room behind it that must stay as it is. */
struct codes_result {
    enum { ROOM = 64 };
    int64_t n;
    bool f32;
    float *y;

    codes_result(int64_t n_, bool f32_) : n(n_), f32(f32_), y(device_alloc<float>(n_ + ROOM))
    {
        CU(cudaMemset(y, 0xff, (n + ROOM) * sizeof(float)));
    }
    ~codes_result()
    {
        cudaFree(y);
    }
    vec all() const
    {
        return f32 ? host(y, n + ROOM) : host((const mx_bf16 *)y, n + ROOM);
    }
};

struct codes_case {
    mx_cuda_codes_kind kind;
    int64_t k, group; /* 0: all of k */
    int m;
    std::vector<int64_t> n; /* of weights that go together */
};

/* Some rows of y, and that all of it and nothing behind it is written. */
static void compare_codes(const codes_weight &w, const vec &x, int m, const codes_result &y)
{
    const int64_t n = w.w.n, k = w.w.k, step = n * k * m > 1 << 22 ? 37 : 1;
    vec all = y.all(), want, got;
    double wrong = 0;
    for (int64_t i = 0; i < (int64_t)all.size(); i++)
        wrong += isfinite(all[i]) != (i < m * n);
    for (int64_t row = 0; row < n; row += n - row > 40 ? step : 1)
        for (int j = 0; j < m; j++) {
            double sum = 0;
            for (int64_t i = 0; i < k; i++)
                sum += w.value(row, i) * x[j * k + i];
            want.push_back(sum), got.push_back(all[j * n + row]);
        }
    check("  against float64", rel_error(got, want), y.f32 ? 1e-5 : 4e-3);
    check("  written just where it should be", wrong, 0);
}

static void test_codes_case(const codes_case &c)
{
    const int64_t group = c.group ? c.group : c.k;
    mx_bf16 *x = device_random<mx_bf16>(c.m * c.k, 31, 1);
    vec hx = host(x, c.m * c.k);
    std::vector<std::unique_ptr<codes_weight>> w;
    std::vector<std::unique_ptr<codes_result>> y;
    std::vector<mx_cuda_dequant> one;
    static const char *const kinds[] = {"int8", "fp8", "int4"};
    for (size_t i = 0; i < c.n.size(); i++) {
        w.emplace_back(new codes_weight(c.kind, c.n[i], c.k, group, (uint32_t)(7 * i + 1)));
        y.emplace_back(new codes_result(c.m * c.n[i], i % 2 == 1));
        one.push_back({w[i]->w, y[i]->y, y[i]->f32});
        if (i && !mx_cuda_dequant_is_one_launch(&w[0]->w, &w[i]->w))
            check("codes that go together", 1, 0);
    }
    if (checks.loud)
        printf("     %s: %d rows, k %ld in groups of %ld, %zu weights, the first of %ld rows\n",
               kinds[c.kind], c.m, (long)c.k, (long)group, c.n.size(), (long)c.n[0]);
    CU(mx_cuda_dequant_gemv(one.data(), (int)one.size(), x, c.m, 0));
    CU(cudaDeviceSynchronize());
    int unlike = 0;
    for (size_t i = 0; i < c.n.size(); i++) {
        compare_codes(*w[i], hx, c.m, *y[i]);
        vec all = y[i]->all();
        for (int j = 0; j < c.m; j += c.m > 3 ? 3 : 1) {
            codes_result alone(c.n[i], y[i]->f32);
            mx_cuda_dequant d = {w[i]->w, alone.y, alone.f32};
            CU(mx_cuda_dequant_gemv(&d, 1, x + j * c.k, 1, 0));
            vec got = alone.all();
            unlike += memcmp(got.data(), &all[j * c.n[i]], sizeof(double) * c.n[i]) != 0;
        }
    }
    check("  the same bits alone", unlike, 0);
    cudaFree(x);
}

static void test_codes()
{
    const mx_cuda_codes_kind kinds[] = {MX_CUDA_CODES_INT8, MX_CUDA_CODES_FP8, MX_CUDA_CODES_INT4};
    for (mx_cuda_codes_kind kind : kinds) {
        const bool small = kind == MX_CUDA_CODES_INT4;
        const int64_t g = small ? 128 : 0;
        for (int m = 1; m <= MX_CUDA_DEQUANT_MAX_M; m++)
            test_codes_case({kind, 1280, g, m, {193}});
        for (int m : {1, 2, 8, 9}) {
            test_codes_case({kind, 32, 0, m, {1}}); /* less than a step, less than a tile */
            test_codes_case({kind, 4256, 0, m, {40, 7}}); /* a last step that is not full */
            test_codes_case({kind, 4096, g, m, {512, 130, 129}}); /* a block for each tile */
            test_codes_case({kind, 2048, g, m, {4000, 4001}});    /* blocks of several tiles */
            test_codes_case({kind, 256, g, m, {20000, 33, 16, 20001}});
            test_codes_case({kind, 128, g, m, {110000}}); /* very many tiles */
            test_codes_case({kind, 30720, g, m, {48}});   /* one vector does not fit */
            test_codes_case({kind, 1280, 64, m, {300}});  /* groups of less than a step */
        }
        for (int64_t group : {32, 128, 256, 384, 1536}) /* of 384: not a power of two of steps */
            test_codes_case({kind, 3072, group, 3, {70}});
        test_codes_case({kind, 48 * (small ? 2 : 1), 0, 5, {17}});
    }
    test_codes_case({MX_CUDA_CODES_INT4, 2048, 512, 4, {300, 20}});
    test_codes_case({MX_CUDA_CODES_INT8, 80, 0, 16, {68000}});
}

#endif
