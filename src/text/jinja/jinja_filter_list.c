/* jinja_filter_list.c - filters over lists, dicts and other things that can be iterated.
 *
 * map, select, reject, reverse, unique, batch and items give a generator: true in a
 * condition even when empty, without a length, read once. sort, dictsort, groupby and list give
 * lists. Attributes are looked up as items first ("a.b.0" is a path), the way Jinja's filters do.
 */
#include "text/jinja/jinja.h"

#include <string.h>

#define FILTER(fn) static mx_status fn(mx_jctx *c, mx_jv v, const mx_jargs *a, mx_jv *out)
#define ARG(i, names) mx_jarg(&(const mx_jbuiltin){.params = (names)}, a, i)

static const char *c_string(mx_jctx *c, mx_jv v)
{
    mx_jspend(c, 1 + v.s->n / 16);
    char *s = mx_arena_alloc(&c->arena, v.s->n + 1);
    return memcpy(s, v.s->p, v.s->n);
}

/* --- attributes --- */
static mx_status path(mx_jctx *c, mx_jv v, const mx_jv *attribute, mx_jv *out)
{
    *out = v;
    MX_TRY(mx_jstep(c));
    if (!attribute || attribute->kind == MX_JV_NONE)
        return MX_OK;
    if (attribute->kind != MX_JV_STRING)
        return mx_jitem(c, v, *attribute, out);
    const char *p = attribute->s->p, *end = p + attribute->s->n;
    while (p <= end) {
        const char *dot = memchr(p, '.', (size_t)(end - p));
        const char *stop = dot ? dot : end;
        mx_jv key = mx_jv_part(c, p, (size_t)(stop - p));
        int64_t index;
        bool digits = key.s->n > 0 && strspn(c_string(c, key), "0123456789") == key.s->n;
        if (digits && mx_parse_i64(c_string(c, key), &index))
            key = mx_jv_int(index);
        MX_TRY(mx_jitem(c, *out, key, out));
        p = stop + 1;
    }
    return MX_OK;
}

static mx_status fold(mx_jctx *c, mx_jv *key, bool case_sensitive)
{
    if (case_sensitive || key->kind != MX_JV_STRING)
        return MX_OK;
    MX_TRY(mx_jcharge(c, key->s->n));
    *key = mx_jtext_case(c, key->s, MX_CASE_LOWER);
    return MX_OK;
}

/* The key to sort by: one attribute, or a list of several ("age,name"). */
static mx_status sort_key(mx_jctx *c, mx_jv v, const mx_jv *attribute, bool case_sensitive,
                          mx_jv *out)
{
    bool several = attribute && attribute->kind == MX_JV_STRING &&
                   memchr(attribute->s->p, ',', attribute->s->n);
    if (!several) {
        MX_TRY(path(c, v, attribute, out));
        return fold(c, out, case_sensitive);
    }
    *out = mx_jv_list(c, MX_JV_LIST, 2);
    const char *p = attribute->s->p, *end = p + attribute->s->n;
    while (p <= end) {
        const char *comma = memchr(p, ',', (size_t)(end - p));
        const char *stop = comma ? comma : end;
        mx_jv name = mx_jv_part(c, p, (size_t)(stop - p)), part;
        MX_TRY(path(c, v, &name, &part));
        MX_TRY(fold(c, &part, case_sensitive));
        mx_jv_push(c, out->list, part);
        p = stop + 1;
    }
    return MX_OK;
}

/* --- sorting: merge sort, stable --- */
typedef struct {
    mx_jv key, value;
} sortable;

static mx_status merge_sort(mx_jctx *c, sortable *v, sortable *tmp, size_t n, bool reverse)
{
    if (n < 2)
        return MX_OK;
    size_t half = n / 2, i = 0, j = half;
    MX_TRY(merge_sort(c, v, tmp, half, reverse));
    MX_TRY(merge_sort(c, v + half, tmp, n - half, reverse));
    for (size_t k = 0; k < n; k++) {
        int order = i >= half ? 1 : j >= n ? -1 : 0;
        if (i < half && j < n) {
            MX_TRY(mx_jv_order(c, v[i].key, v[j].key, 0, &order));
            order = reverse ? -order : order;
        }
        tmp[k] = order <= 0 ? v[i++] : v[j++];
    }
    memcpy(v, tmp, n * sizeof *v);
    return MX_OK;
}

