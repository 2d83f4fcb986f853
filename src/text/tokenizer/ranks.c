/* ranks.c - tiktoken rank files: one line per token, its bytes in base64, a space, its rank (= its
 * id).
 *
 * Two neighbours are merged when their joined bytes are a token, lowest rank first; a word that is
 * a token is taken whole. The file says neither how text is cut into words nor which special tokens
 * follow the last rank: the pattern is given by name or known from the number of tokens, and the
 * special tokens come from tokenizer_config.json beside the file ("added_tokens_decoder"), else
 * from the table below.
 */
#include "text/tokenizer/tokenizer_json.h"

#include "base/file.h"
#include "text/tokenizer/tokenizer_files.h"

enum { MAX_TOKENS = 1 << 24, MAX_HOLES = 1 << 20 };

/* Special tokens at base + at, base + at + 1, ...: one name, or `count` made from a format. */
typedef struct {
    int at, count, from;
    const char *name;
} special_run;

typedef struct {
    const char *name;
    int32_t n_tokens; /* of the published file; 0 when several share the pattern */
    const char *steps[3];
    const special_run *special; /* ends with a NULL name */
    const char *bos, *eos, *pad;
} rank_kind;

static const special_run gpt2_special[] = {{0, 1, 0, "<|endoftext|>"}, {0}};
static const special_run cl100k_special[] = {
    {1, 1, 0, "<|endoftext|>"},  {2, 1, 0, "<|fim_prefix|>"},   {3, 1, 0, "<|fim_middle|>"},
    {4, 1, 0, "<|fim_suffix|>"}, {20, 1, 0, "<|endofprompt|>"}, {0}};
static const special_run o200k_special[] = {
    {1, 1, 0, "<|endoftext|>"}, {20, 1, 0, "<|endofprompt|>"}, {0}};
static const special_run qwen_special[] = {{0, 1, 0, "<|endoftext|>"},
                                           {1, 1, 0, "<|im_start|>"},
                                           {2, 1, 0, "<|im_end|>"},
                                           {3, 205, 0, "<|extra_%d|>"},
                                           {0}};
static const special_run llama3_special[] = {{0, 1, 0, "<|begin_of_text|>"},
                                             {1, 1, 0, "<|end_of_text|>"},
                                             {2, 2, 0, "<|reserved_special_token_%d|>"},
                                             {4, 1, 0, "<|finetune_right_pad_id|>"},
                                             {5, 1, 0, "<|step_id|>"},
                                             {6, 1, 0, "<|start_header_id|>"},
                                             {7, 1, 0, "<|end_header_id|>"},
                                             {8, 1, 0, "<|eom_id|>"},
                                             {9, 1, 0, "<|eot_id|>"},
                                             {10, 1, 0, "<|python_tag|>"},
                                             {11, 1, 0, "<|image|>"},
                                             {12, 244, 2, "<|reserved_special_token_%d|>"},
                                             {0}};
static const special_run llama4_special[] = {
    {0, 1, 0, "<|begin_of_text|>"},
    {1, 1, 0, "<|end_of_text|>"},
    {2, 1, 0, "<|fim_prefix|>"},
    {3, 1, 0, "<|fim_middle|>"},
    {4, 1, 0, "<|fim_suffix|>"},
    {5, 1, 0, "<|header_start|>"},
    {6, 1, 0, "<|header_end|>"},
    {7, 1, 0, "<|eom|>"},
    {8, 1, 0, "<|eot|>"},
    {9, 1, 0, "<|step|>"},
    {10, 6, 0, "<|text_post_train_reserved_special_token_%d|>"},
    {16, 1, 0, "<|python_start|>"},
    {17, 1, 0, "<|python_end|>"},
    {18, 1, 0, "<|finetune_right_pad|>"},
    {19, 61, 8, "<|text_post_train_reserved_special_token_%d|>"},
    {80, 1, 0, "<|image_start|>"},
    {81, 1, 0, "<|image_end|>"},
    {82, 2, 0, "<|vision_reserved_special_token_%d|>"},
    {84, 1, 0, "<|tile_x_separator|>"},
    {85, 1, 0, "<|tile_y_separator|>"},
    {86, 4, 2, "<|vision_reserved_special_token_%d|>"},
    {90, 1, 0, "<|image|>"},
    {91, 1, 6, "<|vision_reserved_special_token_%d|>"},
    {92, 1, 0, "<|patch|>"},
    {93, 1041, 7, "<|vision_reserved_special_token_%d|>"},
    {1134, 8, 0, "<|reasoning_reserved_special_token_%d|>"},
    {1142, 1, 0, "<|reasoning_thinking_start|>"},
    {1143, 1, 0, "<|reasoning_thinking_end|>"},
    {0}};
