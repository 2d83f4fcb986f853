/* attention_decode.c - attention of one query per sequence over a long cache: decoding.
 *
 * Bound by reading the cache once. Keys lie as (position, head, dim), so the tiles of
 * attention_tile.inc, which take one head at a time, would read a few hundred bytes of every row
 * and skip the rest: a third of the memory's rate. Here a task is a run of KEYS positions of one
 * sequence with all its heads, read as they lie; it leaves for every head
 *     m = max s,  l = sum exp(s - m),  o = sum exp(s - m) v
 * and the runs of a head are put together in order, so bits do not depend on the threads:
 *     M = max m,  out = sum exp(m - M) o / sum exp(m - M) l
 */
#include "ops/cpu/attention_decode.h"

#include "base/vmath.h"
#include "ops/cpu/attention_mask.h"
#include "ops/cpu/lanes.h"
#include <math.h>
#include <omp.h>

/* Positions of a run; with more query heads to a key head it is a matrix product. */
enum { KEYS = 64, MAX_GROUP = 8 };

#define NAME(x) x##_f32
#define T float
#define EXP(x) mx_vexpf_nonpositive(x)
#define TANH(x) mx_vtanhf(x)
#include "ops/cpu/softmax_rows.inc"

bool mx_attn_decode_can(const mx_attn *a)
{
    return a->q_len == 1 && a->type != MX_NUM_F64 && !a->mask.selected &&
           a->q_heads <= MAX_GROUP * a->k_heads;
}

static int64_t run_count(const mx_attn *a)
{
    return (a->k_len + KEYS - 1) / KEYS;
}

/* Of a run: o (Hq, Dv), m (Hq), l (Hq). */
static size_t run_floats(const mx_attn *a)
{
    return (size_t)(a->q_heads * (a->v_dim + 2));
}

/* Of a thread: queries as floats, scores (Hq, KEYS). */
static size_t thread_floats(const mx_attn *a)
{
    return (size_t)(a->q_heads * (a->qk_dim + KEYS));
}

static int thread_count(const mx_attn *a)
{
    return a->threads > 0 ? a->threads : omp_in_parallel() ? 1 : omp_get_max_threads();
}

size_t mx_attn_decode_work_bytes(const mx_attn *a)
{
    return sizeof(float) * (run_floats(a) * (size_t)(a->batch * run_count(a)) +
                            thread_floats(a) * (size_t)thread_count(a));
}

/* Scores of one key row with every query: s[r * KEYS]. Four sums are folded at once. */
MX_INLINE void score_key(float *s, const float *q, const void *k, const mx_attn *a, const bool bf16)
{
    const int64_t dim = a->qk_dim, group = a->q_heads / a->k_heads, whole = dim / LANES * LANES;
    for (int64_t r0 = 0; r0 < a->q_heads; r0 += 4) {
        lanes acc[4] = {{0}, {0}, {0}, {0}};
        float sums[4], rest[4] = {0};
        int n = a->q_heads - r0 < 4 ? (int)(a->q_heads - r0) : 4;
        for (int i = 0; i < n; i++) {
            int64_t at = (r0 + i) / group * dim;
            const float *qr = q + (r0 + i) * dim;
            for (int64_t d = 0; d < whole; d += LANES) {
                lanes x;
                load(&x, k, at + d, bf16);
                acc[i] += x * *(const lanes_any *)(qr + d);
            }
            for (int64_t d = whole; d < dim; d++)
                rest[i] += qr[d] * element(k, at + d, bf16);
        }
        fold4(sums, acc);
        for (int i = 0; i < n; i++)
            s[(r0 + i) * KEYS] = a->mask.scale * (sums[i] + rest[i]);
    }
}

/* o (Hq, Dv) += p v of one value row. */
MX_INLINE void mix_key(float *o, const float *p, const void *v, const mx_attn *a, const bool bf16)
{
    const int64_t dim = a->v_dim, group = a->q_heads / a->k_heads, whole = dim / LANES * LANES;
    for (int64_t r = 0; r < a->q_heads; r++) {
        int64_t at = r / group * dim;
        float *restrict out = o + r * dim, weight = p[r * KEYS];
        for (int64_t d = 0; d < whole; d += LANES) {
            lanes x;
            load(&x, v, at + d, bf16);
            *(lanes_any *)(out + d) += weight * x;
        }
        for (int64_t d = whole; d < dim; d++)
            out[d] += weight * element(v, at + d, bf16);
    }
}

#define RUNS(suffix, is_bf16)                                                                      \
    MX_CLONES static void score_##suffix(float *s, const float *q, const void *k, int n,           \
                                         const mx_attn *a)                                         \
    {                                                                                              \
        int64_t row = a->k_heads * a->qk_dim * (is_bf16 ? 2 : 4);                                  \
        for (int j = 0; j < n; j++)                                                                \
            score_key(s + j, q, (const char *)k + j * row, a, is_bf16);                            \
    }                                                                                              \
    MX_CLONES static void mix_##suffix(float *o, const float *p, const void *v, int n,             \
                                       const mx_attn *a)                                           \
    {                                                                                              \
        int64_t row = a->k_heads * a->v_dim * (is_bf16 ? 2 : 4);                                   \
        for (int j = 0; j < n; j++)                                                                \
            mix_key(o, p + j, (const char *)v + j * row, a, is_bf16);                              \
    }
