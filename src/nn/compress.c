/* compress.c - see compress.h.
 *
 * Places are computed in float32, which is exact for whole numbers below 2^24. A quotient is
 * floored a quarter of a step above itself: rounding cannot lose a whole number below 2^21.
 */
#include "nn/compress.h"

#include "ops.h"
#include "ops/embed.h"
#include <math.h>

/* --- whole numbers in float32 --- */

static mx_node *number(mx_graph *g, double v)
{
    return mx_constant(g, MX_SCALAR, MX_F32, v);
}

static mx_node *as_float(mx_graph *g, mx_node *x)
{
    return mx_cast(g, x, MX_F32);
}

static mx_node *as_int(mx_graph *g, mx_node *x)
{
    return mx_cast(g, x, MX_I32);
}

/* x / n, rounded down. */
static mx_node *quotient(mx_graph *g, mx_node *x, int64_t n)
{
    return mx_floor(g, mx_affine(g, x, 1 / (double)n, 0.25 / (double)n));
}

static mx_node *remainder_of(mx_graph *g, mx_node *x, int64_t n)
{
    return mx_sub(g, x, mx_affine(g, quotient(g, x, n), (double)n, 0));
}

/* 1 where x >= v. */
static mx_node *reaches(mx_graph *g, mx_node *x, double v)
{
    return mx_greater(g, x, number(g, v - 0.5));
}

/* first, first + step, ... along a last dim of n. */
static mx_node *counting(mx_graph *g, int64_t n, double first, double step)
{
    double *v = MX_NEW_N(&g->arena, double, n);
    for (int64_t i = 0; i < n; i++)
        v[i] = first + step * (double)i;
    return mx_table(g, MX_SHAPE(n), MX_F32, v);
}

/* --- what each sequence has for itself --- */

/* Where a sequence of a batch of single tokens begins, in a cache of `slots` for each: (B, 1). */
static mx_node *begin_of(mx_graph *g, const mx_build *b, int64_t slots)
{
    mx_node *row = mx_reshape(g, as_float(g, mx_page_rows(g, b)), MX_SHAPE(b->batch, 1));
    return mx_affine(g, row, (double)slots, 0);
}

/* x (B, 1, 1, D) at `at` (B, 1), of `slots` of its sequence; below 0: nowhere. */
static mx_node *enter_own(mx_graph *g, const mx_build *b, mx_node *cache, mx_node *x, mx_node *at,
                          int64_t slots)
{
    at = mx_where(g, reaches(g, at, 0), mx_add(g, at, begin_of(g, b, slots)), number(g, -1));
    at = mx_reshape(g, as_int(g, at), MX_SHAPE(1, b->batch));
    return mx_cache_write(g, cache, mx_reshape(g, x, MX_SHAPE(1, b->batch, 1, x->type.dim[3])), at);
}

/* A cache of `slots` for each sequence, one after the other. */
static mx_node *own_cache(mx_graph *g, const mx_build *b, const char *what, int64_t slots,
                          int64_t D)
{
    mx_shape each = MX_SHAPE(b->page_rows * slots, 1, D);
    mx_build one = *b;
    one.page_rows = 1;
    return mx_cache_recurrent(g, &one, what, each, b->cache_dtype).state;
}

/* Sequence r's page is r: what lies in a cache by sequence, as pages. (R, 1). */
static mx_node *own_table(mx_graph *g, const mx_build *b)
{
    return as_int(g, mx_reshape(g, counting(g, b->page_rows, 0, 1), MX_SHAPE(b->page_rows, 1)));
}

/* The ring slot of this run's tokens, -1 for none. */
static mx_node *ring_slots(mx_graph *g, const mx_build *b, int64_t slots)
{
    mx_node *p = as_float(g, b->positions);
    mx_node *at = remainder_of(g, mx_maximum(g, p, number(g, 0)), slots);
    return mx_where(g, reaches(g, p, 0), at, number(g, -1));
}

/* --- windows --- */

/* What the three cases below say of the windows of a run, in float32. */
typedef struct {
    mx_node *end; /* (B, n): position of the last token; -1: there is no such window */
    mx_node *at;  /* (B, n): without a cache its index in the row, else its position */
} ends;

