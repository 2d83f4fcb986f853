/* constraint.c - see constraint.h. */
#include "infer/constraint.h"

#include "base/str.h"
#include <stdlib.h>
#include <string.h>

enum { MOST_MASK_BYTES = 8 << 20, LONGEST = 256 };

struct mx_token_bytes {
    int64_t vocab;
    int32_t *order; /* ids by their bytes; those without any are left out */
    int64_t n;
    int32_t *common; /* bytes that order[i] has in common with order[i - 1] */
    uint32_t *begin; /* (vocab + 1), into bytes */
    mx_str bytes;
};

static const uint8_t *bytes_of(const mx_token_bytes *b, int32_t id, int *n)
{
    *n = (int)(b->begin[id + 1] - b->begin[id]);
    return (const uint8_t *)mx_str_text(&b->bytes) + b->begin[id];
}

static int by_bytes(const void *x, const void *y, void *ctx)
{
    int n, m;
    const uint8_t *a = bytes_of(ctx, *(const int32_t *)x, &n);
    const uint8_t *b = bytes_of(ctx, *(const int32_t *)y, &m);
    int c = memcmp(a, b, (size_t)(n < m ? n : m));
    return c ? c : n - m;
}

/* A token that is one plain letter: what follows it is spelled as inside a text. */
static int32_t find_anchor(const mx_tokenizer *t, int64_t vocab)
{
    for (int32_t id = 0; id < vocab; id++) {
        size_t n;
        const char *s = mx_tokenizer_token(t, id, &n);
        if (s && n == 1 && *s >= 'a' && *s <= 'z' && !mx_tokenizer_is_special(t, id))
            return id;
    }
    return -1;
}

static mx_status spell(mx_token_bytes *b, const mx_tokenizer *t, int32_t anchor)
{
    mx_decode_options raw = {.raw = true};
    mx_str one = {0}, two = {0};
    if (anchor >= 0)
        MX_TRY(mx_tokenizer_decode(t, &anchor, 1, &raw, &one));
    for (int32_t id = 0; id < b->vocab; id++) {
        int32_t pair[2] = {anchor, id};
        const int32_t *ids = anchor >= 0 ? pair : pair + 1;
        b->begin[id] = (uint32_t)b->bytes.len;
        mx_str_clear(&two);
        mx_status st = mx_tokenizer_is_special(t, id)
                           ? MX_OK
                           : mx_tokenizer_decode(t, ids, anchor >= 0 ? 2 : 1, &raw, &two);
        mx_status_free(st); /* an id without a token has no bytes */
        if (!st && two.len > one.len && two.len - one.len < LONGEST)
            mx_str_add_n(&b->bytes, two.text + one.len, two.len - one.len);
    }
    b->begin[b->vocab] = (uint32_t)b->bytes.len;
    mx_str_fini(&one);
    mx_str_fini(&two);
    return MX_OK;
}

mx_status mx_token_bytes_open(mx_token_bytes **out, const mx_tokenizer *t, int64_t vocab)
{
    mx_token_bytes *b = mx_realloc(NULL, sizeof *b);
    int64_t known = mx_tokenizer_vocab_size(t);
    *b = (mx_token_bytes){.vocab = vocab < known ? vocab : known};
    *out = b;
    size_t room = sizeof(int32_t) * (size_t)(b->vocab + 1);
    b->order = mx_realloc(NULL, room);
    b->common = mx_realloc(NULL, room);
    b->begin = mx_realloc(NULL, room);
    MX_TRY(spell(b, t, find_anchor(t, b->vocab)));
    for (int32_t id = 0; id < b->vocab; id++)
        if (b->begin[id + 1] > b->begin[id])
            b->order[b->n++] = id;
    qsort_r(b->order, (size_t)b->n, sizeof *b->order, by_bytes, b);
    for (int64_t i = 0; i < b->n; i++) {
        int n, m = 0, k = 0;
        const uint8_t *x = bytes_of(b, b->order[i], &n);
        const uint8_t *y = i ? bytes_of(b, b->order[i - 1], &m) : x;
        while (k < n && k < m && x[k] == y[k])
            k++;
        b->common[i] = k;
    }
    return MX_OK;
}

void mx_token_bytes_close(mx_token_bytes *b)
{
    if (!b)
        return;
    mx_free(b->order);
    mx_free(b->common);
    mx_free(b->begin);
    mx_str_fini(&b->bytes);
    mx_free(b);
}

/* --- masks --- */

typedef struct {
    uint32_t *bits; /* NULL: not made yet */
    bool any;
} mask;

