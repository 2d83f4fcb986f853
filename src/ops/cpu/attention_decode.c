/* attention_decode.c - attention of one query per sequence over a long cache: decoding.
 *
 * Bound by reading the cache once. Keys lie as (position, head, dim), so the tiles of
 * attention_forward.inc, which take one head at a time, would read a few hundred bytes of every row
 * and skip the rest, which memory is slow at. Here a task is a run of KEYS positions of one
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

/* Positions of a run; with more query heads to a key head it is a GEMM; values taken at
 * once where several heads share them, so that sums are loaded and stored less often. */
enum { KEYS = MX_ATTN_DECODE_KEYS, MAX_GROUP = 8, MIX_KEYS = 4 };

#define NAME(x) x##_f32
#define T float
#define EXP(x) mx_vexpf_nonpositive(x)
#define TANH(x) mx_vtanhf(x)
#include "ops/cpu/softmax_rows.inc"
#undef NAME

bool mx_attn_decode_can(const mx_attn *a)
{
    return a->q_len == 1 && !a->one_path && a->type != MX_NUM_F64 && !a->mask.selected &&
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

size_t mx_attn_decode_work_bytes(const mx_attn *a)
{
    return sizeof(float) * (run_floats(a) * (size_t)(a->batch * run_count(a)) +
                            thread_floats(a) * (size_t)mx_kernel_threads(a->threads));
}

/* Scores of one key row with heads x group queries, read once for all of them: s[r * KEYS]. Both
 * are constants where this is inlined, and their product is 4 or 8, or `heads` is 1. */
MX_INLINE void score_heads(float *s, const float *q, const void *k, int64_t at, const mx_attn *a,
                           const int heads, const int group, const bool bf16)
{
    const int64_t dim = a->qk_dim, whole = dim / LANES * LANES;
    lanes acc[MAX_GROUP] = {{0}};
    float sums[MAX_GROUP], rest[MAX_GROUP] = {0};
#pragma GCC unroll 4
    for (int h = 0; h < heads; h++) /* one after the other: memory is read in order */
        for (int64_t d = 0; d < whole; d += LANES) {
            lanes x;
            load(&x, k, at + h * dim + d, bf16);
#pragma GCC unroll 8
            for (int g = 0; g < group; g++)
                acc[h * group + g] += x * *(const lanes_any *)(q + (h * group + g) * dim + d);
        }
    for (int h = 0; h < heads; h++)
        for (int64_t d = whole; d < dim; d++)
            for (int g = 0; g < group; g++)
                rest[h * group + g] += q[(h * group + g) * dim + d] *
                                       element(k, at + h * dim + d, bf16);
    fold4(sums, acc);
    if (heads * group > 4)
        fold4(sums + 4, acc + 4);
    for (int r = 0; r < heads * group; r++)
        s[r * KEYS] = a->mask.scale * (sums[r] + rest[r]);
}

/* o (group, Dv) += p v of one value head for `keys` rows, `row` elements apart, each read once. */
MX_INLINE void mix_head(float *o, const float *p, const void *v, int64_t at, int64_t row,
                        const mx_attn *a, const int group, const int keys, const bool bf16)
{
    const int64_t dim = a->v_dim, whole = dim / LANES * LANES;
    for (int64_t d = 0; d < whole; d += LANES) {
        lanes x[MIX_KEYS];
#pragma GCC unroll 4
        for (int j = 0; j < keys; j++)
            load(&x[j], v, at + j * row + d, bf16);
#pragma GCC unroll 8
        for (int g = 0; g < group; g++) {
            lanes sum = *(const lanes_any *)(o + g * dim + d);
#pragma GCC unroll 4
            for (int j = 0; j < keys; j++)
                sum += p[g * KEYS + j] * x[j];
            *(lanes_any *)(o + g * dim + d) = sum;
        }
    }
    for (int64_t d = whole; d < dim; d++)
        for (int g = 0; g < group; g++)
            for (int j = 0; j < keys; j++)
                o[g * dim + d] += p[g * KEYS + j] * element(v, at + j * row + d, bf16);
}

/* Several key heads at once where they have few queries each: four sums are folded together. */
MX_INLINE void score_keys(float *s, const float *q, const void *k, int n, const mx_attn *a,
                          const int group, const bool bf16)
{
    const int heads = group == 1 ? 4 : group == 2 ? 2 : 1;
    const int64_t dim = a->qk_dim, row = a->k_row ? a->k_row : a->k_heads * dim;
    for (int j = 0; j < n; j++) {
        int64_t h = 0;
        for (; h + heads <= a->k_heads; h += heads)
            score_heads(s + h * group * KEYS + j, q + h * group * dim, k, j * row + h * dim, a,
                        heads, group, bf16);
        for (; h < a->k_heads; h++)
            score_heads(s + h * group * KEYS + j, q + h * group * dim, k, j * row + h * dim, a, 1,
                        group, bf16);
    }
}

MX_INLINE void mix_keys(float *o, const float *p, const void *v, int n, const mx_attn *a,
                        const int group, const bool bf16)
{
    const int64_t row = a->v_row ? a->v_row : a->k_heads * a->v_dim;
    int j = 0;
    for (; group > 2 && j + MIX_KEYS <= n; j += MIX_KEYS)
        for (int64_t h = 0; h < a->k_heads; h++)
            mix_head(o + h * group * a->v_dim, p + h * group * KEYS + j, v,
                     j * row + h * a->v_dim, row, a, group, MIX_KEYS, bf16);
    for (; j < n; j++)
        for (int64_t h = 0; h < a->k_heads; h++)
            mix_head(o + h * group * a->v_dim, p + h * group * KEYS + j, v,
                     j * row + h * a->v_dim, row, a, group, 1, bf16);
}

#define EACH_GROUP(call)                                                                           \
    switch (a->q_heads / a->k_heads) {                                                             \
    case 1: call(1); break;                                                                        \
    case 2: call(2); break;                                                                        \
    case 3: call(3); break;                                                                        \
    case 4: call(4); break;                                                                        \
    case 5: call(5); break;                                                                        \
    case 6: call(6); break;                                                                        \
    case 7: call(7); break;                                                                        \
    default: call(8); break;                                                                       \
    }
#define RUNS(suffix, is_bf16)                                                                      \
    MX_CLONES static void score_##suffix(float *s, const void *q, const void *k, int n,            \
                                         const mx_attn *a)                                         \
    {                                                                                              \
        EACH_GROUP(SCORE_##suffix)                                                                 \
    }                                                                                              \
    MX_CLONES static void mix_##suffix(float *o, const void *p, const void *v, int n,              \
                                       const mx_attn *a)                                           \
    {                                                                                              \
        EACH_GROUP(MIX_##suffix)                                                                   \
    }
#define SCORE_f32(g) score_keys(s, q, k, n, a, g, false)
#define SCORE_bf16(g) score_keys(s, q, k, n, a, g, true)
#define MIX_f32(g) mix_keys(o, p, v, n, a, g, false)
#define MIX_bf16(g) mix_keys(o, p, v, n, a, g, true)
RUNS(f32, false)
RUNS(bf16, true)

/* --- by level --- */

enum { TILE_KEYS = 4, ROWS_AHEAD = 8 };
#define PLAIN_MAC(acc, x, y) ((acc) += (x) * (y))
#define PAIRS_MAC(acc, x, y) ((acc) = MX_BF16_DOT(acc, (words)(x), (words)(y)))

#define NAME(x) x##_f32_v4
#define TARGET MX_TARGET_V4
#define BF16 false
#define PAIRS 0
#define MAC PLAIN_MAC
#include "ops/cpu/attention_wide.inc"

#define NAME(x) x##_bf16_v4
#define TARGET MX_TARGET_V4
#define BF16 true
#define PAIRS 0
#define MAC PLAIN_MAC
#include "ops/cpu/attention_wide.inc"

#define NAME(x) x##_pairs
#define TARGET MX_TARGET_BF16
#define BF16 true
#define PAIRS 1
#define MAC PAIRS_MAC
#include "ops/cpu/attention_wide.inc"

/* More query heads to a key head than there are sums in registers: some of one key head at a time,
 * as if they were all of them. Steps are from head to head, those of `in` in bytes. */
typedef void rows_fn(float *out, const void *in, const void *rows, int n, const mx_attn *a);

static void each_slice(rows_fn *run, float *out, int64_t out_step, const void *in, int64_t in_step,
                       const void *rows, int64_t dim, int n, const mx_attn *a)
{
    int64_t group = a->q_heads / a->k_heads, bytes = MX_NUM_BYTES(a->type);
    mx_attn some = *a;
    some.k_heads = 1;
    some.k_row = a->k_row ? a->k_row : a->k_heads * a->qk_dim;
    some.v_row = a->v_row ? a->v_row : a->k_heads * a->v_dim;
    for (int64_t h = 0; h < a->q_heads; h += some.q_heads) {
        int64_t left = group - h % group;
        some.q_heads = left < MAX_GROUP ? left : MAX_GROUP;
        run(out + h * out_step, (const char *)in + h * in_step,
            (const char *)rows + h / group * dim * bytes, n, &some);
    }
}

void mx_attn_score(float *s, const mx_attn_queries *q, const void *k, int n, const mx_attn *a)
{
    const mx_simd level = mx_simd_level();
    const bool bf16 = a->type == MX_NUM_BF16, pairs = bf16 && q->halves && level >= MX_SIMD_BF16;
    rows_fn *run = level >= MX_SIMD_V4 ? (bf16 ? score_bf16_v4 : score_f32_v4)
                                       : (bf16 ? score_bf16 : score_f32);
    const void *in = pairs ? q->halves : (const void *)q->floats;
    run = pairs ? score_pairs : run;
    if (a->q_heads <= MAX_GROUP * a->k_heads)
        run(s, in, k, n, a);
    else
        each_slice(run, s, KEYS, in, a->qk_dim * (pairs ? 2 : 4), k, a->qk_dim, n, a);
}

void mx_attn_mix(float *o, const float *p, const void *v, int n, const mx_attn *a)
{
    const mx_simd level = mx_simd_level();
    const bool bf16 = a->type == MX_NUM_BF16;
    rows_fn *run = level >= MX_SIMD_V4 ? (bf16 ? mix_bf16_v4 : mix_f32_v4)
                                       : (bf16 ? mix_bf16 : mix_f32);
    run = bf16 && level >= MX_SIMD_BF16 ? mix_pairs : run;
    if (a->q_heads <= MAX_GROUP * a->k_heads)
        run(o, p, v, n, a);
    else
        each_slice(run, o, a->v_dim, p, KEYS * sizeof *p, v, a->v_dim, n, a);
}

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
    mx_attn_tile_kind kind = mx_attn_classify(&rows, &keys);
    if (kind == MX_ATTN_PARTIAL) { /* slots that are not filled yet come last */
        mx_attn_allowed(ok, &rows, 0, &keys, keys.n);
        while (nk > 0 && !ok[nk - 1])
            nk--;
    }
    if (kind == MX_ATTN_SKIP || nk == 0)
        return false;
    for (int64_t i = 0; i < a->q_heads * a->qk_dim; i++)
        q[i] = element(p->q, b * a->q_heads * a->qk_dim + i, bf16);
    int64_t at = (b * (a->k_alloc > 0 ? a->k_alloc : a->k_len) + k0) * a->k_heads *
                 (bf16 ? 2 : 4);
    mx_attn_queries of = {q, bf16 ? (const uint16_t *)p->q + b * a->q_heads * a->qk_dim : NULL};
    mx_attn own = *a;
    own.values = (const char *)p->v + at * a->v_dim;
    own.value_bytes = a->k_heads * a->v_dim * (bf16 ? 2 : 4);
    mx_attn_score(s, &of, (const char *)p->k + at * a->qk_dim, nk, &own);
    for (int64_t r = 0; r < a->q_heads; r++) {
        float *sr = s + r * KEYS;
        if (a->mask.softcap > 0)
            cap_row_f32(sr, nk, a->mask.softcap);
        if (kind == MX_ATTN_PARTIAL)
            for (int j = 0; j < nk; j++)
                sr[j] = ok[j] ? sr[j] : NEG_INF;
        m[r] = max_row_f32(sr, nk);
        l[r] = exp_row_f32(sr, nk, m[r] == NEG_INF ? 0 : m[r]);
    }
    for (int64_t i = 0; i < a->q_heads * a->v_dim; i++)
        part[i] = 0;
    mx_attn_mix(part, s, (const char *)p->v + at * a->v_dim, nk, a);
    return true;
}

/* The runs of one head, in order. */
static void combine(const mx_attn *a, const mx_attn_forward_args *p, int64_t b, int64_t r,
                 float *part)
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
    float *o = part + r * dim; /* the first run's, which becomes the sum */
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
#pragma omp parallel num_threads(mx_kernel_threads(a->threads))
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
            combine(a, p, i / a->q_heads, i % a->q_heads,
                 parts + each * (size_t)(i / a->q_heads * runs));
    }
}
