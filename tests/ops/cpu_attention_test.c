/* cpu_attention_test.c - the attention kernels against a dense reference in double, over random
 * masks.
 *
 * The reference forms the whole row of scores, asks `allowed` (the rules as attention_kernel.h
 * states them, one key at a time) and differentiates by the textbook. Shapes are odd on purpose,
 * rows without any key occur, and inputs of the unused slots are NaN where the kernel must not
 * look.
 */
#include "../test.h"
#include "numbers.h"

#include "ops/cpu/attention_kernel.h"
#include <math.h>
#include <string.h>

/* ---- the reference ---- */

static bool allowed(const mx_attn *a, int64_t b, int64_t s, int64_t j)
{
    const mx_attn_mask *m = &a->mask;
    int64_t iq = b * a->q_len + s, ik = b * a->k_len + j;
    int64_t q = m->q_pos ? m->q_pos[iq] : m->q_offset + s, k = m->k_pos ? m->k_pos[ik] : j;
    if (q < 0 || k < 0 || (m->q_seg && m->q_seg[iq] != m->k_seg[ik]))
        return false;
    if (m->selected) {
        bool found = false;
        for (int64_t i = 0; i < m->n_selected; i++)
            found |= m->selected[iq * m->n_selected + i] == j;
        if (!found)
            return false;
    }
    if (m->q_span && m->q_span[iq] > 0 && m->q_span[iq] == m->k_span[ik] &&
        (m->window <= 0 || q - k < m->window))
        return true;
    if (m->causal && k > q)
        return false;
    if (m->window > 0 && (q - k >= m->window || k - q >= m->window))
        return false;
    return m->chunk <= 0 || q / m->chunk == k / m->chunk;
}

typedef struct {
    double *out, *lse, *dq, *dk, *dv, *dsinks;
} expected;

typedef struct {
    const mx_attn *a;
    const void *q, *k, *v, *dout;
    int64_t rows; /* of k per batch entry */
} inputs;

static int64_t at_q(const mx_attn *a, int64_t b, int64_t s, int64_t h, int64_t d)
{
    return ((b * a->q_len + s) * a->q_heads + h) * d;
}

/* One query of one head. p, raw, derivative are scratch of k_len. */
static void reference_row(const inputs *in, expected *e, int64_t b, int64_t s, int64_t h, double *p)
{
    const mx_attn *a = in->a;
    int64_t hk = h / (a->q_heads / a->k_heads), dq = a->qk_dim, dv = a->v_dim, n = a->k_len;
    double *derivative = p + n, *dp = p + 2 * n, cap = a->mask.softcap, sum = 0, delta = 0;
    double sink = a->sinks ? get(a->sinks, h, a->type == MX_NUM_F64 ? MX_NUM_F64 : MX_NUM_F32) : 0;
    for (int64_t j = 0; j < n; j++) {
        p[j] = 0;
        if (!allowed(a, b, s, j))
            continue;
        double x = 0;
        for (int64_t i = 0; i < dq; i++)
            x += get(in->q, at_q(a, b, s, h, dq) + i, a->type)
                 * get(in->k, ((b * in->rows + j) * a->k_heads + hk) * dq + i, a->type);
        x *= (double)a->mask.scale;
        derivative[j] = cap > 0 ? 1 - tanh(x / cap) * tanh(x / cap) : 1;
        p[j] = exp(cap > 0 ? cap * tanh(x / cap) : x);
        sum += p[j];
    }
    sum += a->sinks ? exp(sink) : 0;
    e->lse[(b * a->q_heads + h) * a->q_len + s] = log(sum);
    for (int64_t j = 0; j < n; j++) {
        if (p[j] == 0)
            continue;
        p[j] /= sum;
        dp[j] = 0;
        for (int64_t i = 0; i < dv; i++) {
            int64_t iv = ((b * in->rows + j) * a->k_heads + hk) * dv + i;
            double g = get(in->dout, at_q(a, b, s, h, dv) + i, a->type);
            e->out[at_q(a, b, s, h, dv) + i] += p[j] * get(in->v, iv, a->type);
            e->dv[iv] += p[j] * g;
            dp[j] += g * get(in->v, iv, a->type);
        }
        delta += p[j] * dp[j];
    }
    if (a->sinks)
        e->dsinks[h] -= exp(sink) / sum * delta;
    for (int64_t j = 0; j < n; j++) {
        if (p[j] == 0)
            continue;
        double ds = p[j] * (dp[j] - delta) * derivative[j] * (double)a->mask.scale;
        for (int64_t i = 0; i < dq; i++) {
            int64_t iq = at_q(a, b, s, h, dq) + i;
            int64_t ik = ((b * in->rows + j) * a->k_heads + hk) * dq + i;
            e->dq[iq] += ds * get(in->k, ik, a->type);
            e->dk[ik] += ds * get(in->q, iq, a->type);
        }
    }
}

