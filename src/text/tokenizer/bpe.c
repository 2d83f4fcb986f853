/* bpe.c - the merge table and the encoding of words.
 *
 * How a word is merged depends on its length, never on its content, so no text is slow:
 *   up to 15 bytes   looked up in a per-thread cache of word -> up to 3 ids (two 32-byte entries a
 *                    set, so a set is a cache line)
 *   up to 31 bytes   likewise, up to 7 ids (one 64-byte entry); also shorter words of 4 to 7 ids
 *   up to 96 symbols the lowest rank is found by scanning an array
 *   longer           buckets: one queue of positions per rank (bpe_long.c)
 *
 * Character-level words can be whole documents (SentencePiece does not split text). They are cut
 * where no merge can reach across: a piece that spans two neighbouring characters contains that
 * pair of characters, so a pair that occurs in no piece is a safe cut. The bitmap of pairs may say
 * "occurs" too often, which costs time and changes nothing.
 */
#include "text/tokenizer/bpe.h"

#include "base/utf8.h"
#include "text/tokenizer/bpe_long.h"
#include "text/tokenizer/pretok.h"

enum { CACHE_BITS = 15, WIDE_BITS = 13, SHORT = 96, BIGRAM_BITS = 20 };

typedef struct {
    uint64_t key[2]; /* up to 15 bytes, zero-padded; the length in the last byte */
    int32_t ids[3];
    uint32_t n; /* 0: empty */
} cache_entry;

typedef struct {
    uint8_t word[31];
    uint8_t n_bytes;
    int32_t ids[7];
    uint32_t n; /* 0: empty */
} wide_entry;

struct mx_bpe_scratch {
    cache_entry (*cache)[2]; /* owns */
    wide_entry *wide;        /* owns */
    mx_bpe_long large;
};

static void *new_cache(size_t bytes)
{
    return memset(mx_small_alloc(bytes), 0, bytes);
}

mx_bpe_scratch *mx_bpe_scratch_new(void)
{
    mx_bpe_scratch *s = mx_realloc(NULL, sizeof *s);
    *s = (mx_bpe_scratch){0};
    s->cache = new_cache(sizeof *s->cache << CACHE_BITS);
    s->wide = new_cache(sizeof *s->wide << WIDE_BITS);
    return s;
}

void mx_bpe_scratch_free(mx_bpe_scratch *s)
{
    if (!s)
        return;
    mx_free(s->cache);
    mx_free(s->wide);
    mx_bpe_long_fini(&s->large);
    mx_free(s);
}

void mx_bpe_reserve(mx_bpe *b, int64_t n_merges)
{
    uint64_t size = 64;
    while (size < (uint64_t)n_merges * 2)
        size *= 2;
    mx_free(b->merge);
    b->merge = mx_realloc(NULL, size * sizeof *b->merge);
    memset(b->merge, 0, size * sizeof *b->merge);
    b->merge_mask = size - 1;
    b->n_merges = 0;
}

static void grow_merges(mx_bpe *b)
{
    mx_merge *old = b->merge;
    uint64_t n = b->merge_mask + 1;
    b->merge = NULL;
    mx_bpe_reserve(b, (int64_t)n);
    for (uint64_t i = 0; i < n; i++)
        if (old[i].key)
            mx_bpe_add_merge(b, (int32_t)((old[i].key - 1) >> 32),
                             (int32_t)(uint32_t)(old[i].key - 1), old[i].rank, old[i].id);
    mx_free(old);
}

void mx_bpe_add_merge(mx_bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t id)
{
    if (!b->merge)
        mx_bpe_reserve(b, 64);
    if ((uint64_t)b->n_merges * 2 > b->merge_mask)
        grow_merges(b);
    uint64_t key = mx_merge_key(left, right), k = mx_merge_hash(key) & b->merge_mask;
    while (b->merge[k].key && b->merge[k].key != key)
        k = (k + 1) & b->merge_mask;
    if (b->merge[k].key && b->merge[k].rank <= rank)
        return;
    b->n_merges += !b->merge[k].key;
    b->merge[k] = (mx_merge){key, rank, id};
    if (rank >= b->n_ranks)
        b->n_ranks = rank + 1;
}

