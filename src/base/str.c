/* str.c - growing strings and small string questions. */
#include "base/str.h"

#include "base/arena.h"
#include <errno.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void reserve(mx_str *s, size_t more)
{
    size_t need = s->len + more + 1;
    if (need <= s->cap)
        return;
    s->cap = need > 2 * s->cap ? need : 2 * s->cap;
    s->text = mx_realloc(s->text, s->cap);
}

void mx_str_add_n(mx_str *s, const char *text, size_t n)
{
    reserve(s, n);
    if (n)
        memcpy(s->text + s->len, text, n);
    s->len += n;
    s->text[s->len] = 0;
}

void mx_str_add(mx_str *s, const char *text)
{
    mx_str_add_n(s, text, strlen(text));
}

void mx_str_addv(mx_str *s, const char *fmt, va_list ap)
{
    va_list again;
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    MX_ASSERT(n >= 0);
    reserve(s, (size_t)n);
    vsnprintf(s->text + s->len, (size_t)n + 1, fmt, again);
    s->len += (size_t)n;
    va_end(again);
}

void mx_str_addf(mx_str *s, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    mx_str_addv(s, fmt, ap);
    va_end(ap);
}

const char *mx_str_text(const mx_str *s)
{
    return s->text ? s->text : "";
}

void mx_str_clear(mx_str *s)
{
    s->len = 0;
    if (s->text)
        s->text[0] = 0;
}

void mx_str_fini(mx_str *s)
{
    mx_free(s->text);
    *s = (mx_str){0};
}

bool mx_starts_with(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

bool mx_ends_with(const char *s, const char *suffix)
{
    size_t n = strlen(s), k = strlen(suffix);
    return n >= k && strcmp(s + n - k, suffix) == 0;
}

/* Linear in practice: on a mismatch only the last `*` is retried. */
bool mx_glob_match(const char *pattern, const char *s)
{
    const char *star = NULL, *retry = NULL;
    while (*s) {
        if (*pattern == '*') {
            star = pattern++;
            retry = s;
        } else if (*pattern == '?' || *pattern == *s) {
            pattern++;
            s++;
        } else if (star) {
            pattern = star + 1;
            s = ++retry;
        } else {
            return false;
        }
    }
    while (*pattern == '*')
        pattern++;
    return !*pattern;
}

bool mx_glob_any(const char *patterns, const char *s)
{
    char one[256];
    for (const char *p = patterns; p && *p;) {
        size_t k = strcspn(p, ",");
        snprintf(one, sizeof one, "%.*s", (int)k, p);
        if (mx_glob_match(one, s))
            return true;
        p += k + (p[k] == ',');
    }
    return false;
}

int mx_edit_distance(const char *a, const char *b)
{
    enum { MAX = 128 };
    size_t na = strlen(a), nb = strlen(b);
    if (na >= MAX || nb >= MAX)
        return MAX;
    int row[MAX + 1];
    for (size_t j = 0; j <= nb; j++)
        row[j] = (int)j;
    for (size_t i = 1; i <= na; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= nb; j++) {
            int change = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            int best = row[j] < row[j - 1] ? row[j] + 1 : row[j - 1] + 1;
            row[j] = change < best ? change : best;
        }
    }
    return row[nb];
}

bool mx_parse_i64(const char *s, int64_t *out)
{
    char *end;
    errno = 0;
    long long v = strtoll(s, &end, 10);
    if (end == s || *end || errno)
        return false;
    *out = v;
    return true;
}

bool mx_parse_f64(const char *s, double *out)
{
    /* newlocale once per call would be slow in a loop, but numbers are parsed only at start-up. */
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    char *end;
    errno = 0;
    double v = c ? strtod_l(s, &end, c) : strtod(s, &end);
    if (c)
        freelocale(c);
    if (end == s || *end || errno)
        return false;
    *out = v;
    return true;
}

const char *mx_format_f64(char *buf, size_t cap, double v)
{
    const char *point = localeconv()->decimal_point;
    bool whole = v > -1e15 && v < 1e15 && v == (double)(long long)v;
    for (int digits = 1; digits <= 17; digits++) {
        double back;
        snprintf(buf, cap, whole ? "%.*f" : "%.*g", digits, v);
        char *found = strstr(buf, point);
        if (found && strcmp(point, ".") != 0) {
            memmove(found + 1, found + strlen(point), strlen(found + strlen(point)) + 1);
            *found = '.';
        }
        if (mx_parse_f64(buf, &back) && back == v)
            break;
    }
    return buf;
}

static const char *format_scaled(char *buf, size_t cap, double v, double base,
                                 const char *const *unit)
{
    int k = 0;
    while (v >= base && unit[k + 1]) {
        v /= base;
        k++;
    }
    snprintf(buf, cap,
             k == 0 || v >= 100 ? "%.0f %s"
             : v >= 10          ? "%.1f %s"
                                : "%.2f %s",
             v, unit[k]);
    return buf;
}

const char *mx_format_bytes(char *buf, size_t cap, double bytes)
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", NULL};
    return format_scaled(buf, cap, bytes, 1024, unit);
}

const char *mx_format_count(char *buf, size_t cap, double n)
{
    static const char *const unit[] = {"", "k", "M", "G", "T", "P", NULL};
    return format_scaled(buf, cap, n, 1000, unit);
}
