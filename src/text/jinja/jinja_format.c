/* jinja_format.c - '%s' formatting and str.format, as far as chat templates go.
 *
 *     "%s: %5d %-8s %.2f %x %r %%" % (values)     also the filter: "..."|format(values)
 *     "{} {0} {name} {0:>8} {:.2f} {!r}".format(...)
 * Spec: [[fill]align][sign][0][width][.precision][type], types s d f e g x o b c %. Widths are
 * limited. Attribute and index lookups inside {} are left out: the sandbox restricts them for good
 * reasons.
 */
#include "text/jinja/jinja.h"

#include <stdio.h>
#include <string.h>

enum { MAX_WIDTH = 1000 };

typedef struct {
    char fill[5], align, sign, type;
    int width, precision;
    bool alternate, comma;
} spec;

static void pad(mx_str *out, const char *text, size_t n, const spec *f, char align)
{
    size_t chars = 0;
    for (size_t i = 0; i < n; i++)
        chars += ((unsigned char)text[i] & 0xC0) != 0x80;
    size_t gap = (size_t)f->width > chars ? (size_t)f->width - chars : 0;
    size_t left = align == '>' ? gap : align == '^' ? gap / 2 : 0;
    for (size_t i = 0; i < left; i++)
        mx_str_add(out, f->fill);
    mx_str_add_n(out, text, n);
    for (size_t i = left; i < gap; i++)
        mx_str_add(out, f->fill);
}

static void format_integer(mx_str *num, int64_t i, const spec *f)
{
    uint64_t u = i < 0 ? -(uint64_t)i : (uint64_t)i;
    if (f->type == 'b') {
        int bit = 63;
        while (bit > 0 && !(u >> bit & 1))
            bit--;
        for (; bit >= 0; bit--)
            mx_str_add(num, u >> bit & 1 ? "1" : "0");
        return;
    }
    const char *prefix = f->alternate ? (f->type == 'x'   ? "0x"
                                         : f->type == 'X' ? "0X"
                                         : f->type == 'o' ? "0o"
                                                          : "")
                                      : "";
    mx_str_add(num, prefix);
    char digits[32];
    snprintf(digits, sizeof digits,
             f->type == 'x'   ? "%llx"
             : f->type == 'X' ? "%llX"
             : f->type == 'o' ? "%llo"
                              : "%llu",
             (unsigned long long)u);
    size_t n = strlen(digits);
    for (size_t k = 0; k < n; k++) {
        if (f->comma && k && (n - k) % 3 == 0)
            mx_str_add(num, ",");
        mx_str_add_n(num, &digits[k], 1);
    }
}

static void format_real(mx_str *num, double x, const spec *f)
{
    char form[8] = "%.*f", digits[700];
    form[3] = f->type == '%' ? 'f' : f->type;
    snprintf(digits, sizeof digits, form, f->precision < 0 ? 6 : f->precision,
             (x < 0 ? -x : x) * (f->type == '%' ? 100 : 1));
    const char *dot = strpbrk(digits, ".e");
    size_t whole = dot ? (size_t)(dot - digits) : strlen(digits);
    for (size_t k = 0; digits[k]; k++) {
        if (f->comma && k && k < whole && (whole - k) % 3 == 0)
            mx_str_add(num, ",");
        mx_str_add_n(num, &digits[k], 1);
    }
    if (f->type == '%')
        mx_str_add(num, "%");
}

static mx_status format_number(mx_jctx *c, mx_jv v, const spec *f, mx_str *out)
{
    int64_t i = 0;
    double x = 0;
    bool whole = strchr("dixXob", f->type) != NULL;
    if (!mx_jv_number(v, &x))
        return mx_jerror(c, "format: %%%c needs a number, not %s", f->type, mx_jv_type(v));
    if (whole && !mx_jv_integer(v, &i)) {
        if (!(x > -9e18 && x < 9e18))
            return mx_jerror(c, "format: %%%c of a number out of range", f->type);
        i = (int64_t)x;
    }
    mx_str num = {0};
    bool negative = whole ? i < 0 : x < 0;
    mx_str_add(&num, negative ? "-" : f->sign == '+' ? "+" : f->sign == ' ' ? " " : "");
    size_t lead = num.len;
    if (whole)
        format_integer(&num, i, f);
    else
        format_real(&num, x, f);
    if (f->align == '=') { /* zeros go between the sign and the digits */
        spec rest = *f;
        rest.width = f->width > (int)lead ? f->width - (int)lead : 0;
        mx_str_add_n(out, mx_str_text(&num), lead);
        pad(out, mx_str_text(&num) + lead, num.len - lead, &rest, '>');
    } else {
        pad(out, mx_str_text(&num), num.len, f, f->align ? f->align : '>');
    }
    mx_str_fini(&num);
    return MX_OK;
}