static void compare(const char *what, const mx_attn *a, const void *got, mx_num t,
                    const double *want, int64_t n)
{
    mx_num in = a->type;
    double big = 1e-2, tol = in == MX_NUM_F64 ? 1e-12 : in == MX_NUM_F32 ? 1e-5 : 3e-2;
    int64_t worst = -1;
    double worst_by = 0;
    for (int64_t i = 0; i < n; i++)
        big = isfinite(want[i]) && fabs(want[i]) > big ? fabs(want[i]) : big;
    for (int64_t i = 0; i < n; i++) {
        double g = get(got, i, t), d = g == want[i] ? 0 : fabs(g - want[i]) / big;
        if (!(d <= worst_by)) {
            worst_by = isnan(d) ? INFINITY : d;
            worst = i;
        }
    }
    const mx_attn_mask *m = &a->mask;
    MX_CHECK(worst_by <= tol, "%s[%ld]: off by %.3g of the largest (limit %g), expected %g; "
             "type %d B%ld Sq%ld Sk%ld Hq%ld Hk%ld D%ld,%ld causal %d window %ld chunk %ld cap %g "
             "pos %d seg %d span %d selected %d sinks %d threads %d", what, (long)worst, worst_by,
             tol, want[worst < 0 ? 0 : worst], a->type, (long)a->batch, (long)a->q_len,
             (long)a->k_len, (long)a->q_heads, (long)a->k_heads, (long)a->qk_dim, (long)a->v_dim,
             m->causal, (long)m->window, (long)m->chunk, m->softcap, m->k_pos != 0, m->q_seg != 0,
             m->q_span != 0, m->selected != 0, a->sinks != 0, a->threads);
}

static void check(mx_arena *m, const mx_attn *a, uint32_t *seed)
{
    mx_num t = a->type, tt = t == MX_NUM_F64 ? t : MX_NUM_F32;
    int64_t rows = a->k_alloc > 0 ? a->k_alloc : a->k_len;
    int64_t nq = a->batch * a->q_len * a->q_heads, nk = a->batch * rows * a->k_heads;
    inputs in = {.a = a, .rows = rows};
    in.q = random_array(m, nq * a->qk_dim, t, seed);
    in.k = random_array(m, nk * a->qk_dim, t, seed);
    in.v = random_array(m, nk * a->v_dim, t, seed);
    in.dout = random_array(m, nq * a->v_dim, t, seed);
    expected e = {MX_NEW_N(m, double, nq *a->v_dim + 1),  MX_NEW_N(m, double, nq + 1),
                  MX_NEW_N(m, double, nq *a->qk_dim + 1), MX_NEW_N(m, double, nk *a->qk_dim + 1),
                  MX_NEW_N(m, double, nk *a->v_dim + 1),  MX_NEW_N(m, double, a->q_heads)};
    double *scratch = MX_NEW_N(m, double, 3 * a->k_len + 1);
    for (int64_t i = 0; i < nq; i++)
        reference_row(&in, &e, i / (a->q_len * a->q_heads), i / a->q_heads % a->q_len,
                      i % a->q_heads, scratch);
    void *out = random_array(m, nq * a->v_dim, t, seed), *lse = random_array(m, nq, tt, seed);
    void *work = mx_arena_alloc(m, mx_attn_forward_work_bytes(a));
    memset(work, 0xff, mx_attn_forward_work_bytes(a)); /* NaN: read only what was written */
    mx_attn_forward(a, &(mx_attn_forward_args){in.q, in.k, in.v, out, lse}, work);
    compare("out", a, out, t, e.out, nq * a->v_dim);
    compare("lse", a, lse, tt, e.lse, nq);
    mx_attn_backward_args g = {in.q, in.k, in.v, out, lse, in.dout, 0, 0, 0, 0};
    g.dq = random_array(m, nq * a->qk_dim, t, seed);
    g.dk = mx_arena_alloc(m, (size_t)(nk * a->qk_dim * MX_NUM_BYTES(t)) + 1);
    g.dv = mx_arena_alloc(m, (size_t)(nk * a->v_dim * MX_NUM_BYTES(t)) + 1);
    g.dsinks = random_array(m, a->q_heads, tt, seed);
    work = mx_arena_alloc(m, mx_attn_backward_work_bytes(a));
    memset(work, 0xff, mx_attn_backward_work_bytes(a));
    mx_attn_backward(a, &g, work);
    compare("dq", a, g.dq, t, e.dq, nq * a->qk_dim);
    compare("dk", a, g.dk, t, e.dk, nk * a->qk_dim);
    compare("dv", a, g.dv, t, e.dv, nk * a->v_dim);
    if (a->sinks)
        compare("dsinks", a, g.dsinks, tt, e.dsinks, a->q_heads);
}