static const special_run none[] = {{0}};

#define NOT_HAN "&&[^\\p{Han}]]"
#define SHORT "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
#define KIMI                                                                                       \
    "[\\p{Han}]+"                                                                                  \
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}" NOT_HAN                           \
    "*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}" NOT_HAN "+" SHORT                                              \
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}" NOT_HAN                           \
    "+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}" NOT_HAN "*" SHORT                                              \
    "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* A step is a lexer's name, or a regular expression when no lexer has that name. */
static const rank_kind kinds[] = {
    {"gpt2", 50256, {"gpt2"}, gpt2_special, "<|endoftext|>", "<|endoftext|>", NULL},
    {"cl100k", 100256, {"cl100k"}, cl100k_special, NULL, "<|endoftext|>", NULL},
    {"llama3",
     128000,
     {"llama3"},
     llama3_special,
     "<|begin_of_text|>",
     "<|end_of_text|>",
     "<|finetune_right_pad_id|>"},
    {"o200k",
     200000,
     {"o200k"},
     llama4_special,
     "<|begin_of_text|>",
     "<|end_of_text|>",
     "<|finetune_right_pad|>"},
    {"o200k", 199998, {"o200k"}, o200k_special, NULL, "<|endoftext|>", NULL},
    {"qwen", 151643, {"qwen"}, qwen_special, NULL, "<|endoftext|>", NULL},
    {"kimi", 163584, {KIMI}, none, "[BOS]", "[EOS]", "[PAD]"},
    {"deepseek", 0, {"digits", "cjk", "deepseek"}, none, NULL, NULL, NULL},
};

enum { N_KINDS = sizeof kinds / sizeof *kinds };

/* By name; where two share a name, the one whose published size fits, else the last. */
static mx_status choose_kind(const char *path, const char *pattern, int32_t n,
                             const rank_kind **out)
{
    *out = NULL;
    bool named = pattern && *pattern;
    for (int i = 0; i < N_KINDS; i++) {
        bool fits = kinds[i].n_tokens == n;
        if (named ? strcmp(kinds[i].name, pattern) == 0 && (fits || !*out || (*out)->n_tokens != n)
                  : fits)
            *out = &kinds[i];
    }
    if (*out)
        return MX_OK;
    if (named)
        return mx_fail(MX_USAGE,
                       "tokenizer_pattern=%s is not known; gpt2, cl100k, llama3, o200k, qwen, "
                       "deepseek and kimi are",
                       pattern);
    return mx_fail(MX_USAGE,
                   "%s: a rank file of %d tokens does not say how text is cut into words; add "
                   "tokenizer_pattern=gpt2, cl100k, llama3, o200k, qwen, deepseek or kimi",
                   path, n);
}

static mx_status add_steps(mx_tokenizer *t, const rank_kind *k)
{
    t->pretok.step = MX_NEW_N(&t->arena, mx_pre_step, 3);
    for (int i = 0; i < 3 && k->steps[i]; i++) {
        const mx_lexer *lexer = mx_lexer_named(k->steps[i]);
        mx_pre_step *s = &t->pretok.step[t->pretok.n++];
        s->behavior = MX_ISOLATED;
        s->kind = lexer ? MX_PRE_LEX : MX_PRE_REGEX;
        if (lexer)
            s->lex = lexer->lex;
        else
            MX_TRY(mx_regex_open(&s->regex, k->steps[i], strlen(k->steps[i])));
    }
    return MX_OK;
}

static void add_special(mx_tokenizer *t, int32_t id, const char *name, bool special)
{
    size_t n = strlen(name);
    mx_tokenizer_grow(t, id + 1);
    t->token[id] = (mx_piece){(const uint8_t *)name, (int32_t)n};
    t->special[id] = special;
    mx_added_put(
        &t->added,
        (mx_added){.s = (const uint8_t *)name, .n = (uint32_t)n, .id = id, .special = special});
}

