/* attention_paged.c - attention of single queries over pages.
 *
 * The keys of a query are one interval of positions, so nothing is masked. It is cut at multiples
 * of KEYS positions into runs; a run leaves max, sum and weighted values, and a query's runs are
 * put together in order. The cut depends on positions alone: the bits of a query do not depend on
 * the pages, the other queries or the threads. Of a list of positions the runs are KEYS of its
 * entries, one key at a time.
 *
 * Queries are taken some at a time, so that what their runs leave has a bounded size.
 */
#include "ops/cpu/attention_paged.h"

#include "base/fp8.h"
#include "base/simd.h"
#include "base/status.h"
#include "base/vmath.h"
#include "ops/cpu/attention_decode.h"
#include <math.h>
#include <omp.h>

enum { KEYS = MX_ATTN_DECODE_KEYS, WAVE_BYTES = 16 << 20 };

#define NAME(x) x##_f32
#define T float
#define EXP(x) mx_vexpf_nonpositive(x)
#define TANH(x) mx_vtanhf(x)
#include "ops/cpu/softmax_rows.inc"

/* The positions that a query sees: [lo, hi), or those entries of a list; none where hi is 0. */
typedef struct {
    int64_t lo, hi;
    const int32_t *table, *list;
} reach;

static reach reach_of(const mx_paged *g, const mx_paged_args *p, int64_t n)
{
    int64_t at = p->positions[n], row = p->row[n], lo = 0, last = at;
    if (at < 0 || row < 0 || row >= g->rows)
        return (reach){0};
    if (g->selected)
        return (reach){0, g->selected, p->table + row * g->columns, p->selected + n * g->selected};
    if (g->window && at - g->window + 1 > lo)
        lo = at - g->window + 1;
    if (g->chunk && at / g->chunk * g->chunk > lo)
        lo = at / g->chunk * g->chunk;
    if (p->until && p->until[n] > at) /* tokens of this batch */
        last = p->until[n] < at + g->attn.batch ? p->until[n] : at + g->attn.batch - 1;
    if (last + 1 - lo > g->page * g->columns) /* more than the table can name */
        lo = last + 1 - g->page * g->columns;
    return (reach){lo, last + 1, p->table + row * g->columns, NULL};
}

/* The slot of a position, or of an entry of the list; -1: it has none, or its page is not one of
 * the pool's. */
static int64_t slot_of(const mx_paged *g, const reach *r, int64_t position)
{
    if (r->list && (position = r->list[position]) < 0)
        return -1;
    int64_t page = r->table[position / g->page % g->columns];
    return page < 0 || (page + 1) * g->page > g->slots ? -1 : page * g->page + position % g->page;
}

/* How many positions from `at` on lie side by side. */
static int64_t piece(const mx_paged *g, int64_t at, int64_t end)
{
    int64_t n = g->selected ? 1 : g->page - at % g->page;
    return n < end - at ? n : end - at;
}

/* Runs of the longest interval that a query can see, wherever it begins. */
static int64_t run_count(const mx_paged *g)
{
    int64_t most = g->selected ? g->selected : g->page * g->columns;
    int64_t near = g->window + (g->ahead ? g->attn.batch : 0);
    if (g->window && near < most)
        most = near;
    return (most + KEYS - 1) / KEYS + 1;
}

/* Of a run: o (Hq, Dv), m (Hq), l (Hq). */
static size_t run_floats(const mx_paged *g)
{
    return (size_t)(g->attn.q_heads * (g->attn.v_dim + 2));
}

static size_t thread_floats(const mx_paged *g)
{
    int64_t wide = g->attn.qk_dim > g->attn.v_dim ? g->attn.qk_dim : g->attn.v_dim;
    int64_t numbers = g->coded ? KEYS * g->attn.k_heads * wide : 0;
    return (size_t)(g->attn.q_heads * (g->attn.qk_dim + KEYS) + numbers);
}

static int64_t wave_queries(const mx_paged *g)
{
    int64_t n = (int64_t)(WAVE_BYTES / (sizeof(float) * run_floats(g))) / run_count(g);
    return n < 1 ? 1 : n < g->attn.batch ? n : g->attn.batch;
}

size_t mx_paged_work_bytes(const mx_paged *g)
{
    return sizeof(float) * (run_floats(g) * (size_t)(wave_queries(g) * run_count(g)) +
                            thread_floats(g) * (size_t)mx_kernel_threads(g->attn.threads));
}

static float float_of(const void *x, int64_t i, bool bf16)
{
    return bf16 ? mx_float_of_bf16(((const uint16_t *)x)[i]) : ((const float *)x)[i];
}

