/* jinja_method_text.c - methods of strings, as Python has them. */
#include "text/jinja/jinja.h"

#include <string.h>
#include <utf8proc.h>

#define METHOD(fn) static mx_status fn(mx_jctx *c, mx_jv self, const mx_jargs *a, mx_jv *out)

static mx_status want_text(mx_jctx *c, const mx_jv *v, const mx_jtext **out)
{
    if (!v || v->kind != MX_JV_STRING)
        return mx_jerror(c, "a string is needed here, not %s", v ? mx_jv_type(*v) : "nothing");
    *out = v->s;
    return MX_OK;
}

static const mx_jv *arg(const mx_jargs *a, int i, const char *name)
{
    const mx_jbuiltin one = {.params = name};
    return i < a->n
               ? &a->v[i]
               : mx_jarg(&one, &(mx_jargs){.kw = a->kw, .kw_name = a->kw_name, .n_kw = a->n_kw}, 0);
}

static mx_status want_int(mx_jctx *c, const mx_jv *v, int64_t absent, int64_t *out)
{
    *out = absent;
    if (v && v->kind != MX_JV_NONE && !mx_jv_integer(*v, out))
        return mx_jerror(c, "an integer is needed here, not %s", mx_jv_type(*v));
    return MX_OK;
}

static mx_jv slice_of(mx_jctx *c, const char *p, const char *end)
{
    return mx_jv_part(c, p, (size_t)(end - p));
}

/* --- strip, case, affixes --- */
static mx_status strip(mx_jctx *c, mx_jv self, const mx_jargs *a, bool left, bool right, mx_jv *out)
{
    const mx_jtext *set = NULL;
    const mx_jv *chars = arg(a, 0, "chars");
    if (chars && chars->kind != MX_JV_NONE)
        MX_TRY(want_text(c, chars, &set));
    MX_TRY(mx_jcharge(c, self.s->n * (set ? set->chars + 1 : 1) / 4));
    *out = mx_jtext_strip(c, self.s, set, left, right);
    return MX_OK;
}

METHOD(s_strip)
{
    return strip(c, self, a, true, true, out);
}
METHOD(s_lstrip)
{
    return strip(c, self, a, true, false, out);
}
METHOD(s_rstrip)
{
    return strip(c, self, a, false, true, out);
}

static mx_status cased(mx_jctx *c, mx_jv self, int how, mx_jv *out)
{
    MX_TRY(mx_jcharge(c, self.s->n));
    MX_TRY(mx_jreserve(c, 4 * self.s->n));
    *out = mx_jtext_case(c, self.s, how);
    return MX_OK;
}

METHOD(s_upper)
{
    (void)a;
    return cased(c, self, MX_CASE_UPPER, out);
}
METHOD(s_lower)
{
    (void)a;
    return cased(c, self, MX_CASE_LOWER, out);
}
METHOD(s_title)
{
    (void)a;
    return cased(c, self, MX_CASE_TITLE, out);
}
METHOD(s_capitalize)
{
    (void)a;
    return cased(c, self, MX_CASE_CAPITALIZE, out);
}
METHOD(s_swapcase)
{
    (void)a;
    return cased(c, self, MX_CASE_SWAP, out);
}

static bool has_affix(const mx_jtext *s, const mx_jtext *x, bool end)
{
    return x->n <= s->n && memcmp(end ? s->p + s->n - x->n : s->p, x->p, x->n) == 0;
}