/* own and before from the windows' ends: index in the row, or slot of a ring. */
static void number_tokens(mx_graph *g, const mx_build *b, mx_windows *w, const ends *e)
{
    int64_t B = b->batch, n = w->n, r = w->ratio;
    mx_shape each = MX_SHAPE(B, n, r), column = MX_SHAPE(B, n, 1);
    mx_node *base = b->pages ? begin_of(g, b, w->rows) : counting(g, B, 0, (double)w->rows);
    base = mx_reshape(g, base, MX_SHAPE(B, 1, 1));
    mx_node *end = mx_broadcast_to(g, mx_reshape(g, e->end, column), each);
    mx_node *back = counting(g, r, 1 - (double)r, 1), *none = number(g, -1);
    for (int before = 0; before < 2; before++) {
        mx_node *at = mx_add(g, mx_reshape(g, e->at, column), back);
        at = mx_affine(g, at, 1, before ? -(double)r : 0);
        if (b->cache_len) /* of a window that is not there: any slot */
            at = remainder_of(g, mx_maximum(g, at, number(g, 0)), w->rows);
        mx_node *there = reaches(g, end, (double)(before ? 2 * r - 1 : r - 1));
        mx_node *flat = as_int(g, mx_where(g, there, mx_add(g, at, base), none));
        flat = mx_reshape(g, flat, MX_SHAPE(B, n * r));
        /* Of unpacked rows these are constants, which alone would keep windows of all ranks. */
        *(before ? &w->before : &w->own) = b->cache_len ? flat : mx_axes("activation_batch,", flat);
    }
    mx_node *first = mx_affine(g, e->end, 1, 1 - (double)r);
    w->first = as_int(g, mx_maximum(g, first, number(g, 0)));
}

/* Rows that are one document: windows one after the other from the beginning. */
static ends plain_ends(mx_graph *g, const mx_build *b, const mx_windows *w)
{
    bool short_row = b->seq < w->ratio;
    mx_node *at = short_row ? number(g, -1)
                            : counting(g, w->n, (double)w->ratio - 1, (double)w->ratio);
    at = mx_broadcast_to(g, at, MX_SHAPE(b->batch, w->n));
    return (ends){at, at};
}

/* Packed rows: the i-th window of a row ends with the i-th token whose position says so. */
static ends packed_ends(mx_graph *g, const mx_build *b, mx_windows *w)
{
    int64_t B = b->batch, S = b->seq;
    mx_node *p = as_float(g, b->positions), *none = number(g, -1);
    mx_node *left = remainder_of(g, mx_affine(g, p, 1, 1), w->ratio);
    mx_node *ends_here = mx_equal(g, left, number(g, 0));
    mx_node *which = mx_affine(g, mx_cumsum(g, ends_here, false), 1, -1);
    which = as_int(g, mx_where(g, ends_here, which, none));
    mx_node *index = mx_broadcast_to(g, counting(g, S, 1, 1), MX_SHAPE(B, S));
    mx_node *at = mx_affine(g, mx_scatter_last(g, which, index, w->n), 1, -1), *i = as_int(g, at);
    mx_node *end = mx_gather_last(g, p, i);
    if (b->segments)
        w->segments = as_int(g, mx_gather_last(g, as_float(g, b->segments), i));
    return (ends){mx_where(g, reaches(g, at, 0), end, none), at};
}

/* With a cache: windows from that of the run's first token on; new are those that end in it. */
static ends cached_ends(mx_graph *g, const mx_build *b, mx_windows *w)
{
    mx_node *none = number(g, -1), *p = as_float(g, b->positions);
    mx_node *from = as_float(g, mx_slice(g, b->positions, 1, 0, 1)), *to = mx_row_max(g, p);
    mx_node *entry = mx_add(g, quotient(g, from, w->ratio), counting(g, w->n, 0, 1));
    mx_node *end = mx_affine(g, entry, (double)w->ratio, (double)w->ratio - 1);
    mx_node *there = mx_mul(g, reaches(g, from, 0),
                            mx_greater(g, mx_affine(g, to, 1, 0.5), end));
    w->entry = as_int(g, mx_where(g, there, entry, none));
    end = mx_where(g, there, end, none);
    return (ends){end, end};
}