static mx_status sorted(mx_jctx *c, sortable *v, size_t n, bool reverse, mx_jv *out)
{
    MX_TRY(mx_jreserve(c, 2 * n * sizeof *v));
    sortable *tmp = MX_NEW_N(&c->arena, sortable, n);
    MX_TRY(merge_sort(c, v, tmp, n, reverse));
    *out = mx_jv_list(c, MX_JV_LIST, n);
    for (size_t i = 0; i < n; i++)
        mx_jv_push(c, out->list, v[i].value);
    return MX_OK;
}

FILTER(f_sort)
{
    static const char params[] = "reverse case_sensitive attribute";
    const mx_jv *reverse = ARG(0, params), *sensitive = ARG(1, params), *attribute = ARG(2, params);
    mx_jlist *l;
    MX_TRY(mx_jv_items(c, v, &l));
    MX_TRY(mx_jreserve(c, l->n * sizeof(sortable)));
    sortable *s = MX_NEW_N(&c->arena, sortable, l->n);
    for (size_t i = 0; i < l->n; i++) {
        s[i].value = l->v[i];
        MX_TRY(sort_key(c, l->v[i], attribute, sensitive && mx_jv_truth(*sensitive), &s[i].key));
    }
    return sorted(c, s, l->n, reverse && mx_jv_truth(*reverse), out);
}

FILTER(f_dictsort)
{
    static const char params[] = "case_sensitive by reverse";
    const mx_jv *sensitive = ARG(0, params), *by = ARG(1, params), *reverse = ARG(2, params);
    if (v.kind != MX_JV_DICT)
        return mx_jerror(c, "dictsort needs a dict, not %s", mx_jv_type(v));
    bool by_value = by && by->kind == MX_JV_STRING && by->s->n == 5;
    MX_TRY(mx_jreserve(c, v.dict->n * sizeof(sortable)));
    sortable *s = MX_NEW_N(&c->arena, sortable, v.dict->n);
    for (size_t i = 0; i < v.dict->n; i++) {
        MX_TRY(mx_jstep(c));
        s[i].key = by_value ? v.dict->val[i] : v.dict->key[i];
        s[i].value = mx_jv_pair(c, v.dict->key[i], v.dict->val[i]);
        MX_TRY(fold(c, &s[i].key, sensitive && mx_jv_truth(*sensitive)));
    }
    return sorted(c, s, v.dict->n, reverse && mx_jv_truth(*reverse), out);
}

FILTER(f_groupby)
{
    static const char params[] = "attribute default case_sensitive";
    const mx_jv *attribute = ARG(0, params), *other = ARG(1, params), *sensitive = ARG(2, params);
    mx_jlist *l;
    mx_jv order;
    bool exact = sensitive && mx_jv_truth(*sensitive);
    MX_TRY(mx_jv_items(c, v, &l));
    MX_TRY(mx_jreserve(c, l->n * sizeof(sortable)));
    sortable *s = MX_NEW_N(&c->arena, sortable, l->n);
    for (size_t i = 0; i < l->n; i++) {
        mx_jv key;
        MX_TRY(path(c, l->v[i], attribute, &key));
        key = key.kind == MX_JV_UNDEFINED && other ? *other : key;
        s[i].value = mx_jv_pair(c, key, l->v[i]);
        MX_TRY(fold(c, &key, exact));
        s[i].key = key;
    }
    MX_TRY(sorted(c, s, l->n, false, &order));
    *out = mx_jv_list(c, MX_JV_LIST, 0);
    for (size_t i = 0; i < l->n; i++) {
        bool same = false;
        if (i)
            MX_TRY(mx_jv_equal(c, s[i - 1].key, s[i].key, 0, &same));
        if (!same) {
            mx_jv pair = mx_jv_pair(c, order.list->v[i].list->v[0], mx_jv_list(c, MX_JV_LIST, 0));
            pair.list->grouped = true;
            mx_jv_push(c, out->list, pair);
        }
        mx_jv_push(c, out->list->v[out->list->n - 1].list->v[1].list, order.list->v[i].list->v[1]);
    }
    return MX_OK;
}