static void add_table(mx_tokenizer *t, const special_run *run, int32_t base)
{
    for (; run->name; run++)
        for (int i = 0; i < run->count; i++) {
            const char *percent = strstr(run->name, "%d");
            const char *name =
                !percent ? run->name
                         : mx_arena_printf(&t->arena, "%.*s%d%s", (int)(percent - run->name),
                                           run->name, run->from + i, percent + 2);
            add_special(t, base + run->at + i, name, true);
        }
}

/* {"added_tokens_decoder": {"128000": {"content": "<|begin_of_text|>", "special": true}}} */
static mx_status add_from_config(mx_tokenizer *t, const char *path, bool *any)
{
    mx_status st = MX_OK;
    mx_arena a = {0};
    const mx_json_node *root = NULL;
    const char *slash = strrchr(path, '/');
    const char *name =
        mx_arena_printf(&a, "%.*stokenizer_config.json", slash ? (int)(slash - path) + 1 : 0, path);
    *any = false;
    if (mx_file_exists(name))
        mx_status_free(mx_json_tree_load(&root, &a, name)); /* works without it */
    const mx_json_node *table = mx_json_get(root, "added_tokens_decoder");
    for (const mx_json_node *m = table && table->type == MX_JSON_OBJECT ? table->first : NULL;
         m && !st; m = m->next) {
        int64_t id;
        const char *content = mx_json_get_text(m, "content", NULL);
        if (!content || !mx_parse_i64(m->key, &id) || id < 0 || id > t->n_tokens + MAX_HOLES) {
            st = mx_fail(MX_INPUT, "%s: byte %u: expected a token id not far beyond %d with a "
                         "\"content\", found \"%.40s\"", name, m->at, t->n_tokens, m->key);
            break;
        }
        add_special(t, (int32_t)id, mx_arena_strdup(&t->arena, content),
                    mx_json_get_bool(m, "special", true));
        *any = true;
    }
    mx_arena_fini(&a);
    return st;
}

static const int8_t *base64_values(mx_arena *a)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    int8_t *value = memset(mx_arena_alloc(a, 256), -1, 256);
    for (int i = 0; i < 64; i++)
        value[(uint8_t)digits[i]] = (int8_t)i;
    return value;
}

/* One line at p; gives the bytes at `out`, their number, the rank; NULL when the line is malformed.
 */
static const char *read_line(const int8_t *value, const char *p, uint8_t *out, int32_t *n,
                             int64_t *rank)
{
    uint32_t bits = 0;
    int n_bits = 0;
    *n = 0;
    for (; value[(uint8_t)*p] >= 0; p++) {
        bits = bits << 6 | (uint32_t)value[(uint8_t)*p];
        if ((n_bits += 6) >= 8)
            out[(*n)++] = (uint8_t)(bits >> (n_bits -= 8));
    }
    while (*p == '=')
        p++;
    if (*p++ != ' ' || *p < '0' || *p > '9')
        return NULL;
    for (*rank = 0; *p >= '0' && *p <= '9' && *rank < MAX_TOKENS; p++)
        *rank = *rank * 10 + (*p - '0');
    p += *p == '\r';
    if (*p != '\n' && *p != 0)
        return NULL;
    return p + (*p == '\n');
}

typedef struct {
    mx_piece *piece; /* owns; by rank */
    int32_t n, n_ids, cap;
} table;

static mx_status read_table(mx_tokenizer *t, const char *path, const char *text, size_t n, table *v)
{
    const int8_t *value = base64_values(&t->arena);
    uint8_t *blob = mx_arena_alloc(&t->arena, n + 1);
    int64_t line = 1;
    for (const char *p = text, *end = text + n, *next; p < end; p = next, line++) {
        int32_t k;
        int64_t rank;
        if (*p == '\n' || (*p == '\r' && p[1] == '\n')) {
            next = p + 1 + (*p == '\r');
            continue;
        }
        next = read_line(value, p, blob, &k, &rank);
        if (!next || !k || rank >= MAX_TOKENS || rank > v->n + MAX_HOLES)
            return mx_fail(MX_INPUT,
                           "%s:%lld: expected base64, a space and a rank below 16777216 and not "
                           "far beyond the others; is this a tiktoken rank file?",
                           path, (long long)line);
        while (v->n_ids <= rank) {
            MX_GROW(v->piece, v->n_ids, v->cap);
            v->piece[v->n_ids++] = (mx_piece){NULL, MX_NO_PIECE};
        }
        if (k > MX_MAX_PIECE_BYTES)
            return mx_fail(MX_INPUT, "%s:%lld: a token of %d bytes; at most %d are accepted", path,
                           (long long)line, k, MX_MAX_PIECE_BYTES);
        if (v->piece[rank].n != MX_NO_PIECE)
            return mx_fail(MX_INPUT, "%s:%lld: rank %lld appears twice", path, (long long)line,
                           (long long)rank);
        v->piece[rank] = (mx_piece){blob, k};
        v->n++;
        blob += k;
    }
    return MX_OK;
}

