/* bpe_train.c - counting words, merging pairs, writing the file.
 *
 * Words live once each, as runs of symbol ids in one buffer, with how often they were seen. For
 * each pair of ids there is its count over all words and the list of words it may be in. A heap
 * orders pairs by (count, then smaller ids first); its entries go stale when counts fall, and are
 * corrected when they come up. A merge touches only the words on the pair's list, so the time is
 * that of the changes made.
 */
#include "text/tokenizer/bpe_train.h"

#include "base/json_tree.h"
#include "text/tokenizer/lexer.h"
#include "text/tokenizer/vocab.h"

typedef struct {
    uint32_t start, n; /* symbols */
    uint32_t text, n_bytes;
    int64_t count;
} word;

typedef struct {
    uint64_t key; /* left << 32 | right */
    int64_t count;
    uint32_t *words; /* owns; may name a word twice */
    uint32_t n, cap;
    int64_t changed_at; /* number of the merge that last made one, plus 1 */
} pair;

typedef struct {
    int64_t count;
    uint64_t key;
    uint32_t pair;
} candidate;

struct mx_bpe_trainer {
    mx_arena arena;
    mx_unicode unicode;
    mx_bpe_train_options options;
    const mx_lexer *lexer;
    int64_t n_bytes, n_bad;
    mx_str text; /* bytes of all words */
    word *words; /* owns */
    uint32_t n_words, cap_words;
    uint32_t *slot; /* owns: word + 1, by hash of its bytes */
    uint32_t mask;
    int32_t *symbols; /* owns */
    pair *pairs;      /* owns */
    uint32_t n_pairs, cap_pairs;
    uint32_t *made; /* owns; pairs that the current merge made */
    uint32_t n_made, cap_made;
    uint32_t *pair_slot; /* owns: pair + 1 */
    uint32_t pair_mask;
    candidate *heap; /* owns */
    size_t n_heap, cap_heap;
    mx_piece *token; /* owns; bytes in the arena */
    int32_t n_tokens, cap_tokens;
    int32_t n_special;
    uint64_t *merges; /* owns; keys in order */
    int64_t n_merges, cap_merges;
    mx_vocab known; /* bytes -> id, for pairs that make a token that is already there */
};

mx_status mx_bpe_trainer_open(mx_bpe_trainer **out, const mx_bpe_train_options *options)
{
    *out = NULL;
    const char *pattern = options->pattern && *options->pattern ? options->pattern : "llama3";
    const mx_lexer *lexer = mx_lexer_named(pattern);
    if (!lexer || lexer->gaps)
        return mx_fail(MX_USAGE,
                       "a tokenizer cannot be trained with tokenizer_pattern=%s; gpt2, cl100k, "
                       "llama3, o200k and qwen can be used",
                       pattern);
    int32_t n_special = 0;
    while (options->special && options->special[n_special])
        n_special++;
    if (options->vocab_size < 256 + n_special || options->vocab_size > 1 << 24)
        return mx_fail(MX_USAGE,
                       "vocab_size=%d: expected %d (256 bytes and %d special tokens) to 16777216",
                       options->vocab_size, 256 + n_special, n_special);
    mx_bpe_trainer *t = mx_realloc(NULL, sizeof *t);
    *t =
        (mx_bpe_trainer){.options = *options, .lexer = lexer, .mask = 1023, .n_special = n_special};
    mx_unicode_init(&t->unicode, &t->arena);
    t->slot = memset(mx_realloc(NULL, 1024 * sizeof *t->slot), 0, 1024 * sizeof *t->slot);
    *out = t;
    return MX_OK;
}

void mx_bpe_trainer_close(mx_bpe_trainer *t)
{
    if (!t)
        return;
    for (uint32_t i = 0; i < t->n_pairs; i++)
        mx_free(t->pairs[i].words);
    mx_free(t->words);
    mx_free(t->slot);
    mx_free(t->symbols);
    mx_free(t->pairs);
    mx_free(t->pair_slot);
    mx_free(t->made);
    mx_free(t->heap);
    mx_free(t->token);
    mx_free(t->merges);
    mx_vocab_fini(&t->known);
    mx_str_fini(&t->text);
    mx_arena_fini(&t->arena);
    mx_free(t);
}

int64_t mx_bpe_trainer_bytes(const mx_bpe_trainer *t)
{
    return t->n_bytes;
}

int64_t mx_bpe_trainer_bad_bytes(const mx_bpe_trainer *t)
{
    return t->n_bad;
}

