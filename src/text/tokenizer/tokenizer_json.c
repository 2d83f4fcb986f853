/* tokenizer_json.c - loading a Hugging Face tokenizer.json.
 *
 *     {"added_tokens": [{"id", "content", "special", "normalized", "lstrip", "rstrip",
 *                        "single_word"}],
 *      "normalizer", "pre_tokenizer", "post_processor", "decoder": {"type": ...},
 *      "model": {"type": "BPE", "vocab": {text: id}, "merges": ["a b"] or [["a", "b"]], ...}}
 *
 * Byte-level vocabularies spell bytes as printable characters (space is "Ġ"). They are turned back
 * into bytes here, once, so that encoding works on the text itself. A piece with a character
 * outside that alphabet can never be matched and only keeps its spelling for decoding.
 *
 * The files beside it (tokenizer_config.json, special_tokens_map.json) name the begin, end and
 * padding tokens; where they do not, the end is looked for under its usual names.
 */
#include "text/tokenizer/tokenizer_json.h"

#include "base/file.h"
#include <stdio.h>

/* Ids may have holes, but a file of ten tokens has no use for id 10,000,000. */
enum { MAX_ID = 1 << 24, MAX_HOLES = 1 << 20 };

/* Printable stand-ins: the bytes that are printable in Latin-1 stand for themselves; the other 68
 * are U+0100, U+0101, ... in order. map[cp] is the byte + 1, or 0. */
static void make_byte_map(uint16_t map[324])
{
    memset(map, 0, 324 * sizeof *map);
    uint32_t next = 256;
    for (uint32_t b = 0; b < 256; b++) {
        bool plain = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
        map[plain ? b : next++] = (uint16_t)(b + 1);
    }
}

/* Writes the bytes that s[0..n) spells; false when some character is not of the alphabet. */
static bool unspell(const uint16_t map[324], const uint8_t *s, size_t n, uint8_t *out,
                    size_t *n_out)
{
    size_t k = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        i += (size_t)mx_utf8_next(s + i, &cp);
        if (cp >= 324 || !map[cp])
            return false;
        out[k++] = (uint8_t)(map[cp] - 1);
    }
    *n_out = k;
    return true;
}

typedef struct {
    mx_tokenizer *t;
    const char *where;
    bool byte_level, byte_decoder;
    uint16_t map[324];
} loader;

static mx_status check_id(const loader *l, const mx_json_node *v)
{
    if (v && v->type == MX_JSON_INT && v->i >= 0 && v->i < MAX_ID)
        return MX_OK;
    return mx_fail(MX_INPUT, "%s: byte %u: expected a token id from 0 to %d", l->where,
                   v ? v->at : 0, MAX_ID - 1);
}

/* `tokens`: how many there are besides. */
static mx_status check_far(const loader *l, const mx_json_node *v, int64_t tokens)
{
    if (v->i <= tokens + MAX_HOLES)
        return MX_OK;
    return mx_fail(MX_INPUT, "%s: byte %u: the token id %lld is too far beyond the %lld tokens",
                   l->where, v->at, (long long)v->i, (long long)tokens);
}

static mx_status read_vocab(loader *l, const mx_json_node *vocab)
{
    if (!vocab || vocab->type != MX_JSON_OBJECT)
        return mx_fail(MX_INPUT, "%s: model.vocab: expected an object of token texts and ids",
                       l->where);
    int32_t n_ids = 0;
    size_t bytes = 0;
    for (const mx_json_node *m = vocab->first; m; m = m->next) {
        MX_TRY(check_id(l, m));
        MX_TRY(check_far(l, m, vocab->n));
        if (m->i >= n_ids)
            n_ids = (int32_t)m->i + 1;
        bytes += m->key_len;
    }
    mx_tokenizer *t = l->t;
    mx_vocab_init(&t->bpe.vocab, n_ids);
    mx_tokenizer_grow(t, n_ids);
    uint8_t *blob = mx_arena_alloc(&t->arena, bytes);
    for (const mx_json_node *m = vocab->first; m; m = m->next) {
        const uint8_t *key = (const uint8_t *)m->key;
        size_t n = m->key_len, k;
        bool find = !l->byte_level || unspell(l->map, key, n, blob, &k);
        if (!l->byte_level || !find) {
            memcpy(blob, key, n);
            k = n;
        }
        mx_vocab_set(&t->bpe.vocab, (int32_t)m->i, blob, k, find);
        t->token[m->i] = t->bpe.vocab.piece[m->i];
        blob += k;
    }
    return MX_OK;
}