void mx_bpe_merges_from_pieces(mx_bpe *b, const int32_t *rank)
{
    mx_bpe_reserve(b, (int64_t)b->vocab.n_ids * 3);
    for (int32_t id = 0; id < b->vocab.n_ids; id++) {
        const mx_piece *p = &b->vocab.piece[id];
        if (p->n < 2 || rank[id] < 0)
            continue;
        for (int32_t k = 1; k < p->n; k++) {
            if (!b->byte_level && (p->s[k] & 0xC0) == 0x80)
                continue;
            int32_t left = mx_vocab_find(&b->vocab, p->s, (size_t)k);
            if (left < 0)
                continue;
            int32_t right = mx_vocab_find(&b->vocab, p->s + k, (size_t)(p->n - k));
            if (right >= 0)
                mx_bpe_add_merge(b, left, right, (uint32_t)rank[id], id);
        }
    }
}

static uint64_t bigram_bit(uint32_t a, uint32_t b)
{
    return ((uint64_t)a << 32 | b) * 0x9E3779B97F4A7C15u >> (64 - BIGRAM_BITS);
}

static bool has_bigram(const mx_bpe *b, uint32_t x, uint32_t y)
{
    uint64_t bit = bigram_bit(x, y);
    return b->bigram[bit >> 6] >> (bit & 63) & 1;
}

static void add_bigrams(mx_bpe *b, const mx_piece *p)
{
    uint32_t last = 0, cp;
    for (int32_t i = 0; i < p->n;) {
        int k = mx_utf8_decode(p->s + i, p->s + p->n, &cp);
        if (!k)
            return;
        if (i) {
            uint64_t bit = bigram_bit(last, cp);
            b->bigram[bit >> 6] |= (uint64_t)1 << (bit & 63);
        }
        last = cp;
        i += k;
    }
}

void mx_bpe_finish(mx_bpe *b)
{
    if (!b->merge)
        mx_bpe_reserve(b, 1);
    for (int32_t id = 0; id < b->vocab.n_ids; id++)
        if (b->vocab.piece[id].n > (int32_t)b->longest)
            b->longest = (uint32_t)b->vocab.piece[id].n;
    if (b->byte_level)
        return;
    b->char_id = mx_realloc(NULL, 0x10000 * sizeof *b->char_id);
    for (uint32_t cp = 0; cp < 0x10000; cp++) {
        uint8_t utf8[4];
        b->char_id[cp] = mx_vocab_find(&b->vocab, utf8, (size_t)mx_utf8_encode(cp, utf8));
    }
    size_t bytes = ((size_t)1 << BIGRAM_BITS) / 8;
    b->bigram = mx_realloc(NULL, bytes);
    memset(b->bigram, 0, bytes);
    b->split_safe = true;
    for (uint64_t i = 0; i <= b->merge_mask; i++) {
        const mx_merge *m = &b->merge[i];
        if (!m->key)
            continue;
        int32_t left = (int32_t)((m->key - 1) >> 32), right = (int32_t)(uint32_t)(m->key - 1);
        add_bigrams(b, &b->vocab.piece[m->id]);
        /* Merges of byte pieces or of the unknown piece join what is not in their text. */
        const mx_piece *l = &b->vocab.piece[left], *r = &b->vocab.piece[right];
        if (l->n + r->n != b->vocab.piece[m->id].n || left == b->unk || right == b->unk)
            b->split_safe = false;
        for (int c = 0; c < 256 && b->byte_fallback && (l->n == 6 || r->n == 6); c++)
            if (left == b->byte_id[c] || right == b->byte_id[c])
                b->split_safe = false;
    }
}

void mx_bpe_fini(mx_bpe *b)
{
    mx_vocab_fini(&b->vocab);
    mx_free(b->merge);
    mx_free(b->bigram);
    mx_free(b->char_id);
    *b = (mx_bpe){0};
}

/* Merges sym[0..n) in place, n <= SHORT; returns how many are left. */
static int merge_short(const mx_bpe *b, int32_t *sym, int n)
{
    uint32_t rank[SHORT];
    int32_t to[SHORT];
    for (int i = 0; i + 1 < n; i++)
        rank[i] = mx_merge_find(b, sym[i], sym[i + 1], &to[i]);
    while (n > 1) {
        int best = 0;
        for (int i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best])
                best = i;
        if (rank[best] == MX_NO_RANK)
            break;
        sym[best] = to[best];
        n--;
        for (int i = best + 1; i < n; i++) {
            sym[i] = sym[i + 1];
            rank[i] = rank[i + 1];
            to[i] = to[i + 1];
        }
        /* rank[best] described the pair that was merged; rank[i] for i > best moved one down. */
        if (best + 1 < n)
            rank[best] = mx_merge_find(b, sym[best], sym[best + 1], &to[best]);
        if (best > 0)
            rank[best - 1] = mx_merge_find(b, sym[best - 1], sym[best], &to[best - 1]);
    }
    return n;
}