static mx_status affix(mx_jctx *c, mx_jv self, const mx_jargs *a, bool end, mx_jv *out)
{
    bool any = false;
    mx_jv s = self;
    int64_t from, n = (int64_t)self.s->chars;
    MX_TRY(want_int(c, a->n > 1 ? &a->v[1] : NULL, 0, &from));
    if (from && !end) {
        from = from < 0 ? (from + n < 0 ? 0 : from + n) : from > n ? n : from;
        MX_TRY(mx_jtext_slice(c, self, from, 1, n - from, &s));
    }
    if (a->n && a->v[0].kind == MX_JV_TUPLE) {
        for (size_t i = 0; i < a->v[0].list->n; i++) {
            const mx_jtext *x;
            MX_TRY(want_text(c, &a->v[0].list->v[i], &x));
            MX_TRY(mx_jcharge(c, 1 + x->n / 16));
            any |= has_affix(s.s, x, end);
        }
    } else {
        const mx_jtext *x;
        MX_TRY(want_text(c, a->n ? &a->v[0] : NULL, &x));
        MX_TRY(mx_jcharge(c, x->n / 16));
        any = has_affix(s.s, x, end);
    }
    *out = mx_jv_bool(any);
    return MX_OK;
}

METHOD(s_startswith)
{
    return affix(c, self, a, false, out);
}
METHOD(s_endswith)
{
    return affix(c, self, a, true, out);
}

static mx_status remove_affix(mx_jctx *c, mx_jv self, const mx_jargs *a, bool end, mx_jv *out)
{
    const mx_jtext *x, *s = self.s;
    MX_TRY(want_text(c, a->n ? &a->v[0] : NULL, &x));
    MX_TRY(mx_jcharge(c, x->n / 16));
    *out = self;
    if (has_affix(s, x, end))
        *out = end ? slice_of(c, s->p, s->p + s->n - x->n) : slice_of(c, s->p + x->n, s->p + s->n);
    return MX_OK;
}

METHOD(s_removeprefix)
{
    return remove_affix(c, self, a, false, out);
}
METHOD(s_removesuffix)
{
    return remove_affix(c, self, a, true, out);
}

METHOD(s_replace)
{
    const mx_jtext *from, *to;
    int64_t count;
    MX_TRY(want_text(c, arg(a, 0, "old"), &from));
    MX_TRY(want_text(c, arg(a, 1, "new"), &to));
    MX_TRY(want_int(c, arg(a, 2, "count"), -1, &count));
    return mx_jtext_replace(c, self.s, from, to, count, out);
}

/* --- split --- */
static mx_status split_space(mx_jctx *c, const mx_jtext *s, int64_t max, bool from_right,
                             mx_jv *out)
{
    const char *p = s->p, *end = p + s->n;
    *out = mx_jv_list(c, MX_JV_LIST, 0);
    if (from_right && max >= 0)
        return mx_jerror(c,
                         "rsplit by white space with a limit is not supported; give a separator");
    while (p < end) {
        int32_t cp;
        int k = mx_juni_next(p, (size_t)(end - p), &cp);
        if (mx_juni_space(cp)) {
            p += k;
            continue;
        }
        if (max >= 0 && (int64_t)out->list->n == max) {
            mx_jv rest = slice_of(c, p, end);
            mx_jv_push(c, out->list, mx_jtext_strip(c, rest.s, NULL, false, true));
            break;
        }
        const char *word = p;
        while (p < end && (k = mx_juni_next(p, (size_t)(end - p), &cp), !mx_juni_space(cp)))
            p += k;
        mx_jv_push(c, out->list, slice_of(c, word, p));
        MX_TRY(mx_jreserve(c, 0));
    }
    return MX_OK;
}

static void reverse(mx_jlist *l)
{
    for (size_t i = 0; i < l->n / 2; i++) {
        mx_jv t = l->v[i];
        l->v[i] = l->v[l->n - 1 - i];
        l->v[l->n - 1 - i] = t;
    }
}

