/* select_keys.c - the keys that a sparse attention looks at: the lightning indexer's choice.
 *
 *     q (B, S, H, D)   w (B, S, H)   k (B, T, D)   ->   selected (B, S, n) int32
 *     score(s, t) = sum_h w[s, h] max(0, scale q[s, h] . k[t])
 * For every query the n keys with the highest scores among those it may see (position not after
 * its own, same segment, slot in use), in ascending order; -1 after them where it sees fewer.
 * Positions are q_pos (B, S) and k_pos (B, T) where given, otherwise indices. The scores exist one
 * row at a time. A choice has no gradient.
 *
 * Over pages (ops/paged_attention.c), q (N, 1, H, D), k (1, T, D), row (N), table (R, C): the
 * choice is of positions of the query's own sequence.
 *
 * Equal scores are common: a key that every head rejects has 0. Which of them are taken is open in
 * principle, but must be the reference's choice to have its numbers, and that is what a quickselect
 * with the median of the second, middle and last entry as its pivot leaves in front.
 */
#include "ops.h"
#include "ops/inputs.h"
#include "ops/attention.h"
#include "ops/gpu_work.h"
#include "ops/load.h"
#include "ops/num.h"
#include "ops/recurrent.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum { MX_INPUTS_SELECT_KEYS, N_IN };
enum { TILE = 256 };

typedef struct {
    int64_t n;
    double scale;
    int64_t page; /* 0: the keys lie in rows */
} select_attr;

/* Keys that a query can be shown. */
static int64_t key_count(const select_attr *a, const mx_type *k, const mx_type *table)
{
    return a->page ? a->page * table->dim[1] : k->dim[1];
}

static void infer(mx_graph *g, mx_node *n)
{
    const select_attr *a = n->attr;
    bool paged = n->in[ROW] && n->in[TABLE] && n->in[Q_POS] && a->page > 0;
    int64_t T = n->in[K]->type.dim[1];
    n->type.dtype = MX_I32;
    if (a->page && (!paged || n->in[K_POS] || n->in[Q_SEG] || n->in[K_SEG] || T % a->page)) {
        mx_graph_fail_inputs(g, n, "positions, rows and a table of pages of %lld",
                             (long long)a->page);
        return;
    }
    T = key_count(a, &n->in[K]->type, a->page ? &n->in[TABLE]->type : NULL);
    n->type.dim[2] = a->n;
    if (a->n < 1 || a->n > T)
        mx_graph_fail(g, "select_keys: %lld of %lld keys", (long long)a->n, (long long)T);
    else if ((n->in[Q]->type.dtype == MX_F64) != (n->in[K]->type.dtype == MX_F64))
        mx_graph_fail_inputs(g, n, "queries and keys must both be float64, or neither");
    else if (!a->page && (!n->in[Q_POS] != !n->in[K_POS] || !n->in[Q_SEG] != !n->in[K_SEG]))
        mx_graph_fail_inputs(g, n, "positions and segments are given for both sides or for none");
}

/* --- the n best of a row --- */

typedef struct {
    double score;
    int32_t key;
} entry;

static bool better(const entry *a, const entry *b)
{
    return (isnan(a->score) && !isnan(b->score)) || a->score > b->score;
}

static void swap(entry *a, entry *b)
{
    entry t = *a;
    *a = *b;
    *b = t;
}

/* The middle one of a, b, c changes places with `to`. */
static void median_to(entry *to, entry *a, entry *b, entry *c)
{
    if (better(a, b))
        swap(to, better(b, c) ? b : better(a, c) ? c : a);
    else
        swap(to, better(a, c) ? a : better(b, c) ? c : b);
}

/* Those better than x[0] to the front, those worse to the back; gives where the back begins. */
static int64_t partition(entry *x, int64_t n)
{
    median_to(&x[0], &x[1], &x[n / 2], &x[n - 1]);
    int64_t i = 1, j = n;
    for (;;) {
        while (better(&x[i], &x[0]))
            i++;
        j--;
        while (better(&x[0], &x[j]))
            j--;
        if (i >= j)
            return i;
        swap(&x[i], &x[j]);
        i++;
    }
}

static int by_score(const void *a, const void *b)
{
    return better(a, b) ? -1 : better(b, a) ? 1 : ((const entry *)a)->key - ((const entry *)b)->key;
}

/* The n best of m entries come to the front, in no order. Rows on which the pivots keep being bad
 * are sorted instead. */
