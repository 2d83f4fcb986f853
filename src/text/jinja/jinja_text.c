/* jinja_text.c - Python's ideas about text, on UTF-8: white space, case, strip, find, replace,
 * slices.
 *
 * Indices count code points. ASCII text (chars == n) is indexed directly, other text by walking it,
 * which the callers charge for. Case is mapped one code point to one (plus German sharp s to SS);
 * the other one-to-many mappings of Unicode are left out, as utf8proc has no table for them.
 */
#include "text/jinja/jinja.h"

#include <string.h>
#include <utf8proc.h>

bool mx_juni_space(int32_t cp)
{
    if (cp < 0x80)
        return (cp >= 9 && cp <= 13) || (cp >= 0x1c && cp <= 0x20);
    return cp == 0x85 || cp == 0xa0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) ||
           cp == 0x2028 || cp == 0x2029 || cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

int mx_juni_next(const char *p, size_t n, int32_t *cp)
{
    const unsigned char *b = (const unsigned char *)p;
    if (b[0] < 0x80 || n < 2) {
        *cp = b[0];
        return 1;
    }
    if (b[0] < 0xe0 || n < 3) {
        *cp = (b[0] & 0x1f) << 6 | (b[1] & 0x3f);
        return 2;
    }
    if (b[0] < 0xf0 || n < 4) {
        *cp = (b[0] & 0xf) << 12 | (b[1] & 0x3f) << 6 | (b[2] & 0x3f);
        return 3;
    }
    *cp = (b[0] & 7) << 18 | (b[1] & 0x3f) << 12 | (b[2] & 0x3f) << 6 | (b[3] & 0x3f);
    return 4;
}

static int32_t previous(const char *p, size_t end, size_t *begin)
{
    int32_t cp;
    size_t k = end - 1;
    while (k > 0 && ((unsigned char)p[k] & 0xC0) == 0x80)
        k--;
    mx_juni_next(p + k, end - k, &cp);
    *begin = k;
    return cp;
}

size_t mx_jtext_offset(const mx_jtext *s, size_t index)
{
    if (s->chars == s->n)
        return index < s->n ? index : s->n;
    size_t at = 0;
    while (index && at < s->n) {
        at++;
        while (at < s->n && ((unsigned char)s->p[at] & 0xC0) == 0x80)
            at++;
        index--;
    }
    return at;
}

static bool in_set(const mx_jtext *set, int32_t cp)
{
    if (!set)
        return mx_juni_space(cp);
    for (size_t at = 0; at < set->n;) {
        int32_t member;
        at += (size_t)mx_juni_next(set->p + at, set->n - at, &member);
        if (member == cp)
            return true;
    }
    return false;
}

mx_jv mx_jtext_strip(mx_jctx *c, const mx_jtext *s, const mx_jtext *set, bool left, bool right)
{
    size_t begin = 0, end = s->n, k;
    int32_t cp;
    while (left && begin < end) {
        k = (size_t)mx_juni_next(s->p + begin, end - begin, &cp);
        if (!in_set(set, cp))
            break;
        begin += k;
    }
    while (right && end > begin) {
        cp = previous(s->p, end, &k);
        if (!in_set(set, cp))
            break;
        end = k;
    }
    return mx_jv_part(c, s->p + begin, end - begin);
}

static void add_cased(mx_str *out, int32_t cp, bool upper)
{
    utf8proc_uint8_t b[4];
    if (upper && cp == 0xdf) {
        mx_str_add(out, "SS");
        return;
    }
    int32_t mapped = upper ? utf8proc_toupper(cp) : utf8proc_tolower(cp);
    mx_str_add_n(out, (char *)b, (size_t)utf8proc_encode_char(mapped, b));
}

static bool is_letter(int32_t cp)
{
    utf8proc_category_t k = utf8proc_category(cp);
    return k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LL || k == UTF8PROC_CATEGORY_LT;
}

/* WORDS is the title filter: a word starts after white space or one of - ( { [ <. TITLE is
 * str.title: a word starts after anything that has no case. */
mx_jv mx_jtext_case(mx_jctx *c, const mx_jtext *s, int how)
{
    mx_str out = {0};
    bool start = true;
    for (size_t at = 0; at < s->n;) {
        int32_t cp;
        at += (size_t)mx_juni_next(s->p + at, s->n - at, &cp);
        bool upper = how == MX_CASE_UPPER;
        if (how == MX_CASE_CAPITALIZE || how == MX_CASE_TITLE || how == MX_CASE_WORDS)
            upper = start;
        else if (how == MX_CASE_SWAP)
            upper = utf8proc_category(cp) == UTF8PROC_CATEGORY_LL;
        add_cased(&out, cp, upper);
        if (how == MX_CASE_TITLE)
            start = !is_letter(cp);
        else if (how == MX_CASE_WORDS)
            start = mx_juni_space(cp) || (cp < 0x80 && cp && strchr("-({[<", cp));
        else
            start = false;
    }
    return mx_jv_take(c, &out);
}

/* Every place with the first byte is compared, and charged: a text and a pattern of equal letters
 * would otherwise take the product of their lengths. */