static mx_status split(mx_jctx *c, mx_jv self, const mx_jargs *a, bool from_right, mx_jv *out)
{
    const mx_jtext *sep = NULL, *s = self.s;
    const mx_jv *given = arg(a, 0, "sep");
    int64_t max;
    MX_TRY(want_int(c, arg(a, 1, "maxsplit"), -1, &max));
    MX_TRY(mx_jcharge(c, s->n));
    if (!given || given->kind == MX_JV_NONE)
        return split_space(c, s, max, from_right, out);
    MX_TRY(want_text(c, given, &sep));
    if (sep->n == 0)
        return mx_jerror(c, "split: the separator is empty");
    *out = mx_jv_list(c, MX_JV_LIST, 0);
    mx_jtext rest = *s;
    while (max < 0 || (int64_t)out->list->n < max) {
        const char *hit;
        MX_TRY(from_right && max >= 0 ? mx_jtext_rfind(c, &rest, sep, &hit)
                                      : mx_jtext_find(c, &rest, 0, sep, &hit));
        if (!hit)
            break;
        if (from_right && max >= 0) {
            mx_jv_push(c, out->list, slice_of(c, hit + sep->n, rest.p + rest.n));
            rest.n = (size_t)(hit - rest.p);
        } else {
            mx_jv_push(c, out->list, slice_of(c, rest.p, hit));
            rest.n -= (size_t)(hit - rest.p) + sep->n;
            rest.p = hit + sep->n;
        }
        MX_TRY(mx_jreserve(c, 0));
    }
    mx_jv_push(c, out->list, slice_of(c, rest.p, rest.p + rest.n));
    if (from_right && max >= 0)
        reverse(out->list);
    return MX_OK;
}

METHOD(s_split)
{
    return split(c, self, a, false, out);
}
METHOD(s_rsplit)
{
    return split(c, self, a, true, out);
}

METHOD(s_splitlines)
{
    const mx_jv *keep = arg(a, 0, "keepends");
    const char *p = self.s->p, *end = p + self.s->n, *line = p;
    *out = mx_jv_list(c, MX_JV_LIST, 0);
    MX_TRY(mx_jcharge(c, self.s->n));
    while (p < end) {
        int32_t cp;
        const char *at = p;
        p += mx_juni_next(p, (size_t)(end - p), &cp);
        bool eol = (cp >= 10 && cp <= 13) || (cp >= 0x1c && cp <= 0x1e) || cp == 0x85 ||
                   cp == 0x2028 || cp == 0x2029;
        if (!eol)
            continue;
        if (cp == '\r' && p < end && *p == '\n')
            p++;
        mx_jv_push(c, out->list, slice_of(c, line, keep && mx_jv_truth(*keep) ? p : at));
        line = p;
        MX_TRY(mx_jreserve(c, 0));
    }
    if (line < end)
        mx_jv_push(c, out->list, slice_of(c, line, end));
    return MX_OK;
}

static mx_status partition(mx_jctx *c, mx_jv self, const mx_jargs *a, bool right, mx_jv *out)
{
    const mx_jtext *sep, *s = self.s;
    MX_TRY(want_text(c, arg(a, 0, "sep"), &sep));
    MX_TRY(mx_jcharge(c, s->n));
    if (sep->n == 0)
        return mx_jerror(c, "partition: the separator is empty");
    const char *hit;
    MX_TRY(right ? mx_jtext_rfind(c, s, sep, &hit) : mx_jtext_find(c, s, 0, sep, &hit));
    mx_jv empty = mx_jv_part(c, "", 0), part[3] = {self, empty, empty};
    if (hit) {
        part[0] = slice_of(c, s->p, hit);
        part[1] = slice_of(c, hit, hit + sep->n);
        part[2] = slice_of(c, hit + sep->n, s->p + s->n);
    } else if (right) {
        part[0] = empty;
        part[2] = self;
    }
    *out = mx_jv_list(c, MX_JV_TUPLE, 3);
    for (int i = 0; i < 3; i++)
        mx_jv_push(c, out->list, part[i]);
    return MX_OK;
}

METHOD(s_partition)
{
    return partition(c, self, a, false, out);
}
METHOD(s_rpartition)
{
    return partition(c, self, a, true, out);
}

