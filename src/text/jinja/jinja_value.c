/* jinja_value.c - making values, and Python's answers about them: truth, ==, <, in, len, iteration.
 *
 * Equality crosses int, float and bool (1 == 1.0 == True) and nothing else; a list never equals a
 * tuple; dicts compare without order. < is defined for numbers, strings (by code point, which UTF-8
 * byte order gives) and lists or tuples of such. An undefined value is false, empty and equal only
 * to another undefined one.
 */
#include "text/jinja/jinja.h"

#include <string.h>

mx_jv mx_jv_bool(bool b)
{
    return (mx_jv){MX_JV_BOOL, {.b = b}};
}

mx_jv mx_jv_int(int64_t i)
{
    return (mx_jv){MX_JV_INT, {.i = i}};
}

mx_jv mx_jv_float(double f)
{
    return (mx_jv){MX_JV_FLOAT, {.f = f}};
}

mx_jv mx_jv_undefined(const char *hint)
{
    return (mx_jv){MX_JV_UNDEFINED, {.hint = hint}};
}

mx_jv mx_jv_borrow(mx_arena *a, const char *p, size_t n)
{
    mx_jtext *s = MX_NEW(a, mx_jtext);
    s->p = p;
    s->n = n;
    for (size_t i = 0; i < n; i++)
        s->chars += ((unsigned char)p[i] & 0xC0) != 0x80;
    return (mx_jv){MX_JV_STRING, {.s = s}};
}

mx_jv mx_jv_part(mx_jctx *c, const char *p, size_t n)
{
    mx_jspend(c, 1 + n / 16);
    return mx_jv_borrow(&c->arena, p, n);
}

mx_jv mx_jv_text(mx_arena *a, const char *p, size_t n)
{
    return mx_jv_borrow(a, mx_arena_copy(a, p, n), n);
}

mx_jv mx_jv_take(mx_jctx *c, mx_str *s)
{
    mx_jspend(c, 1 + s->len / 8);
    mx_jv v = mx_jv_text(&c->arena, mx_str_text(s), s->len);
    mx_str_fini(s);
    return v;
}

mx_jv mx_jv_list(mx_jctx *c, mx_jv_kind kind, size_t cap)
{
    mx_jlist *l = MX_NEW(&c->arena, mx_jlist);
    l->cap = cap;
    l->v = cap ? MX_NEW_N(&c->arena, mx_jv, cap) : NULL;
    return (mx_jv){kind, {.list = l}};
}

void mx_jv_push(mx_jctx *c, mx_jlist *l, mx_jv v)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 4;
        mx_jv *more = MX_NEW_N(&c->arena, mx_jv, cap);
        if (l->n)
            memcpy(more, l->v, sizeof *more * l->n);
        l->v = more;
        l->cap = cap;
    }
    l->v[l->n++] = v;
}

mx_jv mx_jv_pair(mx_jctx *c, mx_jv a, mx_jv b)
{
    mx_jv pair = mx_jv_list(c, MX_JV_TUPLE, 2);
    mx_jv_push(c, pair.list, a);
    mx_jv_push(c, pair.list, b);
    return pair;
}

const char *mx_jv_type(mx_jv v)
{
    static const char *const names[] = {
        "Undefined", "NoneType", "bool",      "int",   "float",       "str",      "list",  "tuple",
        "generator", "dict",     "Namespace", "Macro", "LoopContext", "function", "method"};
    return names[v.kind];
}

bool mx_jv_integer(mx_jv v, int64_t *out)
{
    *out = v.kind == MX_JV_BOOL ? v.b : v.kind == MX_JV_INT ? v.i : 0;
    return v.kind == MX_JV_BOOL || v.kind == MX_JV_INT;
}

bool mx_jv_number(mx_jv v, double *out)
{
    int64_t i;
    if (mx_jv_integer(v, &i)) {
        *out = (double)i;
        return true;
    }
    *out = v.kind == MX_JV_FLOAT ? v.f : 0;
    return v.kind == MX_JV_FLOAT;
}

