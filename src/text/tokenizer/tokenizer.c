/* tokenizer.c - opening, encoding and decoding, for every kind.
 *
 * Text that is not valid UTF-8: byte-level tokenizers encode each valid stretch as a text of its
 * own and each run of bad bytes as one word, so every later step sees valid UTF-8 and nothing is
 * lost; the others replace bad bytes by U+FFFD first, since their vocabularies have characters
 * only.
 */
#include "text/tokenizer/tokenizer_parts.h"

#include "base/file.h"
#include "base/json_tree.h"
#include "text/tokenizer/tokenizer_files.h"

void mx_tokens_reserve(mx_tokens *t, int64_t more)
{
    if (t->cap - t->n >= more)
        return;
    int64_t cap = t->cap * 2 > t->n + more ? t->cap * 2 : t->n + more + 16;
    t->ids = mx_realloc(t->ids, sizeof *t->ids * (size_t)cap);
    t->cap = cap;
}

void mx_tokens_add(mx_tokens *t, int32_t id)
{
    mx_tokens_reserve(t, 1);
    t->ids[t->n++] = id;
}

void mx_tokens_fini(mx_tokens *t)
{
    mx_free(t->ids);
    *t = (mx_tokens){0};
}

void mx_tokenizer_grow(mx_tokenizer *t, int32_t n)
{
    if (n <= t->n_tokens)
        return;
    t->token = mx_realloc(t->token, sizeof *t->token * (size_t)n);
    t->special = mx_realloc(t->special, sizeof *t->special * (size_t)n);
    for (int32_t i = t->n_tokens; i < n; i++) {
        t->token[i] = (mx_piece){NULL, MX_NO_PIECE};
        t->special[i] = false;
    }
    t->n_tokens = n;
}

/* The built-in one of this type, or NULL. */
static const mx_tokenizer_format *built_in(const char *type)
{
    for (const mx_tokenizer_format *const *f = mx_tokenizer_format_table; *f; f++)
        if (!(*f)->file && strcmp((*f)->type, type) == 0)
            return *f;
    return NULL;
}

static mx_status load_as(mx_tokenizer *t, const mx_tokenizer_format *f,
                         const mx_tokenizer_source *s)
{
    const char *pattern = s->options ? s->options->pattern : NULL;
    if (pattern && *pattern && !f->takes_pattern)
        return mx_fail(MX_USAGE,
                       "tokenizer_pattern=%s says how a rank file cuts text into words, and this "
                       "tokenizer%s%s is of type %s, which needs none; leave it out",
                       pattern, s->path ? " " : "", s->path ? s->path : "", f->type);
    t->format = f;
    return f->load(t, s);
}

/* `text` is followed by 16 zero bytes and may be changed. */
static mx_status load_bytes(mx_tokenizer *t, const char *path, char *text, size_t n,
                            const mx_tokenizer_options *options)
{
    mx_tokenizer_source s = {path, text, n, options};
    const mx_tokenizer_format *otherwise = NULL;
    for (const mx_tokenizer_format *const *f = mx_tokenizer_format_table; *f; f++) {
        if ((*f)->is && (*f)->is(&s))
            return load_as(t, *f, &s);
        if ((*f)->file && !(*f)->is)
            otherwise = *f;
    }
    return load_as(t, otherwise, &s);
}

static mx_status load_file(mx_tokenizer *t, const char *path, const mx_tokenizer_options *options)
{
    mx_arena a = {0};
    char *text;
    size_t n;
    mx_status st = mx_file_read(&a, path, (size_t)256 << 20, &text, &n);
    if (!st)
        st = load_bytes(t, path, text, n, options);
    mx_arena_fini(&a);
    return st;
}

const char *mx_tokenizer_type(const mx_tokenizer *t)
{
    return t->format->type;
}

const char *mx_tokenizer_file(const mx_tokenizer *t)
{
    return t->format->file;
}