/* ---- random masks ---- */

static int32_t *random_ids(mx_arena *m, int64_t n, int run, int base, uint32_t *s)
{
    int32_t *p = MX_NEW_N(m, int32_t, n + 1);
    int32_t id = base;
    for (int64_t i = 0; i < n; i++) {
        id += next(s) % (uint32_t)run == 0;
        p[i] = id;
    }
    return p;
}

static void random_mask(mx_arena *m, mx_attn *a, uint32_t *s)
{
    int64_t nq = a->batch * a->q_len, nk = a->batch * a->k_len;
    mx_attn_mask *k = &a->mask;
    k->causal = next(s) % 4 != 0;
    k->window = next(s) % 3 == 0 ? 1 + next(s) % 50 : 0;
    k->chunk = next(s) % 4 == 0 ? 1 + next(s) % 40 : 0;
    k->softcap = next(s) % 4 == 0 ? 2.0f : 0;
    k->scale = 0.2f + 0.1f * (float)(next(s) % 5);
    k->q_offset = next(s) % 2 && a->k_len > a->q_len ? a->k_len - a->q_len : 0;
    if (next(s) % 4 == 0) { /* positions given; some slots empty */
        int32_t *qp = MX_NEW_N(m, int32_t, nq + 1), *kp = MX_NEW_N(m, int32_t, nk + 1);
        for (int64_t i = 0; i < nq; i++)
            qp[i] = next(s) % 9 ? (int32_t)(next(s) % (uint32_t)a->k_len) : -1;
        for (int64_t i = 0; i < nk; i++)
            kp[i] = next(s) % 5 ? (int32_t)(next(s) % (uint32_t)a->k_len) : -1;
        k->q_pos = qp;
        k->k_pos = kp;
    }
    if (next(s) % 3 == 0) {
        k->q_seg = random_ids(m, nq, 20, 0, s);
        k->k_seg = random_ids(m, nk, 20, 0, s);
    }
    if (next(s) % 4 == 0) {
        k->q_span = random_ids(m, nq, 9, -1, s);
        k->k_span = random_ids(m, nk, 9, -1, s);
    }
    if (next(s) % 5 == 0) {
        k->n_selected = 1 + next(s) % 12;
        int32_t *list = MX_NEW_N(m, int32_t, nq *k->n_selected);
        for (int64_t i = 0; i < nq * k->n_selected; i++)
            list[i] = (int32_t)(next(s) % (uint32_t)(a->k_len + 1)) - 1;
        k->selected = list;
    }
    if (next(s) % 3 == 0)
        a->sinks = random_array(m, a->q_heads, a->type == MX_NUM_F64 ? a->type : MX_NUM_F32, s);
}