/* --- searching --- */
static mx_status search(mx_jctx *c, mx_jv self, const mx_jargs *a, bool right, bool must,
                        mx_jv *out)
{
    const mx_jtext *x, *s = self.s;
    int64_t from;
    MX_TRY(want_text(c, a->n ? &a->v[0] : NULL, &x));
    MX_TRY(want_int(c, a->n > 1 ? &a->v[1] : NULL, 0, &from));
    MX_TRY(mx_jcharge(c, s->n));
    from += from < 0 ? (int64_t)s->chars : 0;
    const char *hit;
    size_t at = right ? 0 : mx_jtext_offset(s, from > 0 ? (size_t)from : 0);
    MX_TRY(right ? mx_jtext_rfind(c, s, x, &hit) : mx_jtext_find(c, s, at, x, &hit));
    if (!hit && must)
        return mx_jerror(c, "index: substring not found");
    *out = mx_jv_int(hit ? (int64_t)slice_of(c, s->p, hit).s->chars : -1);
    return MX_OK;
}

METHOD(s_find)
{
    return search(c, self, a, false, false, out);
}
METHOD(s_rfind)
{
    return search(c, self, a, true, false, out);
}
METHOD(s_index)
{
    return search(c, self, a, false, true, out);
}

METHOD(s_count)
{
    const mx_jtext *x;
    int64_t n = 0;
    MX_TRY(want_text(c, a->n ? &a->v[0] : NULL, &x));
    MX_TRY(mx_jcharge(c, self.s->n));
    if (x->n == 0)
        n = (int64_t)self.s->chars + 1;
    else
        for (const char *hit = self.s->p; hit; n++, hit += x->n) {
            MX_TRY(mx_jtext_find(c, self.s, (size_t)(hit - self.s->p), x, &hit));
            if (!hit)
                break;
        }
    *out = mx_jv_int(n);
    return MX_OK;
}

METHOD(s_join)
{
    mx_jlist *items;
    mx_str text = {0};
    if (a->n < 1)
        return mx_jerror(c, "join needs the strings to join");
    MX_TRY(mx_jv_items(c, a->v[0], &items));
    mx_status st = MX_OK;
    for (size_t i = 0; !st && i < items->n; i++) {
        const mx_jtext *x = NULL;
        st = want_text(c, &items->v[i], &x);
        if (!st)
            st = mx_jreserve(c, text.len + x->n + self.s->n);
        if (!st)
            st = mx_jcharge(c, (x->n + self.s->n) / 16);
        if (st)
            break;
        if (i)
            mx_str_add_n(&text, self.s->p, self.s->n);
        mx_str_add_n(&text, x->p, x->n);
    }
    *out = mx_jv_take(c, &text);
    return st;
}

/* --- padding --- */
static mx_status pad(mx_jctx *c, mx_jv self, const mx_jargs *a, char side, mx_jv *out)
{
    int64_t width;
    const mx_jtext *fill = mx_jv_part(c, side == 'z' ? "0" : " ", 1).s;
    MX_TRY(want_int(c, a->n ? &a->v[0] : NULL, 0, &width));
    if (a->n > 1 && side != 'z')
        MX_TRY(want_text(c, &a->v[1], &fill));
    if (fill->chars != 1)
        return mx_jerror(c, "the fill must be one character");
    size_t chars = self.s->chars, gap = width > (int64_t)chars ? (size_t)width - chars : 0;
    MX_TRY(mx_jreserve(c, gap > SIZE_MAX / 8 ? SIZE_MAX : gap * fill->n));
    MX_TRY(mx_jcharge(c, gap));
    size_t left = side == 'l'   ? 0
                  : side == 'c' ? gap / 2 + (gap & (size_t)width & 1)
                                : gap,
           sign = 0;
    mx_str text = {0};
    if (side == 'z' && self.s->n && (*self.s->p == '-' || *self.s->p == '+'))
        mx_str_add_n(&text, self.s->p, sign = 1);
    for (size_t i = 0; i < left; i++)
        mx_str_add_n(&text, fill->p, fill->n);
    mx_str_add_n(&text, self.s->p + sign, self.s->n - sign);
    for (size_t i = left; i < gap; i++)
        mx_str_add_n(&text, fill->p, fill->n);
    *out = mx_jv_take(c, &text);
    return MX_OK;
}