/* The two halves of a merge. */
static bool merge_parts(const mx_json_node *m, mx_piece part[2])
{
    if (m->type == MX_JSON_ARRAY && m->n == 2 && m->first->type == MX_JSON_STRING &&
        m->first->next->type == MX_JSON_STRING) {
        const mx_json_node *a = m->first, *b = a->next;
        part[0] = (mx_piece){(const uint8_t *)a->s, (int32_t)a->n};
        part[1] = (mx_piece){(const uint8_t *)b->s, (int32_t)b->n};
        return true;
    }
    const char *space = m->type == MX_JSON_STRING ? memchr(m->s, ' ', m->n) : NULL;
    if (!space || memchr(space + 1, ' ', m->n - (size_t)(space + 1 - m->s)))
        return false;
    part[0] = (mx_piece){(const uint8_t *)m->s, (int32_t)(space - m->s)};
    part[1] = (mx_piece){(const uint8_t *)space + 1, (int32_t)(m->n - (size_t)(space + 1 - m->s))};
    return true;
}

static mx_status read_merge(loader *l, const mx_json_node *m, uint32_t rank, mx_str *buf,
                            size_t skip)
{
    mx_bpe *b = &l->t->bpe;
    mx_piece part[2];
    if (!merge_parts(m, part))
        return mx_fail(MX_INPUT, "%s: byte %u: merge %u is not a pair of token texts", l->where,
                       m->at, rank);
    int32_t id[3];
    size_t n = 0;
    mx_str_clear(buf);
    for (int i = 0; i < 2; i++)
        mx_str_add_n(buf, (const char *)part[i].s, (size_t)part[i].n);
    uint8_t *joined = (uint8_t *)buf->text;
    for (int i = 0; i < 2; i++) {
        uint8_t *at = joined + n;
        size_t k = (size_t)part[i].n;
        if (l->byte_level && !unspell(l->map, part[i].s, k, at, &k))
            return MX_OK; /* its text can never occur */
        memmove(at, l->byte_level ? at : part[i].s, k);
        id[i] = mx_vocab_find(&b->vocab, at, k);
        if (i == 1 && skip && k >= skip) {
            memmove(at, at + skip, k - skip);
            k -= skip;
        }
        n += k;
    }
    id[2] = mx_vocab_find(&b->vocab, joined, n);
    if (id[0] < 0 || id[1] < 0 || id[2] < 0)
        return mx_fail(MX_INPUT,
                       "%s: byte %u: merge %u (\"%.*s\" and \"%.*s\"): its parts and the joined "
                       "text must all be in model.vocab",
                       l->where, m->at, rank, part[0].n, part[0].s, part[1].n, part[1].s);
    mx_bpe_add_merge(b, id[0], id[1], rank, id[2]);
    return MX_OK;
}

static mx_status read_merges(loader *l, const mx_json_node *merges, size_t skip)
{
    if (!merges || merges->type != MX_JSON_ARRAY)
        return mx_fail(MX_INPUT, "%s: model.merges: expected an array", l->where);
    mx_bpe_reserve(&l->t->bpe, merges->n);
    mx_str buf = {0};
    mx_status st = MX_OK;
    uint32_t rank = 0;
    for (const mx_json_node *m = merges->first; m && !st; m = m->next)
        st = read_merge(l, m, rank++, &buf, skip);
    mx_str_fini(&buf);
    return st;
}