static mx_status extreme(mx_jctx *c, mx_jv v, const mx_jargs *a, int want, mx_jv *out)
{
    const mx_jv *sensitive = ARG(0, "case_sensitive attribute"),
                *attribute = ARG(1, "case_sensitive attribute");
    mx_jlist *l;
    mx_jv best, key;
    MX_TRY(mx_jv_items(c, v, &l));
    *out = mx_jv_undefined("the least or greatest of nothing");
    for (size_t i = 0; i < l->n; i++) {
        int order = want;
        MX_TRY(sort_key(c, l->v[i], attribute, sensitive && mx_jv_truth(*sensitive), &key));
        if (i)
            MX_TRY(mx_jv_order(c, key, best, 0, &order));
        if (order == want) {
            best = key;
            *out = l->v[i];
        }
    }
    return MX_OK;
}

FILTER(f_min)
{
    return extreme(c, v, a, -1, out);
}
FILTER(f_max)
{
    return extreme(c, v, a, 1, out);
}

/* --- choosing and mapping --- */
static mx_status choose(mx_jctx *c, mx_jv v, const mx_jargs *a, bool by_attribute, bool keep,
                        mx_jv *out)
{
    mx_jlist *l;
    int skip = by_attribute ? 1 : 0;
    if (by_attribute && a->n < 1)
        return mx_jerror(c, "selectattr and rejectattr need the name of an attribute");
    const mx_jbuiltin *test = NULL;
    if (a->n > skip) {
        if (a->v[skip].kind != MX_JV_STRING || !(test = mx_jtest_find(c_string(c, a->v[skip]))))
            return mx_jerror(c, "select, reject: no test of that name");
    }
    mx_jargs rest = mx_jargs_rest(a, skip + 1);
    if (test)
        MX_TRY(mx_jargs_check(c, "test ", test, &rest));
    *out = mx_jv_list(c, MX_JV_GENERATOR, 0);
    if (!mx_jv_truth(v)) /* nothing, even of what cannot be iterated */
        return MX_OK;
    MX_TRY(mx_jv_items(c, v, &l));
    for (size_t i = 0; i < l->n; i++) {
        mx_jv key, holds;
        MX_TRY(path(c, l->v[i], by_attribute ? &a->v[0] : NULL, &key));
        holds = key;
        if (test)
            MX_TRY(test->run(c, key, &rest, &holds));
        if (mx_jv_truth(holds) == keep)
            mx_jv_push(c, out->list, l->v[i]);
    }
    return MX_OK;
}

FILTER(f_select)
{
    return choose(c, v, a, false, true, out);
}
FILTER(f_reject)
{
    return choose(c, v, a, false, false, out);
}
FILTER(f_selectattr)
{
    return choose(c, v, a, true, true, out);
}
FILTER(f_rejectattr)
{
    return choose(c, v, a, true, false, out);
}

static mx_status map_attribute(mx_jctx *c, const mx_jlist *l, const mx_jargs *a, mx_jv *out)
{
    const mx_jargs named = {.kw = a->kw, .kw_name = a->kw_name, .n_kw = a->n_kw};
    const mx_jbuiltin f = {.params = "attribute default"};
    const mx_jv *attribute = mx_jarg(&f, &named, 0), *other = mx_jarg(&f, &named, 1);
    if (!attribute)
        return mx_jerror(c, "map needs the name of a filter, or attribute=");
    for (size_t i = 0; i < l->n; i++) {
        mx_jv item;
        MX_TRY(path(c, l->v[i], attribute, &item));
        mx_jv_push(c, out->list, item.kind == MX_JV_UNDEFINED && other ? *other : item);
    }
    return MX_OK;
}

