/* tests_attention.cuh - attention kernels against the host reference in check.cuh. */
#ifndef MX_TESTS_ATTENTION_CUH
#define MX_TESTS_ATTENTION_CUH

#include "check.cuh"

struct sdpa_case {
    const char *name;
    int b, s, hq, hk, d, dv;
    bool causal;
    int window;
    float cap;
    bool sinks, padded, packed, deterministic;
    bool may_lack; /* cuDNN may refuse it: say so, do not fail */
};

static mx_sdpa_stride packed_stride(int s, int h, int d)
{
    return {(int64_t)s * h * d, (int64_t)h * d, d};
}

/* Documents of lengths 100, 0, 60, ... fill the batch's rows one after another. */
static void document_tables(const sdpa_case &c, std::vector<int32_t> &len, std::vector<int32_t> &start)
{
    int total = c.b * c.s, at = 0;
    for (int i = 0; i < 8; i++) {
        int n = i == 1 ? 0 : i == 7 ? total - at : std::min(total - at, 40 + 30 * i);
        n = std::min(n, c.s);
        len.push_back(n);
        start.push_back(at);
        at += n;
    }
    start.push_back(at);
}

static void test_sdpa(mx_sdpa *dnn, const sdpa_case &c)
{
    std::vector<int32_t> len, start;
    int docs = c.b;
    int64_t T = (int64_t)c.b * c.s;
    if (c.packed) {
        document_tables(c, len, start);
        docs = (int)len.size();
    } else if (c.padded) {
        for (int i = 0; i < c.b; i++)
            len.push_back(c.s - 37 * i - 5);
    }
    mx_sdpa_shape sh = {};
    sh.batch = docs, sh.seq_q = sh.seq_kv = c.s, sh.heads_q = c.hq, sh.heads_kv = c.hk;
    sh.dim_qk = c.d, sh.dim_v = c.dv, sh.scale = 1 / sqrtf((float)c.d), sh.softcap = c.cap;
    sh.window = c.window, sh.causal = c.causal, sh.sinks = c.sinks, sh.padded = c.padded;
    sh.packed = c.packed, sh.deterministic = c.deterministic, sh.stats = true, sh.total_tokens = T;
    sh.q = sh.dq = packed_stride(c.s, c.hq, c.d), sh.k = sh.dk = packed_stride(c.s, c.hk, c.d);
    sh.v = sh.dv = packed_stride(c.s, c.hk, c.dv), sh.o = sh.dout = packed_stride(c.s, c.hq, c.dv);
    mx_sdpa_plan *f = NULL, *b = NULL;
    mx_status st = mx_sdpa_plan_new(&f, dnn, &sh);
    sh.backward = true;
    if (!st)
        st = mx_sdpa_plan_new(&b, dnn, &sh);
    if (st) {
        if (c.may_lack) {
            printf("lacks %s: %s\n", c.name, mx_status_text(st));
            mx_status_free(st);
        } else {
            check_status(c.name, st);
        }
        mx_sdpa_plan_free(f);
        return;
    }
    int64_t nq = T * c.hq * c.d, nk = T * c.hk * c.d, nv = T * c.hk * c.dv, no = T * c.hq * c.dv;
    int64_t nl = (int64_t)docs * c.hq * c.s;
    mx_bf16 *q = device_random<mx_bf16>(nq, 1, 2), *k = device_random<mx_bf16>(nk, 2, 2);
    mx_bf16 *v = device_random<mx_bf16>(nv, 3, 1), *dout = device_random<mx_bf16>(no, 4, 1);
    mx_bf16 *o = device_alloc<mx_bf16>(no), *dq = device_alloc<mx_bf16>(nq);
    mx_bf16 *dk = device_alloc<mx_bf16>(nk), *dv = device_alloc<mx_bf16>(nv);
    float *lse = device_alloc<float>(nl), *sinks = device_random<float>(c.hq, 5, 1);
    float *dsinks = device_alloc<float>(c.hq);
    for (void *p : {(void *)o, (void *)dq, (void *)dk, (void *)dv})
        CU(cudaMemset(p, c.padded ? 0 : 0xff, (p == o ? no : p == dq ? nq : p == dk ? nk : nv) * 2));
    mx_sdpa_args a = {};
    a.q = q, a.k = k, a.v = v, a.o = o, a.stats = lse, a.dout = dout, a.dq = dq, a.dk = dk, a.dv = dv;
    a.sinks = sinks, a.dsinks = dsinks;
    std::vector<int32_t> oq, ok, ov, oo;
    if (c.packed || c.padded)
        a.len_q = a.len_kv = device_copy(len);
    if (c.packed) {
        for (int x : start) {
            oq.push_back(x * c.hq * c.d), ok.push_back(x * c.hk * c.d);
            ov.push_back(x * c.hk * c.dv), oo.push_back(x * c.hq * c.dv);
        }
        a.off_q = a.off_dq = device_copy(oq), a.off_k = a.off_dk = device_copy(ok);
        a.off_v = a.off_dv = device_copy(ov), a.off_o = a.off_dout = device_copy(oo);
    }
    void *ws = device_alloc<char>(std::max(mx_sdpa_plan_workspace(f), mx_sdpa_plan_workspace(b)));
    st = mx_sdpa_plan_launch(f, &a, ws, 0);
    if (!st)
        st = mx_sdpa_plan_launch(b, &a, ws, 0);
    cudaError_t e = cudaDeviceSynchronize();
    if (st || e != cudaSuccess) {
        if (!st)
            st = mx_cuda_check(e, "running attention");
        check_status(c.name, st);
        return;
    }
    /* The reference sees packed documents as one long row with a document mask. */
    attention_ref r;
    r.b = c.packed ? 1 : c.b, r.sq = r.sk = c.packed ? (int)T : c.s;
    r.hq = c.hq, r.hk = c.hk, r.d = c.d, r.dv = c.dv, r.scale = sh.scale, r.cap = c.cap;
    std::vector<int> doc(T, -1);
    for (size_t i = 0; c.packed && i < len.size(); i++)
        for (int j = 0; j < len[i]; j++)
            doc[start[i] + j] = (int)i;
    r.keep = [&](int bi, int i, int j) {
        if (c.packed && (doc[i] < 0 || doc[i] != doc[j]))
            return false;
        if (c.padded && (i >= len[bi] || j >= len[bi]))
            return false;
        return (!c.causal || j <= i) && (!c.window || i - j < c.window);
    };
    if (c.sinks)
        r.sinks = host(sinks, c.hq);
    r.run(host(q, nq), host(k, nk), host(v, nv), host(dout, no));
    std::string n = c.name;
    auto masked = [&](vec x, const vec &ref) { /* rows past a padded length are free */
        for (size_t i = 0; i < x.size() && c.padded; i++)
            if (ref[i] == 0)
                x[i] = 0;
        return rel_error(x, ref);
    };
    check((n + ": o").c_str(), masked(host(o, no), r.o), 8e-3);
    if (!c.packed && !c.padded)
        check((n + ": stats").c_str(), rel_error(host(lse, nl), r.lse), 1e-3);
    check((n + ": dq").c_str(), masked(host(dq, nq), r.dq), 1.5e-2);
    check((n + ": dk").c_str(), masked(host(dk, nk), r.dk), 1.5e-2);
    check((n + ": dv").c_str(), masked(host(dv, nv), r.dvv), 1.5e-2);
    if (c.sinks)
        check((n + ": dsinks").c_str(), rel_error(host(dsinks, c.hq), r.dsinks), 1.5e-2);
    for (void *p : {(void *)q, (void *)k, (void *)v, (void *)dout, (void *)o, (void *)dq, (void *)dk,
                    (void *)dv, (void *)lse, (void *)sinks, (void *)dsinks, ws})
        cudaFree(p);
    mx_sdpa_plan_free(f);
    mx_sdpa_plan_free(b);
}