struct mx_constraint {
    const mx_token_bytes *b;
    mx_automaton *automaton;
    int32_t state;
    mask *mask; /* of each state so far */
    int n_masks, made;
    uint32_t *shown; /* with stop ids */
    size_t words;
};

mx_status mx_constraint_open(mx_constraint **out, const mx_token_bytes *b, const mx_pattern *p)
{
    mx_constraint *c = mx_realloc(NULL, sizeof *c);
    *c = (mx_constraint){.b = b, .words = (size_t)(b->vocab + 31) / 32};
    *out = NULL;
    mx_status st = mx_automaton_open(&c->automaton, p);
    c->shown = mx_realloc(NULL, sizeof(uint32_t) * (c->words + 1));
    if (st)
        mx_constraint_close(c);
    else
        *out = c;
    return st;
}

void mx_constraint_close(mx_constraint *c)
{
    if (!c)
        return;
    for (int i = 0; i < c->n_masks; i++)
        mx_free(c->mask[i].bits);
    mx_free(c->mask);
    mx_free(c->shown);
    mx_automaton_close(c->automaton);
    mx_free(c);
}

/* Which tokens lead on from the state. */
static bool walk(mx_constraint *c, uint32_t *bits)
{
    const mx_token_bytes *b = c->b;
    int32_t at[LONGEST + 1];
    int depth = 0; /* at[0..depth] are known for the last token */
    bool any = false;
    memset(bits, 0, sizeof *bits * c->words);
    at[0] = c->state;
    for (int64_t i = 0; i < b->n; i++) {
        int n, k = b->common[i];
        const uint8_t *bytes = bytes_of(b, b->order[i], &n);
        if (k > depth)
            continue; /* it begins like one that has led nowhere */
        for (depth = k; depth < n; depth++) {
            at[depth + 1] = mx_automaton_next(c->automaton, at[depth], bytes[depth]);
            if (at[depth + 1] < 0)
                break;
        }
        if (depth < n)
            continue;
        bits[b->order[i] / 32] |= 1u << (b->order[i] % 32);
        any = true;
    }
    return any;
}

static void forget_masks(mx_constraint *c)
{
    for (int i = 0; i < c->n_masks; i++) {
        mx_free(c->mask[i].bits);
        c->mask[i].bits = NULL;
    }
    c->made = 0;
}

/* The state's mask, made when it is first asked for. */
static const mask *mask_of(mx_constraint *c)
{
    size_t bytes = sizeof(uint32_t) * (c->words + 1);
    if (mx_automaton_trim(c->automaton, c->state)) {
        forget_masks(c);
        c->state = 0;
    }
    if (c->state >= c->n_masks) {
        int n = c->state + 64;
        c->mask = mx_realloc(c->mask, sizeof *c->mask * (size_t)n);
        for (; c->n_masks < n; c->n_masks++)
            c->mask[c->n_masks] = (mask){0};
    }
    mask *m = &c->mask[c->state];
    if (m->bits)
        return m;
    if (bytes * (size_t)c->made > MOST_MASK_BYTES) /* all over again */
        forget_masks(c);
    m->bits = mx_realloc(NULL, bytes);
    m->any = walk(c, m->bits);
    c->made++;
    return m;
}

void mx_constraint_prepare(mx_constraint *c)
{
    mask_of(c);
}

const uint32_t *mx_constraint_mask(mx_constraint *c, const int32_t *stop_ids, int n_stop_ids)
{
    const mask *m = mask_of(c);
    bool any = m->any;
    if (!mx_automaton_accepts(c->automaton, c->state))
        return any ? m->bits : NULL;
    memcpy(c->shown, m->bits, sizeof(uint32_t) * c->words);
    for (int i = 0; i < n_stop_ids; i++)
        if (stop_ids[i] >= 0 && stop_ids[i] < c->b->vocab) {
            c->shown[stop_ids[i] / 32] |= 1u << (stop_ids[i] % 32);
            any = true;
        }
    return any ? c->shown : NULL;
}

bool mx_constraint_take(mx_constraint *c, int32_t id)
{
    int n;
    const uint8_t *bytes = bytes_of(c->b, id, &n);
    int32_t at = c->state;
    for (int i = 0; i < n && at >= 0; i++)
        at = mx_automaton_next(c->automaton, at, bytes[i]);
    c->state = at < 0 ? c->state : at;
    return n > 0 && at >= 0;
}

bool mx_constraint_done(mx_constraint *c)
{
    return mx_automaton_accepts(c->automaton, c->state) &&
           mx_automaton_ends(c->automaton, c->state);
}
