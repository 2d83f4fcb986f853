/* quantize_test.cuh - 8-bit numbers and their scales: bit for bit where the op says which bits,
 * and matmuls of them against float64. */
#ifndef MX_BENCH_TESTS_QUANTIZE_CUH
#define MX_BENCH_TESTS_QUANTIZE_CUH

#include "check.cuh"
#include "device/cuda/gemm/gemm_blocks.h"
#include "device/cuda/gemm/quantize.h"
#include <cuda_fp8.h>

static double fp8_value(uint8_t code, mx_cuda_format f)
{
    if (f == MX_CUDA_I8)
        return (int8_t)code;
    __half_raw h = __nv_cvt_fp8_to_halfraw(code, f == MX_CUDA_E4M3 ? __NV_E4M3 : __NV_E5M2);
    return (double)__half2float(__half(h));
}

static uint8_t code_of(float v, mx_cuda_format f)
{
    if (f == MX_CUDA_I8)
        return (uint8_t)(int8_t)fminf(fmaxf(rintf(v), -127.f), 127.f);
    return __nv_cvt_float_to_fp8(v, __NV_SATFINITE, f == MX_CUDA_E4M3 ? __NV_E4M3 : __NV_E5M2);
}

template <class T> static std::vector<T> fetch(const T *p, int64_t n)
{
    std::vector<T> v(n);
    CU(cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
    return v;
}

/* A tensor as the kernel quantizes it. */
struct quantized {
    uint8_t *q, *transposed;
    float *scale, *amax, *factor, *given;
    int64_t gr, gc;
    ~quantized()
    {
        cudaFree(q), cudaFree(transposed), cudaFree(scale), cudaFree(amax), cudaFree(factor);
        cudaFree(given);
    }
};

static void run_quantize(quantized &out, const mx_cuda_quantize_shape &s, const void *x,
                         float given)
{
    int64_t n = s.matrices * s.rows * s.cols;
    out.gr = (s.rows + s.block_rows - 1) / s.block_rows;
    out.gc = (s.cols + s.block_cols - 1) / s.block_cols;
    int64_t blocks = s.matrices * out.gr * out.gc;
    out.q = device_alloc<uint8_t>(n), out.transposed = device_alloc<uint8_t>(n);
    out.scale = device_alloc<float>(blocks);
    out.amax = device_alloc<float>(1), out.factor = device_alloc<float>(blocks);
    out.given = device_copy(std::vector<float>{given});
    CU(cudaMemset(out.q, 0xff, n));
    CU(cudaMemset(out.scale, 0xff, blocks * 4));
    mx_cuda_quantize_args a = {x, given >= 0 ? out.given : NULL, out.q, out.transposed, out.scale,
                               out.amax, out.factor};
    CU(mx_cuda_quantize(&s, &a, 0));
    CU(cudaDeviceSynchronize());
}

/* given < 0: none; 0: an empty history. */
static void test_quantize(mx_cuda_quantize_shape s, float given)
{
    int64_t n = s.matrices * s.rows * s.cols;
    void *x = s.x_f32 ? (void *)device_random<float>(n, 5, 3) : device_random<mx_bf16>(n, 5, 3);
    vec h = s.x_f32 ? host((float *)x, n) : host((mx_bf16 *)x, n);
    quantized out;
    run_quantize(out, s, x, given);
    std::vector<uint8_t> q = fetch(out.q, n);
    std::vector<float> scale = fetch(out.scale, s.matrices * out.gr * out.gc);
    double bad = 0, top = 0;
    std::vector<float> most(scale.size(), 0.f);
    auto block = [&](int64_t i) {
        int64_t z = i / (s.rows * s.cols), r = i / s.cols % s.rows, c = i % s.cols;
        return (z * out.gr + r / s.block_rows) * out.gc + c / s.block_cols;
    };
    for (int64_t i = 0; i < n; i++) {
        most[block(i)] = fmaxf(most[block(i)], fabsf((float)h[i]));
        top = fmax(top, fabs(h[i]));
    }
    float limit = s.format == MX_CUDA_E4M3 ? 448.f : s.format == MX_CUDA_E5M2 ? 57344.f : 127.f;
    for (int64_t i = 0; i < n; i++) {
        float f = given > 0 ? given : limit / most[block(i)];
        if (s.power_of_two)
            f = ldexpf(1, ilogbf(f));
        uint8_t want = code_of((float)h[i] * f, s.format);
        bool near = q[i] == want || (s.stochastic && abs((int8_t)q[i] - (int8_t)want) <= 1);
        bad += !near || scale[block(i)] != 1 / f;
    }
    char name[128];
    snprintf(name, sizeof name, "quantize %ldx%ldx%ld in %ldx%ld, format %d%s", (long)s.matrices,
             (long)s.rows, (long)s.cols, (long)s.block_rows, (long)s.block_cols, s.format,
             given < 0 ? "" : given > 0 ? ", factor given" : ", empty history");
    check(name, bad, 0);
    if (s.both) {
        std::vector<uint8_t> transposed = fetch(out.transposed, n);
        bad = 0;
        for (int64_t i = 0; i < n; i++) {
            int64_t z = i / (s.rows * s.cols), r = i / s.cols % s.rows, c = i % s.cols;
            bad += transposed[(z * s.cols + c) * s.rows + r] != q[i];
        }
        check("  transposed", bad, 0);
    }
    check("  amax", fabs(fetch(out.amax, 1)[0] - top), 0);
    cudaFree(x);
}

static void test_turn(int64_t rows, int64_t cols)
{
    uint8_t *x = (uint8_t *)device_random<mx_bf16>(rows * cols / 2, 7, 1);
    uint8_t *y = device_alloc<uint8_t>(rows * cols);
    CU(mx_cuda_transpose_bytes(y, x, rows, cols, 0));
    std::vector<uint8_t> a = fetch(x, rows * cols), b = fetch(y, rows * cols);
    double bad = 0;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            bad += a[r * cols + c] != b[c * rows + r];
    char name[64];
    snprintf(name, sizeof name, "transpose of %ldx%ld bytes", (long)rows, (long)cols);
    check(name, bad, 0);
    cudaFree(x), cudaFree(y);
}

static void test_history()
{
    const int n = 1025;
    std::vector<float> h(n);
    for (int i = 0; i < n; i++)
        h[i] = (float)((i * 37) % 1000);
    float *history = device_copy(h), *factor = device_alloc<float>(1);
    float *amax = device_copy(std::vector<float>{5.f}), *one = device_copy(std::vector<float>{1.f});
    float *none = device_copy(std::vector<float>{0.f});
    CU(mx_cuda_amax_factor(factor, history, n, one, MX_CUDA_E4M3, false, 0));
    check("factor of a history", fabs(fetch(factor, 1)[0] - 448.f / 999), 0);
    CU(mx_cuda_amax_record(history, n, amax, one, 0));
    std::vector<float> after = fetch(history, n);
    double bad = after[0] != 5;
    for (int i = 1; i < n; i++)
        bad += after[i] != h[i - 1];
    CU(mx_cuda_amax_record(history, n, one, none, 0)); /* a second microbatch, below the first */
    bad += fetch(history, 1)[0] != 5;
    check("a step in a history", bad, 0);
    cudaFree(history), cudaFree(factor), cudaFree(amax), cudaFree(one), cudaFree(none);
}

/* One matmul as op_quantize.c runs it: formats, what scales belong to, the result's type. */
struct scaled_case {
    mx_cuda_format a, b;
    int m, n, k;
    int64_t block_a[2], block_b[2]; /* 0: all */
    mx_gemm_scale scale_a, scale_b;
    bool f32, fast;
    double limit;
};

static mx_gemm_type gemm_type(mx_cuda_format f)
{
    return f == MX_CUDA_E4M3 ? MX_GEMM_E4M3 : f == MX_CUDA_E5M2 ? MX_GEMM_E5M2 : MX_GEMM_I8;
}

static vec meaning(const quantized &q, int64_t rows, int64_t cols, const int64_t block[2],
                   mx_cuda_format f)
{
    std::vector<uint8_t> code = fetch(q.q, rows * cols);
    std::vector<float> scale = fetch(q.scale, q.gr * q.gc);
    vec v(rows * cols);
    int64_t br = block[0] ? block[0] : rows, bc = block[1] ? block[1] : cols;
    for (int64_t i = 0; i < rows * cols; i++)
        v[i] = fp8_value(code[i], f) * scale[i / cols / br * q.gc + i % cols / bc];
    return v;
}

static mx_cuda_quantize_shape shape_for(int64_t rows, int64_t cols, const int64_t block[2],
                                        mx_cuda_format f)
{
    mx_cuda_quantize_shape s = {};
    s.matrices = 1, s.rows = rows, s.cols = cols, s.format = f;
    s.block_rows = block[0] ? block[0] : rows, s.block_cols = block[1] ? block[1] : cols;
    return s;
}

static void test_scaled(mx_gemm_lt *lt, void *ws, const scaled_case &c)
{
    mx_bf16 *x = device_random<mx_bf16>((int64_t)c.m * c.k, 1, 1);
    mx_bf16 *w = device_random<mx_bf16>((int64_t)c.n * c.k, 2, 1);
    quantized a, b;
    run_quantize(a, shape_for(c.m, c.k, c.block_a, c.a), x, -1);
    run_quantize(b, shape_for(c.n, c.k, c.block_b, c.b), w, -1);
    bool whole = c.a == MX_CUDA_I8;
    int64_t mn = (int64_t)c.m * c.n;
    mx_gemm_shape s = {};
    s.m = c.m, s.n = c.n, s.k = c.k, s.trans_b = true, s.alpha = 1, s.fast = c.fast;
    s.in = gemm_type(c.a), s.in_b = gemm_type(c.b);
    s.out = whole ? MX_GEMM_I32 : c.f32 ? MX_GEMM_F32 : MX_GEMM_BF16;
    s.scale_a = whole ? MX_SCALE_NONE : c.scale_a, s.scale_b = whole ? MX_SCALE_NONE : c.scale_b;
    char name[128];
    snprintf(name, sizeof name, "scaled %dx%dx%d formats %d %d scales %d %d%s", c.m, c.n, c.k, c.a,
             c.b, c.scale_a, c.scale_b, c.fast ? " fast" : "");
    mx_gemm_plan *p = NULL;
    void *y = device_alloc<float>(mn);
    int32_t *sums = device_alloc<int32_t>(whole ? mn : 1);
    CU(cudaMemset(y, 0xff, mn * 4));
    mx_status st = mx_gemm_plan_new(&p, lt, &s);
    if (!st && !whole)
        st = mx_gemm_plan_scales(p, a.scale, b.scale);
    if (!st)
        st = mx_gemm_plan_launch(p, a.q, b.q, whole ? (void *)sums : y, ws, 0);
    mx_cuda_dequantize_shape d = {c.m, c.n, a.gr == 1, b.gr == 1, c.f32};
    if (!st && whole)
        CU(mx_cuda_dequantize(y, sums, a.scale, b.scale, &d, 0));
    if (st) {
        check_status(name, st);
    } else {
        vec va = meaning(a, c.m, c.k, c.block_a, c.a), vb = meaning(b, c.n, c.k, c.block_b, c.b);
        vec want(mn), got = c.f32 ? host((float *)y, mn) : host((mx_bf16 *)y, mn);
        for (int i = 0; i < c.m; i++)
            for (int j = 0; j < c.n; j++)
                for (int k = 0; k < c.k; k++)
                    want[(size_t)i * c.n + j] += va[(size_t)i * c.k + k] * vb[(size_t)j * c.k + k];
        check(name, rel_error(got, want), c.limit);
    }
    mx_gemm_plan_free(p);
    cudaFree(x), cudaFree(w), cudaFree(y), cudaFree(sums);
}

/* A factor with scales of blocks as the fallback has it: exactly what it means. */
static void test_widen(const quantized &q, const vec &want, const mx_cuda_widen_shape &s)
{
    mx_bf16 *wide = device_alloc<mx_bf16>(s.rows * s.cols);
    CU(mx_cuda_widen(wide, q.q, q.scale, &s, 0));
    vec got = host(wide, s.rows * s.cols);
    double bad = 0;
    for (size_t i = 0; i < got.size(); i++)
        bad += got[i] != want[i];
    check("  as bfloat16", bad, 0);
    cudaFree(wide);
}

/* Scales of blocks: 1 x 128 of a, and of b or 128 x 128. Every step-th row is compared. */
struct blocks_case {
    int m, n, k, step;
    bool e5m2, runs, f32;
};

static void test_blocks(const blocks_case &c)
{
    const int64_t run[2] = {1, 128}, square[2] = {128, 128}, *block_b = c.runs ? run : square;
    mx_cuda_format f = c.e5m2 ? MX_CUDA_E5M2 : MX_CUDA_E4M3;
    mx_bf16 *x = device_random<mx_bf16>((int64_t)c.m * c.k, 1, 1);
    mx_bf16 *w = device_random<mx_bf16>((int64_t)c.n * c.k, 2, 1);
    quantized a, b;
    mx_cuda_quantize_shape sa = shape_for(c.m, c.k, run, f);
    mx_cuda_quantize_shape sb = shape_for(c.n, c.k, block_b, MX_CUDA_E4M3);
    sa.power_of_two = sb.power_of_two = true;
    run_quantize(a, sa, x, -1), run_quantize(b, sb, w, -1);
    float *pa = device_alloc<float>(a.gr * a.gc), *pb = device_alloc<float>(b.gr * b.gc);
    CU(mx_cuda_place_scales(pa, a.scale, a.gr, a.gc, 0));
    CU(mx_cuda_place_scales(pb, b.scale, b.gr, b.gc, 0));
    int64_t mn = (int64_t)c.m * c.n;
    void *y = device_alloc<float>(mn);
    CU(cudaMemset(y, 0xff, mn * 4));
    mx_gemm_blocks_shape s = {c.m, c.n, c.k, c.e5m2, c.runs, c.f32};
    mx_gemm_blocks_args args = {a.q, b.q, pa, c.runs ? pb : b.scale, y};
    vec va = meaning(a, c.m, c.k, run, f), vb = meaning(b, c.n, c.k, block_b, MX_CUDA_E4M3);
    test_widen(a, va, {c.m, c.k, 1, f});
    test_widen(b, vb, {c.n, c.k, block_b[0], MX_CUDA_E4M3});
    char name[128];
    snprintf(name, sizeof name, "scaled %dx%dx%d in blocks%s%s%s", c.m, c.n, c.k,
             c.e5m2 ? ", E5M2" : "", c.runs ? ", runs" : ", squares", c.f32 ? ", float32" : "");
    if (!mx_gemm_blocks_is_possible(&s)) {
        printf("     %s: not on this device\n", name);
    } else {
        CU(mx_gemm_blocks_launch(&s, &args, 0));
        CU(cudaDeviceSynchronize());
        vec want, got, all = c.f32 ? host((float *)y, mn) : host((mx_bf16 *)y, mn);
        double unwritten = 0;
        for (double v : all)
            unwritten += !isfinite(v);
        for (int i = 0; i < c.m; i += c.step)
            for (int j = 0; j < c.n; j++) {
                double sum = 0;
                for (int k = 0; k < c.k; k++)
                    sum += va[(size_t)i * c.k + k] * vb[(size_t)j * c.k + k];
                want.push_back(sum), got.push_back(all[(size_t)i * c.n + j]);
            }
        check(name, rel_error(got, want), c.f32 ? 1e-3 : 4e-3);
        check("  not written", unwritten, 0);
    }
    cudaFree(x), cudaFree(w), cudaFree(pa), cudaFree(pb), cudaFree(y);
}

static void test_quantized(mx_cuda_libs *libs)
{
    const int64_t blocks[][2] = {{0, 0}, {1, 0}, {0, 1}, {1, 128}, {128, 128}, {128, 1}};
    for (auto &b : blocks)
        for (int f = 0; f < 3; f++)
            for (int wide = 0; wide < 2; wide++) {
                mx_cuda_quantize_shape s = shape_for(300, 328, b, (mx_cuda_format)f);
                s.x_f32 = wide, s.power_of_two = b[1] == 128, s.both = f != 1;
                test_quantize(s, -1);
                s.matrices = 3, s.rows = 96;
                s.block_rows = b[0] ? b[0] : s.rows;
                test_quantize(s, -1);
            }
    mx_cuda_quantize_shape s = shape_for(300, 328, blocks[0], MX_CUDA_E4M3);
    test_quantize(s, 100.f);
    test_quantize(s, 0.f);
    s = shape_for(300, 328, blocks[1], MX_CUDA_I8);
    s.stochastic = true, s.salt = 9;
    test_quantize(s, -1);
    test_turn(300, 328), test_turn(128, 128), test_turn(4, 20), test_turn(1000, 4096);
    test_history();
    mx_gemm_lt *lt;
    const size_t ws_bytes = 64u << 20;
    OK(mx_gemm_lt_open(&lt, libs, ws_bytes, NULL));
    void *ws = device_alloc<char>(ws_bytes);
    const mx_cuda_format E4 = MX_CUDA_E4M3, E5 = MX_CUDA_E5M2, I8 = MX_CUDA_I8;
    const mx_gemm_scale ALL = MX_SCALE_ALL, ROWS = MX_SCALE_ROWS;
    const scaled_case cases[] = {
        {E4, E4, 256, 384, 512, {0, 0}, {0, 0}, ALL, ALL, false, true, 6e-3},
        {E4, E4, 144, 272, 528, {0, 0}, {0, 0}, ALL, ALL, false, false, 4e-3},
        {E5, E4, 144, 272, 528, {0, 0}, {0, 0}, ALL, ALL, true, false, 1e-3},
        {E5, E4, 144, 272, 528, {0, 0}, {0, 0}, ALL, ALL, false, false, 4e-3},
        {E4, E4, 144, 272, 528, {1, 0}, {1, 0}, ROWS, ROWS, false, false, 4e-3},
        {E4, E4, 144, 272, 528, {1, 0}, {1, 0}, ROWS, ROWS, true, false, 1e-3},
        {I8, I8, 144, 272, 528, {1, 0}, {1, 0}, ROWS, ROWS, false, false, 4e-3},
        {I8, I8, 256, 384, 2048, {0, 0}, {0, 0}, ALL, ALL, true, false, 1e-6},
    };
    for (auto &c : cases)
        test_scaled(lt, ws, c);
    /* Edges in every dim, one block of k, an odd number of tiles, several tiles for a cluster. */
    const blocks_case block_cases[] = {
        {256, 256, 512, 1, false, false, false}, {256, 256, 512, 1, false, true, true},
        {144, 272, 528, 1, false, false, true},  {144, 272, 528, 1, false, true, false},
        {16, 16, 16, 1, false, false, true},     {16, 400, 128, 1, false, true, true},
        {272, 144, 272, 1, true, false, true},   {272, 144, 272, 1, true, true, true},
        {4096, 4480, 640, 64, false, false, false}, {4112, 4496, 656, 64, false, true, true},
        {2048, 2176, 4096, 64, true, true, false},
    };
    for (auto &c : block_cases)
        test_blocks(c);
    cudaFree(ws);
    mx_gemm_lt_close(lt);
}

#endif