/* The near keys of a query, as indices or slots: (B, S, window). */
static mx_node *near_keys(mx_graph *g, const mx_build *b, const mx_windows *w, int64_t window)
{
    int64_t B = b->batch, S = b->seq, n = window < w->slots ? window : w->slots;
    mx_node *back = counting(g, n, 0, -1), *none = number(g, -1), *at;
    if (b->cache_len)
        at = mx_reshape(g, as_float(g, b->positions), MX_SHAPE(B, S, 1));
    else
        at = mx_reshape(g, counting(g, S, 0, 1), MX_SHAPE(1, S, 1));
    at = mx_broadcast_to(g, mx_add(g, at, back), MX_SHAPE(B, S, n));
    mx_node *there = reaches(g, at, 0);
    if (b->cache_len)
        at = remainder_of(g, mx_maximum(g, at, number(g, 0)), w->slots);
    return as_int(g, mx_where(g, there, at, none));
}

/* Positions and segments of queries and of all keys. */
static void place_keys(mx_graph *g, const mx_build *b, mx_windows *w)
{
    mx_node *pos = b->positions;
    if (!pos)
        pos = as_int(g, mx_broadcast_to(g, counting(g, b->seq, 0, 1), MX_SHAPE(b->batch, b->seq)));
    w->q_pos = pos;
    if (b->pages) /* lists of keys say all */
        return;
    if (b->cache_len)
        pos = mx_cache_positions(g, b, w->slots);
    w->k_pos = mx_concat(g, 2, (mx_node *[]){pos, w->last}, 1);
    if (b->segments)
        w->k_seg = mx_concat(g, 2, (mx_node *[]){b->segments, w->segments}, 1);
}

mx_windows mx_windows_of(mx_graph *g, const mx_build *b, int64_t ratio,
                         const mx_attention_attr *mask)
{
    mx_windows w = {.ratio = ratio, .rows = b->seq, .slots = b->seq};
    w.seen = w.n = b->seq < ratio ? 1 : b->seq / ratio;
    if (b->cache_len) {
        int64_t ring = 2 * ratio + b->max_run;
        w.rows = ring < b->cache_len ? ring : b->cache_len;
        w.n = (b->seq + ratio - 2) / ratio + 1;
        w.seen = b->cache_len < ratio ? 1 : b->cache_len / ratio;
        w.slots = mx_cache_span(b, mask);
    }
    int64_t sequences = b->pages ? b->page_rows : b->batch, each = w.rows;
    if (b->pages && w.slots + w.seen > each) /* these are numbered through, too */
        each = w.slots + w.seen;
    if (sequences * each >= 1 << 24 || b->seq >= 1 << 21 || b->cache_len >= 1 << 21)
        mx_graph_fail(g, "%lld rows of %lld tokens; attention to windows of them counts up to 2^24 "
                      "tokens of a batch and 2^21 of a row", (long long)sequences,
                      (long long)(b->cache_len ? b->cache_len : b->seq));
    ends e = b->cache_len   ? cached_ends(g, b, &w)
             : b->positions ? packed_ends(g, b, &w)
                            : plain_ends(g, b, &w);
    number_tokens(g, b, &w, &e);
    /* Of entries in a cache it is known where they end; those that are not yet there end later than
     * any query. */
    mx_node *last = b->cache_len ? counting(g, w.seen, (double)ratio - 1, (double)ratio) : e.end;
    w.last = as_int(g, mx_broadcast_to(g, last, MX_SHAPE(b->batch, w.seen)));
    w.near = near_keys(g, b, &w, mask->window);
    place_keys(g, b, &w);
    return w;
}

/* --- entries --- */

mx_node *mx_rope_tail(mx_graph *g, mx_node *x, const mx_rope_table *t, int64_t rotated)
{
    int64_t rest = x->type.dim[3] - rotated;
    if (!rest)
        return mx_rope_apply(g, x, t);
    mx_node *p = mx_split(g, x, 2, (int64_t[]){rest, rotated});
    return mx_concat(g, 2, (mx_node *[]){p, mx_rope_apply(g, mx_output(g, p, 1), t)}, 3);
}

/* x (B, S, C) as a table of rows that windows number: of this run, or of the ring. */
static mx_node *rows_of(mx_graph *g, const mx_build *b, mx_node *x, const char *what,
                        const mx_windows *w)
{
    int64_t C = x->type.dim[2];
    if (!C)
        return x; /* the graph has failed before */
    mx_node *each = mx_reshape(g, x, MX_SHAPE(b->batch, b->seq, 1, C));
    if (b->pages)
        x = enter_own(g, b, own_cache(g, b, what, w->rows, C), each, ring_slots(g, b, w->rows),
                      w->rows);
    else if (b->cache_len)
        x = mx_cache_enter(g, b, what, each, w->rows);
    return mx_reshape(g, x, MX_SHAPE(mx_type_count(&x->type) / C, C));
}

