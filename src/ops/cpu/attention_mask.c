/* attention_mask.c - see attention_mask.h. */
#include "ops/cpu/attention_mask.h"

#include "base/simd.h"
#include <limits.h>

static int32_t clamp_pos(int64_t p)
{
    return (int32_t)(p < INT32_MIN + 1 ? INT32_MIN + 1 : p > INT32_MAX ? INT32_MAX : p);
}

static mx_attn_row row_rules(const mx_attn *a, int64_t b, int64_t s)
{
    const mx_attn_mask *m = &a->mask;
    int64_t at = b * a->q_len + s, place = s + m->q_offset + (2 * s < a->q_len ? 0 : m->q_jump);
    int64_t q = m->q_pos ? m->q_pos[at] : place;
    int64_t lo = 0, hi = INT32_MAX, reach = m->window > 0 ? q - m->window + 1 : 0;
    if (m->causal && q + 1 < hi)
        hi = q + 1;
    if (m->window > 0) {
        lo = q - m->window + 1 > lo ? q - m->window + 1 : lo;
        hi = q + m->window < hi ? q + m->window : hi;
    }
    if (m->chunk > 0) {
        int64_t start = q / m->chunk * m->chunk;
        lo = start > lo ? start : lo;
        hi = start + m->chunk < hi ? start + m->chunk : hi;
    }
    bool used = q >= 0;
    int32_t span = m->q_span && m->q_span[at] > 0 && used ? m->q_span[at] : INT32_MIN;
    return (mx_attn_row){
        .lo = used ? clamp_pos(lo) : 0,
        .hi = used ? clamp_pos(hi > lo ? hi : lo) : 0,
        .seg = m->q_seg ? m->q_seg[at] : 0,
        .span = span,
        .span_lo = clamp_pos(reach),
        .selected = m->selected ? m->selected + at * m->n_selected : 0,
    };
}

void mx_attn_rows_init(mx_attn_rows *r, const mx_attn *a, int64_t b, int64_t s0, int n_queries,
                       int n)
{
    r->n = n;
    r->spans = false;
    r->n_selected = a->mask.n_selected;
    r->lo_min = r->hi_min = r->seg_min = INT32_MAX;
    r->lo_max = r->hi_max = r->seg_max = INT32_MIN;
    for (int i = 0; i < n; i++) {
        mx_attn_row *w = &r->row[i];
        *w = i < n_queries ? row_rules(a, b, s0 + i) : r->row[i % n_queries];
        r->lo_min = w->lo < r->lo_min ? w->lo : r->lo_min;
        r->lo_max = w->lo > r->lo_max ? w->lo : r->lo_max;
        r->hi_min = w->hi < r->hi_min ? w->hi : r->hi_min;
        r->hi_max = w->hi > r->hi_max ? w->hi : r->hi_max;
        r->seg_min = w->seg < r->seg_min ? w->seg : r->seg_min;
        r->seg_max = w->seg > r->seg_max ? w->seg : r->seg_max;
        r->spans |= w->span > 0;
    }
}

/* Are positions indices, so that rules for positions are rules for places? */
static bool by_index(const mx_attn_rows *r, const mx_attn *a)
{
    return !a->mask.k_pos && !r->spans;
}

void mx_attn_rows_range(const mx_attn_rows *r, const mx_attn *a, int64_t *k0, int64_t *k1)
{
    bool indices = by_index(r, a);
    *k0 = indices && r->lo_min > 0 ? r->lo_min : 0;
    *k1 = indices && r->hi_max < a->k_len ? r->hi_max : a->k_len;
    *k1 = *k1 < *k0 ? *k0 : *k1;
}

int64_t mx_attn_rows_diagonal(const mx_attn_rows *r, const mx_attn *a, int64_t k0)
{
    if (!by_index(r, a))
        return a->k_len;
    int64_t d = -(int64_t)r->n;
    for (int i = 0; i < r->n; i++)
        d = r->row[i].hi - 1 - k0 - i > d ? r->row[i].hi - 1 - k0 - i : d;
    return d;
}

