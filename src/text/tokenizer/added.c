/* added.c - a sorted array narrowed byte by byte serves as the trie; most texts never get past the
 * scan for first bytes, which goes 16 bytes a step. */
#include "text/tokenizer/added.h"

#include <stdlib.h>
#include <string.h>

void mx_added_put(mx_added_set *s, mx_added token)
{
    if (!token.n)
        return;
    MX_GROW(s->token, s->n, s->cap);
    s->token[s->n++] = token;
}

static int by_bytes(const void *x, const void *y)
{
    const mx_added *a = x, *b = y;
    int d = memcmp(a->s, b->s, a->n < b->n ? a->n : b->n);
    return d ? d : a->n < b->n ? -1 : a->n > b->n ? 1 : a->id < b->id ? -1 : a->id > b->id;
}

void mx_added_finish(mx_added_set *s)
{
    if (!s->n)
        return;
    qsort(s->token, (size_t)s->n, sizeof *s->token, by_bytes);
    for (int i = 0; i < s->n; i++) {
        uint8_t c = s->token[i].s[0];
        if (!s->first[c]) {
            s->first[c] = true;
            if (s->n_start >= 0 && s->n_start < 4)
                s->start[s->n_start++] = c;
            else
                s->n_start = -1;
        }
    }
    if (s->n_start < 0)
        s->n_start = 0;
    for (int i = s->n_start; i < 4; i++)
        s->start[i] = s->start[0];
}

void mx_added_fini(mx_added_set *s)
{
    mx_free(s->token);
    *s = (mx_added_set){0};
}

typedef uint8_t lane __attribute__((vector_size(16)));

static size_t next_candidate(const mx_added_set *s, const uint8_t *p, size_t i, size_t n)
{
    if (s->n_start) {
        lane a = {0}, b = a, c = a, d = a, v;
        a += s->start[0];
        b += s->start[1];
        c += s->start[2];
        d += s->start[3];
        for (; n - i >= 16; i += 16) {
            memcpy(&v, p + i, 16);
            lane hit = (lane)(v == a) | (lane)(v == b) | (lane)(v == c) | (lane)(v == d);
            uint64_t w[2];
            memcpy(w, &hit, 16);
            if (w[0] | w[1])
                break;
        }
    }
    while (i < n && !s->first[p[i]])
        i++;
    return i;
}

/* The longest token at p, or NULL. */
static const mx_added *longest_at(const mx_added_set *s, const uint8_t *p, size_t n)
{
    const mx_added *best = NULL;
    int lo = 0, hi = s->n;
    for (uint32_t d = 0; d < n; d++) {
        int a = lo, b = hi;
        while (a < b) { /* first token whose byte d is at least p[d] */
            int mid = (a + b) / 2;
            if (s->token[mid].n > d && s->token[mid].s[d] >= p[d])
                b = mid;
            else
                a = mid + 1;
        }
        lo = a;
        b = hi;
        while (a < b) {
            int mid = (a + b) / 2;
            if (s->token[mid].s[d] > p[d])
                b = mid;
            else
                a = mid + 1;
        }
        hi = a;
        if (lo == hi)
            break;
        if (s->token[lo].n == d + 1)
            best = &s->token[lo];
    }
    return best;
}

size_t mx_added_longest(const mx_added_set *s, const uint8_t *p, size_t n)
{
    const mx_added *t = n && s->first[*p] ? longest_at(s, p, n) : NULL;
    return t ? t->n : 0;
}

static const uint8_t *previous(const uint8_t *text, const uint8_t *p)
{
    do
        p--;
    while (p > text && (*p & 0xC0) == 0x80);
    return p;
}

static bool word_around(const mx_unicode *u, const uint8_t *text, size_t n, size_t start,
                        size_t stop)
{
    uint32_t cp;
    if (start > 0) {
        mx_utf8_next(previous(text, text + start), &cp);
        if (mx_uc_is_word(u, cp))
            return true;
    }
    if (stop < n) {
        mx_utf8_next(text + stop, &cp);
        return mx_uc_is_word(u, cp);
    }
    return false;
}

bool mx_added_next(const mx_added_set *s, const mx_unicode *u, const uint8_t *text, size_t n,
                   size_t from, size_t *resume, bool parse_special, mx_added_match *m)
{
    size_t at = *resume;
    while (s->n && (at = next_candidate(s, text, at, n)) < n) {
        const mx_added *t = longest_at(s, text + at, n - at);
        if (!t) {
            at++;
            continue;
        }
        size_t start = at, stop = at + t->n;
        at = stop;
        if ((t->special && !parse_special) ||
            (t->single_word && word_around(u, text, n, start, stop)))
            continue;
        int k;
        while (t->lstrip && start > from) {
            const uint8_t *q = previous(text, text + start);
            if (!(mx_uc_at(u, q, &k) & MX_UC_SPACE))
                break;
            start = (size_t)(q - text);
        }
        while (t->rstrip && stop < n && (mx_uc_at(u, text + stop, &k) & MX_UC_SPACE))
            stop += (size_t)k;
        *m = (mx_added_match){start, stop, t};
        *resume = at;
        return true;
    }
    *resume = n;
    return false;
}