bool mx_jv_truth(mx_jv v)
{
    switch (v.kind) {
    case MX_JV_UNDEFINED:
    case MX_JV_NONE:
        return false;
    case MX_JV_BOOL:
        return v.b;
    case MX_JV_INT:
        return v.i != 0;
    case MX_JV_FLOAT:
        return v.f != 0;
    case MX_JV_STRING:
        return v.s->n != 0;
    case MX_JV_LIST:
    case MX_JV_TUPLE:
        return v.list->n != 0;
    case MX_JV_DICT:
        return v.dict->n != 0;
    default:
        return true;
    }
}

/* Both integers, compared without going through double. */
static bool both_int(mx_jv a, mx_jv b, int64_t *x, int64_t *y)
{
    return mx_jv_integer(a, x) && mx_jv_integer(b, y);
}

static mx_status too_deep(const mx_jctx *c)
{
    return mx_jerror(c, "a value is nested more than %d deep", c->limits.depth);
}

static mx_status equal_lists(mx_jctx *c, const mx_jlist *a, const mx_jlist *b, int depth, bool *out)
{
    *out = a->n == b->n;
    for (size_t i = 0; *out && i < a->n; i++)
        MX_TRY(mx_jv_equal(c, a->v[i], b->v[i], depth + 1, out));
    return MX_OK;
}

static mx_status equal_dicts(mx_jctx *c, const mx_jdict *a, const mx_jdict *b, int depth, bool *out)
{
    *out = a->n == b->n;
    for (size_t i = 0; *out && i < a->n; i++) {
        mx_jv other;
        MX_TRY(mx_jdict_get(c, b, a->key[i], &other, out));
        if (*out)
            MX_TRY(mx_jv_equal(c, a->val[i], other, depth + 1, out));
    }
    return MX_OK;
}

mx_status mx_jv_equal(mx_jctx *c, mx_jv a, mx_jv b, int depth, bool *out)
{
    int64_t i, j;
    double x, y;
    *out = false;
    MX_TRY(mx_jcharge(c, 1));
    if (depth > c->limits.depth)
        return too_deep(c);
    if (both_int(a, b, &i, &j))
        *out = i == j;
    else if (mx_jv_number(a, &x) && mx_jv_number(b, &y))
        *out = x == y;
    if (a.kind != b.kind || a.kind == MX_JV_BOOL || a.kind == MX_JV_INT || a.kind == MX_JV_FLOAT)
        return MX_OK;
    switch (a.kind) {
    case MX_JV_UNDEFINED:
    case MX_JV_NONE:
        *out = true;
        return MX_OK;
    case MX_JV_STRING:
        *out = a.s->n == b.s->n && (a.s->p == b.s->p || memcmp(a.s->p, b.s->p, a.s->n) == 0);
        return a.s->n == b.s->n ? mx_jcharge(c, a.s->n / 16) : MX_OK;
    case MX_JV_LIST:
    case MX_JV_TUPLE:
        return equal_lists(c, a.list, b.list, depth, out);
    case MX_JV_DICT:
        return equal_dicts(c, a.dict, b.dict, depth, out);
    default:
        *out = a.list == b.list; /* the same object */
        return MX_OK;
    }
}

static int sign(double x)
{
    return (x > 0) - (x < 0);
}

mx_status mx_jv_order(mx_jctx *c, mx_jv a, mx_jv b, int depth, int *out)
{
    int64_t i, j;
    double x, y;
    MX_TRY(mx_jcharge(c, 1));
    if (depth > c->limits.depth)
        return too_deep(c);
    if (both_int(a, b, &i, &j)) {
        *out = (i > j) - (i < j);
    } else if (mx_jv_number(a, &x) && mx_jv_number(b, &y)) {
        *out = (x > y) - (x < y);
    } else if (a.kind == MX_JV_STRING && b.kind == MX_JV_STRING) {
        size_t n = a.s->n < b.s->n ? a.s->n : b.s->n;
        int k = n ? memcmp(a.s->p, b.s->p, n) : 0;
        *out = k ? sign(k) : (a.s->n > b.s->n) - (a.s->n < b.s->n);
        return mx_jcharge(c, n / 16);
    } else if (a.kind == b.kind && (a.kind == MX_JV_LIST || a.kind == MX_JV_TUPLE)) {
        for (size_t k = 0; k < a.list->n && k < b.list->n; k++) {
            bool same;
            MX_TRY(mx_jv_equal(c, a.list->v[k], b.list->v[k], depth + 1, &same));
            if (!same)
                return mx_jv_order(c, a.list->v[k], b.list->v[k], depth + 1, out);
        }
        *out = (a.list->n > b.list->n) - (a.list->n < b.list->n);
    } else if (a.kind == MX_JV_UNDEFINED || b.kind == MX_JV_UNDEFINED) {
        const char *hint = a.kind == MX_JV_UNDEFINED ? a.hint : b.hint;
        return mx_jerror(c, "'%.80s' is undefined and cannot be compared", hint ? hint : "a value");
    } else {
        return mx_jerror(c, "'%s' and '%s' cannot be ordered", mx_jv_type(a), mx_jv_type(b));
    }
    return MX_OK;
}

