/* decoder.c - each step rewrites the list of token texts; new texts live in an arena for the call.
 */
#include "text/tokenizer/decoder.h"

#include "text/tokenizer/unicode.h"

typedef struct {
    mx_piece *token;
    int64_t n;
    mx_arena arena;
    size_t limit; /* bytes that the texts may have together */
    bool too_long;
} work;

static mx_piece keep(work *w, const mx_str *s)
{
    return (mx_piece){mx_arena_copy(&w->arena, mx_str_text(s), s->len), (int32_t)s->len};
}

void mx_add_lossy(mx_str *out, const char *text, size_t n)
{
    const uint8_t *p = (const uint8_t *)text, *end = p + n;
    while (p < end) {
        size_t good = mx_utf8_valid_prefix(p, (size_t)(end - p));
        mx_str_add_n(out, (const char *)p, good);
        p += good;
        if (p < end) {
            mx_str_add(out, "\xEF\xBF\xBD");
            p += mx_utf8_bad_length(p, end);
        }
    }
}

/* False: the regular expression gave up. */
static bool replace_in(const mx_dec_step *d, const mx_piece *t, mx_regex_scratch *rx, size_t limit,
                       mx_str *out)
{
    size_t n = (size_t)t->n, done = 0, start = 0, end = 0;
    while (out->len <= limit) {
        if (d->regex) {
            mx_regex_result r = mx_regex_next(d->regex, rx, t->s, n, done, &start, &end);
            if (r == MX_REGEX_GAVE_UP)
                return false;
            if (r == MX_REGEX_NONE || start == end)
                break;
        } else {
            const uint8_t *q = mx_find(t->s + done, n - done, d->find, d->n_find);
            if (!q)
                break;
            start = (size_t)(q - t->s);
            end = start + d->n_find;
        }
        mx_str_add_n(out, (const char *)t->s + done, start - done);
        mx_str_add_n(out, d->content, d->n_content);
        done = end;
    }
    mx_str_add_n(out, (const char *)t->s + done, n - done);
    return true;
}

static void replace_all(work *w, const mx_dec_step *d)
{
    mx_str s = {0};
    size_t made = 0;
    mx_regex_scratch *rx = d->regex ? mx_regex_scratch_new() : NULL;
    for (int64_t i = 0; i < w->n && !w->too_long; i++) {
        if (!d->regex && !mx_find(w->token[i].s, (size_t)w->token[i].n, d->find, d->n_find))
            continue;
        mx_str_clear(&s);
        bool done = replace_in(d, &w->token[i], rx, w->limit, &s);
        made += s.len;
        w->too_long = !done || made > w->limit;
        if (!w->too_long)
            w->token[i] = keep(w, &s);
    }
    mx_regex_scratch_free(rx);
    mx_str_fini(&s);
}

static int hex_digit(uint8_t c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

/* The byte that a token <0xNN> stands for, or -1. */
static int byte_of(const mx_piece *t)
{
    if (t->n != 6 || memcmp(t->s, "<0x", 3) != 0 || t->s[5] != '>')
        return -1;
    int a = hex_digit(t->s[3]), b = hex_digit(t->s[4]);
    return a < 0 || b < 0 ? -1 : a * 16 + b;
}

static void byte_fallback(work *w)
{
    int64_t n = 0;
    mx_str s = {0};
    for (int64_t i = 0; i < w->n;) {
        int c = byte_of(&w->token[i]);
        if (c < 0) {
            w->token[n++] = w->token[i++];
            continue;
        }
        mx_str_clear(&s);
        for (; i < w->n && (c = byte_of(&w->token[i])) >= 0; i++)
            mx_str_add_n(&s, &(char){(char)c}, 1);
        if (mx_utf8_valid_prefix((const uint8_t *)s.text, s.len) != s.len) {
            size_t bad = s.len;
            mx_str_clear(&s);
            while (bad--)
                mx_str_add(&s, "\xEF\xBF\xBD");
        }
        w->token[n++] = keep(w, &s);
    }
    w->n = n;
    mx_str_fini(&s);
}

static void fuse(work *w)
{
    mx_str s = {0};
    for (int64_t i = 0; i < w->n; i++)
        mx_str_add_n(&s, (const char *)w->token[i].s, (size_t)w->token[i].n);
    if (w->n) {
        w->token[0] = keep(w, &s);
        w->n = 1;
    }
    mx_str_fini(&s);
}

static void strip(work *w, const mx_dec_step *d)
{
    size_t k = d->n_content;
    for (int64_t i = 0; i < w->n && k; i++) {
        mx_piece *t = &w->token[i];
        for (int64_t j = 0; j < d->start && (size_t)t->n >= k && !memcmp(t->s, d->content, k);
             j++) {
            t->s += k;
            t->n -= (int32_t)k;
        }
        for (int64_t j = 0;
             j < d->stop && (size_t)t->n >= k && !memcmp(t->s + t->n - k, d->content, k); j++)
            t->n -= (int32_t)k;
    }
}

static void metaspace(work *w, const mx_dec_step *d)
{
    mx_dec_step drop = *d, space = *d;
    drop.content = space.content = " ";
    drop.n_content = 0;
    space.n_content = 1;
    if (w->n && d->drop_first) { /* every mark of the first token goes */
        work first = *w;
        first.n = 1;
        replace_all(&first, &drop);
        w->arena = first.arena;
    }
    replace_all(w, &space);
}

static void suffix(work *w, const mx_dec_step *d)
{
    for (int64_t i = 0; i < w->n; i++) {
        mx_dec_step to = *d;
        to.content = " ";
        to.n_content = i + 1 < w->n;
        work one = *w;
        one.token = &w->token[i];
        one.n = 1;
        replace_all(&one, &to);
        w->arena = one.arena;
    }
}

static size_t limit_of(const mx_piece *token, int64_t n)
{
    size_t bytes = 0;
    for (int64_t i = 0; i < n; i++)
        bytes += (size_t)token[i].n;
    return mx_text_limit(bytes);
}

bool mx_decoder_run(const mx_token_decoder *d, mx_piece *token, int64_t n, mx_str *out)
{
    work w = {.token = token, .n = n, .limit = limit_of(token, n)};
    for (int i = 0; i < d->n && !w.too_long; i++) {
        const mx_dec_step *s = &d->step[i];
        switch (s->kind) {
        case MX_DEC_BYTES:
        case MX_DEC_FUSE:
            fuse(&w);
            break;
        case MX_DEC_REPLACE:
            replace_all(&w, s);
            break;
        case MX_DEC_BYTE_FALLBACK:
            byte_fallback(&w);
            break;
        case MX_DEC_STRIP:
            strip(&w, s);
            break;
        case MX_DEC_METASPACE:
            metaspace(&w, s);
            break;
        case MX_DEC_SUFFIX:
            suffix(&w, s);
            break;
        }
    }
    for (int64_t i = 0; i < w.n && !w.too_long; i++) {
        if (i && d->join)
            mx_str_add(out, d->join);
        mx_str_add_n(out, (const char *)w.token[i].s, (size_t)w.token[i].n);
    }
    mx_arena_fini(&w.arena);
    return !w.too_long;
}

void mx_decoder_fini(mx_token_decoder *d)
{
    for (int i = 0; i < d->n; i++)
        mx_regex_close(d->step[i].regex);
    *d = (mx_token_decoder){0};
}