mx_status mx_jtext_find(mx_jctx *c, const mx_jtext *s, size_t from, const mx_jtext *x,
                        const char **hit)
{
    const char *p = s->p + from, *begin = p, *end = s->p + s->n;
    *hit = NULL;
    if (from > s->n || (size_t)(end - p) < x->n)
        return MX_OK;
    if (!x->n) {
        *hit = p;
        return MX_OK;
    }
    while ((size_t)(end - p) >= x->n && (p = memchr(p, *x->p, (size_t)(end - p) - x->n + 1))) {
        MX_TRY(mx_jcharge(c, 1 + x->n / 16));
        if (memcmp(p, x->p, x->n) == 0) {
            *hit = p;
            break;
        }
        p++;
    }
    return mx_jcharge(c, (size_t)((p ? p : end) - begin) / 16);
}

mx_status mx_jtext_rfind(mx_jctx *c, const mx_jtext *s, const mx_jtext *x, const char **hit)
{
    const char *end = s->p + s->n, *p = x->n <= s->n ? end - x->n + 1 : s->p;
    *hit = NULL;
    while (!*hit && p > s->p) {
        const char *at = x->n ? memrchr(s->p, *x->p, (size_t)(p - s->p)) : p - 1;
        MX_TRY(mx_jcharge(c, 1 + x->n / 16 + (size_t)(p - (at ? at : s->p)) / 16));
        if (at && memcmp(at, x->p, x->n) == 0)
            *hit = at;
        p = at ? at : s->p;
    }
    return MX_OK;
}

/* Python: an empty `from` matches before every character and at the end. */
static mx_status replace_empty(mx_jctx *c, const mx_jtext *s, const mx_jtext *to, int64_t count,
                               mx_jv *out)
{
    mx_str text = {0};
    MX_TRY(mx_jreserve(c, s->n + (s->chars + 1) * to->n));
    MX_TRY(mx_jcharge(c, s->n + (s->chars + 1) * (1 + to->n / 16)));
    for (size_t at = 0; at < s->n || at == 0;) {
        if (count-- > 0)
            mx_str_add_n(&text, to->p, to->n);
        if (at >= s->n)
            break;
        int32_t cp;
        int k = mx_juni_next(s->p + at, s->n - at, &cp);
        mx_str_add_n(&text, s->p + at, (size_t)k);
        at += (size_t)k;
        if (at == s->n && count > 0)
            mx_str_add_n(&text, to->p, to->n);
    }
    *out = mx_jv_take(c, &text);
    return MX_OK;
}

mx_status mx_jtext_replace(mx_jctx *c, const mx_jtext *s, const mx_jtext *from, const mx_jtext *to,
                           int64_t count, mx_jv *out)
{
    if (count < 0)
        count = INT64_MAX;
    if (from->n == 0)
        return replace_empty(c, s, to, count, out);
    MX_TRY(mx_jcharge(c, s->n / 4));
    MX_TRY(mx_jreserve(c, s->n + s->n / from->n * to->n));
    MX_TRY(mx_jcharge(c, s->n / from->n * (to->n / 16)));
    mx_str text = {0};
    mx_status st = MX_OK;
    size_t at = 0;
    while (count-- > 0) {
        const char *hit;
        st = mx_jtext_find(c, s, at, from, &hit);
        if (st || !hit)
            break;
        mx_str_add_n(&text, s->p + at, (size_t)(hit - s->p) - at);
        mx_str_add_n(&text, to->p, to->n);
        at = (size_t)(hit - s->p) + from->n;
    }
    mx_str_add_n(&text, s->p + at, s->n - at);
    *out = mx_jv_take(c, &text);
    return st;
}

/* `n` code points: start, start + step, ... The caller has clipped them to the text. */
mx_status mx_jtext_slice(mx_jctx *c, mx_jv v, int64_t start, int64_t step, int64_t n, mx_jv *out)
{
    const mx_jtext *s = v.s;
    if (n <= 0) {
        *out = mx_jv_part(c, "", 0);
        return MX_OK;
    }
    MX_TRY(mx_jcharge(c, s->chars == s->n ? (size_t)n / 16 : s->n / 4));
    if (step == 1) {
        size_t a = mx_jtext_offset(s, (size_t)start), b = mx_jtext_offset(s, (size_t)(start + n));
        *out = mx_jv_part(c, s->p + a, b - a);
        return MX_OK;
    }
    MX_TRY(mx_jreserve(c, s->chars * sizeof(size_t)));
    size_t *offset = MX_NEW_N(&c->arena, size_t, s->chars + 1), at = 0;
    for (size_t i = 0; i < s->chars; i++) {
        int32_t cp;
        offset[i] = at;
        at += (size_t)mx_juni_next(s->p + at, s->n - at, &cp);
    }
    offset[s->chars] = s->n;
    mx_str text = {0};
    for (int64_t i = 0; i < n; i++) {
        int64_t k = start + i * step;
        mx_str_add_n(&text, s->p + offset[k], offset[k + 1] - offset[k]);
    }
    *out = mx_jv_take(c, &text);
    return MX_OK;
}