RUNS(f32, false)
RUNS(bf16, true)

/* One run of keys; false: the query sees none of them. */
static bool run_keys(const mx_attn *a, const mx_attn_forward_args *p, int64_t b, int64_t k0,
                     float *part, float *work)
{
    float *q = work, *s = work + a->q_heads * a->qk_dim;
    float *m = part + a->q_heads * a->v_dim, *l = m + a->q_heads;
    int nk = (int)(a->k_len - k0 < KEYS ? a->k_len - k0 : KEYS);
    bool bf16 = a->type == MX_NUM_BF16;
    uint32_t ok[MX_ATTN_KEYS];
    mx_attn_rows rows;
    mx_attn_keys keys;
    mx_attn_rows_init(&rows, a, b, 0, 1, 1);
    mx_attn_keys_init(&keys, a, b, k0, nk);
    mx_attn_verdict verdict = mx_attn_judge(&rows, &keys);
    if (verdict == MX_ATTN_PARTIAL) { /* slots that are not filled yet come last */
        mx_attn_allowed(ok, &rows, 0, &keys);
        while (nk > 0 && !ok[nk - 1])
            nk--;
    }
    if (verdict == MX_ATTN_SKIP || nk == 0)
        return false;
    for (int64_t i = 0; i < a->q_heads * a->qk_dim; i++)
        q[i] = element(p->q, b * a->q_heads * a->qk_dim + i, bf16);
    int64_t at = (b * (a->k_alloc > 0 ? a->k_alloc : a->k_len) + k0) * a->k_heads *
                 (bf16 ? 2 : 4);
    (bf16 ? score_bf16 : score_f32)(s, q, (const char *)p->k + at * a->qk_dim, nk, a);
    for (int64_t r = 0; r < a->q_heads; r++) {
        float *sr = s + r * KEYS;
        if (a->mask.softcap > 0)
            cap_row_f32(sr, nk, a->mask.softcap);
        if (verdict == MX_ATTN_PARTIAL)
            for (int j = 0; j < nk; j++)
                sr[j] = ok[j] ? sr[j] : NEG_INF;
        m[r] = max_row_f32(sr, nk);
        l[r] = exp_row_f32(sr, nk, m[r] == NEG_INF ? 0 : m[r]);
    }
    for (int64_t i = 0; i < a->q_heads * a->v_dim; i++)
        part[i] = 0;
    (bf16 ? mix_bf16 : mix_f32)(part, s, (const char *)p->v + at * a->v_dim, nk, a);
    return true;
}

/* The runs of one head, in order. */
static void join(const mx_attn *a, const mx_attn_forward_args *p, int64_t b, int64_t r,
                 const float *part)
{
    const int64_t n = run_count(a), dim = a->v_dim;
    const size_t each = run_floats(a);
    const float sink = a->sinks ? ((const float *)a->sinks)[r] : NEG_INF;
    float top = sink, sum = 0;
    for (int64_t i = 0; i < n; i++) {
        float m = part[(size_t)i * each + (size_t)(a->q_heads * dim + r)];
        top = m > top ? m : top;
    }
    sum = sink == NEG_INF ? 0 : expf(sink - top);
    float *o = (float *)part + r * dim; /* the first run's, which becomes the sum */
    for (int64_t i = 0; i < n; i++) {
        const float *x = part + (size_t)i * each;
        float m = x[a->q_heads * dim + r], l = x[a->q_heads * (dim + 1) + r];
        float f = m == NEG_INF ? 0 : expf(m - top);
        sum += f > 0 ? f * l : 0;
        for (int64_t d = 0; d < dim; d++)
            o[d] = (i ? o[d] : 0) + (f > 0 ? f * x[r * dim + d] : 0);
    }
    float inv = sum > 0 ? 1 / sum : 0;
    int64_t at = (b * a->q_heads + r) * dim;
    for (int64_t d = 0; d < dim; d++)
        if (a->type == MX_NUM_BF16)
            ((uint16_t *)p->out)[at + d] = mx_bf16_of_float(o[d] * inv);
        else
            ((float *)p->out)[at + d] = o[d] * inv;
    if (p->lse)
        ((float *)p->lse)[b * a->q_heads + r] = sum > 0 ? top + mx_vlogf(sum) : NEG_INF;
}

void mx_attn_decode(const mx_attn *a, const mx_attn_forward_args *p, void *work)
{
    const int64_t runs = run_count(a);
    const size_t each = run_floats(a);
    float *parts = work, *own = parts + each * (size_t)(a->batch * runs);
#pragma omp parallel num_threads(thread_count(a))
    {
        float *mine = own + thread_floats(a) * (size_t)omp_get_thread_num();
#pragma omp for schedule(static)
        for (int64_t i = 0; i < a->batch * runs; i++) {
            float *part = parts + each * (size_t)i, *m = part + a->q_heads * a->v_dim;
            if (!run_keys(a, p, i / runs, i % runs * KEYS, part, mine))
                for (int64_t r = 0; r < a->q_heads; r++)
                    m[r] = NEG_INF;
        }
#pragma omp for schedule(static)
        for (int64_t i = 0; i < a->batch * a->q_heads; i++)
            join(a, p, i / a->q_heads, i % a->q_heads,
                 parts + each * (size_t)(i / a->q_heads * runs));
    }
}