static mx_status load(mx_tokenizer *t, const char *path, const char *type,
                      const mx_tokenizer_options *options)
{
    bool any = !*type, json = strcmp(type, "huggingface") == 0;
    const mx_tokenizer_format *own = built_in(type);
    own = own ? own : built_in(path ? path : "byte");
    if (own)
        return load_as(t, own, &(mx_tokenizer_source){.options = options});
    if (!mx_dir_exists(path))
        return load_file(t, path, options);
    const char *file = mx_tokenizer_vocabulary_in(path, any ? -1 : json, &t->arena);
    if (file)
        return load_file(t, file, options);
    const char *says = mx_tokenizer_config_text(path, MX_TOKENIZER_TYPE, &t->arena);
    own = any && says ? built_in(says) : NULL;
    if (own)
        return load_as(t, own, &(mx_tokenizer_source){.options = options});
    return mx_fail(MX_INPUT,
                   "%s: no %s in this directory%s%s; name a tokenizer file or a directory that "
                   "has one",
                   path,
                   any    ? "tokenizer.json, tokenizer.model or tiktoken.model"
                   : json ? "tokenizer.json"
                          : "tokenizer.model or tiktoken.model",
                   any ? "" : ", which tokenizer_type asks for: ", type);
}

static mx_status check_type(const mx_tokenizer *t, const char *path, const char *type)
{
    if (!*type || strcmp(mx_tokenizer_type(t), type) == 0)
        return MX_OK;
    return mx_fail(MX_USAGE,
                   "%s is %s, but tokenizer_type=%s; set tokenizer_type=%s or leave it out",
                   path ? path : "byte", t->kind, type, mx_tokenizer_type(t));
}

/* Ids that the tokenizer adds by itself must be tokens. */
static mx_status check_added(const mx_tokenizer *t, const char *path)
{
    for (int i = 0; i < 2; i++) {
        const mx_tokens *v = i ? &t->suffix : &t->prefix;
        for (int64_t k = 0; k < v->n; k++)
            if (v->ids[k] < 0 || v->ids[k] >= t->n_tokens || t->token[v->ids[k]].n == MX_NO_PIECE)
                return mx_fail(MX_INPUT, "%s: the post_processor adds id %d, which no token has; "
                               "expected an id below %d; get the file again from where the model "
                               "came", path, v->ids[k], t->n_tokens);
    }
    return MX_OK;
}

mx_status mx_tokenizer_check_model(const mx_tokenizer *t, int64_t vocab)
{
    for (int i = 0; i < 2; i++) {
        const mx_tokens *v = i ? &t->suffix : &t->prefix;
        for (int64_t k = 0; k < v->n; k++)
            if (v->ids[k] >= vocab)
                return mx_fail(MX_INPUT,
                               "the tokenizer puts id %d at the %s of every text, but the model "
                               "has %lld tokens; they do not belong together",
                               v->ids[k], i ? "end" : "beginning", (long long)vocab);
    }
    return MX_OK;
}

static mx_tokenizer *new_tokenizer(void)
{
    mx_tokenizer *t = mx_realloc(NULL, sizeof *t);
    *t = (mx_tokenizer){.bos = -1, .eos = -1, .pad = -1};
    pthread_mutex_init(&t->lock, NULL);
    mx_unicode_init(&t->unicode, &t->arena);
    return t;
}

/* Takes both: gives the tokenizer, or closes it and gives the status. */
static mx_status finish_open(mx_tokenizer **out, mx_tokenizer *t, mx_status st)
{
    if (st) {
        mx_tokenizer_close(t);
        *out = NULL;
        return st;
    }
    mx_added_finish(&t->added);
    mx_added_finish(&t->added_normalized);
    *out = t;
    return MX_OK;
}

mx_status mx_tokenizer_open(mx_tokenizer **out, const char *path,
                            const mx_tokenizer_options *options)
{
    mx_tokenizer *t = new_tokenizer();
    const char *type = options && options->type ? options->type : "";
    type = strcmp(type, "auto") == 0 ? "" : type;
    mx_status st = load(t, path, type, options);
    if (!st)
        st = check_added(t, path);
    return finish_open(out, t, st ? st : check_type(t, path, type));
}

mx_status mx_tokenizer_open_bytes(mx_tokenizer **out, const char *path, const char *bytes, size_t n,
                                  const mx_tokenizer_options *options)
{
    mx_arena a = {0};
    mx_tokenizer *t = new_tokenizer();
    char *text = mx_arena_alloc(&a, n + 16);
    if (n)
        memcpy(text, bytes, n);
    mx_status st = load_bytes(t, path, text, n, options);
    st = finish_open(out, t, st ? st : check_added(t, path));
    mx_arena_fini(&a);
    return st;
}