static void read_byte_pieces(const mx_vocab *v, bool byte_level, int32_t byte_id[256])
{
    for (int c = 0; c < 256; c++) {
        char name[8];
        uint8_t raw = (uint8_t)c;
        snprintf(name, sizeof name, "<0x%02X>", c);
        byte_id[c] =
            byte_level ? mx_vocab_find(v, &raw, 1) : mx_vocab_find(v, (const uint8_t *)name, 6);
    }
}

static mx_status read_bpe(loader *l, const mx_json_node *model)
{
    mx_bpe *b = &l->t->bpe;
    l->t->kind = "tokenizer.json (BPE)";
    b->byte_level = l->byte_level;
    b->byte_fallback = mx_json_get_bool(model, "byte_fallback", false);
    b->fuse_unk = mx_json_get_bool(model, "fuse_unk", false);
    b->whole_words = mx_json_get_bool(model, "ignore_merges", false);
    const char *prefix = mx_json_get_text(model, "continuing_subword_prefix", "");
    const char *suffix = mx_json_get_text(model, "end_of_word_suffix", "");
    if (*prefix || *suffix)
        return mx_fail(MX_INPUT,
                       "%s: BPE with continuing_subword_prefix or end_of_word_suffix is not "
                       "supported",
                       l->where);
    MX_TRY(read_vocab(l, mx_json_get(model, "vocab")));
    const char *unk = mx_json_get_text(model, "unk_token", NULL);
    b->unk = unk ? mx_vocab_find(&b->vocab, (const uint8_t *)unk, strlen(unk)) : -1;
    read_byte_pieces(&b->vocab, l->byte_level, b->byte_id);
    MX_TRY(read_merges(l, mx_json_get(model, "merges"), 0));
    mx_bpe_finish(b);
    return MX_OK;
}

/* "vocab": [["piece", score], ...], in the order of their ids. */
static mx_status read_unigram_vocab(loader *l, const mx_json_node *vocab)
{
    if (!vocab || vocab->type != MX_JSON_ARRAY || !vocab->n || vocab->n >= MAX_ID)
        return mx_fail(MX_INPUT, "%s: model.vocab: expected an array of [text, score]", l->where);
    mx_tokenizer *t = l->t;
    mx_unigram *u = &t->unigram;
    mx_vocab_init(&u->vocab, (int32_t)vocab->n);
    mx_tokenizer_grow(t, (int32_t)vocab->n);
    mx_unigram_init(u);
    int32_t id = 0;
    double lowest = 0;
    for (const mx_json_node *m = vocab->first; m; m = m->next, id++) {
        const mx_json_node *text = m->type == MX_JSON_ARRAY && m->n == 2 ? m->first : NULL;
        const mx_json_node *score = text ? text->next : NULL;
        if (!text || text->type != MX_JSON_STRING ||
            (score->type != MX_JSON_REAL && score->type != MX_JSON_INT))
            return mx_fail(MX_INPUT, "%s: byte %u: expected [text, score]", l->where, m->at);
        if (text->n > MX_MAX_PIECE_BYTES)
            return mx_fail(MX_INPUT, "%s: byte %u: a piece of %u bytes; at most %d are accepted",
                           l->where, m->at, text->n, MX_MAX_PIECE_BYTES);
        const uint8_t *s = mx_arena_copy(&t->arena, text->s, (size_t)text->n + 1);
        mx_vocab_set(&u->vocab, id, s, text->n, true);
        t->token[id] = u->vocab.piece[id];
        mx_unigram_add(u, id, mx_json_number(score), false);
        lowest = !id || u->score[id] < lowest ? u->score[id] : lowest;
    }
    u->unk_score = lowest - 10;
    return MX_OK;
}

static mx_status read_unigram(loader *l, const mx_json_node *model)
{
    mx_unigram *u = &l->t->unigram;
    l->t->kind = "tokenizer.json (Unigram)";
    l->t->model = MX_MODEL_UNIGRAM;
    if (l->byte_level)
        return mx_fail(MX_INPUT,
                       "%s: a Unigram model with a ByteLevel pre-tokenizer is not supported",
                       l->where);
    MX_TRY(read_unigram_vocab(l, mx_json_get(model, "vocab")));
    int64_t unk = mx_json_get_int(model, "unk_id", -1);
    u->unk = unk >= 0 && unk < u->vocab.n_ids ? (int32_t)unk : -1;
    u->byte_fallback = mx_json_get_bool(model, "byte_fallback", false);
    read_byte_pieces(&u->vocab, false, u->byte_id);
    return MX_OK;
}