mx_status mx_jv_contains(mx_jctx *c, mx_jv in, mx_jv item, bool *out)
{
    *out = false;
    if (in.kind == MX_JV_STRING) {
        if (item.kind != MX_JV_STRING)
            return mx_jerror(c, "'in <string>' needs a string on its left, not %s",
                             mx_jv_type(item));
        const char *hit;
        MX_TRY(mx_jtext_find(c, in.s, 0, item.s, &hit));
        *out = hit != NULL;
        return MX_OK;
    }
    if (in.kind == MX_JV_DICT) {
        mx_jv ignored;
        return mx_jdict_get(c, in.dict, item, &ignored, out);
    }
    mx_jlist *l;
    MX_TRY(mx_jv_items(c, in, &l));
    for (size_t i = 0; !*out && i < l->n; i++)
        MX_TRY(mx_jv_equal(c, l->v[i], item, 0, out));
    return MX_OK;
}

static mx_status characters(mx_jctx *c, const mx_jtext *s, mx_jlist **out)
{
    MX_TRY(mx_jreserve(c, s->chars * 160));
    mx_jv l = mx_jv_list(c, MX_JV_LIST, s->chars);
    for (size_t at = 0; at < s->n;) {
        int32_t cp;
        int k = mx_juni_next(s->p + at, s->n - at, &cp);
        mx_jv_push(c, l.list, mx_jv_borrow(&c->arena, s->p + at, (size_t)k));
        at += (size_t)k;
    }
    *out = l.list;
    return MX_OK;
}

mx_status mx_jv_items(mx_jctx *c, mx_jv v, mx_jlist **out)
{
    switch (v.kind) {
    case MX_JV_LIST:
    case MX_JV_TUPLE:
        *out = v.list;
        return mx_jcharge(c, v.list->n);
    case MX_JV_GENERATOR:
        *out = MX_NEW(&c->arena, mx_jlist);
        (*out)->v = v.list->v ? v.list->v + v.list->pos : NULL;
        (*out)->n = (*out)->cap = v.list->n - v.list->pos;
        v.list->pos = v.list->n;
        return mx_jcharge(c, (*out)->n);
    case MX_JV_DICT:
        *out = MX_NEW(&c->arena, mx_jlist);
        (*out)->v = v.dict->key;
        (*out)->n = (*out)->cap = v.dict->n;
        return mx_jcharge(c, v.dict->n);
    case MX_JV_STRING:
        MX_TRY(mx_jcharge(c, v.s->n));
        return characters(c, v.s, out);
    case MX_JV_UNDEFINED:
        *out = MX_NEW(&c->arena, mx_jlist);
        return MX_OK;
    default:
        return mx_jerror(c, "'%s' object is not iterable", mx_jv_type(v));
    }
}

mx_status mx_jv_length(mx_jctx *c, mx_jv v, int64_t *out)
{
    switch (v.kind) {
    case MX_JV_STRING:
        *out = (int64_t)v.s->chars;
        return MX_OK;
    case MX_JV_LIST:
    case MX_JV_TUPLE:
        *out = (int64_t)v.list->n;
        return MX_OK;
    case MX_JV_DICT:
        *out = (int64_t)v.dict->n;
        return MX_OK;
    case MX_JV_UNDEFINED:
        *out = 0;
        return MX_OK;
    case MX_JV_LOOP:
        return mx_jerror(c, "use loop.length for the length of a loop");
    default:
        return mx_jerror(c, "object of type '%s' has no length%s", mx_jv_type(v),
                         v.kind == MX_JV_GENERATOR ? "; put |list before" : "");
    }
}
