/* pattern.c - patterns, and the automaton that follows a text through one.
 *
 * A pattern becomes an NFA (Thompson's construction): a state consumes a byte of a set, or branches
 * in two without consuming (an epsilon transition), or is the accepting one. The DFA's states are
 * sets of NFA states that consume, ordered, with whether the accepting one is among them; they are
 * made when a text first reaches them.
 */
#include "infer/pattern.h"

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
    return make(a, (mx_pattern){.kind = TEXT, .text = mx_arena_copy(a, text, n), .n = n});
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
    if (mx_pattern_is_never(x))
        return least > 0 ? x : NULL;
    return make(a, (mx_pattern){.kind = REPEAT, .x = x, .least = least, .most = most});
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
 * six bits each. Cut so that bytes behind one that varies run over their whole range. */
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

enum { MOST_NFA_STATES = 400000, MOST_DFA_STATES = 20000, LAST = -1, NOWHERE = -2 };

typedef struct {
    bool consumes;
    int32_t to, other; /* consumes: other is its set */
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
    uint32_t (*sets)[8];
    int n_sets, cap_sets;
    bool too_large;
    dfa_state *dfa;
    int n_dfa, cap_dfa;
    int32_t bucket[1024];
    int32_t *list; /* of the DFA state that is being made */
    int n_list;
    bool list_whole;
    uint32_t *seen; /* NFA states, by bits */
};

static int32_t new_nfa_state(mx_automaton *m, nfa_state p)
{
    if (m->n_nfa >= MOST_NFA_STATES) {
        m->too_large = true;
        return 0;
    }
    MX_GROW(m->nfa, m->n_nfa, m->cap_nfa);
    m->nfa[m->n_nfa] = p;
    return m->n_nfa++;
}

static int32_t consume(mx_automaton *m, const uint32_t set[8], int32_t to)
{
    MX_GROW(m->sets, m->n_sets, m->cap_sets);
    memcpy(m->sets[m->n_sets], set, sizeof *m->sets);
    return new_nfa_state(m, (nfa_state){true, to, m->n_sets++});
}

/* The first state of p, whose texts are followed by `to`. */
static int32_t compile(mx_automaton *m, const mx_pattern *p, int32_t to)
{
    if (!p || m->too_large)
        return to;
    switch (p->kind) {
    case TEXT:
        for (size_t i = p->n; i-- > 0;) {
            uint32_t set[8] = {0};
            set[p->text[i] / 32] = 1u << (p->text[i] % 32);
            to = consume(m, set, to);
        }
        return to;
    case SET:
        return consume(m, p->set, to);
    case THEN:
        return compile(m, p->x, compile(m, p->y, to));
    case OR: {
        int32_t x = compile(m, p->x, to);
        return new_nfa_state(m, (nfa_state){false, x, compile(m, p->y, to)});
    }
    default:
        break;
    }
    int32_t begin = to;
    if (p->most < 0) { /* a loop */
        begin = new_nfa_state(m, (nfa_state){false, NOWHERE, to});
        int32_t round = compile(m, p->x, begin);
        m->nfa[begin].to = round;
    }
    for (int i = p->least; i < p->most && !m->too_large; i++)
        begin = new_nfa_state(m, (nfa_state){false, compile(m, p->x, begin), to});
    for (int i = 0; i < p->least && !m->too_large; i++)
        begin = compile(m, p->x, begin);
    return begin;
}

/* --- the DFA --- */

/* Adds the epsilon closure of `from` to the list. */
static void add_closure(mx_automaton *m, int32_t from)
{
    int32_t stack[64];
    int n = 0;
    stack[n++] = from;
    while (n > 0) {
        int32_t at = stack[--n];
        if (at == LAST) {
            m->list_whole = true;
            continue;
        }
        if (at < 0 || m->seen[at / 32] >> (at % 32) & 1)
            continue;
        m->seen[at / 32] |= 1u << (at % 32);
        const nfa_state *p = &m->nfa[at];
        if (p->consumes) {
            m->list[m->n_list++] = at;
        } else if (n < 62) {
            stack[n++] = p->other;
            stack[n++] = p->to;
        } else { /* deep: by recursion */
            add_closure(m, p->other);
            add_closure(m, p->to);
        }
    }
}