static mx_status read_model(loader *l, const mx_json_node *model)
{
    const char *type = mx_json_get_text(model, "type", mx_json_get(model, "merges") ? "BPE" : "?");
    if (!model)
        return mx_fail(MX_INPUT, "%s: no \"model\"; this is not a tokenizer.json", l->where);
    if (strcmp(type, "BPE") == 0)
        return read_bpe(l, model);
    if (strcmp(type, "Unigram") == 0 || mx_json_get(model, "unk_id"))
        return read_unigram(l, model);
    return mx_fail(MX_INPUT, "%s: model type \"%.60s\" is not supported; BPE and Unigram are",
                   l->where, type);
}

/* What decoding the added token starts from: byte-level decoders unspell it when they can. */
static void set_token(loader *l, int32_t id, const uint8_t *s, size_t n)
{
    size_t k;
    uint8_t *raw = mx_arena_alloc(&l->t->arena, n);
    if (l->byte_decoder && unspell(l->map, s, n, raw, &k))
        l->t->token[id] = (mx_piece){raw, (int32_t)k};
    else
        l->t->token[id] = (mx_piece){s, (int32_t)n};
}

static mx_status read_added_token(loader *l, const mx_json_node *v, mx_regex_scratch *rx,
                                  mx_str buf[2])
{
    mx_tokenizer *t = l->t;
    const mx_json_node *id = mx_json_get(v, "id"), *content = mx_json_get(v, "content");
    MX_TRY(check_id(l, id));
    MX_TRY(check_far(l, id, t->n_tokens));
    if (!content || content->type != MX_JSON_STRING)
        return mx_fail(MX_INPUT, "%s: byte %u: an added token needs a \"content\" string", l->where,
                       v->at);
    const uint8_t *s = mx_arena_copy(&t->arena, content->s, (size_t)content->n + 1);
    bool special = mx_json_get_bool(v, "special", false);
    mx_tokenizer_grow(t, (int32_t)id->i + 1);
    t->special[id->i] = special;
    mx_added a = {.s = s,
                  .n = content->n,
                  .name = (const char *)s,
                  .n_name = content->n,
                  .id = (int32_t)id->i,
                  .special = special,
                  .lstrip = mx_json_get_bool(v, "lstrip", false),
                  .rstrip = mx_json_get_bool(v, "rstrip", false),
                  .single_word = mx_json_get_bool(v, "single_word", false)};
    if (!mx_json_get_bool(v, "normalized", !special)) {
        set_token(l, a.id, a.s, a.n);
        mx_added_put(&t->added, a);
        return MX_OK;
    }
    if (t->normalizer.n) {
        const mx_str *z = mx_normalizer_run(&t->normalizer, &t->unicode, rx, a.s, a.n, buf);
        if (!z)
            return mx_fail(MX_INPUT, "%s: byte %u: the normalizer gave up on this token", l->where,
                           v->at);
        a.n = (uint32_t)z->len;
        a.s = mx_arena_copy(&t->arena, mx_str_text(z), z->len + 1);
    }
    set_token(l, a.id, a.s, a.n); /* decoding gives the normalized text, as in the library */
    mx_added_put(&t->added_normalized, a);
    return MX_OK;
}

static mx_status read_added(loader *l, const mx_json_node *list)
{
    mx_str buf[2] = {{0}, {0}};
    mx_regex_scratch *rx = mx_regex_scratch_new();
    mx_status st = MX_OK;
    for (const mx_json_node *v = list && list->type == MX_JSON_ARRAY ? list->first : NULL; v && !st;
         v = v->next)
        st = read_added_token(l, v, rx, buf);
    mx_regex_scratch_free(rx);
    mx_str_fini(&buf[0]);
    mx_str_fini(&buf[1]);
    return st;
}