static mx_status fill(mx_tokenizer *t, const char *path, const table *v)
{
    mx_bpe *b = &t->bpe;
    mx_vocab_init(&b->vocab, v->n_ids);
    mx_tokenizer_grow(t, v->n_ids);
    b->byte_level = b->whole_words = true;
    b->unk = -1;
    int32_t *rank = mx_realloc(NULL, sizeof *rank * (size_t)(v->n_ids + 1));
    for (int32_t id = 0; id < v->n_ids; id++) {
        rank[id] = v->piece[id].n == MX_NO_PIECE ? -1 : id;
        if (rank[id] >= 0)
            mx_vocab_set(&b->vocab, id, v->piece[id].s, (size_t)v->piece[id].n, true);
        t->token[id] = v->piece[id];
    }
    mx_bpe_merges_from_pieces(b, rank);
    mx_free(rank);
    for (int c = 0; c < 256; c++) {
        b->byte_id[c] = mx_vocab_find(&b->vocab, &(uint8_t){(uint8_t)c}, 1);
        if (b->byte_id[c] < 0)
            return mx_fail(MX_INPUT,
                           "%s: no token is the single byte 0x%02X; a rank file needs all 256",
                           path, c);
    }
    mx_bpe_finish(b);
    return MX_OK;
}

static int32_t find_name(const mx_tokenizer *t, const char *name)
{
    return name ? mx_tokenizer_find(t, name) : -1;
}

static mx_status load(mx_tokenizer *t, const mx_tokenizer_source *s)
{
    const char *path = s->path, *pattern = s->options ? s->options->pattern : NULL;
    table v = {0};
    const rank_kind *kind = NULL;
    t->kind = "tiktoken ranks";
    if (!pattern || !*pattern)
        pattern = mx_tokenizer_config_text(mx_tokenizer_folder(path, &t->arena),
                                           MX_TOKENIZER_PATTERN, &t->arena);
    mx_status st = read_table(t, path, s->text, s->n, &v);
    if (!st)
        st = choose_kind(path, pattern, v.n, &kind);
    if (!st)
        st = fill(t, path, &v);
    bool any = false;
    if (!st)
        st = add_steps(t, kind);
    if (!st)
        st = add_from_config(t, path, &any);
    if (!st) {
        if (!any)
            add_table(t, kind->special, v.n_ids);
        mx_tokenizer_read_config(t, path);
        t->bos = t->bos >= 0 ? t->bos : find_name(t, kind->bos);
        t->eos = t->eos >= 0 ? t->eos : find_name(t, kind->eos);
        t->pad = t->pad >= 0 ? t->pad : find_name(t, kind->pad);
        if (t->bos >= 0 && (strcmp(kind->name, "llama3") == 0 || v.n == 200000))
            mx_tokens_add(&t->prefix, t->bos);
        t->decoder.step = MX_NEW(&t->arena, mx_dec_step);
        t->decoder.n = 1;
    }
    mx_free(v.piece);
    return st;
}

/* It starts with base64, a space and a digit. */
static bool is_ranks(const mx_tokenizer_source *s)
{
    static const char base64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t n = strspn(s->text, base64);
    n += strspn(s->text + n, "=");
    return n && s->text[n] == ' ' && s->text[n + 1] >= '0' && s->text[n + 1] <= '9';
}

const mx_tokenizer_format mx_tokenizer_format_tiktoken = {
    .type = "tiktoken",
    .file = "tiktoken.model",
    .takes_pattern = true,
    .is = is_ranks,
    .load = load,
};