static MX_CLONES void widen_int8(const int8_t *q, int64_t n, float s, float *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = (float)q[i] * s;
}

static MX_CLONES void widen_e4m3(const uint8_t *q, int64_t n, float s, float *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = mx_float_of_e4m3(q[i]) * s;
}

/* The rows of `len` slots from `slot` on, of k_heads times `dim`: where they lie, or, of codes, the
 * numbers they stand for in `room`. */
static const void *rows_at(const mx_paged *g, const void *x, const float *scale, int64_t slot,
                           int64_t len, int64_t dim, float *room)
{
    int64_t K = g->attn.k_heads;
    if (!g->coded)
        return (const char *)x + slot * K * dim * (g->attn.type == MX_NUM_BF16 ? 2 : 4);
    const uint8_t *q = (const uint8_t *)x + slot * K * dim;
    for (int64_t i = 0; i < len * K; i++) {
        float s = scale[slot * K + i];
        if (g->e4m3)
            widen_e4m3(q + i * dim, dim, s, room + i * dim);
        else
            widen_int8((const int8_t *)q + i * dim, dim, s, room + i * dim);
    }
    return room;
}

/* Positions [from, to) of one query. */
static void run_keys(const mx_paged *g, const mx_paged_args *p, int64_t n, const reach *r,
                     int64_t from, int64_t to, float *part, float *work)
{
    mx_attn own = g->attn;
    const mx_attn *a = &own;
    const bool bf16 = a->type == MX_NUM_BF16;
    const int64_t H = a->q_heads, nk = to - from;
    const int64_t v_dim = a->v_row ? a->qk_dim : a->v_dim; /* of a row */
    own.type = g->coded ? MX_NUM_F32 : own.type;
    own.value_bytes = a->k_heads * v_dim * (bf16 ? 2 : 4);
    float *q = work, *room = work + H * (a->qk_dim + KEYS);
    float *s = work + H * a->qk_dim, *m = part + H * a->v_dim, *l = m + H;
    for (int64_t i = 0; i < H * a->qk_dim; i++)
        q[i] = float_of(p->q, n * H * a->qk_dim + i, bf16);
    mx_attn_queries of = {q, bf16 ? (const uint16_t *)p->q + n * H * a->qk_dim : NULL};
    for (int64_t at = from, len; at < to; at += len) {
        len = piece(g, at, to);
        int64_t slot = slot_of(g, r, at);
        own.values = g->coded || p->v == p->k ? NULL : (const char *)p->v + slot * own.value_bytes;
        if (slot >= 0)
            mx_attn_score(s + at - from, &of,
                          rows_at(g, p->k, p->k_scale, slot, len, a->qk_dim, room), (int)len, a);
        for (int64_t h = 0; h < H && slot < 0; h++)
            for (int64_t j = 0; j < len; j++)
                s[h * KEYS + at - from + j] = NEG_INF;
    }
    for (int64_t h = 0; h < H; h++) {
        if (a->mask.softcap > 0)
            cap_row_f32(s + h * KEYS, nk, a->mask.softcap);
        m[h] = max_row_f32(s + h * KEYS, nk);
        l[h] = exp_row_f32(s + h * KEYS, nk, m[h] == NEG_INF ? 0 : m[h]);
    }
    for (int64_t i = 0; i < H * a->v_dim; i++)
        part[i] = 0;
    for (int64_t at = from, len; at < to; at += len) {
        len = piece(g, at, to);
        int64_t slot = slot_of(g, r, at);
        if (slot >= 0)
            mx_attn_mix(part, s + at - from,
                        rows_at(g, p->v, p->v_scale, slot, len, v_dim, room), (int)len, a);
    }
}

/* The runs of one head of a query, in order. */
static void combine(const mx_paged *g, const mx_paged_args *p, int64_t n, int64_t h, int64_t runs,
                 float *part)
{
    const mx_attn *a = &g->attn;
    const int64_t dim = a->v_dim, H = a->q_heads;
    const size_t each = run_floats(g);
    const float sink = a->sinks ? ((const float *)a->sinks)[h] : NEG_INF;
    float top = sink;
    for (int64_t i = 0; i < runs; i++) {
        float m = part[(size_t)i * each + (size_t)(H * dim + h)];
        top = m > top ? m : top;
    }
    float sum = sink == NEG_INF ? 0 : expf(sink - top);
    float *o = part + h * dim; /* the first run's, which becomes the sum */
    for (int64_t i = 0; i < runs; i++) {
        const float *x = part + (size_t)i * each;
        float m = x[H * dim + h], f = m == NEG_INF ? 0 : expf(m - top);
        sum += f > 0 ? f * x[H * (dim + 1) + h] : 0;
        for (int64_t d = 0; d < dim; d++)
            o[d] = (i ? o[d] : 0) + (f > 0 ? f * x[h * dim + d] : 0);
    }
    float inv = sum > 0 ? 1 / sum : 0;
    for (int64_t d = 0; d < dim; d++) {
        float y = runs ? o[d] * inv : 0;
        if (a->type == MX_NUM_BF16)
            ((uint16_t *)p->out)[(n * H + h) * dim + d] = mx_bf16_of_float(y);
        else
            ((float *)p->out)[(n * H + h) * dim + d] = y;
    }
}