static int64_t merge_symbols(const mx_bpe *b, mx_bpe_scratch *s, int32_t *sym, int64_t n)
{
    if (!b->n_merges)
        return n;
    return n <= SHORT ? merge_short(b, sym, (int)n) : mx_bpe_merge_long(b, &s->large, sym, n);
}

static int32_t char_id(const mx_bpe *b, uint32_t cp, const uint8_t *p, int n)
{
    return cp < 0x10000 ? b->char_id[cp] : mx_vocab_find(&b->vocab, p, (size_t)n);
}

void mx_bpe_add_unknown(const mx_bpe *b, const uint8_t *p, int n, bool after_unk, mx_tokens *out)
{
    bool bytes = b->byte_fallback;
    for (int i = 0; i < n && bytes; i++)
        bytes = b->byte_id[p[i]] >= 0;
    if (bytes) {
        for (int i = 0; i < n; i++)
            mx_tokens_add(out, b->byte_id[p[i]]);
        return;
    }
    if (b->unk >= 0 && !(b->fuse_unk && after_unk))
        mx_tokens_add(out, b->unk);
}

static bool add_whole_word(const mx_bpe *b, const uint8_t *p, size_t n, mx_tokens *out)
{
    if (!b->whole_words || n > b->longest)
        return false;
    int32_t id = mx_vocab_find(&b->vocab, p, n);
    if (id >= 0)
        mx_tokens_add(out, id);
    return id >= 0;
}

/* A stretch without cuts: symbols, merged, appended. */
static void encode_symbols(const mx_bpe *b, mx_bpe_scratch *s, const uint8_t *p, size_t n,
                           mx_tokens *out)
{
    int64_t start = out->n;
    if ((b->byte_level || !b->split_safe) && add_whole_word(b, p, n, out))
        return;
    mx_tokens_reserve(out, (int64_t)n);
    if (b->byte_level) {
        for (size_t i = 0; i < n; i++) {
            int32_t id = b->byte_id[p[i]] >= 0 ? b->byte_id[p[i]] : b->unk;
            if (id >= 0) /* a vocabulary without this byte and without an unknown piece loses it */
                out->ids[out->n++] = id;
        }
    } else {
        for (size_t i = 0; i < n;) {
            uint32_t cp;
            int k = mx_utf8_next(p + i, &cp);
            int32_t id = char_id(b, cp, p + i, k);
            if (id >= 0)
                mx_tokens_add(out, id);
            else
                mx_bpe_add_unknown(b, p + i, k, out->n > start && out->ids[out->n - 1] == b->unk,
                                   out);
            i += (size_t)k;
        }
    }
    out->n = start + merge_symbols(b, s, out->ids + start, out->n - start);
}

/* The word of n < 16 bytes as a key. */
static inline void make_key(uint64_t key[2], const uint8_t *p, size_t n, const uint8_t *end)
{
    key[0] = key[1] = 0;
    if (end - p >= 16) { /* reads what follows the word and masks it, without a branch */
        uint64_t low = n < 8 ? ~(uint64_t)0 << 8 * n : 0;
        uint64_t high = n > 8 ? ~(uint64_t)0 << 8 * (n - 8) : ~(uint64_t)0;
        memcpy(key, p, 16);
        key[0] &= ~low;
        key[1] &= ~high;
    } else {
        memcpy(key, p, n);
    }
    key[1] |= (uint64_t)n << 56;
}

static void encode_wide(const mx_bpe *b, mx_bpe_scratch *s, const uint8_t *p, size_t n,
                        mx_tokens *out)
{
    if (n > 31) {
        encode_symbols(b, s, p, n, out);
        return;
    }
    wide_entry *e = &s->wide[mx_hash_bytes(p, n) & ((1u << WIDE_BITS) - 1)];
    if (e->n && e->n_bytes == n && memcmp(e->word, p, n) == 0) {
        mx_tokens_reserve(out, 8);
        memcpy(out->ids + out->n, e->ids, sizeof e->ids);
        out->n += e->n;
        return;
    }
    int64_t start = out->n;
    encode_symbols(b, s, p, n, out);
    int64_t got = out->n - start;
    if (got < 1 || got > 7)
        return;
    e->n_bytes = (uint8_t)n;
    e->n = (uint32_t)got;
    memcpy(e->word, p, n);
    memcpy(e->ids, out->ids + start, sizeof *e->ids * (size_t)got);
}

/* Not in the cache: encodes, and puts the word second in its set, so that a word that came once
 * does not drive out one that comes often. */
