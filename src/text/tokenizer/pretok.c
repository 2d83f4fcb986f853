/* pretok.c - the steps. Recursion is over the list of steps, so its depth is their number. */
#include "text/tokenizer/pretok.h"

#include <string.h>

typedef struct {
    const uint8_t *p, *end; /* end of readable memory */
    size_t n;
    bool first;
} piece;

static void run_from(mx_pre_run *r, int step, piece w);

static void cut(mx_pre_run *r, int step, const piece *w, size_t start, size_t end)
{
    if (start < end)
        run_from(r, step + 1, (piece){w->p + start, w->end, end - start, w->first && start == 0});
}

static void run_lexer(mx_pre_run *r, int step, const piece *w)
{
    mx_lex lex = r->pre->step[step].lex;
    const uint8_t *p = w->p, *stop = w->p + w->n, *q;
    if (step + 1 == r->pre->n && r->sink_many) { /* the common case, without the recursion */
        const uint8_t *ends[MX_PRE_BATCH];
        while (p < stop) {
            int n = 0;
            for (q = p; q < stop && n < MX_PRE_BATCH;)
                ends[n++] = q = lex(r->unicode, q, stop);
            r->sink_many(r->ctx, p, ends, n, w->end);
            p = q;
        }
        return;
    }
    if (step + 1 == r->pre->n) {
        for (; p < stop; p = q) {
            q = lex(r->unicode, p, stop);
            r->sink(r->ctx, p, (size_t)(q - p), w->end);
        }
        return;
    }
    for (; p < stop; p = q) {
        q = lex(r->unicode, p, stop);
        cut(r, step, w, (size_t)(p - w->p), (size_t)(q - w->p));
    }
}

static bool in_class(const mx_pre_run *r, const mx_pre_step *s, const uint8_t *p, int *n)
{
    unsigned c = mx_uc_at(r->unicode, p, n);
    return (c & s->mask) || (s->ascii_punctuation && *p < 0x80 && (c & (MX_UC_P | MX_UC_S)));
}

/* The next match at or after `at`. */
static bool next_match(mx_pre_run *r, const mx_pre_step *s, const piece *w, size_t at,
                       size_t *start, size_t *end)
{
    if (s->kind == MX_PRE_REGEX && r->gave_up)
        return false; /* the text is lost: no more work for it */
    if (s->kind == MX_PRE_REGEX) {
        mx_regex_result k = mx_regex_next(s->regex, r->regex, w->p, w->n, at, start, end);
        r->gave_up = r->gave_up || k == MX_REGEX_GAVE_UP;
        return k == MX_REGEX_FOUND;
    }
    if (s->kind == MX_PRE_STRING) {
        const uint8_t *q = mx_find(w->p + at, w->n - at, s->find, s->n_find);
        if (q) {
            *start = (size_t)(q - w->p);
            *end = *start + s->n_find;
        }
        return q != NULL;
    }
    for (int n; at < w->n; at += (size_t)n)
        if (in_class(r, s, w->p + at, &n)) {
            *start = at;
            *end = at + (size_t)n;
            return true;
        }
    return false;
}

static void add_span(mx_pre_buffer *b, size_t start, size_t end, bool match)
{
    MX_GROW(b->span, b->n, b->cap);
    b->span[b->n++] = (mx_text_span){start, end, match};
}

/* Matches and the gaps between them, in order; roles are exchanged when the step says so. */
static void find_spans(mx_pre_run *r, const mx_pre_step *s, const piece *w, mx_pre_buffer *b)
{
    size_t done = 0, at = 0, start, end;
    b->n = 0;
    while (at <= w->n && next_match(r, s, w, at, &start, &end)) {
        if (start > done)
            add_span(b, done, start, s->invert);
        add_span(b, start, end, !s->invert);
        done = at = end;
        if (start == end) { /* an empty match: go on after one character */
            if (end >= w->n)
                break;
            uint32_t cp;
            at += (size_t)mx_utf8_next(w->p + end, &cp);
        }
    }
    if (done < w->n)
        add_span(b, done, w->n, s->invert);
}

/* Joins spans in place as the behaviour asks. The rules are the tokenizers library's, including
 * that a second match in a row stands alone when matches merge with a neighbour. */
