/* pattern.c - patterns, and the automaton that follows a text through one.
 *
 * A pattern is read as an NFA (Thompson's construction): a state consumes a byte of a set, or
 * branches in two without consuming (an epsilon transition), or is the accepting one. A state is
 * what is left to read: the rest of one pattern, then another state. Two that are left the same are
 * one state. The DFA's states are sets of NFA states that consume, ordered, with whether the
 * accepting one is among them.
 *
 * States of both are made when a text first reaches them, so the size of a pattern that is written
 * short (repetitions within repetitions, pieces used in many places) costs nothing by itself.
 * Nothing here calls itself: patterns nest as deep as their writers like.
 */
#include "infer/pattern.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

typedef enum { TEXT, SET, THEN, OR, REPEAT, NEVER } kind;

struct mx_pattern {
    kind kind;
    const uint8_t *text; /* TEXT */
    size_t n;
    uint32_t set[8]; /* SET: bit b for byte b */
    mx_pattern *x, *y;
    int least, most;
};

static mx_pattern *make(mx_arena *a, mx_pattern p)
{
    mx_pattern *new = MX_NEW(a, mx_pattern);
    *new = p;
    return new;
}

mx_pattern *mx_pattern_text(mx_arena *a, const char *text, size_t n)
{
    mx_pattern p = {.kind = TEXT, .n = n};
    if (!n)
        return NULL;
    p.text = mx_arena_copy(a, text, n);
    return make(a, p);
}

mx_pattern *mx_pattern_never(mx_arena *a)
{
    return make(a, (mx_pattern){.kind = NEVER});
}

bool mx_pattern_is_never(const mx_pattern *p)
{
    return p && p->kind == NEVER;
}

mx_pattern *mx_pattern_then(mx_arena *a, mx_pattern *x, mx_pattern *y)
{
    if (mx_pattern_is_never(x) || mx_pattern_is_never(y))
        return mx_pattern_is_never(x) ? x : y;
    return !x ? y : !y ? x : make(a, (mx_pattern){.kind = THEN, .x = x, .y = y});
}

mx_pattern *mx_pattern_or(mx_arena *a, mx_pattern *x, mx_pattern *y)
{
    if (mx_pattern_is_never(x) || mx_pattern_is_never(y))
        return mx_pattern_is_never(x) ? y : x;
    return make(a, (mx_pattern){.kind = OR, .x = x, .y = y});
}

mx_pattern *mx_pattern_repeat(mx_arena *a, mx_pattern *x, int least, int most)
{
    if (!x || mx_pattern_is_never(x))
        return least > 0 ? x : NULL;
    bool stays = x->kind == REPEAT && x->least == 0 && least <= 1; /* `**`, `*+`, `*?`, `??` */
    if ((least == 1 && most == 1) || (stays && (x->most < 0 || (x->most == 1 && most == 1))))
        return x;
    return make(a, (mx_pattern){.kind = REPEAT, .x = x, .least = least, .most = most});
}

/* --- one of many texts --- */

static int by_bytes(const void *x, const void *y)
{
    const mx_word *a = x, *b = y;
    int c = memcmp(a->text, b->text, a->n < b->n ? a->n : b->n);
    return c ? c : (a->n > b->n) - (a->n < b->n);
}

/* Words in order whose first `from` bytes are the same: what follows these, as a tree. */
static mx_pattern *tree(mx_arena *a, const mx_word *w, size_t n, size_t from)
{
    const mx_word *last = &w[n - 1];
    size_t end = from;
    while (end < w->n && end < last->n && w->text[end] == last->text[end])
        end++;
    mx_pattern *head = mx_pattern_text(a, w->text + from, end - from), *all = NULL;
    size_t whole = 0; /* words that end here */
    while (whole < n && w[whole].n == end)
        whole++;
    for (size_t i = whole, k; i < n; i = k) {
        for (k = i + 1; k < n && w[k].text[end] == w[i].text[end];)
            k++;
        mx_pattern *one = tree(a, w + i, k - i, end);
        all = all ? mx_pattern_or(a, all, one) : one;
    }
    return mx_pattern_then(a, head, whole ? mx_pattern_repeat(a, all, 0, 1) : all);
}

