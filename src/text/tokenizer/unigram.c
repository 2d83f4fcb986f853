/* unigram.c - a byte trie in a hash table, and the best path. */
#include "text/tokenizer/unigram.h"

#include "base/utf8.h"

static uint64_t edge_hash(uint64_t key)
{
    key *= 0x9E3779B97F4A7C15u;
    return key ^ key >> 32;
}

static mx_trie_edge *find_edge(const mx_unigram *m, uint32_t node, uint8_t byte)
{
    uint64_t key = ((uint64_t)node << 8 | byte) + 1, k = edge_hash(key) & m->edge_mask;
    while (m->edge[k].key && m->edge[k].key != key)
        k = (k + 1) & m->edge_mask;
    return &m->edge[k];
}

static void set_size(mx_unigram *m, uint64_t size)
{
    m->edge = mx_realloc(NULL, size * sizeof *m->edge);
    memset(m->edge, 0, size * sizeof *m->edge);
    m->edge_mask = size - 1;
}

void mx_unigram_init(mx_unigram *m)
{
    size_t n = (size_t)m->vocab.n_ids;
    m->score = mx_realloc(NULL, n * sizeof *m->score);
    m->user_defined = mx_realloc(NULL, n * sizeof *m->user_defined);
    memset(m->user_defined, 0, n * sizeof *m->user_defined);
    memset(m->score, 0, n * sizeof *m->score);
    m->n_nodes = 1;
    set_size(m, 1024);
}

static void grow(mx_unigram *m)
{
    mx_trie_edge *old = m->edge;
    uint64_t n = m->edge_mask + 1;
    set_size(m, n * 2);
    for (uint64_t i = 0; i < n; i++)
        if (old[i].key)
            *find_edge(m, (uint32_t)((old[i].key - 1) >> 8), (uint8_t)(old[i].key - 1)) = old[i];
    mx_free(old);
}

void mx_unigram_add(mx_unigram *m, int32_t id, double score, bool user_defined)
{
    const mx_piece *p = &m->vocab.piece[id];
    uint32_t node = 0;
    m->score[id] = score;
    m->user_defined[id] = user_defined;
    for (int32_t i = 0; i < p->n; i++) {
        if (m->n_edges * 2 > m->edge_mask)
            grow(m);
        mx_trie_edge *e = find_edge(m, node, p->s[i]);
        if (!e->key) {
            *e = (mx_trie_edge){((uint64_t)node << 8 | p->s[i]) + 1, m->n_nodes++, -1};
            m->n_edges++;
        }
        if (i + 1 == p->n)
            e->id = id;
        node = e->node;
    }
}

void mx_unigram_fini(mx_unigram *m)
{
    mx_vocab_fini(&m->vocab);
    mx_free(m->score);
    mx_free(m->user_defined);
    mx_free(m->edge);
    *m = (mx_unigram){0};
}

void mx_unigram_scratch_fini(mx_unigram_scratch *s)
{
    mx_free(s->node);
    mx_tokens_fini(&s->reversed);
    *s = (mx_unigram_scratch){0};
}

static void offer(const mx_unigram *m, mx_unigram_node *to, const mx_unigram_node *from,
                  double score, int32_t id, uint32_t start)
{
    double sum = score + from->score;
    if (m->float_sums)
        sum = (double)(float)sum;
    if (!to->reached || sum > to->score)
        *to = (mx_unigram_node){sum, id, start, true};
}

/* All pieces that start at p + at. */
static void extend(const mx_unigram *m, mx_unigram_node *v, const uint8_t *p, size_t at, size_t n)
{
    uint32_t node = 0, cp;
    size_t first = (size_t)mx_utf8_next(p + at, &cp);
    bool single = false;
    for (size_t i = at; i < n; i++) {
        const mx_trie_edge *e = find_edge(m, node, p[i]);
        if (!e->key)
            break;
        node = e->node;
        if (e->id < 0)
            continue;
        size_t length = i + 1 - at;
        double score =
            m->user_defined[e->id] ? (double)length * m->max_score - 0.1 : m->score[e->id];
        offer(m, &v[i + 1], &v[at], score, e->id, (uint32_t)at);
        single = single || length == first;
    }
    if (!single)
        offer(m, &v[at + first], &v[at], m->unk_score, -1, (uint32_t)at);
}

static void add_unknown(const mx_unigram *m, const uint8_t *p, size_t n, bool after_unk,
                        mx_tokens *out)
{
    bool bytes = m->byte_fallback;
    for (size_t i = 0; i < n && bytes; i++)
        bytes = m->byte_id[p[i]] >= 0;
    for (size_t i = 0; i < n && bytes; i++)
        mx_tokens_add(out, m->byte_id[p[i]]);
    if (!bytes && m->unk >= 0 && !after_unk)
        mx_tokens_add(out, m->unk);
}

void mx_unigram_encode(const mx_unigram *m, mx_unigram_scratch *s, const uint8_t *p, size_t n,
                       mx_tokens *out)
{
    MX_ASSERT(n < UINT32_MAX, "a text of %zu bytes", n);
    if (n + 1 > s->cap) {
        mx_free(s->node);
        s->cap = (n + 1) * 5 / 4;
        s->node = mx_realloc(NULL, s->cap * sizeof *s->node);
    }
    memset(s->node, 0, (n + 1) * sizeof *s->node);
    for (size_t at = 0; at < n;) {
        uint32_t cp;
        extend(m, s->node, p, at, n);
        at += (size_t)mx_utf8_next(p + at, &cp);
    }
    s->reversed.n = 0;
    for (size_t at = n; at > 0; at = s->node[at].start)
        mx_tokens_add(&s->reversed, (int32_t)(uint32_t)at);
    bool after_unk = false;
    for (int64_t i = s->reversed.n; i-- > 0;) {
        const mx_unigram_node *v = &s->node[(uint32_t)s->reversed.ids[i]];
        size_t end = (uint32_t)s->reversed.ids[i];
        bool unknown = v->id < 0 || v->id == m->unk;
        if (unknown)
            add_unknown(m, p + v->start, end - v->start, after_unk, out);
        else
            mx_tokens_add(out, v->id);
        after_unk = unknown;
    }
}
