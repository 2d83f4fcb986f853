/* paged_test.cuh - paged attention: both kernels against double on the host; and a token's bits in
 * a batch of prompts and single tokens against those it has alone. */
#ifndef MX_TESTS_PAGED_TEST_CUH
#define MX_TESTS_PAGED_TEST_CUH

#include "check.cuh"
#include "device/cuda/attention/paged.h"
extern "C" {
#include "ops/gpu_work.h"
#include "ops/paged_split.h"
}

struct paged_case {
    int q_heads, k_heads, dim, columns, window, chunk;
    float softcap;
    bool sinks;
    bool few = false; /* sequences: leaves are shorter (ops/paged_split.h) */
};
/* Tokens [from, to) of a sequence. */
struct paged_run {
    int row, from, to;
};

struct paged_batch {
    std::vector<int32_t> positions, row;
    void add(const paged_run &r)
    {
        for (int t = r.from; t < r.to; t++)
            positions.push_back(t), row.push_back(r.row);
    }
    void pad(int n)
    {
        for (int i = 0; i < n; i++)
            positions.push_back(-1), row.push_back(0);
    }
};

template <class T> static T *to_device(const std::vector<T> &x)
{
    T *d = device_alloc<T>(x.size());
    CU(cudaMemcpy(d, x.data(), sizeof(T) * x.size(), cudaMemcpyHostToDevice));
    return d;
}

struct paged_pool {
    enum { PAGE = 16, ROWS = 12, FEW = 6 }; /* of which the batches use no more */
    const paged_case c;
    int pages;
    std::vector<int32_t> table;
    mx_bf16 *k, *v;
    int32_t *device_table;
    float *sinks;
    vec hk, hv, hs;

    explicit paged_pool(const paged_case &c_) : c(c_), pages(ROWS * c_.columns + 3)
    {
        int64_t n = (int64_t)pages * PAGE * c.k_heads * c.dim;
        for (int i = 0; i < ROWS * c.columns; i++) /* pages of a sequence lie apart */
            table.push_back((i * 7 + 2) % (ROWS * c.columns + 3));
        std::sort(table.begin(), table.end());
        table.erase(std::unique(table.begin(), table.end()), table.end());
        for (int i = 0; (int)table.size() < ROWS * c.columns; i++)
            table.push_back(i);
        for (size_t i = 0; i + 5 < table.size(); i += 2)
            std::swap(table[i], table[i + 5]);
        device_table = to_device(table);
        k = device_alloc<mx_bf16>(n), v = device_alloc<mx_bf16>(n);
        sinks = device_alloc<float>(c.q_heads);
        fill(k, n, 21, 1), fill(v, n, 22, 1), fill(sinks, c.q_heads, 23, 1);
        hk = host(k, n), hv = host(v, n), hs = host(sinks, c.q_heads);
    }
    ~paged_pool()
    {
        cudaFree(k), cudaFree(v), cudaFree(device_table), cudaFree(sinks);
    }
    mx_cuda_paged shape(const paged_batch &b) const
    {
        mx_cuda_paged p = {};
        p.queries = (int)b.row.size(), p.q_heads = c.q_heads, p.k_heads = c.k_heads;
        p.qk_dim = p.v_dim = c.dim, p.slots = (int64_t)pages * PAGE;
        p.k_row = p.v_row = (int64_t)c.k_heads * c.dim, p.page = PAGE, p.rows = c.few ? FEW : ROWS;
        p.columns = c.columns, p.window = c.window, p.chunk = c.chunk;
        p.scale = 1 / sqrtf((float)c.dim), p.softcap = c.softcap, p.bf16 = true;
        p.k = k, p.v = v, p.table = device_table, p.sinks = c.sinks ? sinks : NULL;
        return p;
    }
    bool sees(int at, int x) const
    {
        return x <= at && x > at - c.columns * PAGE && (!c.window || at - x < c.window) &&
               (!c.chunk || at / c.chunk == x / c.chunk);
    }
    /* Head h of a query q at position `at` of sequence `row`. */
    void expect(const double *q, int row, int at, int h, double *out) const
    {
        int kh = h / (c.q_heads / c.k_heads);
        double m = c.sinks ? hs[h] : -INFINITY, l = 0;
        std::vector<double> s(at + 1, -INFINITY);
        auto place = [&](int x) {
            int64_t page = table[row * c.columns + x / PAGE % c.columns];
            return ((page * PAGE + x % PAGE) * c.k_heads + kh) * c.dim;
        };
        for (int x = 0; x <= at; x++) {
            if (!sees(at, x))
                continue;
            double dot = 0;
            for (int d = 0; d < c.dim; d++)
                dot += q[d] * hk[place(x) + d];
            dot /= sqrt((double)c.dim);
            s[x] = c.softcap > 0 ? c.softcap * tanh(dot / c.softcap) : dot;
            m = std::max(m, s[x]);
        }
        for (int d = 0; d < c.dim; d++)
            out[d] = 0;
        for (int x = 0; x <= at; x++) {
            double w = exp(s[x] - m);
            l += w;
            for (int d = 0; d < c.dim && w > 0; d++)
                out[d] += w * hv[place(x) + d];
        }
        l += c.sinks ? exp(hs[h] - m) : 0;
        for (int d = 0; d < c.dim; d++)
            out[d] /= l;
    }
};