/* Columns [at, at + D) of the tokens of windows, the window's tokens last: (B n, D, ratio). */
static mx_node *take(mx_graph *g, mx_node *rows, mx_node *tokens, int64_t at, int64_t D,
                     const mx_windows *w)
{
    mx_node *part = rows->type.dim[1] > D ? mx_slice(g, rows, 1, at, D) : rows;
    mx_node *x = w->entry ? mx_embed(g, part, tokens) : mx_embed_own(g, part, tokens);
    int64_t n = tokens->type.dim[0] * w->n;
    return mx_transpose(g, mx_reshape(g, x, MX_SHAPE(n, w->ratio, D)), "nrd->ndr");
}

mx_node *mx_compress(mx_graph *g, const mx_build *b, mx_node *x, const mx_windows *w,
                     const mx_compressor *c)
{
    int64_t D = c->dims, C = c->overlap ? 2 * D : D, r = w->ratio, N = b->batch * w->n;
    mx_node *kv = rows_of(g, b, mx_linear(g, b, x, "wkv", C, "kv_heads,embed", false), "kv", w);
    mx_node *gate = rows_of(g, b, mx_linear(g, b, x, "wgate", C, "kv_heads,embed", false), "gate",
                            w);
    mx_node *ape = mx_param(g, "ape", MX_SHAPE(r, C), "norm,kv_heads", MX_ZEROS);
    ape = mx_transpose(g, ape, "rc->cr");
    mx_node *a = take(g, kv, w->own, C - D, D, w), *z = take(g, gate, w->own, C - D, D, w);
    z = mx_add(g, z, C > D ? mx_slice(g, ape, 0, C - D, D) : ape);
    if (c->overlap) {
        mx_node *there = mx_reshape(g, reaches(g, as_float(g, w->before), 0), MX_SHAPE(N, 1, r));
        mx_node *old = mx_add(g, take(g, gate, w->before, 0, D, w), mx_slice(g, ape, 0, 0, D));
        mx_node *shut = mx_constant(g, MX_SCALAR, old->type.dtype, -INFINITY);
        z = mx_concat(g, 2, (mx_node *[]){mx_where(g, there, old, shut), z}, 2);
        a = mx_concat(g, 2, (mx_node *[]){take(g, kv, w->before, 0, D, w), a}, 2);
    }
    mx_node *sum = mx_row_sum(g, mx_mul(g, mx_softmax(g, z), a)); /* (B n, D, 1) */
    mx_node *y = mx_reshape(g, sum, MX_SHAPE(b->batch, w->n, 1, D));
    y = mx_rms_norm(g, mx_cast(g, y, x->type.dtype), "norm", c->eps, false);
    mx_build at = *b;
    at.positions = w->first;
    at.seq = w->n;
    mx_rope_table t = mx_rope_tables(g, &at, c->rope, c->rotated, true);
    return mx_rope_tail(g, y, &t, c->rotated);
}

mx_node *mx_entries_keep(mx_graph *g, const mx_build *b, const char *what, mx_node *entries,
                         const mx_windows *w)
{
    int64_t D = entries->type.dim[3];
    if (b->pages) {
        mx_node *own = own_cache(g, b, what, w->seen, D);
        own = enter_own(g, b, own, entries, as_float(g, w->entry), w->seen);
        return mx_reshape(g, own, MX_SHAPE(1, b->page_rows * w->seen, D));
    }
    mx_node *all = mx_cache_state(g, what, MX_SHAPE(b->batch, w->seen, 1, D), b->cache_dtype);
    return mx_reshape(g, mx_cache_write(g, all, entries, w->entry),
                      MX_SHAPE(b->batch, w->seen, D));
}