int mx_attn_row_end(const mx_attn_rows *r, const mx_attn *a, int i, int64_t k0, int n)
{
    int64_t end = by_index(r, a) ? r->row[i].hi - k0 : n;
    return end < 0 ? 0 : end < n ? (int)end : n;
}

bool mx_attn_ends_suffice(const mx_attn_rows *r, const mx_attn *a, const mx_attn_keys *t)
{
    return by_index(r, a) && t->seg_min == t->seg_max && r->seg_min == r->seg_max
           && t->seg_min == r->seg_min && r->lo_max <= t->k0 && !r->row[0].selected;
}

void mx_attn_keys_init(mx_attn_keys *t, const mx_attn *a, int64_t b, int64_t k0, int n)
{
    const mx_attn_mask *m = &a->mask;
    int64_t at = b * a->k_len + k0;
    t->n = n;
    t->k0 = k0;
    t->pos_min = t->seg_min = INT32_MAX;
    t->pos_max = t->seg_max = INT32_MIN;
    t->all_used = true;
    for (int j = 0; j < n; j++) {
        int32_t pos = m->k_pos ? m->k_pos[at + j] : (int32_t)(k0 + j);
        int32_t seg = m->k_seg ? m->k_seg[at + j] : 0;
        t->pos[j] = pos;
        t->seg[j] = seg;
        t->span[j] = m->k_span ? m->k_span[at + j] : 0;
        if (pos < 0) {
            t->all_used = false;
            continue;
        }
        t->pos_min = pos < t->pos_min ? pos : t->pos_min;
        t->pos_max = pos > t->pos_max ? pos : t->pos_max;
        t->seg_min = seg < t->seg_min ? seg : t->seg_min;
        t->seg_max = seg > t->seg_max ? seg : t->seg_max;
    }
}

mx_attn_tile_kind mx_attn_classify(const mx_attn_rows *r, const mx_attn_keys *t)
{
    bool near = t->pos_max >= r->lo_min && t->pos_min < r->hi_max;
    bool segments_meet = t->seg_max >= r->seg_min && t->seg_min <= r->seg_max;
    if (!segments_meet || (!near && !r->spans))
        return MX_ATTN_SKIP;
    bool one_segment = t->seg_min == t->seg_max && r->seg_min == r->seg_max;
    bool inside = t->all_used && t->pos_min >= r->lo_max && t->pos_max < r->hi_min;
    return inside && one_segment && !r->row[0].selected ? MX_ATTN_OPEN : MX_ATTN_PARTIAL;
}

MX_CLONES static void compare(uint32_t *restrict ok, const mx_attn_row *w,
                              const mx_attn_keys *restrict t, int n)
{
    int32_t lo = w->lo, hi = w->hi, seg = w->seg, span = w->span, span_lo = w->span_lo;
    for (int j = 0; j < n; j++) {
        int near = (t->pos[j] >= lo) & (t->pos[j] < hi);
        int together = (t->span[j] == span) & (t->pos[j] >= span_lo);
        int may = (near | together) & (t->seg[j] == seg) & (t->pos[j] >= 0);
        ok[j] = may ? 0xffffffffu : 0;
    }
}

void mx_attn_allowed(uint32_t *ok, const mx_attn_rows *r, int i, const mx_attn_keys *t, int n)
{
    const mx_attn_row *w = &r->row[i];
    compare(ok, w, t, n);
    if (!w->selected)
        return;
    for (int j = 0; j < n; j++)
        ok[j] &= 1; /* allowed by the rules; the list turns 1 into 2 */
    for (int64_t s = 0; s < r->n_selected; s++) {
        int64_t j = w->selected[s] - t->k0;
        if (j >= 0 && j < n && ok[j])
            ok[j] = 2;
    }
    for (int j = 0; j < n; j++)
        ok[j] = ok[j] == 2 ? 0xffffffffu : 0;
}
