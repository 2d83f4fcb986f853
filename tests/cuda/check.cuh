/* check.cuh - one line a check, and attention spelled out in double on the host. */
#ifndef MX_BENCH_CHECK_CUH
#define MX_BENCH_CHECK_CUH

#include "gpu.cuh"
#include <functional>

struct tally {
    int passed = 0, failed = 0;
    bool loud = false; /* print passes too */
};
static tally checks;

static inline void check(const char *name, double error, double limit)
{
    bool good = error <= limit; /* NaN fails */
    (good ? checks.passed : checks.failed)++;
    if (!good || checks.loud)
        printf("%s %-52s error %.2e (limit %.0e)\n", good ? "ok  " : "FAIL", name, error, limit);
    fflush(stdout);
}
static inline void check_status(const char *name, mx_status s)
{
    if (!s)
        return;
    checks.failed++;
    printf("FAIL %-52s %s\n", name, mx_status_text(s));
    mx_status_free(s);
}

typedef std::vector<double> vec;

/* (B, S, H, D) packed. */
struct attention_ref {
    int b, sq, sk, hq, hk, d, dv;
    double scale = 1, cap = 0;
    std::function<bool(int, int, int)> keep; /* (batch, query, key) */
    vec sinks;                               /* (hq) or empty */
    vec o, lse, dq, dk, dvv, dsinks;

    void run(const vec &q, const vec &k, const vec &v, const vec &dout)
    {
        o.assign((size_t)b * sq * hq * dv, 0);
        lse.assign((size_t)b * hq * sq, 0);
        dq.assign(q.size(), 0), dk.assign(k.size(), 0), dvv.assign(v.size(), 0);
        dsinks.assign(hq, 0);
        vec s(sk), t(sk), dp(sk);
        for (int bi = 0; bi < b; bi++)
            for (int h = 0; h < hq; h++)
                for (int i = 0; i < sq; i++)
                    row(bi, h, i, q, k, v, dout, s, t, dp);
    }
    void row(int bi, int h, int i, const vec &q, const vec &k, const vec &v, const vec &dout,
             vec &s, vec &t, vec &dp)
    {
        int g = h / (hq / hk);
        const double *qi = &q[(((size_t)bi * sq + i) * hq + h) * d];
        double m = sinks.empty() ? -INFINITY : sinks[h], l = 0;
        for (int j = 0; j < sk; j++) {
            const double *kj = &k[(((size_t)bi * sk + j) * hk + g) * d];
            double x = 0;
            if (!keep(bi, i, j)) {
                s[j] = -INFINITY;
                continue;
            }
            for (int c = 0; c < d; c++)
                x += qi[c] * kj[c];
            x *= scale;
            t[j] = cap > 0 ? tanh(x / cap) : 0;
            s[j] = cap > 0 ? cap * t[j] : x;
            m = std::max(m, s[j]);
        }
        double *oi = &o[(((size_t)bi * sq + i) * hq + h) * dv];
        if (m == -INFINITY) { /* nothing to attend to: zero output, zero gradients */
            lse[((size_t)bi * hq + h) * sq + i] = -INFINITY;
            return;
        }
        for (int j = 0; j < sk; j++)
            l += exp(s[j] - m);
        if (!sinks.empty())
            l += exp(sinks[h] - m);
        double L = m + log(l), D = 0;
        lse[((size_t)bi * hq + h) * sq + i] = L;
        for (int j = 0; j < sk; j++) {
            double p = exp(s[j] - L);
            const double *vj = &v[(((size_t)bi * sk + j) * hk + g) * dv];
            for (int c = 0; c < dv && p > 0; c++)
                oi[c] += p * vj[c];
        }
        if (dout.empty())
            return;
        const double *gi = &dout[(((size_t)bi * sq + i) * hq + h) * dv];
        for (int c = 0; c < dv; c++)
            D += gi[c] * oi[c];
        if (!sinks.empty())
            dsinks[h] -= exp(sinks[h] - L) * D;
        double *dqi = &dq[(((size_t)bi * sq + i) * hq + h) * d];
        for (int j = 0; j < sk; j++) {
            double p = exp(s[j] - L), dpj = 0;
            if (p == 0)
                continue;
            size_t kv = ((size_t)bi * sk + j) * hk + g;
            for (int c = 0; c < dv; c++) {
                dpj += gi[c] * v[kv * dv + c];
                dvv[kv * dv + c] += p * gi[c];
            }
            double ds = p * (dpj - D) * (cap > 0 ? 1 - t[j] * t[j] : 1) * scale;
            for (int c = 0; c < d; c++) {
                dqi[c] += ds * k[kv * d + c];
                dk[kv * d + c] += ds * qi[c];
            }
        }
    }
};

#endif