static void select_best(entry *x, int64_t m, int64_t n)
{
    int64_t first = 0, last = m, tries = 2 * (int64_t)log2((double)m);
    while (last - first > 3) {
        if (tries-- == 0) {
            qsort(x + first, (size_t)(last - first), sizeof *x, by_score);
            return;
        }
        int64_t cut = first + partition(x + first, last - first);
        if (cut <= n - 1)
            first = cut;
        else
            last = cut;
    }
    for (int64_t i = first + 1; i < last; i++)
        for (int64_t j = i; j > first && better(&x[j], &x[j - 1]); j--)
            swap(&x[j], &x[j - 1]);
}

/* --- scores --- */

/* What one thread works in. */
typedef struct {
    entry *row;           /* (T) */
    unsigned char *taken; /* (T) */
    double *weight;       /* (H) */
    void *dot;            /* (H, TILE) float, or double */
} bench;

static size_t bench_bytes(int64_t T, int64_t H)
{
    return mx_round_up(sizeof(entry) * (size_t)T) + mx_round_up((size_t)T) +
           mx_round_up(sizeof(double) * (size_t)H) +
           mx_round_up(sizeof(double) * (size_t)(H * TILE));
}

static bench bench_at(char *p, int64_t T, int64_t H)
{
    bench s = {.row = (entry *)p};
    p += mx_round_up(sizeof(entry) * (size_t)T);
    s.taken = (unsigned char *)p;
    p += mx_round_up((size_t)T);
    s.weight = (double *)p;
    s.dot = p + mx_round_up(sizeof(double) * (size_t)H);
    return s;
}

static bool sees(const mx_call *c, int64_t b, int64_t s, int64_t t)
{
    int64_t S = c->in[Q].type.dim[1], T = c->in[K].type.dim[1];
    const int32_t *q_pos = c->in[Q_POS].data, *k_pos = c->in[K_POS].data;
    const int32_t *q_seg = c->in[Q_SEG].data, *k_seg = c->in[K_SEG].data;
    int64_t at = k_pos ? k_pos[b * T + t] : t, from = q_pos ? q_pos[b * S + s] : s;
    return at >= 0 && at <= from && (!q_seg || q_seg[b * S + s] == k_seg[b * T + t]);
}

static double score(const bench *w, int64_t H, int64_t j, bool wide)
{
    double sum = 0;
    for (int64_t h = 0; h < H; h++) {
        double d = wide ? ((double *)w->dot)[h * TILE + j] : ((float *)w->dot)[h * TILE + j];
        sum += d > 0 ? w->weight[h] * d : 0;
    }
    return sum;
}

/* The GEMM of a query's heads with some keys, into w->dot. */
static mx_gemm_args heads_by_keys(const mx_call *c, int64_t query, const bench *w)
{
    const mx_type *q = &c->in[Q].type;
    int64_t H = q->dim[2], D = q->dim[3];
    return (mx_gemm_args){.m = H, .k = D, .lda = D, .ldb = D, .ldc = TILE, .trans_b = true,
                          .a_type = mx_num_of(q->dtype),
                          .b_type = mx_num_of(c->in[K].type.dtype), /* of a cache: maybe narrower */
                          .c_type = q->dtype == MX_F64 ? MX_NUM_F64 : MX_NUM_F32,
                          .alpha = ((const select_attr *)c->attr)->scale, .threads = 1,
                          .c = w->dot,
                          .a = (const char *)c->in[Q].data +
                               (size_t)(query * H * D) * mx_dtype_bytes(q->dtype)};
}

/* The same over pages: all positions up to the query's own. */
static int64_t score_pages(const mx_call *c, int64_t query, const bench *w)
{
    const select_attr *a = c->attr;
    const mx_type *k = &c->in[K].type, *table = &c->in[TABLE].type;
    int64_t H = c->in[Q].type.dim[2], row = ((const int32_t *)c->in[ROW].data)[query], n = 0;
    int64_t end = ((const int32_t *)c->in[Q_POS].data)[query] + 1, most = key_count(a, k, table);
    bool wide = c->in[Q].type.dtype == MX_F64;
    mx_gemm_args g = heads_by_keys(c, query, w);
    if (row < 0 || row >= table->dim[0])
        return 0;
    end = end < most ? end : most;
    for (int64_t t0 = 0; t0 < end; t0 += g.n) {
        int64_t left = a->page - t0 % a->page;
        int64_t page = ((const int32_t *)c->in[TABLE].data)[row * table->dim[1] + t0 / a->page];
        g.n = end - t0 < left ? end - t0 : left;
        g.n = g.n < TILE ? g.n : TILE;
        if (page < 0 || (page + 1) * a->page > k->dim[1])
            continue; /* not one of the pool's */
        g.b = (const char *)c->in[K].data +
              (size_t)((page * a->page + t0 % a->page) * g.k) * mx_dtype_bytes(k->dtype);
        mx_gemm(&g);
        for (int64_t j = 0; j < g.n; j++)
            w->row[n++] = (entry){score(w, H, j, wide), (int32_t)(t0 + j)};
    }
    return n;
}

