/* charsmap.c - walking the double array. */
#include "text/tokenizer/charsmap.h"

#include "base/utf8.h"
#include <string.h>
#include <utf8proc.h>

static uint32_t load32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

mx_status mx_charsmap_init(mx_charsmap *m, const uint8_t *blob, size_t n, const char *where)
{
    *m = (mx_charsmap){0};
    if (!n)
        return MX_OK;
    uint32_t bytes = n >= 4 ? load32(blob) : 0;
    if (n < 4 || bytes % 4 || bytes > n - 4 || bytes < 4 || blob[n - 1] != 0)
        return mx_fail(MX_INPUT,
                       "%s: the normalization map of %zu bytes is damaged (its trie claims %u "
                       "bytes); get the file again",
                       where, n, bytes);
    *m = (mx_charsmap){blob + 4, bytes / 4, (const char *)blob + 4 + bytes, n - 4 - bytes};
    return MX_OK;
}

static uint32_t unit_at(const mx_charsmap *m, size_t i)
{
    return load32(m->trie + 4 * i);
}

static size_t offset_of(uint32_t unit)
{
    return (size_t)(unit >> 10) << ((unit & 1u << 9) >> 6);
}

size_t mx_charsmap_longest(const mx_charsmap *m, const uint8_t *p, size_t n, const char **to)
{
    size_t best = 0;
    if (!m->n_units)
        return 0;
    size_t at = offset_of(unit_at(m, 0));
    for (size_t i = 0; i < n; i++) {
        at ^= p[i];
        if (at >= m->n_units || !p[i])
            break;
        uint32_t unit = unit_at(m, at);
        if ((unit & (1u << 31 | 0xFF)) != p[i])
            break;
        at ^= offset_of(unit);
        if (!(unit >> 8 & 1))
            continue;
        if (at >= m->n_units)
            break;
        uint32_t value = unit_at(m, at) & 0x7FFFFFFF;
        if (value >= m->n_strings)
            break;
        best = i + 1;
        *to = m->strings + value;
    }
    return best;
}

static bool replace(const mx_charsmap *m, const uint8_t *p, size_t n, mx_str *out)
{
    const char *to;
    /* The library looks for the shortest key that is a prefix and takes its value for the whole. */
    for (size_t k = 1; k <= n; k++)
        if (mx_charsmap_longest(m, p, k, &to) == k) {
            mx_str_add(out, to);
            return true;
        }
    return false;
}

void mx_charsmap_run_graphemes(const mx_charsmap *m, const uint8_t *p, size_t n, mx_str *out)
{
    const uint8_t *end = p + n;
    while (p < end) {
        utf8proc_int32_t state = 0;
        uint32_t cp, next;
        const uint8_t *q = p + mx_utf8_next(p, &cp);
        while (q < end) {
            int k = mx_utf8_next(q, &next);
            if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)cp, (utf8proc_int32_t)next,
                                                 &state))
                break;
            cp = next;
            q += k;
        }
        if (q - p < 6 && replace(m, p, (size_t)(q - p), out)) {
            p = q;
            continue;
        }
        while (p < q) {
            size_t k = (size_t)mx_utf8_next(p, &cp);
            if (!replace(m, p, k, out))
                mx_str_add_n(out, (const char *)p, k);
            p += k;
        }
    }
}