static void free_scratch(mx_scratch *s, int n_steps)
{
    mx_bpe_scratch_free(s->bpe);
    mx_unigram_scratch_fini(&s->unigram);
    mx_regex_scratch_free(s->regex);
    for (int i = 0; i < n_steps; i++) {
        mx_free(s->buffer[i].span);
        mx_str_fini(&s->buffer[i].text);
    }
    mx_free(s->buffer);
    mx_str_fini(&s->normal[0]);
    mx_str_fini(&s->normal[1]);
    mx_str_fini(&s->repaired);
    mx_free(s);
}

void mx_tokenizer_close(mx_tokenizer *t)
{
    if (!t)
        return;
    for (mx_scratch *s = t->free, *next; s; s = next) {
        next = s->next;
        free_scratch(s, t->pretok.n);
    }
    pthread_mutex_destroy(&t->lock);
    mx_bpe_fini(&t->bpe);
    mx_unigram_fini(&t->unigram);
    if (t->sentencepiece)
        mx_added_fini(&t->sentencepiece->user_defined);
    mx_added_fini(&t->added);
    mx_added_fini(&t->added_normalized);
    mx_normalizer_fini(&t->normalizer);
    mx_pretok_fini(&t->pretok);
    mx_decoder_fini(&t->decoder);
    mx_tokens_fini(&t->prefix);
    mx_tokens_fini(&t->suffix);
    mx_free(t->token);
    mx_free(t->special);
    mx_arena_fini(&t->arena);
    mx_free(t);
}

static mx_scratch *take_scratch(mx_tokenizer *t)
{
    pthread_mutex_lock(&t->lock);
    mx_scratch *s = t->free;
    if (s)
        t->free = s->next;
    pthread_mutex_unlock(&t->lock);
    if (s)
        return s;
    s = mx_realloc(NULL, sizeof *s);
    *s = (mx_scratch){.bpe = mx_bpe_scratch_new(), .regex = mx_regex_scratch_new()};
    size_t bytes = sizeof *s->buffer * (size_t)(t->pretok.n + 1);
    s->buffer = memset(mx_realloc(NULL, bytes), 0, bytes);
    return s;
}

static void give_scratch(mx_tokenizer *t, mx_scratch *s)
{
    pthread_mutex_lock(&t->lock);
    s->next = t->free;
    t->free = s;
    pthread_mutex_unlock(&t->lock);
}

typedef struct {
    const mx_tokenizer *t;
    mx_scratch *s;
    mx_tokens *out;
    mx_bpe_target bpe;
    bool parse_special, gave_up;
} encoder;

static void encode_unigram(void *ctx, const uint8_t *word, size_t n, const uint8_t *end)
{
    (void)end;
    encoder *e = ctx;
    mx_unigram_encode(&e->t->unigram, &e->s->unigram, word, n, e->out);
}

static void encode_words(encoder *e, const uint8_t *p, size_t n, const uint8_t *end, bool first)
{
    bool unigram = e->t->model == MX_MODEL_UNIGRAM;
    mx_pre_run r = {.pre = &e->t->pretok,
                    .unicode = &e->t->unicode,
                    .regex = e->s->regex,
                    .buffer = e->s->buffer,
                    .ctx = unigram ? (void *)e : &e->bpe,
                    .sink = unigram ? encode_unigram : mx_bpe_encode,
                    .sink_many = unigram || !e->t->bpe.byte_level ? NULL : mx_bpe_encode_many,
                    .gave_up = e->gave_up};
    mx_pretok_run(&r, p, n, end, first);
    e->gave_up = e->gave_up || r.gave_up;
}

typedef void (*piece_fn)(encoder *e, const uint8_t *p, size_t n, const uint8_t *end, bool first);

/* Cuts the tokens of `set` out of a text; what is between them goes to `rest`. */
static void cut_added(encoder *e, const mx_added_set *set, const uint8_t *p, size_t n,
                      const uint8_t *end, bool first, piece_fn rest)
{
    size_t from = 0, resume = 0;
    mx_added_match m;
    while (set->n &&
           mx_added_next(set, &e->t->unicode, p, n, from, &resume, e->parse_special, &m)) {
        if (m.start > from)
            rest(e, p + from, m.start - from, end, first && from == 0);
        mx_tokens_add(e->out, m.token->id);
        from = m.stop;
    }
    if (from < n)
        rest(e, p + from, n - from, end, first && from == 0);
}

static void encode_normal(encoder *e, const uint8_t *p, size_t n, const uint8_t *end, bool first)
{
    if (e->t->normalizer.n) {
        const mx_str *z =
            mx_normalizer_run(&e->t->normalizer, &e->t->unicode, e->s->regex, p, n, e->s->normal);
        if (!z) {
            e->gave_up = true;
            return;
        }
        p = (const uint8_t *)mx_str_text(z);
        n = z->len;
        end = p + n;
    }
    cut_added(e, &e->t->added_normalized, p, n, end, first, encode_words);
}