static void random_cases(mx_num type, int n, uint32_t seed)
{
    for (int i = 0; i < n; i++) {
        mx_arena m = {0};
        int64_t hk = 1 + next(&seed) % 3;
        mx_attn a = {.type = type, .batch = 1 + next(&seed) % 2, .k_heads = hk,
                     .q_heads = hk * (1 + next(&seed) % 3), .q_len = 1 + next(&seed) % 150,
                     .k_len = 1 + next(&seed) % 300, .qk_dim = 1 + next(&seed) % 20,
                     .v_dim = 1 + next(&seed) % 20, .threads = (int)(next(&seed) % 4)};
        if (next(&seed) % 3 == 0) { /* a decode step over a cache */
            a.q_len = 1 + next(&seed) % 3;
            a.k_alloc = a.k_len + next(&seed) % 5;
        }
        random_mask(&m, &a, &seed);
        check(&m, &a, &seed);
        mx_arena_fini(&m);
    }
}

MX_TEST(attention_matches_dense_reference_f32)
{
    random_cases(MX_NUM_F32, 120, 1);
}
MX_TEST(attention_matches_dense_reference_f64)
{
    random_cases(MX_NUM_F64, 60, 2);
}
MX_TEST(attention_matches_dense_reference_bf16)
{
    random_cases(MX_NUM_BF16, 60, 3);
}

/* Long enough that tiles are skipped on both sides, with a plain causal window. */
MX_TEST(attention_skips_tiles_outside_the_window)
{
    mx_arena m = {0};
    uint32_t s = 7;
    mx_attn a = {.type = MX_NUM_F32, .batch = 1, .k_heads = 1, .q_heads = 2, .q_len = 700,
                 .k_len = 700, .qk_dim = 8, .v_dim = 8};
    a.mask = (mx_attn_mask){.causal = true, .window = 90, .scale = 0.5f};
    check(&m, &a, &s);
    a.mask = (mx_attn_mask){.window = 64, .scale = 0.5f};
    check(&m, &a, &s);
    a.mask = (mx_attn_mask){.causal = true, .chunk = 256, .scale = 0.5f};
    check(&m, &a, &s);
    mx_arena_fini(&m);
}

MX_TEST(attention_bits_do_not_depend_on_threads)
{
    mx_arena m = {0};
    uint32_t s = 5;
    enum { S = 200, H = 4, HK = 2, D = 16, NQ = S * H * D, NK = S * HK * D };
    mx_attn a = {.type = MX_NUM_F32, .batch = 1, .k_heads = HK, .q_heads = H, .q_len = S,
                 .k_len = S, .qk_dim = D, .v_dim = D, .mask = {.causal = true, .scale = 0.25f}};
    float *q = random_array(&m, NQ, MX_NUM_F32, &s), *k = random_array(&m, NK, MX_NUM_F32, &s);
    float *v = random_array(&m, NK, MX_NUM_F32, &s), *dout = random_array(&m, NQ, MX_NUM_F32, &s);
    float *r[4]; /* out, lse, dq, dk, dv one after the other */
    size_t n = 2 * NQ + S * H + 2 * NK;
    for (int t = 1; t <= 3; t++) { /* three threads for two key heads: the two-pass way */
        a.threads = t;
        float *o = r[t] = MX_NEW_N(&m, float, n);
        mx_attn_forward(&a, &(mx_attn_forward_args){q, k, v, o, o + NQ},
                        mx_arena_alloc(&m, mx_attn_forward_work_bytes(&a)));
        mx_attn_backward_args g = {q, k, v, o, o + NQ, dout, 0, 0, 0, 0};
        g.dq = o + NQ + S * H;
        g.dk = o + 2 * NQ + S * H;
        g.dv = o + 2 * NQ + S * H + NK;
        mx_attn_backward(&a, &g, mx_arena_alloc(&m, mx_attn_backward_work_bytes(&a)));
    }
    MX_CHECK(memcmp(r[1], r[2], n * sizeof(float)) == 0, "1 and 2 threads differ");
    MX_CHECK(memcmp(r[1], r[3], n * sizeof(float)) == 0, "1 and 3 threads differ");
    mx_arena_fini(&m);
}