/* The list in order, and `seen` cleared. */
static void settle(mx_automaton *m)
{
    int n = 0;
    for (int w = 0; w < (m->n_nfa + 31) / 32; w++) {
        for (uint32_t bits = m->seen[w]; bits; bits &= bits - 1) {
            int32_t at = w * 32 + __builtin_ctz(bits);
            if (m->nfa[at].consumes)
                m->list[n++] = at;
        }
        m->seen[w] = 0;
    }
    m->n_list = n;
}

/* The state of the list; -1: there are too many, or it is empty. */
static int32_t state_of_list(mx_automaton *m)
{
    settle(m);
    size_t bytes = sizeof(int32_t) * (size_t)m->n_list;
    int32_t *bucket = &m->bucket[XXH3_64bits(m->list, bytes) % 1024];
    if (!m->n_list && !m->list_whole)
        return -1;
    for (int32_t s = *bucket; s >= 0; s = m->dfa[s].next)
        if (m->dfa[s].n == m->n_list && m->dfa[s].whole == m->list_whole &&
            memcmp(m->dfa[s].at, m->list, bytes) == 0)
            return s;
    if (m->n_dfa >= MOST_DFA_STATES)
        return -1;
    MX_GROW(m->dfa, m->n_dfa, m->cap_dfa);
    dfa_state *s = &m->dfa[m->n_dfa];
    *s = (dfa_state){.n = m->n_list, .whole = m->list_whole, .next = *bucket};
    s->at = mx_realloc(NULL, bytes + sizeof(int32_t));
    memcpy(s->at, m->list, bytes);
    s->to = mx_realloc(NULL, 256 * sizeof *s->to);
    for (int b = 0; b < 256; b++)
        s->to[b] = NOWHERE;
    return *bucket = m->n_dfa++;
}

mx_status mx_automaton_open(mx_automaton **out, const mx_pattern *p)
{
    mx_automaton *m = mx_realloc(NULL, sizeof *m);
    *m = (mx_automaton){0};
    *out = NULL;
    for (int i = 0; i < 1024; i++)
        m->bucket[i] = -1;
    int32_t first = compile(m, p, LAST);
    if (m->too_large) {
        mx_automaton_close(m);
        return mx_fail(MX_USAGE,
                       "the pattern has more than %d places; make it simpler, with "
                       "smaller bounds",
                       MOST_NFA_STATES);
    }
    m->list = mx_realloc(NULL, sizeof *m->list * (size_t)(m->n_nfa + 1));
    m->seen = mx_realloc(NULL, sizeof *m->seen * (size_t)(m->n_nfa / 32 + 1));
    memset(m->seen, 0, sizeof *m->seen * (size_t)(m->n_nfa / 32 + 1));
    add_closure(m, first);
    state_of_list(m);
    *out = m;
    return MX_OK;
}

void mx_automaton_close(mx_automaton *m)
{
    if (!m)
        return;
    for (int i = 0; i < m->n_dfa; i++) {
        mx_free(m->dfa[i].at);
        mx_free(m->dfa[i].to);
    }
    mx_free(m->dfa);
    mx_free(m->nfa);
    mx_free(m->sets);
    mx_free(m->list);
    mx_free(m->seen);
    mx_free(m);
}

int32_t mx_automaton_next(mx_automaton *m, int32_t at, uint8_t byte)
{
    if (m->dfa[at].to[byte] != NOWHERE)
        return m->dfa[at].to[byte];
    m->n_list = 0;
    m->list_whole = false;
    for (int i = 0; i < m->dfa[at].n; i++) {
        const nfa_state *p = &m->nfa[m->dfa[at].at[i]];
        if (m->sets[p->other][byte / 32] >> (byte % 32) & 1)
            add_closure(m, p->to);
    }
    int32_t next = state_of_list(m);
    return m->dfa[at].to[byte] = next;
}

bool mx_automaton_accepts(const mx_automaton *m, int32_t at)
{
    return m->dfa[at].whole;
}

bool mx_automaton_ends(mx_automaton *m, int32_t at)
{
    return m->dfa[at].n == 0;
}