static void encode_valid(encoder *e, const uint8_t *p, size_t n, const uint8_t *end, bool first)
{
    cut_added(e, &e->t->added, p, n, end, first, encode_normal);
}

/* Characters that are no piece of their own took part in merging under ids above the real ones;
 * those that are left become bytes or the unknown piece. */
static void replace_lone(encoder *e, int64_t from)
{
    const mx_bpe *b = &e->t->bpe;
    int32_t n_pieces = e->t->sentencepiece->n_pieces;
    mx_tokens old = {0};
    for (int64_t i = from; i < e->out->n; i++)
        mx_tokens_add(&old, e->out->ids[i]);
    e->out->n = from;
    for (int64_t i = 0; i < old.n; i++) {
        const mx_piece *p = &b->vocab.piece[old.ids[i]];
        bool after_unk = i && e->out->n > from && e->out->ids[e->out->n - 1] == b->unk;
        if (old.ids[i] == b->unk && after_unk)
            continue;
        if (old.ids[i] < n_pieces)
            mx_tokens_add(e->out, old.ids[i]);
        else
            mx_bpe_add_unknown(b, p->s, p->n, after_unk, e->out);
    }
    mx_tokens_fini(&old);
}

static void encode_sentencepiece(encoder *e, const uint8_t *p, size_t n, const uint8_t *end,
                                 bool first)
{
    (void)end;
    const mx_sentencepiece *m = e->t->sentencepiece;
    mx_str *z = &e->s->normal[0];
    mx_str_clear(z);
    mx_sentencepiece_normalize(m, p, n, first, z);
    p = (const uint8_t *)mx_str_text(z);
    int64_t from = e->out->n;
    if (e->t->model == MX_MODEL_UNIGRAM) {
        if (z->len)
            mx_unigram_encode(&e->t->unigram, &e->s->unigram, p, z->len, e->out);
        return;
    }
    cut_added(e, &m->user_defined, p, z->len, p + z->len, true, encode_words);
    if (e->t->bpe.vocab.n_ids > m->n_pieces)
        replace_lone(e, from);
}

static size_t bad_run(const uint8_t *p, const uint8_t *end)
{
    const uint8_t *start = p;
    uint32_t cp;
    while (p < end && !mx_utf8_decode(p, end, &cp))
        p += mx_utf8_bad_length(p, end);
    return (size_t)(p - start);
}

static void encode_any(encoder *e, const uint8_t *p, size_t n)
{
    const uint8_t *end = p + n;
    if (e->t->sentencepiece) { /* its normalizer takes any bytes */
        cut_added(e, &e->t->added, p, n, end, true, encode_sentencepiece);
        return;
    }
    size_t good = mx_utf8_valid_prefix(p, n);
    if (good == n) {
        encode_valid(e, p, n, end, true);
        return;
    }
    if (e->t->model != MX_MODEL_BPE || !e->t->bpe.byte_level) {
        mx_str_clear(&e->s->repaired);
        mx_add_lossy(&e->s->repaired, (const char *)p, n);
        p = (const uint8_t *)mx_str_text(&e->s->repaired);
        encode_valid(e, p, e->s->repaired.len, p + e->s->repaired.len, true);
        return;
    }
    for (bool first = true; p < end; first = false) {
        if (good)
            encode_valid(e, p, good, end, first);
        p += good;
        size_t bad = bad_run(p, end);
        if (bad)
            mx_bpe_encode(&e->bpe, p, bad, end);
        p += bad;
        good = mx_utf8_valid_prefix(p, (size_t)(end - p));
    }
}

static void add_all(mx_tokens *to, const mx_tokens *from)
{
    for (int64_t i = 0; i < from->n; i++)
        mx_tokens_add(to, from->ids[i]);
}