static void join_spans(mx_pre_buffer *b, mx_behavior how)
{
    size_t n = 0;
    if (how == MX_WITH_NEXT) {
        bool before = false;
        size_t top = b->n; /* filled from the back */
        for (size_t i = b->n; i-- > 0;) {
            mx_text_span s = b->span[i];
            if (s.match && !before && top < b->n)
                b->span[top].start = s.start;
            else
                b->span[--top] = s;
            before = s.match;
        }
        b->n -= top;
        memmove(b->span, b->span + top, b->n * sizeof *b->span);
        return;
    }
    bool before = false;
    for (size_t i = 0; i < b->n; i++) {
        mx_text_span s = b->span[i];
        bool join = how == MX_WITH_PREVIOUS ? s.match && !before
                                            : how == MX_CONTIGUOUS && s.match == before;
        if (how == MX_REMOVED && s.match)
            continue;
        if (join && n)
            b->span[n - 1].end = s.end;
        else
            b->span[n++] = s;
        before = s.match;
    }
    b->n = n;
}

static void run_split(mx_pre_run *r, int step, const piece *w)
{
    const mx_pre_step *s = &r->pre->step[step];
    mx_pre_buffer *b = &r->buffer[step];
    find_spans(r, s, w, b);
    join_spans(b, s->behavior);
    for (size_t i = 0; i < b->n; i++)
        cut(r, step, w, b->span[i].start, b->span[i].end);
}

static void run_metaspace(mx_pre_run *r, int step, const piece *w)
{
    const mx_pre_step *s = &r->pre->step[step];
    mx_str *t = &r->buffer[step].text;
    mx_str_clear(t);
    const char *p = (const char *)w->p, *stop = p + w->n;
    bool marked = w->n >= s->n_find && memcmp(p, s->find, s->n_find) == 0;
    bool prepend = s->prepend == MX_PREPEND_ALWAYS || (s->prepend == MX_PREPEND_FIRST && w->first);
    if (prepend && !marked && *p != ' ')
        mx_str_add_n(t, s->find, s->n_find);
    while (p < stop) {
        const char *q = memchr(p, ' ', (size_t)(stop - p));
        mx_str_add_n(t, p, (size_t)((q ? q : stop) - p));
        if (!q)
            break;
        mx_str_add_n(t, s->find, s->n_find);
        p = q + 1;
    }
    const uint8_t *base = (const uint8_t *)mx_str_text(t);
    piece all = {base, base + t->len, t->len, w->first};
    size_t start = 0;
    for (size_t at = s->n_find; s->split && at < t->len;) {
        const uint8_t *q = mx_find(base + at, t->len - at, s->find, s->n_find);
        if (!q)
            break;
        cut(r, step, &all, start, (size_t)(q - base));
        start = (size_t)(q - base);
        at = start + s->n_find;
    }
    /* A mark at the very start opens the first piece rather than ending an empty one. */
    cut(r, step, &all, start, t->len);
}

static void run_prefix(mx_pre_run *r, int step, const piece *w)
{
    if (*w->p == ' ') {
        cut(r, step, w, 0, w->n);
        return;
    }
    mx_str *t = &r->buffer[step].text;
    mx_str_clear(t);
    mx_str_add_n(t, " ", 1);
    mx_str_add_n(t, (const char *)w->p, w->n);
    const uint8_t *base = (const uint8_t *)mx_str_text(t);
    cut(r, step, &(piece){base, base + t->len, t->len, w->first}, 0, t->len);
}

static void run_length(mx_pre_run *r, int step, const piece *w)
{
    size_t start = 0, at = 0;
    int64_t count = 0;
    while (at < w->n) {
        uint32_t cp;
        at += (size_t)mx_utf8_next(w->p + at, &cp);
        if (++count == r->pre->step[step].length) {
            cut(r, step, w, start, at);
            start = at;
            count = 0;
        }
    }
    cut(r, step, w, start, at);
}

static void run_from(mx_pre_run *r, int step, piece w)
{
    if (step == r->pre->n) {
        r->sink(r->ctx, w.p, w.n, w.end);
        return;
    }
    switch (r->pre->step[step].kind) {
    case MX_PRE_LEX:
        run_lexer(r, step, &w);
        break;
    case MX_PRE_METASPACE:
        run_metaspace(r, step, &w);
        break;
    case MX_PRE_PREFIX:
        run_prefix(r, step, &w);
        break;
    case MX_PRE_LENGTH:
        run_length(r, step, &w);
        break;
    default:
        run_split(r, step, &w);
    }
}

void mx_pretok_run(mx_pre_run *r, const uint8_t *p, size_t n, const uint8_t *end, bool first)
{
    if (n)
        run_from(r, 0, (piece){p, end, n, first});
}

void mx_pretok_fini(mx_pretok *p)
{
    for (int i = 0; i < p->n; i++)
        mx_regex_close(p->step[i].regex);
    *p = (mx_pretok){0};
}