static vec run_paged(const paged_pool &pool, const paged_batch &b, const mx_bf16 *q, bool mma)
{
    mx_cuda_paged p = pool.shape(b);
    int64_t n = (int64_t)p.queries * p.q_heads * p.v_dim;
    const int heads = p.q_heads * mx_paged_split(p.rows);
    mx_gpu_paged g = {p.queries, p.rows, heads, (int64_t)p.page * p.columns, p.v_dim};
    mx_bf16 *out = device_alloc<mx_bf16>(n);
    char *work = device_alloc<char>(mx_gpu_paged_bytes(&g));
    int32_t *positions = to_device(b.positions), *row = to_device(b.row);
    CU(cudaMemset(out, 0xff, 2 * n));
    CU(cudaMemset(work, 0xff, mx_gpu_paged_bytes(&g)));
    p.q = q, p.out = out, p.positions = positions, p.row = row;
    if (mma && !mx_cuda_paged_mma_is_possible(&p))
        check("paged attention on the tensor cores is possible", 1, 0);
    CU(mma ? mx_cuda_paged_mma(&p, work, 0) : mx_cuda_paged_attention(&p, 0));
    CU(cudaDeviceSynchronize());
    vec got = host(out, n);
    cudaFree(out), cudaFree(work), cudaFree(positions), cudaFree(row);
    return got;
}

static void test_paged_case(const paged_case &c)
{
    paged_pool pool(c);
    const int last = c.columns * paged_pool::PAGE - 1, far = c.window ? 3 * last : last;
    paged_batch b;
    for (const paged_run &r : {paged_run{0, far, far + 1}, paged_run{1, 0, 37}, paged_run{2, 5, 6},
                               paged_run{3, last / 2 - 40, last / 2 + 30}, paged_run{4, 0, 1}})
        b.add(r);
    b.pad(3);
    b.add({5, last - 1, last + 1}); /* two tokens: drafts */
    const int n = (int)b.row.size();
    const int64_t each = (int64_t)c.q_heads * c.dim;
    mx_bf16 *q = device_alloc<mx_bf16>(n * each);
    fill(q, n * each, 24, 2);
    vec hq = host(q, n * each), want(n * each, 0);
    for (int i = 0; i < n; i++)
        for (int h = 0; h < c.q_heads && b.positions[i] >= 0; h++)
            pool.expect(&hq[i * each + h * c.dim], b.row[i], b.positions[i], h,
                        &want[i * each + h * c.dim]);
    char name[160];
    snprintf(name, sizeof name, "paged h%d/%d d%d, %d positions, window %d chunk %d cap %.0f%s%s",
             c.q_heads, c.k_heads, c.dim, last + 1, c.window, c.chunk, c.softcap,
             c.sinks ? " sinks" : "", c.few ? " few" : "");
    vec got = run_paged(pool, b, q, true);
    check(name, rel_error(got, want), 6e-3);
    check("  by the plain kernel", rel_error(run_paged(pool, b, q, false), want), 6e-3);
    int unlike = 0;
    for (int i = 0; i < n; i++) {
        paged_batch one;
        one.positions.push_back(b.positions[i]), one.row.push_back(b.row[i]);
        vec alone = run_paged(pool, one, q + i * each, true);
        unlike += memcmp(alone.data(), &got[i * each], sizeof(double) * each) != 0;
    }
    check("  the same bits alone", unlike, 0);
    unlike = 0;
    for (int from = 0; from < n; from += 20) { /* a step of few tokens has a form of its own */
        const int to = std::min(from + 20, n);
        paged_batch few;
        few.positions.assign(b.positions.begin() + from, b.positions.begin() + to);
        few.row.assign(b.row.begin() + from, b.row.begin() + to);
        vec some = run_paged(pool, few, q + from * each, true);
        unlike += memcmp(some.data(), &got[from * each], sizeof(double) * some.size()) != 0;
    }
    check("  the same bits among few", unlike, 0);
    cudaFree(q);
}

static void test_paged()
{
    test_paged_case({32, 8, 128, 64, 0, 0, 0, false});
    test_paged_case({32, 8, 64, 20, 0, 0, 0, false});
    test_paged_case({14, 2, 64, 50, 0, 0, 0, false});   /* 7 heads share a key */
    test_paged_case({8, 8, 128, 40, 100, 0, 0, true});  /* a ring of pages */
    test_paged_case({40, 2, 128, 40, 0, 300, 30, true}); /* 20 heads: two parts */
    test_paged_case({4, 1, 128, 2304, 0, 0, 0, false}); /* longer leaves */
    test_paged_case({32, 8, 128, 64, 0, 0, 0, false, true});
    test_paged_case({8, 8, 128, 40, 100, 0, 0, true, true});
    test_paged_case({4, 1, 128, 2304, 0, 0, 0, false, true});
}

#endif