static void test_attention(mx_cuda_libs *libs)
{
    mx_sdpa *dnn;
    mx_status st = mx_sdpa_open(&dnn, libs);
    if (st) {
        printf("cuDNN not tested: %s\n", mx_status_text(st));
        mx_status_free(st);
        return;
    }
    printf("cuDNN %zu\n", libs->dnn.cudnnGetVersion());
    const sdpa_case cases[] = {
        {"cudnn full d64", 2, 256, 4, 4, 64, 64},
        {"cudnn causal d64 grouped", 2, 256, 8, 2, 64, 64, true},
        {"cudnn causal d128 grouped, odd length", 1, 333, 4, 2, 128, 128, true},
        {"cudnn causal d256", 1, 256, 2, 1, 256, 256, true, 0, 0, false, false, false, false, true},
        {"cudnn causal d192/128", 1, 256, 2, 2, 192, 128, true, 0, 0, false, false, false, false, true},
        {"cudnn window 100", 1, 384, 4, 2, 128, 128, true, 100},
        {"cudnn deterministic", 1, 256, 4, 2, 64, 64, true, 0, 0, false, false, false, true, true},
        {"cudnn padded", 2, 256, 4, 2, 64, 64, true, 0, 0, false, true, false, false, true},
        {"cudnn packed", 2, 384, 4, 2, 64, 64, true, 0, 0, false, false, true, false, true},
        {"cudnn sinks", 1, 256, 4, 2, 64, 64, true, 0, 0, true, false, false, false, true},
        {"cudnn softcap", 1, 256, 4, 2, 128, 128, true, 0, 20, false, false, false, false, true},
    };
    for (const sdpa_case &c : cases)
        test_sdpa(dnn, c);
    mx_sdpa_close(dnn);
}

#endif