mx_pattern *mx_pattern_words(mx_arena *a, mx_word *words, size_t n)
{
    if (!n)
        return mx_pattern_never(a);
    qsort(words, n, sizeof *words, by_bytes);
    return tree(a, words, n, 0);
}

/* --- characters as bytes --- */

static mx_pattern *byte_range(mx_arena *a, uint8_t from, uint8_t to)
{
    mx_pattern p = {.kind = SET};
    for (int b = from; b <= to; b++)
        p.set[b / 32] |= 1u << (b % 32);
    return make(a, p);
}

static void add(mx_arena *a, mx_pattern **all, mx_pattern *p)
{
    *all = *all ? mx_pattern_or(a, *all, p) : p;
}

/* Numbers from `from` to `to` as a first byte, `mark` plus their highest bits, and `extra` bytes of
 * six bits each. Cut so that bytes after one that varies run over their whole range. */
static mx_pattern *utf8_range(mx_arena *a, uint32_t from, uint32_t to, int extra, uint8_t mark)
{
    int64_t size = (int64_t)1 << (6 * extra), first = from / size, last = to / size;
    uint32_t lo = (uint32_t)(from % size), hi = (uint32_t)(to % size), most = (uint32_t)size - 1;
    mx_pattern *all = NULL;
    if (extra == 0)
        return byte_range(a, (uint8_t)(mark + from), (uint8_t)(mark + to));
    if (first == last || lo > 0) {
        uint32_t end = first == last ? hi : most;
        mx_pattern *head = byte_range(a, (uint8_t)(mark + first), (uint8_t)(mark + first));
        add(a, &all, mx_pattern_then(a, head, utf8_range(a, lo, end, extra - 1, 0x80)));
        if (first++ == last)
            return all;
    }
    if (hi < most) {
        mx_pattern *head = byte_range(a, (uint8_t)(mark + last), (uint8_t)(mark + last));
        add(a, &all, mx_pattern_then(a, head, utf8_range(a, 0, hi, extra - 1, 0x80)));
        last--;
    }
    if (first > last)
        return all;
    mx_pattern *p = byte_range(a, (uint8_t)(mark + first), (uint8_t)(mark + last));
    for (int i = 0; i < extra; i++)
        p = mx_pattern_then(a, p, byte_range(a, 0x80, 0xbf));
    add(a, &all, p);
    return all;
}

mx_pattern *mx_pattern_chars(mx_arena *a, const mx_char_range *r, int n)
{
    /* by the length of their UTF-8; no surrogates */
    static const struct {
        uint32_t from, to;
        int extra;
        uint8_t mark;
    } spans[] = {{0x80, 0x7ff, 1, 0xc0},
                 {0x800, 0xd7ff, 2, 0xe0},
                 {0xe000, 0xffff, 2, 0xe0},
                 {0x10000, 0x10ffff, 3, 0xf0}};
    mx_pattern *all = NULL;
    mx_pattern ascii = {.kind = SET};
    bool any = false;
    for (int i = 0; i < n; i++)
        for (uint32_t c = r[i].from; c <= r[i].to && c < 0x80; c++) {
            ascii.set[c / 32] |= 1u << (c % 32);
            any = true;
        }
    if (any)
        all = make(a, ascii);
    for (int i = 0; i < n; i++)
        for (size_t k = 0; k < sizeof spans / sizeof *spans; k++) {
            uint32_t from = r[i].from > spans[k].from ? r[i].from : spans[k].from;
            uint32_t to = r[i].to < spans[k].to ? r[i].to : spans[k].to;
            if (from <= to)
                add(a, &all, utf8_range(a, from, to, spans[k].extra, spans[k].mark));
        }
    return all;
}

/* --- the NFA --- */