/* Run i of a query, or nothing where it has fewer. */
static void run_task(const mx_paged *g, const mx_paged_args *p, int64_t n, int64_t i, float *part,
                     float *work)
{
    reach r = reach_of(g, p, n);
    int64_t from = (r.lo / KEYS + i) * KEYS, to = from + KEYS;
    from = from < r.lo ? r.lo : from;
    to = to < r.hi ? to : r.hi;
    if (from < to)
        run_keys(g, p, n, &r, from, to, part, work);
}

static int64_t runs_of(const reach *r)
{
    return r->hi ? (r->hi - 1) / KEYS - r->lo / KEYS + 1 : 0;
}

/* Element i of keys or values, whose rows have `dim`. */
static double double_of(const mx_paged *g, const void *x, const float *scale, int64_t i,
                        int64_t dim)
{
    if (!g->coded)
        return ((const double *)x)[i];
    return (double)scale[i / dim] * (g->e4m3 ? (double)mx_float_of_e4m3(((const uint8_t *)x)[i])
                                             : ((const int8_t *)x)[i]);
}

/* float64, for tests: one head at a time, all keys at once. */
static void plain_f64(const mx_paged *g, const mx_paged_args *p, int64_t n, int64_t h)
{
    const mx_attn *a = &g->attn;
    const int64_t D = a->qk_dim, E = a->v_dim, kh = h / (a->q_heads / a->k_heads);
    const int64_t v_row = a->v_row ? a->v_row : a->k_heads * E;
    const double *q = (const double *)p->q + (n * a->q_heads + h) * D;
    double *out = (double *)p->out + (n * a->q_heads + h) * E, sum = 0, top = -INFINITY;
    reach r = reach_of(g, p, n);
    if (a->sinks)
        top = ((const double *)a->sinks)[h], sum = 1;
    for (int64_t e = 0; e < E; e++)
        out[e] = 0;
    for (int64_t at = r.lo; at < r.hi; at++) {
        int64_t slot = slot_of(g, &r, at);
        if (slot < 0)
            continue;
        double s = 0;
        for (int64_t d = 0; d < D; d++)
            s += q[d] * double_of(g, p->k, p->k_scale, (slot * a->k_heads + kh) * D + d, D);
        s *= a->mask.scale;
        if (a->mask.softcap > 0)
            s = a->mask.softcap * tanh(s / a->mask.softcap);
        double m = s > top ? s : top, f = exp(top - m), w = exp(s - m);
        sum = sum * f + w;
        top = m;
        for (int64_t e = 0; e < E; e++)
            out[e] = out[e] * f + w * double_of(g, p->v, p->v_scale, slot * v_row + kh * E + e, E);
    }
    for (int64_t e = 0; e < E; e++)
        out[e] = sum > 0 ? out[e] / sum : 0;
}

void mx_paged_forward(const mx_paged *g, const mx_paged_args *p, void *work)
{
    const int64_t runs = run_count(g), wave = wave_queries(g), H = g->attn.q_heads;
    const size_t each = run_floats(g);
    float *parts = work, *own = parts + each * (size_t)(wave * runs);
    if (g->attn.type == MX_NUM_F64) {
        for (int64_t i = 0; i < g->attn.batch * H; i++)
            plain_f64(g, p, i / H, i % H);
        return;
    }
#pragma omp parallel num_threads(mx_kernel_threads(g->attn.threads))
    for (int64_t n0 = 0; n0 < g->attn.batch; n0 += wave) {
        const int64_t n1 = n0 + wave < g->attn.batch ? n0 + wave : g->attn.batch;
        float *mine = own + thread_floats(g) * (size_t)omp_get_thread_num();
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < (n1 - n0) * runs; i++)
            run_task(g, p, n0 + i / runs, i % runs, parts + each * (size_t)i, mine);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < (n1 - n0) * H; i++) {
            reach r = reach_of(g, p, n0 + i / H);
            combine(g, p, n0 + i / H, i % H, runs_of(&r), parts + each * (size_t)(i / H * runs));
        }
    }
}
