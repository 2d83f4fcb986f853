/* jinja_filter_text.c - filters that make text or a number out of one value. */
#include "text/jinja/jinja.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FILTER(fn) static mx_status fn(mx_jctx *c, mx_jv v, const mx_jargs *a, mx_jv *out)
#define ARG(i, names) mx_jarg(&(const mx_jbuiltin){.params = (names)}, a, i)

static mx_status as_text(mx_jctx *c, mx_jv v, const mx_jtext **s)
{
    mx_jv text;
    MX_TRY(mx_jv_str(c, v, &text));
    *s = text.s;
    MX_TRY(mx_jreserve(c, 4 * text.s->n));
    return mx_jcharge(c, text.s->n / 4);
}

static mx_status cased(mx_jctx *c, mx_jv v, int how, mx_jv *out)
{
    const mx_jtext *s;
    MX_TRY(as_text(c, v, &s));
    *out = mx_jtext_case(c, s, how);
    return MX_OK;
}

FILTER(f_upper)
{
    (void)a;
    return cased(c, v, MX_CASE_UPPER, out);
}
FILTER(f_lower)
{
    (void)a;
    return cased(c, v, MX_CASE_LOWER, out);
}
FILTER(f_title)
{
    (void)a;
    return cased(c, v, MX_CASE_WORDS, out);
}
FILTER(f_capitalize)
{
    (void)a;
    return cased(c, v, MX_CASE_CAPITALIZE, out);
}
FILTER(f_string)
{
    (void)a;
    return mx_jv_str(c, v, out);
}

/* The text goes on as a method of the string does it. */
static mx_status method(mx_jctx *c, const char *name, mx_jv v, const mx_jargs *a, mx_jv *out)
{
    mx_jv s;
    MX_TRY(mx_jv_str(c, v, &s));
    return mx_jmethod_find(s, name)->run(c, s, a, out);
}

FILTER(f_trim)
{
    return method(c, "strip", v, a, out);
}

FILTER(f_center)
{
    const mx_jv *width = ARG(0, "width");
    mx_jv eighty = mx_jv_int(80);
    return method(c, "center", v, &(mx_jargs){.v = width ? width : &eighty, .n = 1}, out);
}

FILTER(f_replace)
{
    const mx_jv *count = ARG(2, "old new count");
    const mx_jtext *s, *from, *to;
    int64_t n = -1;
    if (!ARG(0, "old new count") || !ARG(1, "old new count"))
        return mx_jerror(c, "replace needs the old and the new text");
    MX_TRY(as_text(c, v, &s));
    MX_TRY(as_text(c, *ARG(0, "old new count"), &from));
    MX_TRY(as_text(c, *ARG(1, "old new count"), &to));
    if (count && !mx_jv_integer(*count, &n))
        n = -1;
    return mx_jtext_replace(c, s, from, to, n, out);
}

FILTER(f_default)
{
    const mx_jv *other = ARG(0, "default_value boolean"),
                *boolean = ARG(1, "default_value boolean");
    bool use = v.kind == MX_JV_UNDEFINED || (boolean && mx_jv_truth(*boolean) && !mx_jv_truth(v));
    *out = !use ? v : other ? *other : mx_jv_part(c, "", 0);
    return MX_OK;
}

FILTER(f_tojson)
{
    mx_str text = {0};
    mx_status st = mx_jv_json(c, v, a, &text);
    *out = mx_jv_take(c, &text);
    return st;
}

FILTER(f_escape)
{
    const mx_jtext *s;
    (void)a;
    MX_TRY(as_text(c, v, &s));
    mx_str text = {0};
    for (size_t i = 0; i < s->n; i++) {
        char ch = s->p[i];
        const char *to = ch == '&'    ? "&amp;"
                         : ch == '<'  ? "&lt;"
                         : ch == '>'  ? "&gt;"
                         : ch == '"'  ? "&#34;"
                         : ch == '\'' ? "&#39;"
                                      : NULL;
        if (to)
            mx_str_add(&text, to);
        else
            mx_str_add_n(&text, &ch, 1);
    }
    *out = mx_jv_take(c, &text);
    return MX_OK;
}