enum {
    MOST_NFA_STATES = 400000,
    MOST_DFA_STATES = 8000,
    MOST_DFA_PLACES = 16 << 20, /* NFA states of all DFA states together */
    LAST = -1,
    NOWHERE = -2
};

typedef struct {
    const mx_pattern *p;
    int32_t at;   /* bytes of a TEXT that are read, rounds of a REPEAT that are begun */
    int32_t next; /* state after p; LAST: the text is whole */
    int32_t same; /* the next one in the bucket */
    uint32_t met; /* in which closure it was last */
    bool made;    /* the two below are known */
    int32_t to, other; /* where it leads; a state that consumes has only the first */
} nfa_state;

typedef struct {
    int32_t *at; /* NFA states, ordered; owns */
    int n;
    bool whole;
    int32_t next, *to; /* in the bucket; (256) states, NOWHERE: not made yet */
} dfa_state;

struct mx_automaton {
    nfa_state *nfa;
    int n_nfa, cap_nfa;
    int32_t *nfa_bucket;
    int n_nfa_buckets; /* a power of 2 */
    bool too_large;
    dfa_state *dfa;
    int n_dfa, cap_dfa;
    int64_t n_places;
    int32_t bucket[1024];
    int32_t *list; /* of the DFA state that is being made */
    int n_list, cap_list;
    bool list_whole;
    uint32_t closure;
    int32_t *stack;
    int cap_stack;
};

static int32_t *nfa_bucket_of(mx_automaton *m, const mx_pattern *p, int32_t at, int32_t next)
{
    struct {
        const mx_pattern *p;
        int32_t at, next;
    } key = {p, at, next};
    return &m->nfa_bucket[XXH3_64bits(&key, sizeof key) & (uint64_t)(m->n_nfa_buckets - 1)];
}

static void grow_buckets(mx_automaton *m)
{
    m->n_nfa_buckets = m->n_nfa_buckets ? 4 * m->n_nfa_buckets : 64;
    m->nfa_bucket =
        mx_realloc(m->nfa_bucket, sizeof *m->nfa_bucket * (size_t)m->n_nfa_buckets);
    for (int i = 0; i < m->n_nfa_buckets; i++)
        m->nfa_bucket[i] = NOWHERE;
    for (int32_t i = 0; i < m->n_nfa; i++) {
        nfa_state *s = &m->nfa[i];
        int32_t *bucket = nfa_bucket_of(m, s->p, s->at, s->next);
        s->same = *bucket;
        *bucket = i;
    }
}

/* The state of what is left of p, then `next`. */
static int32_t state_of(mx_automaton *m, const mx_pattern *p, int32_t at, int32_t next)
{
    if (!p)
        return next;
    if (m->n_nfa >= m->n_nfa_buckets)
        grow_buckets(m);
    int32_t *bucket = nfa_bucket_of(m, p, at, next);
    for (int32_t i = *bucket; i >= 0; i = m->nfa[i].same)
        if (m->nfa[i].p == p && m->nfa[i].at == at && m->nfa[i].next == next)
            return i;
    if (m->n_nfa >= MOST_NFA_STATES) {
        m->too_large = true;
        return NOWHERE;
    }
    MX_GROW(m->nfa, m->n_nfa, m->cap_nfa);
    m->nfa[m->n_nfa] = (nfa_state){.p = p, .at = at, .next = next, .same = *bucket};
    return *bucket = m->n_nfa++;
}

