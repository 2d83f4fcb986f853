/* jinja_repr.c - values as text: Python's str and repr, and json.dumps as transformers' tojson
 * calls it.
 *
 *     str:   True  None  1.0  abc     ['a', 1]  {'k': (1,)}   containers print their items by repr
 *     json:  true  null  1.0  "abc"   ["a", 1]  {"k": [1]}    not ASCII only; ", " and ": "
 * With indent, items stand on lines of their own and separators are "," and ": ". Floats are the
 * shortest digits that read back the same, in Python's layout: exponent below 1e-4 and from 1e16.
 */
#include "text/jinja/jinja.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum { VALUE_STEPS = 4 }; /* a number takes as long to write as several nodes to evaluate */

static void jfloat_print(double f, mx_str *out)
{
    if (isnan(f) || isinf(f)) {
        mx_str_add(out, isnan(f) ? "nan" : f > 0 ? "inf" : "-inf");
        return;
    }
    char e[40];
    for (int digits = 0; digits < 17; digits++) {
        snprintf(e, sizeof e, "%.*e", digits, f);
        if (strtod(e, NULL) == f)
            break;
    }
    /* e is "-d.ddde+XX"; take the digits and the exponent apart */
    char digit[24];
    int n = 0, exponent = (int)strtol(strchr(e, 'e') + 1, NULL, 10);
    for (const char *p = e; *p != 'e'; p++)
        if (*p >= '0' && *p <= '9')
            digit[n++] = *p;
    if (signbit(f))
        mx_str_add(out, "-");
    if (exponent < -4 || exponent >= 16) {
        mx_str_add_n(out, digit, 1);
        if (n > 1) {
            mx_str_add(out, ".");
            mx_str_add_n(out, digit + 1, (size_t)n - 1);
        }
        mx_str_addf(out, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    if (exponent < 0)
        mx_str_addf(out, "0.%.*s", -exponent - 1, "000");
    for (int i = 0; i < n || i <= exponent; i++) {
        mx_str_add_n(out, i < n ? &digit[i] : "0", 1);
        if (i == exponent && i + 1 < n)
            mx_str_add(out, ".");
    }
    if (exponent >= 0 && n <= exponent + 1)
        mx_str_add(out, ".0");
}

static bool printable(int32_t cp)
{
    if (cp < 0x7f)
        return cp >= 0x20;
    switch (utf8proc_category(cp)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return false;
    default:
        return true;
    }
}

static void repr_text(const mx_jtext *s, mx_str *out)
{
    bool single = memchr(s->p, '\'', s->n) != NULL, twice = memchr(s->p, '"', s->n) != NULL;
    char quote = single && !twice ? '"' : '\'';
    mx_str_add_n(out, &quote, 1);
    for (size_t at = 0; at < s->n;) {
        int32_t cp;
        int k = mx_juni_next(s->p + at, s->n - at, &cp);
        if (cp == quote || cp == '\\')
            mx_str_addf(out, "\\%c", (char)cp);
        else if (cp == '\n' || cp == '\r' || cp == '\t')
            mx_str_add(out, cp == '\n' ? "\\n" : cp == '\r' ? "\\r" : "\\t");
        else if (printable(cp))
            mx_str_add_n(out, s->p + at, (size_t)k);
        else
            mx_str_addf(out,
                        cp < 0x100     ? "\\x%02x"
                        : cp < 0x10000 ? "\\u%04x"
                                       : "\\U%08x",
                        (unsigned)cp);
        at += (size_t)k;
    }
    mx_str_add_n(out, &quote, 1);
}

static mx_status repr_dict(mx_jctx *c, const mx_jdict *d, int depth, mx_str *out)
{
    mx_str_add(out, "{");
    for (size_t i = 0; i < d->n; i++) {
        mx_str_add(out, i ? ", " : "");
        MX_TRY(mx_jv_repr(c, d->key[i], depth + 1, out));
        mx_str_add(out, ": ");
        MX_TRY(mx_jv_repr(c, d->val[i], depth + 1, out));
    }
    mx_str_add(out, "}");
    return MX_OK;
}

static mx_status repr_list(mx_jctx *c, mx_jv v, int depth, mx_str *out)
{
    bool tuple = v.kind == MX_JV_TUPLE;
    if (v.list->printed) {
        mx_str_add(out, v.list->printed);
        return MX_OK;
    }
    mx_str_add(out, tuple ? "(" : "[");
    for (size_t i = 0; i < v.list->n; i++) {
        mx_str_add(out, i ? ", " : "");
        MX_TRY(mx_jv_repr(c, v.list->v[i], depth + 1, out));
    }
    mx_str_add(out, !tuple ? "]" : v.list->n == 1 ? ",)" : ")");
    return MX_OK;
}

mx_status mx_jv_repr(mx_jctx *c, mx_jv v, int depth, mx_str *out)
{
    MX_TRY(mx_jcharge(c, VALUE_STEPS));
    MX_TRY(mx_jreserve(c, out->len));
    if (depth > c->limits.depth)
        return mx_jerror(c, "a value is nested more than %d deep", c->limits.depth);
    switch (v.kind) {
    case MX_JV_UNDEFINED:
        mx_str_add(out, "Undefined");
        return MX_OK;
    case MX_JV_NONE:
        mx_str_add(out, "None");
        return MX_OK;
    case MX_JV_BOOL:
        mx_str_add(out, v.b ? "True" : "False");
        return MX_OK;
    case MX_JV_INT:
        mx_str_addf(out, "%lld", (long long)v.i);
        return MX_OK;
    case MX_JV_FLOAT:
        jfloat_print(v.f, out);
        return mx_jcharge(c, 32); /* up to 17 conversions there and back */
    case MX_JV_STRING:
        MX_TRY(mx_jcharge(c, v.s->n));
        repr_text(v.s, out);
        return MX_OK;
    case MX_JV_LIST:
    case MX_JV_TUPLE:
        return repr_list(c, v, depth, out);
    case MX_JV_DICT:
        return repr_dict(c, v.dict, depth, out);
    case MX_JV_NAMESPACE:
        mx_str_add(out, "<Namespace ");
        MX_TRY(repr_dict(c, v.dict, depth, out));
        mx_str_add(out, ">");
        return MX_OK;
    default:
        mx_str_addf(out, "<%s>", mx_jv_type(v));
        return MX_OK;
    }
}

mx_status mx_jv_print(mx_jctx *c, mx_jv v, mx_str *out)
{
    if (v.kind == MX_JV_UNDEFINED)
        return MX_OK;
    if (v.kind != MX_JV_STRING)
        return mx_jv_repr(c, v, 0, out);
    MX_TRY(mx_jcharge(c, v.s->n / 16));
    mx_str_add_n(out, v.s->p, v.s->n);
    return MX_OK;
}

mx_status mx_jv_str(mx_jctx *c, mx_jv v, mx_jv *out)
{
    *out = v;
    if (v.kind == MX_JV_STRING)
        return MX_OK;
    mx_str s = {0};
    mx_status st = mx_jv_print(c, v, &s);
    *out = mx_jv_take(c, &s);
    return st;
}

/* --- JSON --- */
typedef struct {
    mx_jctx *c;
    mx_str *out;
    bool ascii, sort, indented;
    mx_str indent, item, key; /* one level of indent, the separators */
} json_style;

static void json_text(const json_style *y, const mx_jtext *s)
{
    static const char plain[] = "\"\\\n\r\t\f\b", named[] = "\"\\nrtfb";
    mx_str_add(y->out, "\"");
    for (size_t at = 0; at < s->n;) {
        int32_t cp;
        int k = mx_juni_next(s->p + at, s->n - at, &cp);
        const char *special = cp && cp < 0x80 ? strchr(plain, cp) : NULL;
        if (special)
            mx_str_addf(y->out, "\\%c", named[special - plain]);
        else if (cp < 0x20)
            mx_str_addf(y->out, "\\u%04x", (unsigned)cp);
        else if (cp < 0x80 || !y->ascii)
            mx_str_add_n(y->out, s->p + at, (size_t)k);
        else if (cp < 0x10000)
            mx_str_addf(y->out, "\\u%04x", (unsigned)cp);
        else
            mx_str_addf(y->out, "\\u%04x\\u%04x", 0xD800u + (((unsigned)cp - 0x10000) >> 10),
                        0xDC00u + (((unsigned)cp - 0x10000) & 0x3FF));
        at += (size_t)k;
    }
    mx_str_add(y->out, "\"");
}

static void json_line(const json_style *y, int level)
{
    if (!y->indented)
        return;
    mx_str_add(y->out, "\n");
    for (int i = 0; i < level; i++)
        mx_str_add_n(y->out, mx_str_text(&y->indent), y->indent.len);
}

static mx_status json_value(const json_style *y, mx_jv v, int level);

static mx_status json_scalar(const json_style *y, mx_jv v)
{
    if (v.kind == MX_JV_NONE || v.kind == MX_JV_BOOL) {
        mx_str_add(y->out, v.kind == MX_JV_NONE ? "null" : v.b ? "true" : "false");
        return MX_OK;
    }
    if (v.kind == MX_JV_FLOAT && !isfinite(v.f)) {
        mx_str_add(y->out, isnan(v.f) ? "NaN" : v.f > 0 ? "Infinity" : "-Infinity");
        return MX_OK;
    }
    return mx_jv_repr(y->c, v, 0, y->out);
}

static mx_status json_key(const json_style *y, mx_jv key)
{
    if (key.kind == MX_JV_STRING) {
        json_text(y, key.s);
        return mx_jcharge(y->c, key.s->n);
    }
    if (key.kind > MX_JV_FLOAT || key.kind == MX_JV_UNDEFINED)
        return mx_jerror(y->c, "tojson: a key must be a string or a number, not %s",
                         mx_jv_type(key));
    mx_str_add(y->out, "\"");
    MX_TRY(json_scalar(y, key));
    mx_str_add(y->out, "\"");
    return MX_OK;
}

static mx_status sorted_keys(mx_jctx *c, const mx_jdict *d, size_t **order)
{
    *order = MX_NEW_N(&c->arena, size_t, d->n);
    for (size_t i = 0; i < d->n; i++) {
        size_t k = i;
        for (int less = -1; k > 0; k--) {
            MX_TRY(mx_jv_order(c, d->key[i], d->key[(*order)[k - 1]], 0, &less));
            if (less >= 0)
                break;
            (*order)[k] = (*order)[k - 1];
        }
        (*order)[k] = i;
    }
    return MX_OK;
}

static mx_status json_dict(const json_style *y, const mx_jdict *d, int level)
{
    size_t *order = NULL;
    if (y->sort)
        MX_TRY(sorted_keys(y->c, d, &order));
    mx_str_add(y->out, "{");
    for (size_t i = 0; i < d->n; i++) {
        size_t k = order ? order[i] : i;
        if (i)
            mx_str_add_n(y->out, mx_str_text(&y->item), y->item.len);
        json_line(y, level + 1);
        MX_TRY(json_key(y, d->key[k]));
        mx_str_add_n(y->out, mx_str_text(&y->key), y->key.len);
        MX_TRY(json_value(y, d->val[k], level + 1));
    }
    if (d->n)
        json_line(y, level);
    mx_str_add(y->out, "}");
    return MX_OK;
}

static mx_status json_value(const json_style *y, mx_jv v, int level)
{
    MX_TRY(mx_jcharge(y->c, VALUE_STEPS + (size_t)level * y->indent.len));
    MX_TRY(mx_jreserve(y->c, y->out->len));
    if (level > y->c->limits.depth)
        return mx_jerror(y->c, "tojson: nested more than %d deep", y->c->limits.depth);
    switch (v.kind) {
    case MX_JV_STRING:
        MX_TRY(mx_jcharge(y->c, v.s->n));
        json_text(y, v.s);
        return MX_OK;
    case MX_JV_LIST:
    case MX_JV_TUPLE:
        mx_str_add(y->out, "[");
        for (size_t i = 0; i < v.list->n; i++) {
            if (i)
                mx_str_add_n(y->out, mx_str_text(&y->item), y->item.len);
            json_line(y, level + 1);
            MX_TRY(json_value(y, v.list->v[i], level + 1));
        }
        if (v.list->n)
            json_line(y, level);
        mx_str_add(y->out, "]");
        return MX_OK;
    case MX_JV_DICT:
        return json_dict(y, v.dict, level);
    case MX_JV_NONE:
    case MX_JV_BOOL:
    case MX_JV_INT:
    case MX_JV_FLOAT:
        return json_scalar(y, v);
    case MX_JV_UNDEFINED:
        return mx_jerror(y->c, "tojson: '%.80s' is undefined", v.hint ? v.hint : "the value");
    default:
        return mx_jerror(y->c, "tojson: object of type %s is not JSON serializable", mx_jv_type(v));
    }
}

static mx_status json_options(json_style *y, const mx_jargs *a)
{
    static const mx_jbuiltin f = {"tojson", NULL, "ensure_ascii indent separators sort_keys"};
    const mx_jv *ascii = mx_jarg(&f, a, 0), *indent = mx_jarg(&f, a, 1),
                *separators = mx_jarg(&f, a, 2);
    const mx_jv *sort = mx_jarg(&f, a, 3);
    int64_t width = 0;
    y->ascii = ascii && mx_jv_truth(*ascii);
    y->sort = sort && mx_jv_truth(*sort);
    y->indented = indent && indent->kind != MX_JV_NONE;
    if (y->indented && indent->kind == MX_JV_STRING) {
        mx_str_add_n(&y->indent, indent->s->p, indent->s->n);
    } else if (y->indented) {
        if (!mx_jv_integer(*indent, &width) || width > 256)
            return mx_jerror(y->c, "tojson: indent must be a string or a number up to 256");
        for (int64_t i = 0; i < width; i++)
            mx_str_add(&y->indent, " ");
    }
    if (separators && separators->kind != MX_JV_NONE) {
        bool two = (separators->kind == MX_JV_TUPLE || separators->kind == MX_JV_LIST) &&
                   separators->list->n == 2 && separators->list->v[0].kind == MX_JV_STRING &&
                   separators->list->v[1].kind == MX_JV_STRING;
        if (!two)
            return mx_jerror(y->c, "tojson: separators must be two strings");
        const mx_jtext *item = separators->list->v[0].s, *key = separators->list->v[1].s;
        mx_str_add_n(&y->item, item->p, item->n);
        mx_str_add_n(&y->key, key->p, key->n);
    } else {
        mx_str_add(&y->item, y->indented ? "," : ", ");
        mx_str_add(&y->key, ": ");
    }
    return MX_OK;
}

mx_status mx_jv_json(mx_jctx *c, mx_jv v, const mx_jargs *a, mx_str *out)
{
    json_style y = {.c = c, .out = out};
    mx_status st = json_options(&y, a);
    mx_jspend(c, (y.indent.len + y.item.len + y.key.len) / 16);
    if (!st)
        st = json_value(&y, v, 0);
    mx_str_fini(&y.indent);
    mx_str_fini(&y.item);
    mx_str_fini(&y.key);
    return st;
}