/* The scores of a query into w->row, -infinity where it does not see; gives their number. Unused
 * slots of a cache are left out: the row is then the same as without a cache. */
static int64_t score_row(const mx_call *c, int64_t b, int64_t s, const bench *w)
{
    const mx_type *q = &c->in[Q].type;
    int64_t S = q->dim[1], H = q->dim[2], D = q->dim[3], T = c->in[K].type.dim[1], n = 0;
    const int32_t *k_pos = c->in[K_POS].data;
    mx_dtype kt = c->in[K].type.dtype;
    bool wide = q->dtype == MX_F64;
    mx_gemm_args g = heads_by_keys(c, b * S + s, w);
    mx_load_run_f64(&c->in[W], (b * S + s) * H, H, w->weight);
    if (c->in[ROW].data)
        return score_pages(c, b * S + s, w);
    for (int64_t t0 = 0; t0 < T; t0 += TILE) {
        bool ahead = !k_pos && t0 > s; /* by index alone: out of sight */
        g.n = T - t0 < TILE ? T - t0 : TILE;
        g.b = (const char *)c->in[K].data + (size_t)((b * T + t0) * D) * mx_dtype_bytes(kt);
        if (!ahead)
            mx_gemm(&g);
        for (int64_t t = t0; t < t0 + g.n; t++) {
            if (k_pos && k_pos[b * T + t] < 0)
                continue;
            bool seen = !ahead && sees(c, b, s, t);
            w->row[n++] = (entry){seen ? score(w, H, t - t0, wide) : -INFINITY, (int32_t)t};
        }
    }
    return n;
}

static void choose(const mx_call *c, int64_t b, int64_t s, const bench *w)
{
    const select_attr *a = c->attr;
    int64_t S = c->in[Q].type.dim[1], T = key_count(a, &c->in[K].type, &c->in[TABLE].type);
    int64_t n = a->n, found = 0;
    int32_t *out = (int32_t *)c->out[0].data + (b * S + s) * n;
    int64_t m = score_row(c, b, s, w);
    if (n < m)
        select_best(w->row, m, n);
    for (int64_t t = 0; t < T; t++)
        w->taken[t] = 0;
    for (int64_t i = 0; i < n && i < m; i++)
        w->taken[w->row[i].key] = w->row[i].score != -INFINITY;
    for (int64_t t = 0; t < T; t++)
        if (w->taken[t])
            out[found++] = (int32_t)t;
    for (; found < n; found++)
        out[found] = -1;
}

static void select_cpu(const mx_call *c)
{
    const mx_type *q = &c->in[Q].type;
    int64_t B = q->dim[0], S = q->dim[1], H = q->dim[2];
    int64_t T = key_count(c->attr, &c->in[K].type, &c->in[TABLE].type);
    size_t each = bench_bytes(T, H);
#pragma omp parallel for schedule(dynamic, 4)
    for (int64_t r = 0; r < B * S; r++) {
        bench w = bench_at((char *)c->work + each * (size_t)omp_get_thread_num(), T, H);
        choose(c, r / S, r % S, &w);
    }
}

static int64_t keys_of(const mx_node *n)
{
    return key_count(n->attr, &n->in[K]->type, n->in[TABLE] ? &n->in[TABLE]->type : NULL);
}

static size_t work_bytes(const mx_node *n, int n_threads)
{
    return bench_bytes(keys_of(n), n->in[Q]->type.dim[2]) * (size_t)n_threads;
}

static size_t gpu_work_bytes(const mx_node *n, size_t most)
{
    const mx_type *q = &n->in[Q]->type;
    (void)most;
    return mx_gpu_select_bytes(q->dim[0] * q->dim[1], keys_of(n));
}

/* Causal: half of the pairs, where both sides are one sequence. */
static mx_cost cost(const mx_node *n)
{
    const mx_type *q = &n->in[Q]->type;
    double T = (double)keys_of(n), seen = n->in[K_POS] ? T : T / 2;
    return (mx_cost){.flops = 2 * (double)mx_type_count(q) * seen};
}

