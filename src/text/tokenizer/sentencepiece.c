/* sentencepiece.c - normalizing and joining by the rules of the SentencePiece library.
 *
 * Normalizing: at each position a user-defined piece is kept as it is, else the longest match of
 * the charsmap is replaced, else one character is copied (a bad byte becomes U+FFFD). Depending on
 * the model, runs of spaces shrink to one and spaces at the ends go; every space becomes U+2581.
 */
#include "text/tokenizer/sentencepiece.h"

#include "text/tokenizer/decoder.h"
#include "base/utf8.h"

#define MARK "\xE2\x96\x81"

typedef struct {
    const char *s;
    size_t n;
} slice;

/* The length of the user-defined piece at p, or 0. */
static size_t user_defined_at(const mx_sentencepiece *m, const uint8_t *p, size_t n)
{
    return m->user_defined.n ? mx_added_longest(&m->user_defined, p, n) : 0;
}

/* The next unit of input and what it becomes. */
static size_t next_unit(const mx_sentencepiece *m, const uint8_t *p, size_t n, slice *to)
{
    size_t k = user_defined_at(m, p, n);
    if (k) {
        *to = (slice){(const char *)p, k};
        return k;
    }
    const char *s;
    k = mx_charsmap_longest(&m->charsmap, p, n, &s);
    if (k) {
        *to = (slice){s, strlen(s)};
        return k;
    }
    uint32_t cp;
    int c = mx_utf8_decode(p, p + n, &cp);
    *to = c ? (slice){(const char *)p, (size_t)c} : (slice){"\xEF\xBF\xBD", 3};
    return c ? (size_t)c : 1;
}

static void add_escaped(const mx_sentencepiece *m, slice s, mx_str *out)
{
    for (size_t i = 0; i < s.n; i++) {
        if (s.s[i] == ' ' && m->escape_spaces)
            mx_str_add_n(out, MARK, 3);
        else
            mx_str_add_n(out, s.s + i, 1);
    }
}

static void drop_trailing_spaces(const mx_sentencepiece *m, mx_str *out, size_t from)
{
    const char *space = m->escape_spaces ? MARK : " ";
    size_t k = strlen(space);
    while (out->len >= from + k && memcmp(out->text + out->len - k, space, k) == 0)
        out->len -= k;
    if (out->text)
        out->text[out->len] = 0;
}

void mx_sentencepiece_normalize(const mx_sentencepiece *m, const uint8_t *p, size_t n, bool first,
                                mx_str *out)
{
    const uint8_t *end = p + n;
    size_t from = out->len;
    slice s;
    while (m->remove_extra_spaces && p < end) {
        size_t k = next_unit(m, p, (size_t)(end - p), &s);
        if (s.n != 1 || *s.s != ' ')
            break;
        p += k;
    }
    if (p == end)
        return;
    if (first && m->add_dummy_prefix && !m->space_as_suffix)
        add_escaped(m, (slice){" ", 1}, out);
    bool after_space = m->remove_extra_spaces;
    while (p < end) {
        p += next_unit(m, p, (size_t)(end - p), &s);
        while (after_space && s.n && *s.s == ' ')
            s = (slice){s.s + 1, s.n - 1};
        if (s.n) {
            add_escaped(m, s, out);
            after_space = s.s[s.n - 1] == ' ';
        }
        if (!m->remove_extra_spaces)
            after_space = false;
    }
    if (m->remove_extra_spaces)
        drop_trailing_spaces(m, out, from);
    if (m->add_dummy_prefix && m->space_as_suffix)
        add_escaped(m, (slice){" ", 1}, out);
}

static int hex_digit(uint8_t c)
{
    return c <= '9' ? c - '0' : (c | 32) - 'a' + 10;
}

/* A run of byte pieces: characters where they are complete, U+FFFD for each other byte. */
static void add_bytes(const mx_str *bytes, mx_str *out)
{
    const uint8_t *p = (const uint8_t *)mx_str_text(bytes), *end = p + bytes->len;
    while (p < end) {
        uint32_t cp;
        int k = mx_utf8_decode(p, end, &cp);
        mx_str_add_n(out, k ? (const char *)p : "\xEF\xBF\xBD", k ? (size_t)k : 3);
        p += k ? k : 1;
    }
}

static void add_unescaped(const char *s, size_t n, mx_str *out)
{
    const char *end = s + n;
    while (s < end) {
        const char *q = (const char *)mx_find((const uint8_t *)s, (size_t)(end - s), MARK, 3);
        mx_str_add_n(out, s, (size_t)((q ? q : end) - s));
        if (!q)
            break;
        mx_str_add_n(out, " ", 1);
        s = q + 3;
    }
}

void mx_sentencepiece_decode(const mx_sentencepiece *m, const mx_piece *piece, const int32_t *ids,
                             int64_t n, bool skip_special, mx_str *out)
{
    mx_str bytes = {0}, text = {0};
    bool at_start = true, start_seen = false;
    for (int64_t i = 0; i < n; i++) {
        const mx_piece *p = &piece[ids[i]];
        int type = ids[i] < m->n_pieces ? m->type[ids[i]] : MX_SP_CONTROL;
        if (type == MX_SP_BYTE) {
            char c = (char)(hex_digit(p->s[3]) * 16 + hex_digit(p->s[4]));
            mx_str_add_n(&bytes, &c, 1);
            continue;
        }
        add_bytes(&bytes, &text);
        mx_str_clear(&bytes);
        if (start_seen || text.len)
            at_start = false;
        start_seen = false;
        if (type == MX_SP_CONTROL)
            continue;
        if (type == MX_SP_UNKNOWN) {
            if (!skip_special)
                mx_str_add(&text, m->unk_surface);
            continue;
        }
        slice s = {(const char *)p->s, (size_t)p->n};
        if (at_start && (m->add_dummy_prefix || m->remove_extra_spaces) && s.n >= 3 &&
            memcmp(s.s, MARK, 3) == 0) {
            s = (slice){s.s + 3, s.n - 3};
            start_seen = !m->remove_extra_spaces;
        }
        add_unescaped(s.s, s.n, &text);
    }
    add_bytes(&bytes, &text);
    const uint8_t *p = (const uint8_t *)mx_str_text(&text), *end = p + text.len;
    mx_sentencepiece back = {.charsmap = m->denormal};
    while (p < end) {
        slice s;
        p += next_unit(&back, p, (size_t)(end - p), &s);
        mx_str_add_n(out, s.s, s.n);
    }
    mx_str_fini(&bytes);
    mx_str_fini(&text);
}