static void encode_missed(const mx_bpe *b, mx_bpe_scratch *s, const uint8_t *p, size_t n,
                          const uint64_t key[2], cache_entry *set, mx_tokens *out)
{
    int64_t start = out->n;
    encode_wide(b, s, p, n, out);
    int64_t got = out->n - start;
    if (got < 1 || got > 3)
        return;
    set[1] = (cache_entry){.key = {key[0], key[1]}, .n = (uint32_t)got};
    memcpy(set[1].ids, out->ids + start, sizeof *set[1].ids * (size_t)got);
}

static inline cache_entry *cache_set(const mx_bpe_scratch *s, const uint64_t key[2])
{
    uint64_t h = (key[0] ^ key[1] * 0x9E3779B97F4A7C15u) * 0xD6E8FEB86659FD93u;
    return s->cache[h >> (64 - CACHE_BITS)];
}

/* There is room for three ids. The length in the key is never 0, so an empty entry matches none. */
static inline void encode_keyed(const mx_bpe_target *t, const uint8_t *p, size_t n,
                                const uint64_t key[2], cache_entry *set)
{
    mx_tokens *out = t->out;
    if ((set[0].key[0] != key[0]) | (set[0].key[1] != key[1])) {
        if ((set[1].key[0] != key[0]) | (set[1].key[1] != key[1])) {
            encode_missed(t->bpe, t->scratch, p, n, key, set, out);
            return;
        }
        cache_entry first = set[1]; /* it came again: it is first from now on */
        set[1] = set[0];
        set[0] = first;
    }
    memcpy(out->ids + out->n, set[0].ids, sizeof set[0].ids);
    out->n += set[0].n;
}

static void encode_cached(const mx_bpe_target *t, const uint8_t *p, size_t n, const uint8_t *end)
{
    if (n > 15) {
        encode_wide(t->bpe, t->scratch, p, n, t->out);
        return;
    }
    uint64_t key[2];
    make_key(key, p, n, end);
    mx_tokens_reserve(t->out, 4);
    encode_keyed(t, p, n, key, cache_set(t->scratch, key));
}

/* Two passes: the first prefetches the cache lines that the second reads. */
void mx_bpe_encode_many(void *target, const uint8_t *p, const uint8_t *const *stop, int n,
                        const uint8_t *end)
{
    const mx_bpe_target *t = target;
    struct {
        uint64_t key[2];
        cache_entry *set;
    } word[MX_PRE_BATCH];
    const uint8_t *q = p;
    for (int i = 0; i < n; q = stop[i++]) {
        size_t k = (size_t)(stop[i] - q);
        make_key(word[i].key, q, k < 16 ? k : 15, end);
        word[i].set = cache_set(t->scratch, word[i].key);
        __builtin_prefetch(word[i].set);
    }
    for (int i = 0; i < n; p = stop[i++]) {
        size_t k = (size_t)(stop[i] - p);
        if (t->out->cap - t->out->n < 4)
            mx_tokens_reserve(t->out, 4);
        if (k < 16)
            encode_keyed(t, p, k, word[i].key, word[i].set);
        else
            encode_wide(t->bpe, t->scratch, p, k, t->out);
    }
}

/* A character-level word, cut where nothing can be merged across. */
static void encode_cut(const mx_bpe_target *t, const uint8_t *p, size_t n, const uint8_t *end)
{
    const mx_bpe *b = t->bpe;
    mx_tokens *out = t->out;
    const uint8_t *stop = p + n, *start = p;
    uint32_t last = 0;
    bool after_unk = false;
    while (p < stop) {
        uint32_t cp;
        int k = mx_utf8_next(p, &cp);
        bool known = char_id(b, cp, p, k) >= 0;
        if (start < p && (!known || !has_bigram(b, last, cp))) {
            encode_cached(t, start, (size_t)(p - start), end);
            start = p;
            after_unk = false;
        }
        if (!known) {
            int64_t before = out->n;
            mx_bpe_add_unknown(b, p, k, after_unk, out);
            after_unk = after_unk || (out->n == before + 1 && out->ids[before] == b->unk);
            if (out->n > before && out->ids[out->n - 1] != b->unk)
                after_unk = false;
            start = p + k;
        }
        last = cp;
        p += k;
    }
    if (start < stop)
        encode_cached(t, start, (size_t)(stop - start), end);
}

void mx_bpe_encode(void *target, const uint8_t *word, size_t n, const uint8_t *end)
{
    const mx_bpe_target *t = target;
    const mx_bpe *b = t->bpe;
    if (b->byte_level || !b->split_safe)
        encode_cached(t, word, n, end);
    else if (!add_whole_word(b, word, n, t->out))
        encode_cut(t, word, n, end);
}