/* Lines after the first get the indent, unless they are blank; `first` and `blank` include those.
 */
FILTER(f_indent)
{
    static const char params[] = "width first blank";
    const mx_jv *width = ARG(0, params), *first = ARG(1, params), *blank = ARG(2, params);
    const mx_jtext *s;
    mx_jv pad, lines, text;
    int64_t n = 4;
    if (v.kind != MX_JV_STRING)
        return mx_jerror(c, "indent needs a string, not %s", mx_jv_type(v));
    MX_TRY(as_text(c, v, &s));
    if (width && width->kind == MX_JV_STRING) {
        pad = *width;
    } else {
        if (width && !mx_jv_integer(*width, &n))
            return mx_jerror(c, "indent: the width must be a number or a string");
        MX_TRY(mx_jbinary(c, '*', mx_jv_part(c, " ", 1), mx_jv_int(n), &pad));
    }
    /* a last newline survives, because Jinja adds one before it splits */
    MX_TRY(mx_jbinary(c, '+', mx_jv_part(c, s->p, s->n), mx_jv_part(c, "\n", 1),
                      &text));
    MX_TRY(mx_jmethod_find(text, "splitlines")->run(c, text, &(mx_jargs){0}, &lines));
    MX_TRY(mx_jreserve(c, s->n + lines.list->n * (pad.s->n + 1)));
    MX_TRY(mx_jcharge(c, s->n + lines.list->n * (pad.s->n + 1) / 16));
    mx_str r = {0};
    for (size_t i = 0; i < lines.list->n; i++) {
        const mx_jtext *line = lines.list->v[i].s;
        bool indented =
            i == 0 ? first && mx_jv_truth(*first) : line->n || (blank && mx_jv_truth(*blank));
        if (i)
            mx_str_add(&r, "\n");
        if (indented)
            mx_str_add_n(&r, pad.s->p, pad.s->n);
        mx_str_add_n(&r, line->p, line->n);
    }
    *out = mx_jv_take(c, &r);
    return MX_OK;
}

FILTER(f_truncate)
{
    static const char params[] = "length killwords end leeway";
    const mx_jv *len = ARG(0, params), *kill = ARG(1, params), *end = ARG(2, params),
                *lee = ARG(3, params);
    const mx_jtext *s;
    int64_t n = 255, leeway = 5;
    mx_jv tail = end && end->kind == MX_JV_STRING ? *end : mx_jv_part(c, "...", 3), cut;
    if (v.kind != MX_JV_STRING)
        return mx_jerror(c, "truncate needs a string, not %s", mx_jv_type(v));
    MX_TRY(as_text(c, v, &s));
    if ((len && !mx_jv_integer(*len, &n)) ||
        (lee && lee->kind != MX_JV_NONE && !mx_jv_integer(*lee, &leeway)))
        return mx_jerror(c, "truncate: length and leeway must be integers");
    if (n < (int64_t)tail.s->chars || leeway < 0)
        return mx_jerror(c, "truncate: the length is shorter than the end that is added");
    *out = mx_jv_part(c, s->p, s->n);
    if ((int64_t)s->chars - leeway <= n)
        return MX_OK;
    MX_TRY(mx_jtext_slice(c, *out, 0, 1, n - (int64_t)tail.s->chars, &cut));
    const char *space = NULL;
    if (!kill || !mx_jv_truth(*kill))
        MX_TRY(mx_jtext_rfind(c, cut.s, &(mx_jtext){" ", 1, 1}, &space));
    if (space)
        cut = mx_jv_part(c, cut.s->p, (size_t)(space - cut.s->p));
    return mx_jbinary(c, '+', cut, tail, out);
}