METHOD(s_ljust)
{
    return pad(c, self, a, 'l', out);
}
METHOD(s_rjust)
{
    return pad(c, self, a, 'r', out);
}
METHOD(s_center)
{
    return pad(c, self, a, 'c', out);
}
METHOD(s_zfill)
{
    return pad(c, self, a, 'z', out);
}
METHOD(s_format)
{
    return mx_jtext_format(c, self.s, a, out);
}

/* --- what kind of characters --- */
enum { ALPHA = 1, DIGIT = 2, SPACE = 4 };

static mx_status all_of(mx_jctx *c, mx_jv self, int kinds, mx_jv *out)
{
    bool all = self.s->n > 0;
    MX_TRY(mx_jcharge(c, self.s->n));
    for (size_t at = 0; all && at < self.s->n;) {
        int32_t cp;
        at += (size_t)mx_juni_next(self.s->p + at, self.s->n - at, &cp);
        utf8proc_category_t k = utf8proc_category(cp);
        all = ((kinds & ALPHA) && k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO) ||
              ((kinds & DIGIT) && k == UTF8PROC_CATEGORY_ND) ||
              ((kinds & SPACE) && mx_juni_space(cp));
    }
    *out = mx_jv_bool(all);
    return MX_OK;
}

METHOD(s_isalpha)
{
    (void)a;
    return all_of(c, self, ALPHA, out);
}
METHOD(s_isdigit)
{
    (void)a;
    return all_of(c, self, DIGIT, out);
}
METHOD(s_isalnum)
{
    (void)a;
    return all_of(c, self, ALPHA | DIGIT, out);
}
METHOD(s_isspace)
{
    (void)a;
    return all_of(c, self, SPACE, out);
}
METHOD(s_isupper)
{
    return mx_jtest_find("upper")->run(c, self, a, out);
}
METHOD(s_islower)
{
    return mx_jtest_find("lower")->run(c, self, a, out);
}

const mx_jbuiltin mx_jstring_methods[] = {
    {"strip", s_strip, "chars"},
    {"lstrip", s_lstrip, "chars"},
    {"rstrip", s_rstrip, "chars"},
    {"split", s_split, "sep maxsplit"},
    {"rsplit", s_rsplit, "sep maxsplit"},
    {"splitlines", s_splitlines, "keepends"},
    {"startswith", s_startswith, "prefix start"},
    {"endswith", s_endswith, "suffix"},
    {"replace", s_replace, "old new count"},
    {"upper", s_upper, ""},
    {"lower", s_lower, ""},
    {"title", s_title, ""},
    {"capitalize", s_capitalize, ""},
    {"swapcase", s_swapcase, ""},
    {"casefold", s_lower, ""},
    {"find", s_find, "sub start"},
    {"rfind", s_rfind, "sub"},
    {"index", s_index, "sub start"},
    {"count", s_count, "sub"},
    {"join", s_join, "iterable"},
    {"removeprefix", s_removeprefix, "prefix"},
    {"removesuffix", s_removesuffix, "suffix"},
    {"partition", s_partition, "sep"},
    {"rpartition", s_rpartition, "sep"},
    {"ljust", s_ljust, "width fill"},
    {"rjust", s_rjust, "width fill"},
    {"center", s_center, "width fill"},
    {"zfill", s_zfill, "width"},
    {"format", s_format, NULL},
    {"isalpha", s_isalpha, ""},
    {"isdigit", s_isdigit, ""},
    {"isnumeric", s_isdigit, ""},
    {"isdecimal", s_isdigit, ""},
    {"isalnum", s_isalnum, ""},
    {"isspace", s_isspace, ""},
    {"isupper", s_isupper, ""},
    {"islower", s_islower, ""},
    {0},
};