mx_status mx_tokenizer_encode(const mx_tokenizer *t, const char *text, size_t n,
                              const mx_encode_options *options, mx_tokens *out)
{
    mx_special_in_text how = options ? options->special_in_text : MX_SPECIAL_AS_LIBRARY;
    /* The free list is the one part of an open tokenizer that changes, under its lock. */
    mx_tokenizer *own = (mx_tokenizer *)t;
    encoder e = {.t = t, .s = take_scratch(own), .out = out};
    e.bpe = (mx_bpe_target){&t->bpe, e.s->bpe, out};
    mx_regex_begin(e.s->regex, mx_regex_seconds(n));
    e.parse_special = how == MX_SPECIAL_PARSE || (how == MX_SPECIAL_AS_LIBRARY && t->parse_special);
    if (options && options->add_special)
        add_all(out, &t->prefix);
    encode_any(&e, (const uint8_t *)text, n);
    if (options && options->add_special)
        add_all(out, &t->suffix);
    give_scratch(own, e.s);
    if (e.gave_up)
        return mx_fail(MX_INPUT,
                       "the tokenizer gave up on a text of %zu bytes: a regular expression of its "
                       "file takes more than 100,000,000 steps for a match or %.0f s for the text, "
                       "or its replacements make the text more than 64 times as long",
                       n, mx_regex_seconds(n));
    return MX_OK;
}

mx_status mx_tokenizer_decode(const mx_tokenizer *t, const int32_t *ids, int64_t n,
                              const mx_decode_options *options, mx_str *out)
{
    bool skip = options && options->skip_special, raw = options && options->raw;
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= t->n_tokens)
            return mx_fail(MX_INPUT,
                           "token id %d at position %lld is outside the vocabulary of %d; are "
                           "these ids from another tokenizer?",
                           ids[i], (long long)i, t->n_tokens);
    if (t->sentencepiece) {
        mx_sentencepiece_decode(t->sentencepiece, t->token, ids, n, skip, out);
        return MX_OK;
    }
    mx_piece *token = mx_realloc(NULL, sizeof *token * (size_t)(n + 1));
    int64_t k = 0;
    for (int64_t i = 0; i < n; i++)
        if (t->token[ids[i]].n != MX_NO_PIECE && !(skip && t->special[ids[i]]))
            token[k++] = t->token[ids[i]];
    mx_str bytes = {0};
    mx_status st = MX_OK;
    if (!mx_decoder_run(&t->decoder, token, k, &bytes))
        st = mx_fail(MX_INPUT, "the decoder of the tokenizer file makes the text of %lld tokens "
                     "more than 64 times as long, or takes more than %.0f s for it, which are the "
                     "limits", (long long)n, mx_regex_seconds(0));
    else if (raw)
        mx_str_add_n(out, mx_str_text(&bytes), bytes.len);
    else
        mx_add_lossy(out, mx_str_text(&bytes), bytes.len);
    mx_str_fini(&bytes);
    mx_free(token);
    return st;
}

const char *mx_tokenizer_kind(const mx_tokenizer *t)
{
    return t->kind;
}

bool mx_tokenizer_adds_special(const mx_tokenizer *t)
{
    return t->add_special;
}

int32_t mx_tokenizer_vocab_size(const mx_tokenizer *t)
{
    return t->n_tokens;
}

int32_t mx_tokenizer_bos(const mx_tokenizer *t)
{
    return t->bos;
}

int32_t mx_tokenizer_eos(const mx_tokenizer *t)
{
    return t->eos;
}

int32_t mx_tokenizer_pad(const mx_tokenizer *t)
{
    return t->pad;
}

static int32_t find_added(const mx_added_set *s, const char *token, size_t n)
{
    for (int i = 0; i < s->n; i++) {
        const mx_added *a = &s->token[i];
        if (a->name ? a->n_name == n && memcmp(a->name, token, n) == 0
                    : a->n == n && memcmp(a->s, token, n) == 0)
            return a->id;
    }
    return -1;
}

int32_t mx_tokenizer_find(const mx_tokenizer *t, const char *token)
{
    size_t n = strlen(token);
    int32_t id = find_added(&t->added, token, n);
    if (id < 0)
        id = find_added(&t->added_normalized, token, n);
    const mx_vocab *v = t->model == MX_MODEL_UNIGRAM ? &t->unigram.vocab : &t->bpe.vocab;
    return id >= 0 ? id : mx_vocab_find(v, (const uint8_t *)token, n);
}

const char *mx_tokenizer_token(const mx_tokenizer *t, int32_t id, size_t *n)
{
    if (id < 0 || id >= t->n_tokens || t->token[id].n == MX_NO_PIECE)
        return NULL;
    *n = (size_t)t->token[id].n;
    return (const char *)t->token[id].s;
}

bool mx_tokenizer_is_special(const mx_tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->n_tokens && t->special[id];
}