FILTER(f_map)
{
    mx_jlist *l;
    *out = mx_jv_list(c, MX_JV_GENERATOR, 0);
    if (!mx_jv_truth(v))
        return MX_OK;
    MX_TRY(mx_jv_items(c, v, &l));
    if (a->n == 0)
        return map_attribute(c, l, a, out);
    const mx_jbuiltin *f =
        a->v[0].kind == MX_JV_STRING ? mx_jfilter_find(c_string(c, a->v[0])) : NULL;
    if (!f)
        return mx_jerror(c, "map: no filter of that name");
    mx_jargs rest = mx_jargs_rest(a, 1);
    MX_TRY(mx_jargs_check(c, "filter ", f, &rest));
    if (++c->depth > c->limits.depth)
        return mx_jerror(c, "nested more than %d deep", c->limits.depth);
    for (size_t i = 0; i < l->n; i++) {
        mx_jv item;
        MX_TRY(f->run(c, l->v[i], &rest, &item));
        mx_jv_push(c, out->list, item);
        MX_TRY(mx_jreserve(c, 0));
    }
    c->depth--;
    return MX_OK;
}

/* --- the rest --- */
FILTER(f_length)
{
    int64_t n;
    (void)a;
    MX_TRY(mx_jv_length(c, v, &n));
    *out = mx_jv_int(n);
    return MX_OK;
}

FILTER(f_first)
{
    mx_jlist *l;
    (void)a;
    size_t pos = v.kind == MX_JV_GENERATOR ? v.list->pos : 0;
    MX_TRY(mx_jv_items(c, v, &l));
    if (v.kind == MX_JV_GENERATOR)
        v.list->pos = pos < v.list->n ? pos + 1 : pos;
    *out = l->n ? l->v[0] : mx_jv_undefined("the first of nothing");
    return MX_OK;
}

FILTER(f_last)
{
    mx_jlist *l;
    (void)a;
    if (v.kind == MX_JV_GENERATOR)
        return mx_jerror(c, "last does not work on a generator; put |list before it");
    MX_TRY(mx_jv_items(c, v, &l));
    *out = l->n ? l->v[l->n - 1] : mx_jv_undefined("the last of nothing");
    return MX_OK;
}

static mx_jv copy(mx_jctx *c, const mx_jlist *l, mx_jv_kind kind, bool backwards)
{
    mx_jv r = mx_jv_list(c, kind, l->n);
    for (size_t i = 0; i < l->n; i++)
        mx_jv_push(c, r.list, l->v[backwards ? l->n - 1 - i : i]);
    return r;
}

FILTER(f_list)
{
    mx_jlist *l;
    (void)a;
    MX_TRY(mx_jv_items(c, v, &l));
    *out = copy(c, l, MX_JV_LIST, false);
    return MX_OK;
}

FILTER(f_reverse)
{
    mx_jlist *l;
    (void)a;
    if (v.kind == MX_JV_STRING)
        return mx_jtext_slice(c, v, (int64_t)v.s->chars - 1, -1, (int64_t)v.s->chars, out);
    MX_TRY(mx_jv_items(c, v, &l));
    *out = copy(c, l, MX_JV_GENERATOR, true);
    return MX_OK;
}

FILTER(f_join)
{
    const mx_jv *d = ARG(0, "d attribute"), *attribute = ARG(1, "d attribute");
    mx_jlist *l;
    mx_jv sep = mx_jv_part(c, "", 0);
    MX_TRY(mx_jv_items(c, v, &l));
    if (d)
        MX_TRY(mx_jv_str(c, *d, &sep));
    mx_str text = {0};
    mx_status st = MX_OK;
    for (size_t i = 0; !st && i < l->n; i++) {
        mx_jv item;
        if (i)
            mx_str_add_n(&text, sep.s->p, sep.s->n);
        st = path(c, l->v[i], attribute, &item);
        if (!st)
            st = mx_jv_print(c, item, &text);
        if (!st)
            st = mx_jreserve(c, text.len);
        if (!st)
            st = mx_jcharge(c, sep.s->n / 16);
    }
    *out = mx_jv_take(c, &text);
    return st;
}

FILTER(f_items)
{
    (void)a;
    *out = mx_jv_list(c, MX_JV_GENERATOR, 0);
    if (v.kind == MX_JV_UNDEFINED)
        return MX_OK;
    if (v.kind != MX_JV_DICT)
        return mx_jerror(c, "items needs a dict, not %s", mx_jv_type(v));
    MX_TRY(mx_jmethod_find(v, "items")->run(c, v, a, out));
    out->kind = MX_JV_GENERATOR;
    return MX_OK;
}