static mx_status format_one(mx_jctx *c, mx_jv v, const spec *f, mx_str *out)
{
    if (f->width > MAX_WIDTH || f->precision > 300)
        return mx_jerror(c, "format: a width of more than %d", MAX_WIDTH);
    MX_TRY(mx_jreserve(c, out->len));
    if (f->type && f->type != 's' && f->type != 'r' && f->type != 'a')
        return format_number(c, v, f, out);
    if (!f->type && v.kind == MX_JV_INT) {
        spec d = *f;
        d.type = 'd';
        return format_number(c, v, &d, out);
    }
    mx_str text = {0};
    mx_status st =
        f->type == 'r' || f->type == 'a' ? mx_jv_repr(c, v, 0, &text) : mx_jv_print(c, v, &text);
    mx_jv s = mx_jv_take(c, &text);
    if (st)
        return st;
    size_t n = f->precision >= 0 ? mx_jtext_offset(s.s, (size_t)f->precision) : s.s->n;
    char align = f->align && f->align != '=' ? f->align : v.kind == MX_JV_FLOAT ? '>' : '<';
    pad(out, s.s->p, n, f, align);
    return MX_OK;
}

static const char *digits(const char *p, const char *end, int *v)
{
    for (*v = 0; p < end && *p >= '0' && *p <= '9'; p++)
        *v = *v > 100000 ? *v : *v * 10 + (*p - '0');
    return p;
}

/* --- the % operator --- */
static mx_status percent(mx_jctx *c, const mx_jtext *fmt, mx_jv args, mx_str *out)
{
    const char *p = fmt->p, *end = p + fmt->n;
    mx_jv one[1] = {args};
    const mx_jv *v = args.kind == MX_JV_TUPLE ? args.list->v : one;
    size_t n = args.kind == MX_JV_TUPLE ? args.list->n : 1, used = 0;
    while (p < end) {
        const char *mark = memchr(p, '%', (size_t)(end - p));
        mx_str_add_n(out, p, (size_t)((mark ? mark : end) - p));
        if (!mark)
            break;
        spec f = {.fill = " ", .align = '>', .precision = -1};
        mx_jv value = {0};
        bool named = false;
        p = mark + 1;
        if (p < end && *p == '(') {
            const char *close = memchr(p, ')', (size_t)(end - p));
            if (!close || args.kind != MX_JV_DICT)
                return mx_jerror(c, "format: %%(name) needs a dict of values");
            MX_TRY(mx_jdict_get(c, args.dict,
                                mx_jv_part(c, p + 1, (size_t)(close - p - 1)), &value,
                                &named));
            if (!named)
                return mx_jerror(c, "format: no value named %.*s", (int)(close - p - 1), p + 1);
            p = close + 1;
        }
        for (; p < end && strchr("-0+ #", *p); p++) {
            f.align = *p == '-' ? '<' : *p == '0' && f.align != '<' ? '=' : f.align;
            f.sign = *p == '+' || *p == ' ' ? *p : f.sign;
            f.alternate |= *p == '#';
        }
        if (f.align == '=')
            f.fill[0] = '0';
        p = digits(p, end, &f.width);
        if (p < end && *p == '.')
            p = digits(p + 1, end, &f.precision);
        if (p >= end)
            return mx_jerror(c, "format: '%%' stands at the end of the text; write %%%%");
        f.type = *p++;
        if (f.type == '%') {
            mx_str_add(out, "%");
            continue;
        }
        if (!strchr("sdiufFeEgGxXora", f.type))
            return mx_jerror(c, "format: unsupported '%%%c'", f.type);
        f.type = f.type == 'i' || f.type == 'u' ? 'd' : f.type;
        if (!named && used >= n)
            return mx_jerror(c, "format: not enough values for the text");
        MX_TRY(format_one(c, named ? value : v[used++], &f, out));
    }
    /* one value that looks like a mapping may go unused, as in Python */
    bool mapping =
        args.kind == MX_JV_DICT || args.kind == MX_JV_LIST || args.kind == MX_JV_UNDEFINED;
    if (used < n && !mapping)
        return mx_jerror(c, "format: not all values were used by the text");
    return MX_OK;
}