mx_select_extra mx_entries_seen(mx_graph *g, const mx_build *b, const mx_windows *w)
{
    if (!b->pages)
        return (mx_select_extra){.q_pos = w->q_pos, .k_pos = w->last, .k_seg = w->segments,
                                 .q_seg = w->segments ? b->segments : NULL};
    mx_node *done = quotient(g, mx_affine(g, as_float(g, w->q_pos), 1, 1), w->ratio);
    return (mx_select_extra){.q_pos = as_int(g, mx_affine(g, done, 1, -1)), .page = w->seen,
                             .row = mx_page_rows(g, b), .table = own_table(g, b)};
}

/* --- attention --- */

/* Entries among the keys, as indices: (B, S, k). */
static mx_node *far_keys(mx_graph *g, const mx_build *b, const mx_windows *w, mx_node *chosen)
{
    double slots = (double)w->slots;
    mx_node *none = number(g, -1);
    if (!chosen && b->pages) { /* those that end with the query's position or before it */
        mx_node *end = mx_reshape(g, as_float(g, w->q_pos), MX_SHAPE(b->batch, 1, 1));
        mx_node *there = mx_greater(g, mx_affine(g, end, 1, 0.5),
                                    mx_reshape(g, as_float(g, w->last),
                                               MX_SHAPE(b->batch, 1, w->seen)));
        return as_int(g, mx_where(g, there, counting(g, w->seen, slots, 1), none));
    }
    if (!chosen)
        return as_int(g, mx_broadcast_to(g, counting(g, w->seen, slots, 1),
                                         MX_SHAPE(b->batch, b->seq, w->seen)));
    mx_node *c = as_float(g, chosen);
    return as_int(g, mx_where(g, reaches(g, c, 0), mx_affine(g, c, 1, slots), none));
}

/* Near keys and entries in one cache: (B, slots + T, 1, D). */
static mx_node *keep_both(mx_graph *g, const mx_build *b, const mx_compressed_attention *f,
                          const mx_windows *w)
{
    mx_shape all = MX_SHAPE(b->batch, w->slots + w->seen, 1, f->kv->type.dim[3]);
    mx_node *keys = mx_cache_state(g, "k", all, b->cache_dtype);
    mx_node *none = number(g, -1), *at = as_float(g, w->entry);
    at = mx_where(g, reaches(g, at, 0), mx_affine(g, at, 1, (double)w->slots), none);
    keys = mx_cache_write(g, keys, f->kv, mx_cache_slots(g, b, w->slots));
    return mx_cache_write(g, keys, f->entries, as_int(g, at));
}

/* The same by sequence, and attention to those in the list. */
static mx_node *attend_own(mx_graph *g, const mx_build *b, const mx_compressed_attention *f,
                           const mx_windows *w, mx_node *selected)
{
    int64_t D = f->kv->type.dim[3], all = w->slots + w->seen;
    mx_node *none = number(g, -1), *at = as_float(g, w->entry);
    at = mx_where(g, reaches(g, at, 0), mx_affine(g, at, 1, (double)w->slots), none);
    mx_node *keys = own_cache(g, b, "k", all, D);
    keys = enter_own(g, b, keys, f->kv, ring_slots(g, b, w->slots), all);
    keys = enter_own(g, b, keys, f->entries, at, all);
    mx_paged_attr p = {.page = all, .v_dim = D, .scale = f->mask.scale, .softcap = f->mask.softcap};
    return mx_paged_attention(g, f->q, keys, NULL, p,
                              (mx_paged_extra){.positions = b->positions, .sinks = f->sinks,
                                               .row = mx_page_rows(g, b), .selected = selected,
                                               .table = own_table(g, b)});
}

mx_node *mx_attend_compressed(mx_graph *g, const mx_build *b, const mx_compressed_attention *f,
                       const mx_windows *w)
{
    mx_attention_attr mask = f->mask;
    mx_node *list[2] = {w->near, far_keys(g, b, w, f->chosen)};
    if (b->pages)
        return attend_own(g, b, f, w, mx_concat(g, 2, list, 2));
    mx_node *keys = b->cache_len ? keep_both(g, b, f, w)
                                 : mx_concat(g, 2, (mx_node *[]){f->kv, f->entries}, 1);
    mx_attention_extra e = {.sinks = f->sinks, .q_pos = w->q_pos, .k_pos = w->k_pos,
                            .q_seg = w->k_seg ? b->segments : NULL, .k_seg = w->k_seg,
                            .selected = mx_concat(g, 2, list, 2)};
    mask.window = 0; /* the list says it */
    return mx_attention(g, f->q, keys, keys, mask, e);
}
