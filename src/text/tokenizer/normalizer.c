/* normalizer.c - each step reads one buffer and appends to the other. */
#include "text/tokenizer/normalizer.h"

#include <string.h>

static void strip(const mx_norm_step *z, const mx_unicode *u, const uint8_t *p, size_t n,
                  mx_str *out)
{
    const uint8_t *end = p + n;
    int k;
    while (z->left && p < end && (mx_uc_at(u, p, &k) & MX_UC_SPACE))
        p += k;
    while (z->right && p < end) {
        const uint8_t *q = end - 1;
        while (q > p && (*q & 0xC0) == 0x80)
            q--;
        if (!(mx_uc_at(u, q, &k) & MX_UC_SPACE))
            break;
        end = q;
    }
    mx_str_add_n(out, (const char *)p, (size_t)(end - p));
}

static void strip_accents(const mx_unicode *u, const uint8_t *p, size_t n, mx_str *out)
{
    int k;
    for (const uint8_t *end = p + n; p < end; p += k)
        if (!(mx_uc_at(u, p, &k) & MX_UC_M))
            mx_str_add_n(out, (const char *)p, (size_t)k);
}

static bool replace_string(const mx_norm_step *z, const uint8_t *p, size_t n, size_t limit,
                           mx_str *out)
{
    const uint8_t *end = p + n;
    while (p < end && z->n_find && out->len <= limit) {
        const uint8_t *q = mx_find(p, (size_t)(end - p), z->find, z->n_find);
        if (!q)
            break;
        mx_str_add_n(out, (const char *)p, (size_t)(q - p));
        mx_str_add_n(out, z->content, z->n_content);
        p = q + z->n_find;
    }
    mx_str_add_n(out, (const char *)p, (size_t)(end - p));
    return out->len <= limit;
}

static bool replace_regex(const mx_norm_step *z, mx_regex_scratch *s, const uint8_t *p, size_t n,
                          size_t limit, mx_str *out)
{
    size_t done = 0, at = 0, start, end;
    while (at <= n && out->len <= limit) {
        mx_regex_result r = mx_regex_next(z->regex, s, p, n, at, &start, &end);
        if (r == MX_REGEX_GAVE_UP)
            return false;
        if (r == MX_REGEX_NONE)
            break;
        mx_str_add_n(out, (const char *)p + done, start - done);
        mx_str_add_n(out, z->content, z->n_content);
        done = at = end;
        if (start == end) { /* an empty match: step over one character */
            if (end >= n)
                break;
            uint32_t cp;
            at += (size_t)mx_utf8_next(p + end, &cp);
        }
    }
    mx_str_add_n(out, (const char *)p + done, n - done);
    return out->len <= limit;
}

static void nmt(const uint8_t *p, size_t n, mx_str *out)
{
    for (const uint8_t *end = p + n; p < end;) {
        uint32_t cp;
        int k = mx_utf8_next(p, &cp);
        bool drop = (cp >= 1 && cp <= 8) || cp == 0xB || (cp >= 0xE && cp <= 0x1F) || cp == 0x7F ||
                    cp == 0x8F || cp == 0x9F;
        bool space = cp == 9 || cp == 0xA || cp == 0xC || cp == 0xD || cp == 0x1680 ||
                     (cp >= 0x200B && cp <= 0x200F) || cp == 0x2028 || cp == 0x2029 ||
                     cp == 0x2581 || cp == 0xFEFF || cp == 0xFFFD;
        if (space)
            mx_str_add_n(out, " ", 1);
        else if (!drop)
            mx_str_add_n(out, (const char *)p, (size_t)k);
        p += k;
    }
}

typedef struct {
    const mx_unicode *unicode;
    mx_regex_scratch *regex;
    size_t limit; /* of the bytes of a result */
} run;

static bool run_step(const mx_norm_step *z, const run *r, const uint8_t *p, size_t n, mx_str *out)
{
    const mx_unicode *u = r->unicode;
    switch (z->kind) {
    case MX_NORM_FORM:
        mx_unicode_normalize(z->form, p, n, out);
        break;
    case MX_NORM_LOWER:
        mx_unicode_lower(p, n, out);
        break;
    case MX_NORM_STRIP:
        strip(z, u, p, n, out);
        break;
    case MX_NORM_STRIP_ACCENTS:
        strip_accents(u, p, n, out);
        break;
    case MX_NORM_PREPEND:
        if (n)
            mx_str_add_n(out, z->content, z->n_content);
        mx_str_add_n(out, (const char *)p, n);
        break;
    case MX_NORM_REPLACE:
        return z->regex ? replace_regex(z, r->regex, p, n, r->limit, out)
                        : replace_string(z, p, n, r->limit, out);
    case MX_NORM_CHARSMAP:
        mx_charsmap_run_graphemes(&z->charsmap, p, n, out);
        break;
    case MX_NORM_NMT:
        nmt(p, n, out);
        break;
    }
    return out->len <= r->limit;
}

const mx_str *mx_normalizer_run(const mx_normalizer *z, const mx_unicode *u, mx_regex_scratch *s,
                                const uint8_t *p, size_t n, mx_str buf[2])
{
    int to = 0;
    run r = {u, s, mx_text_limit(n)};
    for (int i = 0; i < z->n; i++, to ^= 1) {
        mx_str_clear(&buf[to]);
        if (!run_step(&z->step[i], &r, p, n, &buf[to]))
            return NULL;
        p = (const uint8_t *)mx_str_text(&buf[to]);
        n = buf[to].len;
    }
    return &buf[to ^ 1];
}

void mx_normalizer_fini(mx_normalizer *z)
{
    for (int i = 0; i < z->n; i++)
        mx_regex_close(z->step[i].regex);
    *z = (mx_normalizer){0};
}