mx_status mx_jtext_percent(mx_jctx *c, const mx_jtext *fmt, mx_jv args, mx_jv *out)
{
    mx_str text = {0};
    mx_status st = mx_jcharge(c, fmt->n);
    if (!st)
        st = percent(c, fmt, args, &text);
    *out = mx_jv_take(c, &text);
    return st;
}

/* --- str.format --- */
static const char *parse_spec(const char *p, const char *end, spec *f)
{
    int32_t cp;
    int k = p < end ? mx_juni_next(p, (size_t)(end - p), &cp) : 0;
    if (k && p + k < end && strchr("<>^=", p[k])) {
        memcpy(f->fill, p, (size_t)k);
        f->fill[k] = 0;
        f->align = p[k];
        p += k + 1;
    } else if (p < end && strchr("<>^=", *p)) {
        f->align = *p++;
    }
    if (p < end && strchr("+- ", *p))
        f->sign = *p++;
    if (p < end && *p == '#') {
        f->alternate = true;
        p++;
    }
    if (p < end && *p == '0' && !f->align) {
        f->align = '=';
        f->fill[0] = '0';
    }
    p = digits(p, end, &f->width);
    if (p < end && *p == ',') {
        f->comma = true;
        p++;
    }
    if (p < end && *p == '.')
        p = digits(p + 1, end, &f->precision);
    if (p < end)
        f->type = *p++;
    return p;
}

static mx_status field_value(mx_jctx *c, const char *p, size_t n, const mx_jargs *a, int *next,
                             mx_jv *out)
{
    int index;
    if (n == 0 || digits(p, p + n, &index) == p + n) {
        index = n ? index : (*next)++;
        if (index >= a->n)
            return mx_jerror(c, "format: no value number %d", index);
        *out = a->v[index];
        return MX_OK;
    }
    for (int i = 0; i < a->n_kw; i++)
        if (strlen(a->kw_name[i]) == n && memcmp(a->kw_name[i], p, n) == 0) {
            *out = a->kw[i];
            return MX_OK;
        }
    return mx_jerror(c, "format: no value named %.*s (only names and numbers are supported)",
                     (int)n, p);
}

static mx_status field(mx_jctx *c, const char *p, const char *end, const mx_jargs *a, int *next,
                       mx_str *out)
{
    size_t n = 0;
    while (p + n < end && p[n] != '!' && p[n] != ':')
        n++;
    mx_jv v;
    MX_TRY(field_value(c, p, n, a, next, &v));
    p += n;
    spec f = {.fill = " ", .precision = -1};
    if (p + 1 < end && *p == '!') {
        mx_str text = {0};
        mx_status st = p[1] == 'r' ? mx_jv_repr(c, v, 0, &text) : mx_jv_print(c, v, &text);
        v = mx_jv_take(c, &text);
        MX_TRY(st);
        p += 2;
    }
    if (p < end && *p == ':')
        p = parse_spec(p + 1, end, &f);
    if (p != end || (f.type && !strchr("sdfFeEgGxXob%", f.type)))
        return mx_jerror(c, "format: unsupported format specification");
    return format_one(c, v, &f, out);
}

static mx_status braces(mx_jctx *c, const mx_jtext *fmt, const mx_jargs *a, mx_str *out)
{
    const char *p = fmt->p, *end = p + fmt->n;
    int next = 0;
    while (p < end) {
        if ((*p == '{' || *p == '}') && p + 1 < end && p[1] == *p) {
            mx_str_add_n(out, p, 1);
            p += 2;
        } else if (*p == '{') {
            const char *close = memchr(p, '}', (size_t)(end - p));
            if (!close)
                return mx_jerror(c, "format: '{' without '}'; write {{ for a brace");
            MX_TRY(field(c, p + 1, close, a, &next, out));
            p = close + 1;
        } else if (*p == '}') {
            return mx_jerror(c, "format: '}' without '{'; write }} for a brace");
        } else {
            mx_str_add_n(out, p++, 1);
        }
    }
    return MX_OK;
}

mx_status mx_jtext_format(mx_jctx *c, const mx_jtext *fmt, const mx_jargs *a, mx_jv *out)
{
    mx_str text = {0};
    mx_status st = mx_jcharge(c, fmt->n);
    if (!st)
        st = braces(c, fmt, a, &text);
    *out = mx_jv_take(c, &text);
    return st;
}