static uint32_t *word_slot(const mx_bpe_trainer *t, const uint8_t *p, size_t n)
{
    uint32_t k = (uint32_t)mx_hash_bytes(p, n) & t->mask;
    for (; t->slot[k]; k = (k + 1) & t->mask) {
        const word *w = &t->words[t->slot[k] - 1];
        if (w->n_bytes == n && memcmp(t->text.text + w->text, p, n) == 0)
            break;
    }
    return &t->slot[k];
}

static void grow_words(mx_bpe_trainer *t)
{
    size_t size = ((size_t)t->mask + 1) * 2;
    t->mask = (uint32_t)size - 1;
    mx_free(t->slot);
    t->slot = memset(mx_realloc(NULL, size * sizeof *t->slot), 0, size * sizeof *t->slot);
    for (uint32_t i = 0; i < t->n_words; i++)
        *word_slot(t, (const uint8_t *)t->text.text + t->words[i].text, t->words[i].n_bytes) =
            i + 1;
}

static void count_word(mx_bpe_trainer *t, const uint8_t *p, size_t n)
{
    uint32_t *slot = word_slot(t, p, n);
    if (*slot) {
        t->words[*slot - 1].count++;
        return;
    }
    MX_ASSERT(t->text.len + n < UINT32_MAX, "more than 4 GiB of different words");
    MX_GROW(t->words, t->n_words, t->cap_words);
    t->words[t->n_words] =
        (word){.text = (uint32_t)t->text.len, .n_bytes = (uint32_t)n, .count = 1};
    mx_str_add_n(&t->text, (const char *)p, n);
    *slot = ++t->n_words;
    if (t->n_words * 2 > t->mask)
        grow_words(t);
}

void mx_bpe_trainer_feed(mx_bpe_trainer *t, const char *text, size_t n)
{
    const uint8_t *p = (const uint8_t *)text, *end = p + n;
    t->n_bytes += (int64_t)n;
    while (p < end) {
        const uint8_t *stop = p + mx_utf8_valid_prefix(p, (size_t)(end - p)), *q;
        for (; p < stop; p = q) {
            q = t->lexer->lex(&t->unicode, p, stop);
            count_word(t, p, (size_t)(q - p));
        }
        if (p < end) {
            int bad = mx_utf8_bad_length(p, end);
            t->n_bad += bad;
            p += bad;
        }
    }
}

static int32_t add_token(mx_bpe_trainer *t, const uint8_t *s, size_t n)
{
    MX_GROW(t->token, t->n_tokens, t->cap_tokens);
    t->token[t->n_tokens] = (mx_piece){mx_arena_copy(&t->arena, s, n), (int32_t)n};
    return t->n_tokens++;
}