/* "eos_token": "</s>" or {"content": "</s>"}. */
static void name_token(mx_tokenizer *t, const mx_json_node *config, const char *key, int32_t *id)
{
    const mx_json_node *v = mx_json_get(config, key);
    const char *name = v && v->type == MX_JSON_STRING ? v->s : mx_json_get_text(v, "content", NULL);
    if (*id < 0 && name)
        *id = mx_tokenizer_find(t, name);
}

void mx_tokenizer_read_config(mx_tokenizer *t, const char *path)
{
    static const char *const file[] = {"tokenizer_config.json", "special_tokens_map.json"};
    const char *slash = strrchr(path, '/');
    int n_dir = slash ? (int)(slash - path) + 1 : 0;
    for (int i = 0; i < 2; i++) {
        mx_arena a = {0};
        const mx_json_node *config;
        const char *name = mx_arena_printf(&a, "%.*s%s", n_dir, path, file[i]);
        if (mx_file_exists(name)) {
            mx_status st = mx_json_tree_load(&config, &a, name);
            name_token(t, config, "bos_token", &t->bos);
            name_token(t, config, "eos_token", &t->eos);
            name_token(t, config, "pad_token", &t->pad);
            mx_status_free(st); /* the tokenizer works without these files */
        }
        mx_arena_fini(&a);
    }
    static const char *const usual[] = {"<|end_of_text|>",
                                        "</s>",
                                        "<eos>",
                                        "<|endoftext|>",
                                        "<|eot|>",
                                        "<\xEF\xBD\x9C"
                                        "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>"};
    for (size_t i = 0; i < sizeof usual / sizeof *usual && t->eos < 0; i++)
        t->eos = mx_tokenizer_find(t, usual[i]);
    if (t->bos < 0 && t->prefix.n)
        t->bos = t->prefix.ids[0];
}

static bool has_byte_decoder(const mx_tokenizer *t)
{
    for (int i = 0; i < t->decoder.n; i++)
        if (t->decoder.step[i].kind == MX_DEC_BYTES)
            return true;
    return false;
}

static mx_status load_root(mx_tokenizer *t, const mx_json_node *root, const char *path)
{
    loader l = {.t = t, .where = path};
    make_byte_map(l.map);
    t->parse_special = t->add_special = true;
    if (root->type != MX_JSON_OBJECT)
        return mx_fail(MX_INPUT, "%s: expected an object, found %s", path,
                       mx_json_type_name(root->type));
    MX_TRY(mx_json_read_normalizer(t, mx_json_get(root, "normalizer"), path));
    MX_TRY(mx_json_read_pretok(t, mx_json_get(root, "pre_tokenizer"), path, &l.byte_level));
    MX_TRY(mx_json_read_decoder(t, mx_json_get(root, "decoder"), path));
    MX_TRY(mx_json_read_post(t, mx_json_get(root, "post_processor"), path));
    l.byte_decoder = has_byte_decoder(t);
    MX_TRY(read_model(&l, mx_json_get(root, "model")));
    return read_added(&l, mx_json_get(root, "added_tokens"));
}

static mx_status load(mx_tokenizer *t, const mx_tokenizer_source *s)
{
    mx_arena a = {0};
    const mx_json_node *root;
    mx_status st = mx_json_tree_parse_in_place(&root, &a, s->text, s->n, s->path);
    if (!st)
        st = load_root(t, root, s->path);
    if (!st)
        mx_tokenizer_read_config(t, s->path);
    mx_arena_fini(&a);
    return st;
}

static bool is_json(const mx_tokenizer_source *s)
{
    return s->text[strspn(s->text, " \t\r\n")] == '{' || mx_ends_with(s->path, ".json");
}

const mx_tokenizer_format mx_tokenizer_format_huggingface = {
    .type = "huggingface",
    .file = "tokenizer.json",
    .is = is_json,
    .load = load,
};