FILTER(f_wordcount)
{
    const mx_jtext *s;
    int64_t n = 0;
    bool in_word = false;
    (void)a;
    MX_TRY(as_text(c, v, &s));
    for (size_t i = 0; i < s->n; i++) {
        unsigned char ch = (unsigned char)s->p[i];
        bool word = (ch >= '0' && ch <= '9') || ((ch | 32) >= 'a' && (ch | 32) <= 'z') ||
                    ch == '_' || ch >= 0x80;
        n += word && !in_word;
        in_word = word;
    }
    *out = mx_jv_int(n);
    return MX_OK;
}

FILTER(f_urlencode)
{
    const mx_jtext *s;
    (void)a;
    MX_TRY(as_text(c, v, &s));
    mx_str text = {0};
    for (size_t i = 0; i < s->n; i++) {
        unsigned char ch = (unsigned char)s->p[i];
        bool plain = (ch >= '0' && ch <= '9') || ((ch | 32) >= 'a' && (ch | 32) <= 'z') ||
                     (ch && strchr("_.-~/", ch));
        if (plain)
            mx_str_add_n(&text, s->p + i, 1);
        else
            mx_str_addf(&text, "%%%02X", ch);
    }
    *out = mx_jv_take(c, &text);
    return MX_OK;
}

FILTER(f_format)
{
    const mx_jtext *s;
    MX_TRY(as_text(c, v, &s));
    mx_jv args = mx_jv_list(c, MX_JV_TUPLE, (size_t)a->n);
    for (int i = 0; i < a->n; i++)
        mx_jv_push(c, args.list, a->v[i]);
    if (a->n_kw)
        MX_TRY(mx_jfunction_find("dict")->run(
            c, v, &(mx_jargs){.kw = a->kw, .kw_name = a->kw_name, .n_kw = a->n_kw}, &args));
    return mx_jtext_percent(c, s, args, out);
}

/* --- numbers --- */
/* Python's int() and float() of a string: white space around, underscores between digits. */
static bool number_text(mx_jctx *c, mx_jv v, char buf[64])
{
    mx_jspend(c, v.s->n / 16);
    const mx_jtext *s = mx_jtext_strip(c, v.s, NULL, true, true).s;
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++) {
        if (s->p[i] == '_' && i && i + 1 < s->n)
            continue;
        if (n == 63 || s->p[i] == 0 || (unsigned char)s->p[i] >= 0x80)
            return false;
        buf[n++] = s->p[i];
    }
    buf[n] = 0;
    return n > 0;
}

static bool to_float(mx_jctx *c, mx_jv v, double *x)
{
    char buf[64];
    if (v.kind != MX_JV_STRING)
        return mx_jv_number(v, x);
    if (!number_text(c, v, buf) || strpbrk(buf, "xXpP"))
        return false;
    char *end;
    *x = strtod(buf, &end);
    return end != buf && *end == 0;
}

static bool to_int(mx_jctx *c, mx_jv v, int base, int64_t *i)
{
    char buf[64], *end;
    double x;
    if (mx_jv_integer(v, i))
        return true;
    if (v.kind == MX_JV_STRING && number_text(c, v, buf)) {
        const char *p = buf + (*buf == '-' || *buf == '+');
        int skip =
            *p == '0' && (((p[1] | 32) == 'x' && base == 16) || ((p[1] | 32) == 'o' && base == 8) ||
                          ((p[1] | 32) == 'b' && base == 2))
                ? 2
                : 0;
        errno = 0;
        *i = strtoll(p + skip, &end, base);
        if (end != p + skip && *end == 0 && errno == 0 && p[skip] != '-' && p[skip] != '+') {
            *i = *buf == '-' ? -*i : *i;
            return true;
        }
    }
    if (!to_float(c, v, &x) || !(x > -9.2e18 && x < 9.2e18))
        return false;
    *i = (int64_t)x;
    return true;
}

