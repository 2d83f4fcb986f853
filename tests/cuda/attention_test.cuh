/* attention_test.cuh - attention kernels against the host reference in check.cuh. */
#ifndef MX_TESTS_ATTENTION_CUH
#define MX_TESTS_ATTENTION_CUH

#include "check.cuh"
#include "device/cuda/attention/flash.h"
#include "device/cuda/attention/flash_hopper.h"
#include "device/cuda/attention/flash_hopper_backward.h"
#include "device/cuda/core/op.h"
#include "packed.cuh"

struct sdpa_case {
    const char *name;
    int b, s, hq, hk, d, dv;
    bool causal;
    int window;
    float cap;
    bool sinks, padded, deterministic;
    bool may_lack; /* cuDNN may refuse it: say so, do not fail */
};

static mx_sdpa_stride packed_stride(int s, int h, int d)
{
    return {(int64_t)s * h * d, (int64_t)h * d, d};
}

static void test_sdpa(mx_sdpa *dnn, const sdpa_case &c)
{
    std::vector<int32_t> len;
    int64_t T = (int64_t)c.b * c.s;
    for (int i = 0; c.padded && i < c.b; i++)
        len.push_back(c.s - 37 * i - 5);
    mx_sdpa_shape sh = {};
    sh.batch = c.b, sh.seq_q = sh.seq_kv = c.s, sh.heads_q = c.hq, sh.heads_kv = c.hk;
    sh.dim_qk = c.d, sh.dim_v = c.dv, sh.scale = 1 / sqrtf((float)c.d), sh.softcap = c.cap;
    sh.window = c.window, sh.causal = c.causal, sh.sinks = c.sinks, sh.padded = c.padded;
    sh.deterministic = c.deterministic, sh.stats = true;
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
    int64_t nl = (int64_t)c.b * c.hq * c.s;
    mx_bf16 *q = device_random<mx_bf16>(nq, 1, 2), *k = device_random<mx_bf16>(nk, 2, 2);
    mx_bf16 *v = device_random<mx_bf16>(nv, 3, 1), *dout = device_random<mx_bf16>(no, 4, 1);
    mx_bf16 *o = device_alloc<mx_bf16>(no), *dq = device_alloc<mx_bf16>(nq);
    mx_bf16 *dk = device_alloc<mx_bf16>(nk), *dv = device_alloc<mx_bf16>(nv);
    float *lse = device_alloc<float>(nl), *sinks = device_random<float>(c.hq, 5, 1);
    float *dsinks = device_alloc<float>(c.hq);
    for (void *p : {(void *)o, (void *)dq, (void *)dk, (void *)dv})
        CU(cudaMemset(p, c.padded ? 0 : 0xff,
                      (p == o    ? no
                       : p == dq ? nq
                       : p == dk ? nk
                                 : nv) *
                          2));
    mx_sdpa_args a = {};
    a.q = q, a.k = k, a.v = v, a.o = o, a.stats = lse, a.dout = dout, a.dq = dq, a.dk = dk,
    a.dv = dv;
    a.sinks = sinks, a.dsinks = dsinks;
    if (c.padded)
        a.len_q = a.len_kv = device_copy(len);
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
    attention_ref r;
    r.b = c.b, r.sq = r.sk = c.s;
    r.hq = c.hq, r.hk = c.hk, r.d = c.d, r.dv = c.dv, r.scale = sh.scale, r.cap = c.cap;
    r.keep = [&](int bi, int i, int j) {
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
    if (!c.padded)
        check((n + ": stats").c_str(), rel_error(host(lse, nl), r.lse), 1e-3);
    check((n + ": dq").c_str(), masked(host(dq, nq), r.dq), 1.5e-2);
    check((n + ": dk").c_str(), masked(host(dk, nk), r.dk), 1.5e-2);
    check((n + ": dv").c_str(), masked(host(dv, nv), r.dvv), 1.5e-2);
    if (c.sinks)
        check((n + ": dsinks").c_str(), rel_error(host(dsinks, c.hq), r.dsinks), 1.5e-2);
    for (void *p : {(void *)q, (void *)k, (void *)v, (void *)dout, (void *)o, (void *)dq,
                    (void *)dk, (void *)dv, (void *)lse, (void *)sinks, (void *)dsinks, ws})
        cudaFree(p);
    mx_sdpa_plan_free(f);
    mx_sdpa_plan_free(b);
}

/* --- our own kernels --- */

struct flash_case {
    const char *name;
    int b, sq, sk, hq, hk, d, dv;
    bool causal;
    int window, chunk;
    float cap;
    bool sinks, positions, segments, spans;
};

/* Positions with a gap and some empty slots; three documents; two image spans. */
static void token_tables(const flash_case &c, int n, bool keys, std::vector<int32_t> &pos,
                         std::vector<int32_t> &seg, std::vector<int32_t> &span)
{
    for (int b = 0; b < c.b; b++)
        for (int i = 0; i < n; i++) {
            int at = keys ? i : i + (c.sk - c.sq); /* queries are the last rows of the keys */
            bool unused = at % (keys ? 17 : 29) == 3;
            pos.push_back(c.positions ? (unused ? -1 : at + (at > 40 ? 9 : 0)) : i);
            seg.push_back(c.segments ? (at + 13 * b) / 70 : 0);
            span.push_back(c.spans ? (at >= 20 && at < 60 ? 1 : at >= 100 && at < 190 ? 2 : 0) : 0);
        }
}

/* The tables, and arguments with copies of those that the case gives. */
static mx_flash_args with_tokens(const flash_case &c, std::vector<int32_t> &qp,
                                 std::vector<int32_t> &qs, std::vector<int32_t> &qn,
                                 std::vector<int32_t> &kp, std::vector<int32_t> &ks,
                                 std::vector<int32_t> &kn)
{
    mx_flash_args a = {};
    token_tables(c, c.sq, false, qp, qs, qn);
    token_tables(c, c.sk, true, kp, ks, kn);
    if (c.positions)
        a.q_pos = device_copy(qp), a.k_pos = device_copy(kp);
    if (c.segments)
        a.q_seg = device_copy(qs), a.k_seg = device_copy(ks);
    if (c.spans)
        a.q_span = device_copy(qn), a.k_span = device_copy(kn);
    return a;
}

/* Which kernels: those mx_flash_forward chooses, those without Hopper's instructions, the plain. */
enum flash_kind { FLASH, FLASH_MMA, FLASH_PLAIN };

template <class T> static void test_flash(const flash_case &c, flash_kind kind)
{
    mx_flash_shape s = {};
    s.batch = c.b, s.seq_q = c.sq, s.seq_kv = c.sk, s.heads_q = c.hq, s.heads_kv = c.hk;
    s.dim_qk = c.d, s.dim_v = c.dv, s.causal = c.causal, s.window = c.window, s.chunk = c.chunk;
    s.scale = 1 / sqrtf((float)c.d), s.softcap = c.cap;
    s.q = s.dq = flash_stride(c.sq, c.hq, c.d), s.k = s.dk = flash_stride(c.sk, c.hk, c.d);
    s.v = s.dv = flash_stride(c.sk, c.hk, c.dv), s.o = s.dout = flash_stride(c.sq, c.hq, c.dv);
    int64_t nq = (int64_t)c.b * c.sq * c.hq * c.d, nk = (int64_t)c.b * c.sk * c.hk * c.d;
    int64_t nv = (int64_t)c.b * c.sk * c.hk * c.dv, no = (int64_t)c.b * c.sq * c.hq * c.dv;
    int64_t nl = (int64_t)c.b * c.hq * c.sq;
    T *q = device_random<T>(nq, 1, 2), *k = device_random<T>(nk, 2, 2),
      *v = device_random<T>(nv, 3, 1);
    T *dout = device_random<T>(no, 4, 1), *o = device_alloc<T>(no), *dq = device_alloc<T>(nq);
    T *dk = device_alloc<T>(nk), *dv = device_alloc<T>(nv);
    float *lse = device_alloc<float>(nl), *dot = device_alloc<float>(nl);
    float *sinks = device_random<float>(c.hq, 5, 1), *dsinks = device_alloc<float>(c.hq);
    CU(cudaMemset(o, 0xff, no * sizeof(T)));
    CU(cudaMemset(dq, 0xff, nq * sizeof(T)));
    CU(cudaMemset(dk, 0xff, nk * sizeof(T)));
    CU(cudaMemset(dv, 0xff, nv * sizeof(T)));
    std::vector<int32_t> qp, qs, qn, kp, ks, kn;
    mx_flash_args a = with_tokens(c, qp, qs, qn, kp, ks, kn);
    a.q = q, a.k = k, a.v = v, a.o = o, a.stats = lse, a.dout = dout, a.dq = dq, a.dk = dk,
    a.dv = dv;
    a.row_dot = dot;
    if (c.sinks)
        a.sinks = sinks, a.dsinks = dsinks;
    bool f32 = sizeof(T) == 4, plain = kind == FLASH_PLAIN;
    CU(kind == FLASH_MMA ? mx_flash_mma_forward(&s, &a, 0)
       : plain           ? mx_flash_plain_forward(&s, &a, f32, 0)
                         : mx_flash_forward(&s, &a, 0));
    CU(plain ? mx_flash_plain_backward(&s, &a, f32, 0) : mx_flash_backward(&s, &a, 0));
    CU(cudaDeviceSynchronize());
    attention_ref r;
    r.b = c.b, r.sq = c.sq, r.sk = c.sk, r.hq = c.hq, r.hk = c.hk, r.d = c.d, r.dv = c.dv;
    r.scale = s.scale, r.cap = c.cap;
    r.keep = [&](int b, int i, int j) {
        int P = qp[b * c.sq + i], p = kp[b * c.sk + j];
        if (p < 0 || P < 0 || qs[b * c.sq + i] != ks[b * c.sk + j])
            return false;
        if (qn[b * c.sq + i] && qn[b * c.sq + i] == kn[b * c.sk + j] &&
            (!c.window || P - p < c.window))
            return true;
        return (!c.causal || p <= P) &&
               (!c.window || (P - p < c.window && (c.causal || p - P < c.window))) &&
               (!c.chunk || P / c.chunk == p / c.chunk);
    };
    if (c.sinks)
        r.sinks = host(sinks, c.hq);
    r.run(host(q, nq), host(k, nk), host(v, nv), host(dout, no));
    const char *how = f32 ? "f32 " : plain ? "plain " : kind == FLASH ? "flash " : "mma ";
    std::string n = std::string(how) + c.name;
    vec hl = host(lse, nl), rl = r.lse;
    for (size_t i = 0; i < rl.size(); i++)
        if (rl[i] == -INFINITY && hl[i] == -INFINITY)
            rl[i] = hl[i] = 0;
    double loose = f32 ? 2e-6 : 1e-2, tight = f32 ? 2e-6 : 6e-3;
    check((n + ": o").c_str(), rel_error(host(o, no), r.o), tight);
    check((n + ": stats").c_str(), rel_error(hl, rl), f32 ? 1e-6 : 1e-4);
    check((n + ": dq").c_str(), rel_error(host(dq, nq), r.dq), loose);
    check((n + ": dk").c_str(), rel_error(host(dk, nk), r.dk), loose);
    check((n + ": dv").c_str(), rel_error(host(dv, nv), r.dvv), loose);
    if (c.sinks)
        check((n + ": dsinks").c_str(), rel_error(host(dsinks, c.hq), r.dsinks), f32 ? 1e-5 : 1e-2);
    if (kind == FLASH && mx_flash_hopper_backward_can(&s, &a)) {
        CU(cudaMemset(dq, 0xff, nq * sizeof(T)));
        CU(cudaMemset(dk, 0xff, nk * sizeof(T)));
        CU(cudaMemset(dv, 0xff, nv * sizeof(T)));
        run_hopper_backward(s, a);
        n = std::string("hopper ") + c.name;
        check((n + ": dq").c_str(), rel_error(host(dq, nq), r.dq), loose);
        check((n + ": dk").c_str(), rel_error(host(dk, nk), r.dk), loose);
        check((n + ": dv").c_str(), rel_error(host(dv, nv), r.dvv), loose);
    }
    for (void *p :
         {(void *)q, (void *)k, (void *)v, (void *)dout, (void *)o, (void *)dq, (void *)dk,
          (void *)dv, (void *)lse, (void *)dot, (void *)sinks, (void *)dsinks})
        cudaFree(p);
}

static int differing_launches(const mx_flash_shape &s, const mx_flash_args &a, const mx_bf16 *y,
                              int64_t all, int launches)
{
    std::vector<mx_bf16> first(all), again(all);
    int differing = 0;
    for (int i = 0; i < launches; i++) {
        run_hopper_backward(s, a);
        CU(cudaMemcpy((i ? again : first).data(), y, all * 2, cudaMemcpyDeviceToHost));
        differing += i && memcmp(first.data(), again.data(), all * 2) != 0;
    }
    return differing;
}
/* q, k, v and their gradients as columns of one tensor: the same numbers as without, and the same
 * bits in every launch. */
static void test_hopper_joint(int b, int n, int hq, int hk, int d, bool causal,
                              int launches)
{
    int64_t width = (int64_t)(hq + 2 * hk) * d, all = b * n * width, no = (int64_t)b * n * hq * d;
    mx_flash_shape s = {};
    s.batch = b, s.seq_q = s.seq_kv = n, s.heads_q = hq, s.heads_kv = hk, s.dim_qk = s.dim_v = d;
    s.causal = causal, s.scale = 1 / sqrtf((float)d);
    s.q = s.k = s.v = s.dq = s.dk = s.dv = {n * width, width, d};
    s.o = s.dout = flash_stride(n, hq, d);
    mx_bf16 *x = device_random<mx_bf16>(all, 1, 2), *y = device_alloc<mx_bf16>(all);
    mx_bf16 *o = device_alloc<mx_bf16>(no), *dout = device_random<mx_bf16>(no, 2, 1);
    float *lse = device_alloc<float>(b * hq * n), *dot = device_alloc<float>(b * hq * n);
    mx_flash_args a = {};
    a.q = x, a.k = x + hq * d, a.v = x + (hq + hk) * d, a.o = o, a.stats = lse, a.dout = dout;
    a.dq = y, a.dk = y + hq * d, a.dv = y + (hq + hk) * d, a.row_dot = dot;
    if (mx_flash_hopper_backward_can(&s, &a)) {
        CU(mx_flash_forward(&s, &a, 0));
        CU(mx_flash_backward(&s, &a, 0));
        vec first = host(y, n * width); /* one batch */
        CU(cudaMemset(y, 0xff, all * 2));
        run_hopper_backward(s, a);
        check("hopper joint projection", rel_error(host(y, n * width), first),
              d == 64 ? 4e-3 : 5e-3);
        check("hopper launches of other bits", differing_launches(s, a, y, all, launches), 0);
    }
    for (void *p : {(void *)x, (void *)y, (void *)o, (void *)dout, (void *)lse, (void *)dot})
        cudaFree(p);
}

static void test_flash_all()
{
    const flash_case cases[] = {
        {"full d64", 2, 130, 130, 4, 2, 64, 64},
        {"causal d64", 1, 320, 320, 4, 2, 64, 64, true},
        {"causal d64, 4 heads a key head", 1, 450, 450, 4, 1, 64, 64, true},
        {"causal d64, fewer queries", 1, 77, 200, 2, 1, 64, 64, true},
        {"causal d64, fewer keys", 2, 300, 177, 2, 2, 64, 64, true},
        {"full d64, fewer keys", 1, 129, 77, 2, 1, 64, 64},
        {"causal d128", 1, 200, 200, 2, 2, 128, 128, true},
        {"causal d128, 4 heads a key head", 1, 450, 450, 4, 1, 128, 128, true},
        {"causal d128, fewer queries", 1, 77, 300, 2, 1, 128, 128, true},
        {"causal d128, fewer keys", 2, 300, 177, 2, 2, 128, 128, true},
        {"full d128, fewer keys", 1, 333, 100, 2, 1, 128, 128},
        {"causal d256", 1, 150, 150, 2, 1, 256, 256, true},
        {"causal d192/128", 1, 150, 150, 2, 2, 192, 128, true},
        {"odd dims 40/24 and 33", 1, 100, 100, 2, 1, 40, 24, true},
        {"odd dims 33/17", 1, 77, 77, 2, 2, 33, 17, true},
        {"window 50", 1, 300, 300, 2, 1, 64, 64, true, 50},
        {"window 50 both ways", 1, 300, 300, 2, 1, 64, 64, false, 50},
        {"chunk 96", 1, 300, 300, 2, 1, 64, 64, true, 0, 96},
        {"softcap 15", 1, 200, 200, 2, 1, 128, 128, true, 0, 0, 15},
        {"sinks", 1, 200, 200, 4, 2, 64, 64, true, 70, 0, 0, true},
        {"segments", 2, 210, 210, 2, 1, 64, 64, true, 0, 0, 0, false, false, true},
        {"spans", 1, 230, 230, 2, 1, 64, 64, true, 40, 0, 0, false, false, false, true},
        {"positions, fewer queries", 1, 60, 190, 2, 1, 64, 64, true, 0, 0, 0, false, true},
        {"everything", 2, 200, 200, 4, 2, 128, 128, true, 60, 64, 20, true, true, true, true},
    };
    for (const flash_case &c : cases) {
        test_flash<mx_bf16>(c, FLASH);
        test_flash<mx_bf16>(c, FLASH_MMA);
        test_flash<float>(c, FLASH_PLAIN);
    }
    test_flash<mx_bf16>(cases[sizeof cases / sizeof *cases - 1], FLASH_PLAIN);
}

/* Hopper's forward kernels against ours without its instructions: more rows of tiles than the chip
 * has room for, groups that skip tiles, q, k and v as columns of one projection. */
static void test_hopper(const flash_case &c)
{
    mx_flash_shape s = {};
    int row = (c.hq + 2 * c.hk) * c.d;
    s.batch = c.b, s.seq_q = c.sq, s.seq_kv = c.sk, s.heads_q = c.hq, s.heads_kv = c.hk;
    s.dim_qk = s.dim_v = c.d, s.causal = c.causal, s.window = c.window, s.chunk = c.chunk;
    s.scale = 1 / sqrtf((float)c.d), s.softcap = c.cap;
    s.q = {(int64_t)c.sq * row, row, c.d}, s.k = s.v = {(int64_t)c.sk * row, row, c.d};
    s.o = flash_stride(c.sq, c.hq, c.d);
    int64_t no = (int64_t)c.b * c.sq * c.hq * c.d, nl = (int64_t)c.b * c.hq * c.sq;
    mx_bf16 *all = device_random<mx_bf16>((int64_t)c.b * std::max(c.sq, c.sk) * row, 1, 3);
    mx_bf16 *o[2] = {device_alloc<mx_bf16>(no), device_alloc<mx_bf16>(no)};
    float *lse[2] = {device_alloc<float>(nl), device_alloc<float>(nl)};
    std::vector<int32_t> qp, qs, qn, kp, ks, kn;
    mx_flash_args a = with_tokens(c, qp, qs, qn, kp, ks, kn);
    a.q = all, a.k = all + c.hq * c.d, a.v = all + (c.hq + c.hk) * c.d;
    a.sinks = c.sinks ? device_random<float>(c.hq, 5, 1) : NULL;
    bool can = false;
    for (int i = 0; i < 2; i++) {
        CU(cudaMemset(o[i], 0xff, no * 2));
        CU(cudaMemset(lse[i], 0xff, nl * 4));
        a.o = o[i], a.stats = lse[i];
        can = mx_flash_hopper_can(&s, &a);
        if (can)
            CU(i ? mx_flash_hopper_forward(&s, &a, 0) : mx_flash_mma_forward(&s, &a, 0));
    }
    CU(cudaDeviceSynchronize());
    vec x = host(lse[0], nl), y = host(lse[1], nl);
    for (size_t i = 0; i < x.size(); i++)
        if (x[i] == -INFINITY && y[i] == -INFINITY)
            x[i] = y[i] = 0;
    std::string n = std::string("hopper ") + c.name;
    if (can) {
        check((n + ": o").c_str(), rel_error(host(o[1], no), host(o[0], no)), 5e-3);
        check((n + ": stats").c_str(), rel_error(y, x), 1e-5);
    }
    for (const void *p : {(void *)all, (void *)o[0], (void *)o[1], (void *)lse[0], (void *)lse[1],
                          (void *)a.sinks, (void *)a.q_pos, (void *)a.k_pos, (void *)a.q_seg,
                          (void *)a.k_seg, (void *)a.q_span, (void *)a.k_span})
        cudaFree((void *)p);
}

static void test_hopper_all()
{
    const flash_case cases[] = {
        {"causal", 3, 1100, 1100, 16, 4, 64, 64, true},
        {"full", 2, 500, 333, 8, 8, 64, 64},
        {"more queries than keys", 1, 1500, 200, 8, 2, 64, 64, true},
        {"fewer queries than keys", 2, 200, 1500, 16, 2, 64, 64, true},
        {"one query", 1, 1, 700, 4, 2, 64, 64},
        {"window", 2, 1300, 1300, 16, 4, 64, 64, true, 130},
        {"window both ways", 2, 1300, 1300, 16, 4, 64, 64, false, 70},
        {"chunk", 2, 2100, 2100, 16, 4, 64, 64, false, 0, 1000},
        {"chunk beyond the keys", 1, 2100, 600, 16, 4, 64, 64, true, 0, 500},
        {"softcap, sinks", 2, 900, 900, 16, 4, 64, 64, true, 0, 0, 20, true},
        {"segments", 3, 1100, 1100, 16, 4, 64, 64, true, 0, 0, 0, false, false, true},
        {"positions, window", 2, 700, 1100, 16, 4, 64, 64, true, 200, 0, 0, false, true},
        {"spans, chunk", 2, 1100, 1100, 16, 4, 64, 64, true, 300, 256, 0, true, true, true, true},
    };
    for (flash_case c : cases) {
        test_hopper(c);
        c.d = c.dv = 128;
        test_hopper(c);
    }
    test_hopper_joint(2, 320, 4, 1, 64, true, 4);
    test_hopper_joint(3, 1024, 12, 12, 64, true, 4);
    /* many items a multiprocessor, both orders */
    test_hopper_joint(12, 1000, 12, 12, 64, true, 10);
    test_hopper_joint(12, 1024, 8, 8, 64, false, 6);
    test_hopper_joint(2, 2048, 16, 4, 64, true, 8);
    test_hopper_joint(2, 320, 4, 1, 128, true, 4);
    /* more pairs of blocks than there are places */
    test_hopper_joint(3, 1100, 12, 12, 128, true, 8);
    test_hopper_joint(2, 1024, 8, 8, 128, false, 6);
    test_hopper_joint(2, 2048, 16, 4, 128, true, 8);
}

static void test_decode(int b, int hq, int hk, int d, int dv, int cap, int window, float softcap,
                        bool sink)
{
    char name[128];
    std::vector<int32_t> len;
    for (int i = 0; i < b; i++)
        len.push_back(i == 0 ? cap : i == 1 ? 1 : cap - 37 * i);
    mx_decode_shape s = {};
    s.batch = b, s.heads_q = hq, s.heads_kv = hk, s.dim_qk = d, s.dim_v = dv, s.capacity = cap;
    s.k_seq = (int64_t)hk * d, s.k_batch = s.k_seq * cap, s.k_head = d;
    s.v_seq = (int64_t)hk * dv, s.v_batch = s.v_seq * cap, s.v_head = dv;
    s.window = window, s.scale = 1 / sqrtf((float)d), s.softcap = softcap;
    int64_t nq = (int64_t)b * hq * d, nk = s.k_batch * b, nv = s.v_batch * b,
            no = (int64_t)b * hq * dv;
    mx_bf16 *q = device_random<mx_bf16>(nq, 1, 2), *k = device_random<mx_bf16>(nk, 2, 2);
    mx_bf16 *v = device_random<mx_bf16>(nv, 3, 1), *o = device_alloc<mx_bf16>(no);
    float *sinks = device_random<float>(hq, 4, 1);
    int32_t *l = device_copy(len);
    const vec keys = host(k, nk), values = host(v, nv);
    for (int i = 0; i < b; i++) { /* what nobody has written yet may be NaN */
        CU(cudaMemset(k + i * s.k_batch + len[i] * s.k_seq, 0xff, 2 * (cap - len[i]) * s.k_seq));
        CU(cudaMemset(v + i * s.v_batch + len[i] * s.v_seq, 0xff, 2 * (cap - len[i]) * s.v_seq));
    }
    void *scratch = device_alloc<char>(mx_cuda_decode_scratch_bytes(&s));
    CU(cudaMemset(o, 0xff, no * 2));
    mx_decode_keys by_length = {l}, by_position = {};
    CU(mx_cuda_decode_attention(&s, o, q, k, v, by_length, sink ? sinks : NULL, scratch, 0));
    vec first = host(o, no);
    std::vector<int32_t> q_pos, k_pos; /* the same keys, given by their positions */
    for (int i = 0; i < b; i++) {
        q_pos.push_back(len[i] - 1 + 5);
        for (int j = 0; j < cap; j++)
            k_pos.push_back(j < len[i] ? j + 5 : j % 2 ? -1 : len[i] + 9);
    }
    by_position.q_pos = device_copy(q_pos), by_position.k_pos = device_copy(k_pos);
    CU(cudaMemset(o, 0xff, no * 2));
    CU(mx_cuda_decode_attention(&s, o, q, k, v, by_position, sink ? sinks : NULL, scratch, 0));
    CU(cudaDeviceSynchronize());
    attention_ref r;
    r.b = b, r.sq = 1, r.sk = cap, r.hq = hq, r.hk = hk, r.d = d, r.dv = dv, r.scale = s.scale;
    r.cap = softcap;
    r.keep = [&](int bi, int, int j) {
        return j < len[bi] && (!window || len[bi] - 1 - j < window);
    };
    if (sink)
        r.sinks = host(sinks, hq);
    r.run(host(q, nq), keys, values, vec());
    snprintf(name, sizeof name, "decode b%d h%d/%d d%d/%d cap %d window %d", b, hq, hk, d, dv, cap,
             window);
    check(name, rel_error(first, r.o), 5e-3);
    check((std::string(name) + ", by position").c_str(), rel_error(host(o, no), r.o), 5e-3);
    for (void *p : {(void *)q, (void *)k, (void *)v, (void *)o, (void *)sinks, (void *)l, scratch,
                    (void *)by_position.q_pos, (void *)by_position.k_pos})
        cudaFree(p);
}

static void test_decode_all()
{
    test_decode(3, 8, 2, 64, 64, 700, 0, 0, false);
    test_decode(1, 8, 8, 128, 128, 1500, 0, 30, true);
    test_decode(2, 16, 1, 128, 128, 500, 100, 0, false);
    test_decode(2, 6, 2, 192, 128, 300, 0, 0, false);
    test_decode(2, 4, 2, 256, 256, 200, 0, 0, true);
    test_decode(2, 4, 2, 72, 40, 200, 0, 0, false);
    test_decode(2, 8, 2, 64, 64, 100, 0, 0, true);
    test_decode(2, 8, 2, 128, 128, 128, 30, 0, false);
}

static void test_attention(mx_cuda_libs *libs)
{
    test_flash_all();
    test_hopper_all();
    test_decode_all();
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
        {"cudnn causal d256", 1, 256, 2, 1, 256, 256, true, 0, 0, false, false, false, true},
        {"cudnn causal d192/128", 1, 256, 2, 2, 192, 128, true, 0, 0, false, false, false, true},
        {"cudnn window 100", 1, 384, 4, 2, 128, 128, true, 100},
        {"cudnn deterministic", 1, 256, 4, 2, 64, 64, true, 0, 0, false, false, true, true},
        {"cudnn padded", 2, 256, 4, 2, 64, 64, true, 0, 0, false, true, false, true},
        {"cudnn sinks", 1, 256, 4, 2, 64, 64, true, 0, 0, true, false, false, true},
        {"cudnn softcap", 1, 256, 4, 2, 128, 128, true, 0, 20, false, false, false, true},
    };
    for (const sdpa_case &c : cases)
        test_sdpa(dnn, c);
    mx_sdpa_close(dnn);
}

#endif