mx_node *mx_select_keys(mx_graph *g, mx_node *const qwk[3], int64_t n, double scale,
                        const mx_select_extra *e)
{
    select_attr a = {.n = n, .scale = scale, .page = e->page};
    return MX_APPLY(g, &mx_op_select_keys, &a, qwk[0], qwk[1], qwk[2], e->q_pos, e->k_pos, e->q_seg,
                    e->k_seg, e->row, e->table);
}

static const char *notation(const mx_node *n)
{
    return n->in[ROW] ? "b1!h!d,b1!h,1!t!d,b1,-,-,-,b,!r!c->b1!n"
                      : "b!s!h!d,b!s!h,b!t!d,b!s,b!t,b!s,b!t->b!s!n";
}

/* On a mesh queries stay where they are; each sees every head, and every key in its place. */
static void place(const mx_node *n, mx_partition_call *p)
{
    mx_cut batch = p->have[Q].dim[0], length = p->have[Q].dim[1];
    p->in[Q] = p->in[W] = p->in[Q_POS] = p->in[Q_SEG] = (mx_placement){{batch, length}};
    p->in[K] = p->in[K_POS] = p->in[K_SEG] = n->in[ROW] ? (mx_placement){0}
                                                        : (mx_placement){{batch}};
    p->in[ROW] = (mx_placement){{batch}};
    p->out[0] = p->in[Q];
}

static mx_node *local(mx_graph *g, const mx_node *n, mx_node *const *in, mx_partition_call *p)
{
    mx_node *now[N_IN];
    const mx_cut *length = &p->out[0].dim[1];
    memcpy(now, in, sizeof now);
    if (length->n && !in[Q_POS]) {
        mx_shape q = MX_SHAPE(in[Q]->type.dim[0], in[Q]->type.dim[1]);
        mx_shape k = MX_SHAPE(in[K]->type.dim[0], in[K]->type.dim[1]);
        now[Q_POS] = mx_attention_places(g, p, p->rank, length, q);
        now[K_POS] = mx_attention_places(g, p, p->rank, &(mx_cut){0}, k);
    }
    return mx_apply(g, n->op, n->attr, N_IN, now);
}

#define NONE {.absent = true}
const mx_op mx_op_select_keys = {
    .name = "select_keys",
    .doc = "the keys a sparse attention looks at, by the indexer's scores",
    .dtypes = MX_REALS,
    .dtypes_at = {[Q_POS] = MX_INDICES, [K_POS] = MX_INDICES, [Q_SEG] = MX_INDICES,
                  [K_SEG] = MX_INDICES, [ROW] = MX_INDICES, [TABLE] = MX_INDICES},
    .notation = notation,
    .attr_size = sizeof(select_attr),
    .fields = (const mx_attr_field[]){MX_FIELD(select_attr, MX_ATTR_INT, n),
                                      MX_FIELD(select_attr, MX_ATTR_F64, scale),
                                      MX_FIELD(select_attr, MX_ATTR_INT, page), {0}},
    .place = place,
    .local = local,
    .infer = infer,
    .cost = cost,
    .cpu = select_cpu,
    .work_bytes = work_bytes,
    .gpu_work_bytes = gpu_work_bytes,
    .cases = (const mx_case[]){
        {N_IN, {{4, {2, 6, 3, 4}, .no_grad = true}, {3, {2, 6, 3}, .no_grad = true},
                {3, {2, 6, 4}, .no_grad = true}, NONE, NONE, NONE, NONE, NONE, NONE},
         &(select_attr){3, 0.5}},
        {N_IN, {{4, {2, 3, 2, 4}, .no_grad = true}, {3, {2, 3, 2}, .no_grad = true},
                {3, {2, 7, 4}, .no_grad = true}, {2, {2, 3}, MX_I32, 2, 6},
                {2, {2, 7}, MX_I32, -1, 6}, {2, {2, 3}, MX_I32, 0, 2}, {2, {2, 7}, MX_I32, 0, 2},
                NONE, NONE},
         &(select_attr){4, 0.5}},
        {N_IN, {{4, {5, 1, 2, 4}, .no_grad = true}, {3, {5, 1, 2}, .no_grad = true},
                {3, {1, 20, 4}, .no_grad = true}, {2, {5, 1}, MX_I32, -1, 12}, NONE, NONE, NONE,
                {1, {5}, MX_I32, 0, 2}, {2, {2, 3}, MX_I32, 0, 5}},
         &(select_attr){3, 0.5, 4}},
        {0}},
};