/* Where a state leads. */
static void expand(mx_automaton *m, int32_t i)
{
    const nfa_state s = m->nfa[i];
    const mx_pattern *p = s.p;
    int32_t to = p->kind == NEVER ? NOWHERE : s.next, other = NOWHERE;
    bool loops = p->most < 0;
    if (p->kind == TEXT && s.at + 1 < (int32_t)p->n) {
        to = state_of(m, p, s.at + 1, s.next);
    } else if (p->kind == THEN) {
        to = state_of(m, p->x, 0, state_of(m, p->y, 0, s.next));
    } else if (p->kind == OR) {
        to = state_of(m, p->x, 0, s.next);
        other = state_of(m, p->y, 0, s.next);
    } else if (p->kind == REPEAT) {
        other = s.at >= p->least ? s.next : NOWHERE;
        to = NOWHERE;
        if (loops || s.at < p->most) {
            int32_t round = loops && s.at == p->least ? s.at : s.at + 1;
            to = state_of(m, p->x, 0, state_of(m, p, round, s.next));
        }
    }
    nfa_state *known = &m->nfa[i];
    known->to = to;
    known->other = other;
    known->made = true;
}

static bool consumes(const nfa_state *s)
{
    return s->p->kind == TEXT || s->p->kind == SET;
}

/* --- the DFA --- */

static void push(mx_automaton *m, int *n, int32_t state)
{
    if (state == LAST)
        m->list_whole = true;
    if (state < 0 || m->nfa[state].met == m->closure)
        return;
    m->nfa[state].met = m->closure;
    MX_GROW(m->stack, *n, m->cap_stack);
    m->stack[(*n)++] = state;
}

/* Adds the epsilon closure of `from` to the list. */
static void add_closure(mx_automaton *m, int32_t from)
{
    int n = 0;
    push(m, &n, from);
    while (n > 0) {
        int32_t at = m->stack[--n];
        if (consumes(&m->nfa[at])) {
            MX_GROW(m->list, m->n_list, m->cap_list);
            m->list[m->n_list++] = at;
            continue;
        }
        if (!m->nfa[at].made)
            expand(m, at);
        int32_t to = m->nfa[at].to;
        push(m, &n, m->nfa[at].other);
        push(m, &n, to);
    }
}

static void begin_list(mx_automaton *m)
{
    m->n_list = 0;
    m->list_whole = false;
    m->closure++;
}

static int by_number(const void *x, const void *y)
{
    int32_t a = *(const int32_t *)x, b = *(const int32_t *)y;
    return (a > b) - (a < b);
}

/* The state of the list; -1: there are too many, or it is empty. */
static int32_t state_of_list(mx_automaton *m)
{
    size_t bytes = sizeof(int32_t) * (size_t)m->n_list;
    if (!m->n_list && !m->list_whole)
        return -1;
    if (m->n_list > 1)
        qsort(m->list, (size_t)m->n_list, sizeof *m->list, by_number);
    int32_t *bucket = &m->bucket[XXH3_64bits(m->list, bytes) % 1024];
    for (int32_t s = *bucket; s >= 0; s = m->dfa[s].next)
        if (m->dfa[s].n == m->n_list && m->dfa[s].whole == m->list_whole &&
            memcmp(m->dfa[s].at, m->list, bytes) == 0)
            return s;
    if (m->n_dfa >= MOST_DFA_STATES || m->n_places > MOST_DFA_PLACES)
        return -1;
    MX_GROW(m->dfa, m->n_dfa, m->cap_dfa);
    dfa_state *s = &m->dfa[m->n_dfa];
    *s = (dfa_state){.n = m->n_list, .whole = m->list_whole, .next = *bucket};
    s->at = mx_realloc(NULL, bytes + sizeof(int32_t));
    memcpy(s->at, m->list, bytes);
    s->to = mx_realloc(NULL, 256 * sizeof *s->to);
    for (int b = 0; b < 256; b++)
        s->to[b] = NOWHERE;
    m->n_places += m->n_list;
    return *bucket = m->n_dfa++;
}

static mx_automaton *new_automaton(void)
{
    mx_automaton *m = mx_realloc(NULL, sizeof *m);
    *m = (mx_automaton){0};
    for (int i = 0; i < 1024; i++)
        m->bucket[i] = -1;
    begin_list(m);
    return m;
}