FILTER(f_int)
{
    const mx_jv *other = ARG(0, "default base"), *base = ARG(1, "default base");
    int64_t i, b = 10;
    if (base && (!mx_jv_integer(*base, &b) || b < 2 || b > 36))
        return mx_jerror(c, "int: the base must be 2 to 36");
    if (v.kind == MX_JV_UNDEFINED)
        return mx_jerror(c, "'%.80s' is undefined and is no number", v.hint ? v.hint : "a value");
    *out = to_int(c, v, (int)b, &i) ? mx_jv_int(i) : other ? *other : mx_jv_int(0);
    return MX_OK;
}

FILTER(f_float)
{
    const mx_jv *other = ARG(0, "default");
    double x;
    if (v.kind == MX_JV_UNDEFINED)
        return mx_jerror(c, "'%.80s' is undefined and is no number", v.hint ? v.hint : "a value");
    *out = to_float(c, v, &x) ? mx_jv_float(x) : other ? *other : mx_jv_float(0);
    return MX_OK;
}

FILTER(f_abs)
{
    int64_t i;
    (void)a;
    if (v.kind == MX_JV_FLOAT)
        *out = mx_jv_float(fabs(v.f));
    else if (mx_jv_integer(v, &i) && i != INT64_MIN)
        *out = mx_jv_int(i < 0 ? -i : i);
    else
        return mx_jerror(c, "abs needs a number, not %s", mx_jv_type(v));
    return MX_OK;
}

FILTER(f_round)
{
    const mx_jv *digits = ARG(0, "precision method"), *how = ARG(1, "precision method");
    int64_t n = 0;
    double x;
    if (!mx_jv_number(v, &x) || (digits && !mx_jv_integer(*digits, &n)) || n < -18 || n > 18)
        return mx_jerror(c, "round needs a number and a precision of at most 18 digits");
    char method = how && how->kind == MX_JV_STRING && how->s->n ? *how->s->p : 'c';
    double scale = pow(10, (double)n);
    if (how && how->kind == MX_JV_STRING && how->s->n && how->s->p[how->s->n - 1] == 'l') {
        *out = mx_jv_float(ceil(x * scale) / scale); /* "ceil" ends in l, "common" in n */
    } else if (method == 'f') {
        *out = mx_jv_float(floor(x * scale) / scale);
    } else if (v.kind != MX_JV_FLOAT && n >= 0) {
        *out = mx_jv_int(v.kind == MX_JV_BOOL ? v.b : v.i);
    } else if (n >= 0) { /* correctly rounded, half to even, through decimal as Python does */
        char buf[400];
        snprintf(buf, sizeof buf, "%.*f", (int)n, x);
        *out = mx_jv_float(strtod(buf, NULL));
    } else {
        x = nearbyint(x * scale) / scale;
        *out = v.kind == MX_JV_FLOAT || fabs(x) > 9e18 ? mx_jv_float(x) : mx_jv_int((int64_t)x);
    }
    return MX_OK;
}

const mx_jbuiltin mx_jfilters_text[] = {
    {"upper", f_upper, ""},
    {"lower", f_lower, ""},
    {"title", f_title, ""},
    {"capitalize", f_capitalize, ""},
    {"string", f_string, ""},
    {"safe", f_string, ""},
    {"trim", f_trim, "chars"},
    {"center", f_center, "width"},
    {"replace", f_replace, "old new count"},
    {"default", f_default, "default_value boolean"},
    {"d", f_default, "default_value boolean"},
    {"tojson", f_tojson, "ensure_ascii indent separators sort_keys"},
    {"escape", f_escape, ""},
    {"e", f_escape, ""},
    {"forceescape", f_escape, ""},
    {"indent", f_indent, "width first blank"},
    {"truncate", f_truncate, "length killwords end leeway"},
    {"wordcount", f_wordcount, ""},
    {"urlencode", f_urlencode, ""},
    {"format", f_format, NULL},
    {"int", f_int, "default base"},
    {"float", f_float, "default"},
    {"abs", f_abs, ""},
    {"round", f_round, "precision method"},
    {0},
};
