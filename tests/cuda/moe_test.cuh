/* moe_test.cuh - mixtures of experts: grouped GEMMs against double, at sizes that cross tiles,
 * with experts that have nothing, everything or rows beyond the end; sorting and the k largest at
 * sizes that take every way through them. Small cases of every op are in the op table's test. */
#ifndef MX_TESTS_MOE_CUH
#define MX_TESTS_MOE_CUH

#include "check.cuh"
#include "device/cuda/moe/moe_kernels.h"

/* The starts as the op understands them. */
static std::vector<int> partition(const std::vector<int32_t> &given, int rows)
{
    std::vector<int> s;
    int at = 0;
    for (int32_t g : given)
        s.push_back(at = std::min(rows, std::max(at, (int)g)));
    return s;
}

static vec grouped_ref(const mx_grouped_call &g, const std::vector<int> &s, const vec &a,
                       const vec &b)
{
    bool tn = g.kind == MX_GROUPED_TN;
    int64_t n = g.n, k = g.k, m = g.m;
    vec y(tn ? g.experts * m * n : g.rows * n, 0.0);
    for (int64_t e = 0; e < g.experts; e++)
        for (int64_t i = s[e]; i < s[e + 1]; i++) {
            if (tn) {
                for (int64_t r = 0; r < m; r++)
                    for (int64_t c = 0; c < n; c++)
                        y[(e * m + r) * n + c] += a[i * m + r] * b[i * n + c];
                continue;
            }
            for (int64_t q = 0; q < k; q++)
                for (int64_t c = 0; c < n; c++)
                    y[i * n + c] += a[i * k + q] * b[e * n * k + (g.kind == MX_GROUPED_NT
                                                                      ? c * k + q
                                                                      : q * n + c)];
        }
    return y;
}