/* Bytes in the order of their printable spelling: those that print as themselves, then the rest. */
static bool prints_as_itself(int b)
{
    return (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
}

static void add_bytes(mx_bpe_trainer *t, int32_t id[256])
{
    for (int i = 0; i < t->n_special; i++)
        add_token(t, (const uint8_t *)t->options.special[i], strlen(t->options.special[i]));
    for (int pass = 0; pass < 2; pass++)
        for (int b = 0; b < 256; b++)
            if (prints_as_itself(b) == (pass == 0)) {
                id[b] = add_token(t, &(uint8_t){(uint8_t)b}, 1);
                mx_vocab_set(&t->known, id[b], t->token[id[b]].s, 1, true);
            }
}

static void make_symbols(mx_bpe_trainer *t)
{
    int32_t id[256];
    mx_vocab_init(&t->known, t->options.vocab_size);
    add_bytes(t, id);
    t->symbols = mx_realloc(NULL, sizeof *t->symbols * (t->text.len + 1));
    for (uint32_t i = 0; i < t->n_words; i++) {
        word *w = &t->words[i];
        w->start = w->text;
        w->n = w->n_bytes;
        for (uint32_t k = 0; k < w->n; k++)
            t->symbols[w->start + k] = id[(uint8_t)t->text.text[w->text + k]];
    }
}

static uint64_t pair_key(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static uint32_t *pair_slot(const mx_bpe_trainer *t, uint64_t key)
{
    uint64_t h = key * 0x9E3779B97F4A7C15u;
    uint32_t k = (uint32_t)(h >> 32) & t->pair_mask;
    while (t->pair_slot[k] && t->pairs[t->pair_slot[k] - 1].key != key)
        k = (k + 1) & t->pair_mask;
    return &t->pair_slot[k];
}

static void grow_pairs(mx_bpe_trainer *t)
{
    size_t size = t->pair_slot ? ((size_t)t->pair_mask + 1) * 2 : 4096;
    mx_free(t->pair_slot);
    t->pair_slot =
        memset(mx_realloc(NULL, size * sizeof *t->pair_slot), 0, size * sizeof *t->pair_slot);
    t->pair_mask = (uint32_t)size - 1;
    for (uint32_t i = 0; i < t->n_pairs; i++)
        *pair_slot(t, t->pairs[i].key) = i + 1;
}

static uint32_t pair_index(mx_bpe_trainer *t, uint64_t key)
{
    if ((uint64_t)t->n_pairs * 2 >= t->pair_mask)
        grow_pairs(t);
    uint32_t *slot = pair_slot(t, key);
    if (!*slot) {
        MX_GROW(t->pairs, t->n_pairs, t->cap_pairs);
        t->pairs[t->n_pairs] = (pair){.key = key};
        *slot = ++t->n_pairs;
    }
    return *slot - 1;
}

static bool before(const candidate *a, const candidate *b)
{
    return a->count != b->count ? a->count > b->count : a->key < b->key;
}

static void heap_push(mx_bpe_trainer *t, candidate c)
{
    MX_GROW(t->heap, t->n_heap, t->cap_heap);
    size_t i = t->n_heap++;
    for (; i && before(&c, &t->heap[(i - 1) / 2]); i = (i - 1) / 2)
        t->heap[i] = t->heap[(i - 1) / 2];
    t->heap[i] = c;
}

static candidate heap_pop(mx_bpe_trainer *t)
{
    candidate top = t->heap[0], last = t->heap[--t->n_heap];
    size_t i = 0;
    for (;;) {
        size_t c = 2 * i + 1;
        if (c >= t->n_heap)
            break;
        c += c + 1 < t->n_heap && before(&t->heap[c + 1], &t->heap[c]);
        if (!before(&t->heap[c], &last))
            break;
        t->heap[i] = t->heap[c];
        i = c;
    }
    t->heap[i] = last;
    return top;
}

static void change(mx_bpe_trainer *t, int32_t left, int32_t right, int64_t by, uint32_t in_word)
{
    uint32_t i = pair_index(t, pair_key(left, right));
    pair *p = &t->pairs[i];
    p->count += by;
    if (by < 0)
        return;
    if (!p->n || p->words[p->n - 1] != in_word) {
        MX_GROW(p->words, p->n, p->cap);
        p->words[p->n++] = in_word;
    }
    if (p->changed_at != t->n_merges + 1) {
        p->changed_at = t->n_merges + 1;
        MX_GROW(t->made, t->n_made, t->cap_made);
        t->made[t->n_made++] = i;
    }
}

/* What the last merge made becomes a candidate. */
static void push_made(mx_bpe_trainer *t)
{
    for (uint32_t i = 0; i < t->n_made; i++) {
        const pair *p = &t->pairs[t->made[i]];
        if (p->count > 0)
            heap_push(t, (candidate){p->count, p->key, t->made[i]});
    }
    t->n_made = 0;
}

static void count_pairs(mx_bpe_trainer *t)
{
    for (uint32_t i = 0; i < t->n_words; i++) {
        const word *w = &t->words[i];
        for (uint32_t k = 0; k + 1 < w->n; k++)
            change(t, t->symbols[w->start + k], t->symbols[w->start + k + 1], w->count, i);
    }
    push_made(t);
}

/* Replaces the pair in one word. */
static void merge_in_word(mx_bpe_trainer *t, uint32_t index, int32_t left, int32_t right,
                          int32_t id)
{
    word *w = &t->words[index];
    int32_t *s = t->symbols + w->start;
    uint32_t n = 0;
    for (uint32_t k = 0; k < w->n; n++) {
        if (k + 1 >= w->n || s[k] != left || s[k + 1] != right) {
            s[n] = s[k++];
            continue;
        }
        if (n > 0) {
            change(t, s[n - 1], left, -w->count, index);
            change(t, s[n - 1], id, w->count, index);
        }
        if (k + 2 < w->n) {
            change(t, right, s[k + 2], -w->count, index);
            change(t, id, s[k + 2], w->count, index);
        }
        s[n] = id;
        k += 2;
    }
    w->n = n;
}

static int32_t joined_token(mx_bpe_trainer *t, int32_t left, int32_t right)
{
    mx_str s = {0};
    mx_str_add_n(&s, (const char *)t->token[left].s, (size_t)t->token[left].n);
    mx_str_add_n(&s, (const char *)t->token[right].s, (size_t)t->token[right].n);
    int32_t id = mx_vocab_find(&t->known, (const uint8_t *)s.text, s.len);
    if (id < 0) {
        id = add_token(t, (const uint8_t *)s.text, s.len);
        mx_vocab_set(&t->known, id, t->token[id].s, s.len, true);
    }
    mx_str_fini(&s);
    return id;
}

static void learn(mx_bpe_trainer *t)
{
    while (t->n_tokens < t->options.vocab_size && t->n_heap) {
        candidate c = heap_pop(t);
        pair *p = &t->pairs[c.pair];
        if (c.count != p->count) {
            c.count = p->count;
            if (c.count > 0)
                heap_push(t, c);
            continue;
        }
        if (c.count < 1 || c.count < t->options.min_frequency)
            break;
        int32_t left = (int32_t)(c.key >> 32), right = (int32_t)(uint32_t)c.key;
        int32_t id = joined_token(t, left, right);
        MX_GROW(t->merges, t->n_merges, t->cap_merges);
        t->merges[t->n_merges++] = c.key;
        uint32_t *words = p->words, n = p->n;
        p->words = NULL;
        p->n = p->cap = 0;
        for (uint32_t i = 0; i < n; i++)
            merge_in_word(t, words[i], left, right, id);
        mx_free(words);
        t->pairs[c.pair].count = 0; /* none is left; it may come back by another way */
        push_made(t);
    }
}

/* A token spelled with printable characters, as byte-level files have them. */
static void spell(const mx_piece *p, mx_str *out)
{
    for (int32_t i = 0; i < p->n; i++) {
        int b = p->s[i];
        uint32_t cp = (uint32_t)b;
        if (!prints_as_itself(b)) /* 0-32, 127-160, 173 become U+0100 onwards, in this order */
            cp = 256u + (uint32_t)(b <= 32 ? b : b <= 160 ? b - 127 + 33 : 67);
        uint8_t utf8[4];
        mx_str_add_n(out, (char *)utf8, (size_t)mx_utf8_encode(cp, utf8));
    }
}

static void write_token(const mx_bpe_trainer *t, int32_t id, mx_str *json)
{
    mx_str s = {0};
    if (id < t->n_special)
        mx_str_add(&s, t->options.special[id]);
    else
        spell(&t->token[id], &s);
    mx_json_add_string(json, mx_str_text(&s), s.len);
    mx_str_fini(&s);
}

static void write_parts(const mx_bpe_trainer *t, mx_str *json)
{
    mx_str_add(json,
               "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[");
    for (int i = 0; i < t->n_special; i++) {
        mx_str_addf(json, "%s{\"id\":%d,\"content\":", i ? "," : "", i);
        write_token(t, i, json);
        mx_str_add(json,
                   ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,"
                   "\"special\":true}");
    }
    mx_str_add(json,
               "],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":"
               "[{\"type\":\"Split\",\"pattern\":{\"Regex\":");
    mx_json_add_string(json, t->lexer->pattern, strlen(t->lexer->pattern));
    mx_str_add(json, "},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\","
                     "\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false}]},"
                     "\"post_processor\":");
    if (t->n_special) {
        mx_str name = {0};
        write_token(t, 0, &name);
        mx_str_addf(
            json,
            "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":%s,"
            "\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"pair\":[{\"Sequence\":"
            "{\"id\":\"A\",\"type_id\":0}},{\"Sequence\":{\"id\":\"B\",\"type_id\":1}}],"
            "\"special_tokens\":{%s:{\"id\":%s,\"ids\":[0],\"tokens\":[%s]}}}",
            name.text, name.text, name.text, name.text);
        mx_str_fini(&name);
    } else {
        mx_str_add(json, "null");
    }
    mx_str_add(
        json,
        ",\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,"
        "\"use_regex\":true},\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,"
        "\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":false,"
        "\"byte_fallback\":false,\"ignore_merges\":false,\"vocab\":{");
}

void mx_bpe_trainer_finish(mx_bpe_trainer *t, mx_str *json, int32_t *n_tokens)
{
    make_symbols(t);
    count_pairs(t);
    learn(t);
    write_parts(t, json);
    for (int32_t i = 0; i < t->n_tokens; i++) {
        mx_str_add(json, i ? "," : "");
        write_token(t, i, json);
        mx_str_addf(json, ":%d", i);
    }
    mx_str_add(json, "},\"merges\":[");
    for (int64_t i = 0; i < t->n_merges; i++) {
        mx_str_add(json, i ? ",[" : "[");
        write_token(t, (int32_t)(t->merges[i] >> 32), json);
        mx_str_add(json, ",");
        write_token(t, (int32_t)(uint32_t)t->merges[i], json);
        mx_str_add(json, "]");
    }
    mx_str_add(json, "]}}\n");
    *n_tokens = t->n_tokens;
}