FILTER(f_unique)
{
    static const char params[] = "case_sensitive attribute";
    const mx_jv *sensitive = ARG(0, params), *attribute = ARG(1, params);
    mx_jlist *l;
    mx_jv seen = mx_jv_dict(c);
    MX_TRY(mx_jv_items(c, v, &l));
    *out = mx_jv_list(c, MX_JV_GENERATOR, 0);
    for (size_t i = 0; i < l->n; i++) {
        mx_jv key, ignored;
        bool found;
        MX_TRY(path(c, l->v[i], attribute, &key));
        MX_TRY(fold(c, &key, sensitive && mx_jv_truth(*sensitive)));
        MX_TRY(mx_jdict_get(c, seen.dict, key, &ignored, &found));
        if (found)
            continue;
        MX_TRY(mx_jdict_set(c, seen.dict, key, key));
        mx_jv_push(c, out->list, l->v[i]);
    }
    return MX_OK;
}

FILTER(f_sum)
{
    const mx_jv *attribute = ARG(0, "attribute start"), *start = ARG(1, "attribute start");
    mx_jlist *l;
    *out = start ? *start : mx_jv_int(0);
    MX_TRY(mx_jv_items(c, v, &l));
    for (size_t i = 0; i < l->n; i++) {
        mx_jv item;
        MX_TRY(path(c, l->v[i], attribute, &item));
        MX_TRY(mx_jbinary(c, '+', *out, item, out));
        MX_TRY(mx_jreserve(c, 0));
    }
    return MX_OK;
}

FILTER(f_batch)
{
    const mx_jv *count = ARG(0, "linecount fill_with"), *fill = ARG(1, "linecount fill_with");
    mx_jlist *l;
    int64_t n = 0;
    if (!count || !mx_jv_integer(*count, &n) || n < 1 || n > 100000)
        return mx_jerror(c, "batch needs a size between 1 and 100000");
    MX_TRY(mx_jv_items(c, v, &l));
    *out = mx_jv_list(c, MX_JV_GENERATOR, 0);
    mx_jv row = {0};
    for (size_t i = 0; i < l->n; i++) {
        MX_TRY(mx_jstep(c));
        if (i % (size_t)n == 0) {
            row = mx_jv_list(c, MX_JV_LIST, 0);
            mx_jv_push(c, out->list, row);
        }
        mx_jv_push(c, row.list, l->v[i]);
    }
    while (l->n && fill && fill->kind != MX_JV_NONE && row.list->n < (size_t)n)
        mx_jv_push(c, row.list, *fill);
    return mx_jcharge(c, (size_t)n);
}

FILTER(f_attr)
{
    if (a->n != 1 || a->v[0].kind != MX_JV_STRING)
        return mx_jerror(c, "attr needs the name of an attribute");
    if (v.kind == MX_JV_DICT && !mx_jmethod_find(v, c_string(c, a->v[0]))) {
        *out = mx_jv_undefined(c_string(c, a->v[0]));
        return MX_OK;
    }
    return mx_jattr(c, v, c_string(c, a->v[0]), out);
}

const mx_jbuiltin mx_jfilters_list[] = {
    {"length", f_length, ""},
    {"count", f_length, ""},
    {"first", f_first, ""},
    {"last", f_last, ""},
    {"list", f_list, ""},
    {"reverse", f_reverse, ""},
    {"join", f_join, "d attribute"},
    {"items", f_items, ""},
    {"sort", f_sort, "reverse case_sensitive attribute"},
    {"dictsort", f_dictsort, "case_sensitive by reverse"},
    {"groupby", f_groupby, "attribute default case_sensitive"},
    {"min", f_min, "case_sensitive attribute"},
    {"max", f_max, "case_sensitive attribute"},
    {"map", f_map, NULL},
    {"select", f_select, NULL},
    {"reject", f_reject, NULL},
    {"selectattr", f_selectattr, NULL},
    {"rejectattr", f_rejectattr, NULL},
    {"unique", f_unique, "case_sensitive attribute"},
    {"sum", f_sum, "attribute start"},
    {"batch", f_batch, "linecount fill_with"},
    {"attr", f_attr, "name"},
    {0},
};