static bool on_hopper()
{
    int major = 0;
    CU(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    return major == 9;
}

template <class T>
static void test_grouped_as(mx_grouped_call g, const std::vector<int32_t> &start, const char *what)
{
    bool tn = g.kind == MX_GROUPED_TN;
    int64_t na = g.rows * (tn ? g.m : g.k), nb = tn ? g.rows * g.n : g.experts * g.n * g.k;
    int64_t ny = tn ? g.experts * g.m * g.n : g.rows * g.n;
    T *a = device_random<T>(na, 21, 1), *b = device_random<T>(nb, 22, 1);
    int32_t *s = device_copy(start);
    char *y = device_alloc<char>(ny * 4);
    g.a = a, g.b = b, g.y = y, g.start = s, g.in_f32 = sizeof(T) == 4;
    vec ref = grouped_ref(g, partition(start, (int)g.rows), host(a, na), host(b, nb));
    for (int way = 0; way < 5; way++)
        for (int out = 0; out < 2; out++) { /* bf16, float */
            const char *ways[] = {"plain", "mma", "wgmma", "few", "hopper"};
            const char *kinds[] = {"NT", "NN", "TN"};
            char name[128];
            g.out_f32 = out;
            if ((g.in_f32 && !out) || (way && !mx_cuda_grouped_is_tiled(&g)) || (way >= 3 && tn) ||
                (way == 4 && (out || g.k <= 64 || !on_hopper())))
                continue;
            CU(cudaMemset(y, 0xff, ny * 4));
            CU(way == 4   ? mx_cuda_grouped_hopper(&g, 0)
               : way == 3 ? mx_cuda_grouped_few(&g, 0)
               : way    ? mx_cuda_grouped_tiled(&g, way == 2, 0)
                        : mx_cuda_grouped_plain(&g, 0));
            CU(cudaDeviceSynchronize());
            vec got = out ? host((float *)y, ny) : host((uint16_t *)y, ny);
            snprintf(name, sizeof name, "grouped %s %s %s%s %s", kinds[g.kind], ways[way],
                     g.in_f32 ? "f32" : "bf16", out ? "->f32" : "", what);
            check(name, rel_error(got, ref), out ? 2e-6 : 4e-3);
        }
    cudaFree(a), cudaFree(b), cudaFree(s), cudaFree(y);
}

static void test_grouped()
{
    const struct {
        int rows, m, n, k;
        std::vector<int32_t> start;
        const char *what;
    } cases[] = {
        {700, 200, 264, 328, {13, 150, 150, 411, 660}, "gaps, an empty expert"},
        {300, 128, 256, 128, {0, 0, 300, 300}, "one has all"},
        {260, 136, 520, 72, {0, 300, 5, -7, 1000}, "starts that fall and leave"},
        {40, 24, 40, 8, {0, 1, 2, 3, 9, 9, 9, 10, 40}, "a row each"},
        {64, 33, 65, 17, {3, 20, 50}, "odd widths"},
    };
    for (auto &c : cases)
        for (mx_grouped_kind kind : {MX_GROUPED_NT, MX_GROUPED_NN, MX_GROUPED_TN}) {
            mx_grouped_call g = {};
            g.kind = kind, g.experts = (int64_t)c.start.size() - 1, g.rows = c.rows, g.m = c.m;
            g.n = c.n, g.k = c.k;
            test_grouped_as<uint16_t>(g, c.start, c.what);
            test_grouped_as<float>(g, c.start, c.what);
        }
    std::vector<int32_t> many(101);
    for (int i = 0; i <= 100; i++)
        many[i] = i * i / 10; /* 100 experts of 0 to 20 rows */
    mx_grouped_call g = {};
    g.kind = MX_GROUPED_NT, g.experts = 100, g.rows = 1100, g.n = 136, g.k = 64;
    test_grouped_as<uint16_t>(g, many, "a hundred experts");
    /* more tiles than there are blocks, so that an epilogue goes on into another expert's tile */
    for (mx_grouped_kind kind : {MX_GROUPED_NT, MX_GROUPED_NN}) {
        g.kind = kind, g.experts = 6, g.rows = 9000, g.n = 1288, g.k = 136;
        test_grouped_as<uint16_t>(g, {40, 2300, 2301, 2301, 5000, 8100, 8990}, "many tiles");
    }
}

static void test_sort(int64_t m, int experts)
{
    std::vector<int32_t> expert(m), order(m), place(m), start(experts + 1), count(experts + 1, 0);
    for (int64_t i = 0; i < m; i++)
        expert[i] = (int32_t)((i * 7919 + i / 7 * 31) % (experts + 2)) - 1; /* -1 and E: nobody's */
    int32_t *e = device_copy(expert), *o = device_alloc<int32_t>(m), *p = device_alloc<int32_t>(m);
    int32_t *s = device_alloc<int32_t>(experts + 1);
    void *work = device_alloc<char>(mx_cuda_sort_experts_bytes(m, experts));
    CU(mx_cuda_sort_experts(o, s, p, e, m, experts, work, 0));
    CU(cudaMemcpy(order.data(), o, m * 4, cudaMemcpyDeviceToHost));
    CU(cudaMemcpy(place.data(), p, m * 4, cudaMemcpyDeviceToHost));
    CU(cudaMemcpy(start.data(), s, (experts + 1) * 4, cudaMemcpyDeviceToHost));
    auto key = [&](int64_t i) {
        return expert[i] < 0 || expert[i] >= experts ? experts : expert[i];
    };
    std::vector<int32_t> want(m);
    for (int64_t i = 0; i < m; i++)
        want[i] = (int32_t)i, count[key(i)]++;
    std::stable_sort(want.begin(), want.end(), [&](int a, int b) { return key(a) < key(b); });
    int wrong = want != order, at = 0;
    for (int64_t i = 0; i < m; i++)
        wrong += place[order[i] >= 0 && order[i] < m ? order[i] : 0] != i;
    for (int i = 0; i <= experts; at += count[i++])
        wrong += start[i] != at;
    char name[96];
    snprintf(name, sizeof name, "sort %lld entries by %d experts", (long long)m, experts);
    check(name, wrong, 0);
    cudaFree(e), cudaFree(o), cudaFree(p), cudaFree(s), cudaFree(work);
}

static void test_top_k(int rows, int d, int k)
{
    std::vector<float> x((size_t)rows * d), values((size_t)rows * k);
    std::vector<int32_t> index((size_t)rows * k);
    for (size_t i = 0; i < x.size(); i++) /* many ties, both zeros, NaN, infinities */
        x[i] = i % 97 == 3 ? NAN : i % 89 == 5 ? -INFINITY : i % 83 == 7 ? -0.f
                                 : (float)((int)(i * 2654435761u >> 16) % 50 - 20);
    float *dx = device_copy(x), *dv = device_alloc<float>(rows * k);
    int32_t *di = device_alloc<int32_t>(rows * k);
    CU(mx_cuda_top_k(dv, di, dx, MX_MOE_F32, rows, d, k, 0));
    CU(cudaMemcpy(values.data(), dv, values.size() * 4, cudaMemcpyDeviceToHost));
    CU(cudaMemcpy(index.data(), di, index.size() * 4, cudaMemcpyDeviceToHost));
    int wrong = 0;
    for (int r = 0; r < rows; r++) {
        const float *row = &x[(size_t)r * d];
        std::vector<int32_t> want(d);
        for (int i = 0; i < d; i++)
            want[i] = i;
        std::stable_sort(want.begin(), want.end(), [&](int a, int b) {
            return row[a] != row[a] ? row[b] == row[b] : row[a] > row[b];
        });
        for (int i = 0; i < k; i++)
            wrong += index[(size_t)r * k + i] != want[i] ||
                     memcmp(&values[(size_t)r * k + i], &row[want[i]], 4) != 0;
    }
    char name[96];
    snprintf(name, sizeof name, "the %d largest of %d", k, d);
    check(name, wrong, 0);
    cudaFree(dx), cudaFree(dv), cudaFree(di);
}

static void test_moe()
{
    test_grouped();
    for (int64_t m : {1, 40, 1024, 1025, 5000, 40000})
        for (int experts : {1, 8, 128, 500})
            test_sort(m, experts);
    test_top_k(33, 128, 8);
    test_top_k(7, 3000, 8);
    test_top_k(5, 5000, 2048);
    test_top_k(9, 100, 100);
}

#endif