mx_status mx_automaton_open(mx_automaton **out, const mx_pattern *p)
{
    mx_automaton *m = new_automaton();
    *out = NULL;
    add_closure(m, state_of(m, p, 0, LAST));
    if (m->too_large) {
        mx_automaton_close(m);
        return mx_fail(MX_USAGE,
                       "more than %d places of the pattern may begin a text; make it simpler, with "
                       "smaller bounds",
                       MOST_NFA_STATES);
    }
    state_of_list(m);
    *out = m;
    return MX_OK;
}

static void free_states(mx_automaton *m)
{
    for (int i = 0; i < m->n_dfa; i++) {
        mx_free(m->dfa[i].at);
        mx_free(m->dfa[i].to);
    }
    mx_free(m->dfa);
    mx_free(m->nfa);
    mx_free(m->nfa_bucket);
    mx_free(m->list);
    mx_free(m->stack);
}

void mx_automaton_close(mx_automaton *m)
{
    if (m)
        free_states(m);
    mx_free(m);
}

/* The same state in another automaton, with those after it. */
static int32_t copy_state(mx_automaton *to, const mx_automaton *m, int32_t state, int32_t **chain,
                          int *cap)
{
    int n = 0;
    for (; state >= 0; state = m->nfa[state].next) {
        MX_GROW(*chain, n, *cap);
        (*chain)[n++] = state;
    }
    while (n-- > 0) {
        const nfa_state *s = &m->nfa[(*chain)[n]];
        state = state_of(to, s->p, s->at, state);
    }
    return state;
}

bool mx_automaton_trim(mx_automaton *m, int32_t at)
{
    int32_t *chain = NULL;
    int cap = 0;
    if (m->n_nfa < MOST_NFA_STATES / 2 && m->n_dfa < MOST_DFA_STATES / 2 &&
        m->n_places < MOST_DFA_PLACES / 2)
        return false;
    mx_automaton *fresh = new_automaton();
    fresh->list_whole = m->dfa[at].whole;
    for (int i = 0; i < m->dfa[at].n; i++) {
        int32_t state = copy_state(fresh, m, m->dfa[at].at[i], &chain, &cap);
        MX_GROW(fresh->list, fresh->n_list, fresh->cap_list);
        fresh->list[fresh->n_list++] = state;
    }
    state_of_list(fresh);
    free_states(m);
    *m = *fresh;
    mx_free(fresh);
    mx_free(chain);
    return true;
}

/* What a byte leads to, and with it all bytes that lead to the same. */
static int32_t make_next(mx_automaton *m, int32_t at, uint8_t byte)
{
    uint32_t same[8];
    memset(same, 0xff, sizeof same);
    begin_list(m);
    for (int i = 0; i < m->dfa[at].n; i++) {
        int32_t from = m->dfa[at].at[i];
        const nfa_state *s = &m->nfa[from];
        uint32_t one[8] = {0};
        const uint32_t *set = s->p->set;
        if (s->p->kind == TEXT) {
            uint8_t want = s->p->text[s->at];
            one[want / 32] = 1u << (want % 32);
            set = one;
        }
        bool fits = set[byte / 32] >> (byte % 32) & 1;
        for (int w = 0; w < 8; w++)
            same[w] &= fits ? set[w] : ~set[w];
        if (!fits)
            continue;
        if (!s->made)
            expand(m, from);
        add_closure(m, m->nfa[from].to);
    }
    int32_t next = m->too_large ? -1 : state_of_list(m);
    for (int b = 0; b < 256; b++)
        if (same[b / 32] >> (b % 32) & 1)
            m->dfa[at].to[b] = next;
    return next;
}

int32_t mx_automaton_next(mx_automaton *m, int32_t at, uint8_t byte)
{
    int32_t next = m->dfa[at].to[byte];
    return next != NOWHERE ? next : make_next(m, at, byte);
}

bool mx_automaton_accepts(const mx_automaton *m, int32_t at)
{
    return m->dfa[at].whole;
}

bool mx_automaton_ends(mx_automaton *m, int32_t at)
{
    return m->dfa[at].n == 0;
}
