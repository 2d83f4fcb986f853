/* tokenizer_steps.c - reading the normalizer, pre_tokenizer, decoder and post_processor of a
 * tokenizer.json. Each is an object with a "type", or null; a Sequence is flattened. A type that is
 * not known is an error that names it: guessing would give wrong tokens silently.
 */
#include "text/tokenizer/tokenizer_json.h"

/* A string member, copied to the tokenizer's arena. */
static const char *json_keep(mx_tokenizer *t, const mx_json_node *object, const char *key,
                         const char *other, size_t *n)
{
    const mx_json_node *v = mx_json_get(object, key);
    if (!v || v->type != MX_JSON_STRING) {
        *n = strlen(other);
        return other;
    }
    *n = v->n;
    return mx_arena_copy(&t->arena, v->s, (size_t)v->n + 1);
}

/* {"String": s} or {"Regex": r}, or a plain string. Exactly one of *find and *regex is set. */
static mx_status json_read_pattern(mx_tokenizer *t, const mx_json_node *v, const char *where,
                               const char **find, size_t *n_find, const char **regex)
{
    *find = *regex = NULL;
    if (v && v->type == MX_JSON_STRING) {
        *find = mx_arena_copy(&t->arena, v->s, (size_t)v->n + 1);
        *n_find = v->n;
    } else if (mx_json_get(v, "String")) {
        *find = json_keep(t, v, "String", "", n_find);
    } else if (mx_json_get_text(v, "Regex", NULL)) {
        *regex = json_keep(t, v, "Regex", "", n_find);
    } else {
        return mx_fail(MX_INPUT,
                       "%s: byte %u: expected a pattern, {\"String\": ...} or {\"Regex\": ...}",
                       where, v ? v->at : 0);
    }
    return MX_OK;
}

static mx_status unknown(const mx_json_node *v, const char *where, const char *part)
{
    return mx_fail(MX_INPUT, "%s: byte %u: %s type \"%.60s\" is not supported", where, v->at, part,
                   mx_json_get_text(v, "type", "?"));
}

/* Published tokenizers have up to ten; every step is a level of recursion when it runs. */
enum { MAX_STEPS = 64, MOST_OF_ONE = 3 /* steps that one object becomes */ };

/* An object may have a list whatever its type is: both are counted. */
static int count_steps(const mx_json_node *v, const char *list)
{
    const mx_json_node *inner = mx_json_get(v, list);
    int n = MOST_OF_ONE;
    for (const mx_json_node *m = inner && inner->type == MX_JSON_ARRAY ? inner->first : NULL;
         m && n <= MAX_STEPS * MOST_OF_ONE; m = m->next)
        n += count_steps(m, list);
    return n;
}

/* Room for the steps of v. */
static mx_status check_steps(const mx_json_node *v, const char *list, const char *where, int *n)
{
    *n = count_steps(v, list);
    if (*n <= MAX_STEPS * MOST_OF_ONE)
        return MX_OK;
    return mx_fail(MX_INPUT, "%s: byte %u: more than %d %s", where, v->at, MAX_STEPS, list);
}

static int decode_base64(const char *s, size_t n, uint8_t *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint32_t bits = 0;
    int n_bits = 0, len = 0;
    for (size_t i = 0; i < n && s[i] != '='; i++) {
        const char *d = s[i] ? strchr(digits, s[i]) : NULL;
        if (!d)
            return -1;
        bits = bits << 6 | (uint32_t)(d - digits);
        n_bits += 6;
        if (n_bits >= 8) {
            n_bits -= 8;
            out[len++] = (uint8_t)(bits >> n_bits);
        }
    }
    return len;
}

static mx_status read_charsmap(mx_tokenizer *t, const mx_json_node *v, const char *where,
                               mx_norm_step *s)
{
    const mx_json_node *m = mx_json_get(v, "precompiled_charsmap");
    s->kind = MX_NORM_CHARSMAP;
    if (!m || m->type != MX_JSON_STRING)
        return MX_OK;
    uint8_t *blob = mx_arena_alloc(&t->arena, m->n);
    int n = decode_base64(m->s, m->n, blob);
    if (n < 0)
        return mx_fail(MX_INPUT, "%s: byte %u: precompiled_charsmap is not base64", where, m->at);
    return mx_charsmap_init(&s->charsmap, blob, (size_t)n, where);
}

static mx_status open_regex(mx_regex **out, const char *text, size_t n, const mx_json_node *v,
                            const char *where)
{
    return mx_status_wrap(mx_regex_open(out, text, n), "%s: byte %u", where, v->at);
}

static mx_status read_replace(mx_tokenizer *t, const mx_json_node *v, const char *where,
                              mx_norm_step *s)
{
    const char *regex;
    s->kind = MX_NORM_REPLACE;
    MX_TRY(json_read_pattern(t, mx_json_get(v, "pattern"), where, &s->find, &s->n_find, &regex));
    s->content = json_keep(t, v, "content", "", &s->n_content);
    return regex ? open_regex(&s->regex, regex, s->n_find, v, where) : MX_OK;
}

static mx_status add_normalizer(mx_tokenizer *t, const mx_json_node *v, const char *where)
{
    static const char *const form[] = {"NFC", "NFD", "NFKC", "NFKD"};
    const char *type = mx_json_get_text(v, "type", "");
    if (v->type == MX_JSON_NULL)
        return MX_OK;
    if (strcmp(type, "Sequence") == 0) {
        const mx_json_node *list = mx_json_get(v, "normalizers");
        for (const mx_json_node *m = list && list->type == MX_JSON_ARRAY ? list->first : NULL; m;
             m = m->next)
            MX_TRY(add_normalizer(t, m, where));
        return MX_OK;
    }
    mx_norm_step *s = &t->normalizer.step[t->normalizer.n++];
    for (int i = 0; i < 4; i++)
        if (strcmp(type, form[i]) == 0) {
            s->kind = MX_NORM_FORM;
            s->form = (mx_normal_form)i;
            return MX_OK;
        }
    if (strcmp(type, "Replace") == 0)
        return read_replace(t, v, where, s);
    if (strcmp(type, "Precompiled") == 0)
        return read_charsmap(t, v, where, s);
    if (strcmp(type, "Prepend") == 0) {
        s->kind = MX_NORM_PREPEND;
        s->content = json_keep(t, v, "prepend", "", &s->n_content);
    } else if (strcmp(type, "Strip") == 0) {
        s->kind = MX_NORM_STRIP;
        s->left = mx_json_get_bool(v, "strip_left", true);
        s->right = mx_json_get_bool(v, "strip_right", true);
    } else if (strcmp(type, "Lowercase") == 0) {
        s->kind = MX_NORM_LOWER;
    } else if (strcmp(type, "StripAccents") == 0) {
        s->kind = MX_NORM_STRIP_ACCENTS;
    } else if (strcmp(type, "Nmt") == 0) {
        s->kind = MX_NORM_NMT;
    } else {
        t->normalizer.n--;
        return unknown(v, where, "normalizer");
    }
    return MX_OK;
}

mx_status mx_json_read_normalizer(mx_tokenizer *t, const mx_json_node *v, const char *where)
{
    if (!v)
        return MX_OK;
    int n;
    MX_TRY(check_steps(v, "normalizers", where, &n));
    t->normalizer.step = MX_NEW_N(&t->arena, mx_norm_step, n);
    return add_normalizer(t, v, where);
}

static mx_status read_behavior(const mx_json_node *v, const char *where, mx_behavior other,
                               mx_behavior *out)
{
    static const char *const name[] = {"Removed", "Isolated", "MergedWithPrevious",
                                       "MergedWithNext", "Contiguous"};
    const char *text = mx_json_get_text(v, "behavior", NULL);
    *out = other;
    for (int i = 0; text && i < 5; i++)
        if (strcmp(text, name[i]) == 0) {
            *out = (mx_behavior)i;
            return MX_OK;
        }
    return text ? mx_fail(MX_INPUT, "%s: byte %u: unknown split behavior \"%.60s\"", where, v->at,
                          text)
                : MX_OK;
}

static mx_status read_split(mx_tokenizer *t, const mx_json_node *v, const char *where,
                            mx_pre_step *s)
{
    const char *regex;
    MX_TRY(json_read_pattern(t, mx_json_get(v, "pattern"), where, &s->find, &s->n_find, &regex));
    MX_TRY(read_behavior(v, where, MX_ISOLATED, &s->behavior));
    s->invert = mx_json_get_bool(v, "invert", false);
    if (!regex) {
        s->kind = MX_PRE_STRING;
        return MX_OK;
    }
    const mx_lexer *lexer = mx_lexer_find(regex);
    bool whole = s->behavior == MX_ISOLATED ||
                 (s->behavior == MX_REMOVED && s->invert && lexer && !lexer->gaps);
    if (lexer && whole) {
        s->kind = MX_PRE_LEX;
        s->lex = lexer->lex;
        return MX_OK;
    }
    s->kind = MX_PRE_REGEX;
    return open_regex(&s->regex, regex, s->n_find, v, where);
}

static mx_pre_step *new_pre(mx_tokenizer *t)
{
    return &t->pretok.step[t->pretok.n++];
}

static void add_byte_level(mx_tokenizer *t, const mx_json_node *v)
{
    if (mx_json_get_bool(v, "add_prefix_space", true))
        new_pre(t)->kind = MX_PRE_PREFIX;
    if (mx_json_get_bool(v, "use_regex", true)) {
        mx_pre_step *s = new_pre(t);
        s->kind = MX_PRE_LEX;
        s->lex = mx_lexer_named("gpt2")->lex;
    }
}

static void add_metaspace(mx_tokenizer *t, const mx_json_node *v)
{
    mx_pre_step *s = new_pre(t);
    s->kind = MX_PRE_METASPACE;
    s->find = json_keep(t, v, "replacement", "\xE2\x96\x81", &s->n_find);
    const char *scheme = mx_json_get_text(v, "prepend_scheme", NULL);
    if (!scheme)
        scheme = mx_json_get_bool(v, "add_prefix_space", true) ? "always" : "never";
    s->prepend = strcmp(scheme, "never") == 0   ? MX_PREPEND_NEVER
                 : strcmp(scheme, "first") == 0 ? MX_PREPEND_FIRST
                                                : MX_PREPEND_ALWAYS;
    s->split = mx_json_get_bool(v, "split", true);
}

/* Characters of one class, treated by a behaviour. */
static void add_class(mx_tokenizer *t, unsigned mask, bool ascii, mx_behavior behavior)
{
    *new_pre(t) = (mx_pre_step){
        .kind = MX_PRE_CLASS, .mask = mask, .ascii_punctuation = ascii, .behavior = behavior};
}

/* \\w+|[^\\w\\s]+ with the \\w of the regex crate: UTS 18, with joiners. */
static mx_status add_words(mx_tokenizer *t)
{
#define W                                                                                          \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{200c}\\x{200d}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}"  \
    "\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}"
    static const char words[] = "[" W "]+|[^" W "\\s]+";
#undef W
    mx_pre_step *s = new_pre(t);
    *s = (mx_pre_step){.kind = MX_PRE_REGEX, .behavior = MX_REMOVED, .invert = true};
    return mx_regex_open(&s->regex, words, sizeof words - 1);
}

static mx_status add_pretok(mx_tokenizer *t, const mx_json_node *v, const char *where,
                            bool *byte_level)
{
    const char *type = mx_json_get_text(v, "type", "");
    if (v->type == MX_JSON_NULL)
        return MX_OK;
    if (*byte_level)
        return mx_fail(MX_INPUT, "%s: byte %u: a pre-tokenizer after ByteLevel is not supported",
                       where, v->at);
    if (strcmp(type, "Sequence") == 0) {
        const mx_json_node *list = mx_json_get(v, "pretokenizers");
        for (const mx_json_node *m = list && list->type == MX_JSON_ARRAY ? list->first : NULL; m;
             m = m->next)
            MX_TRY(add_pretok(t, m, where, byte_level));
    } else if (strcmp(type, "ByteLevel") == 0) {
        add_byte_level(t, v);
        *byte_level = true;
    } else if (strcmp(type, "Split") == 0) {
        return read_split(t, v, where, new_pre(t));
    } else if (strcmp(type, "Metaspace") == 0) {
        add_metaspace(t, v);
    } else if (strcmp(type, "Digits") == 0) {
        add_class(t, MX_UC_N, false,
                  mx_json_get_bool(v, "individual_digits", false) ? MX_ISOLATED : MX_CONTIGUOUS);
    } else if (strcmp(type, "WhitespaceSplit") == 0) {
        add_class(t, MX_UC_SPACE, false, MX_REMOVED);
    } else if (strcmp(type, "BertPreTokenizer") == 0) {
        add_class(t, MX_UC_SPACE, false, MX_REMOVED);
        add_class(t, MX_UC_P, true, MX_ISOLATED);
    } else if (strcmp(type, "Punctuation") == 0) {
        mx_behavior behavior;
        MX_TRY(read_behavior(v, where, MX_ISOLATED, &behavior));
        add_class(t, MX_UC_P, true, behavior);
    } else if (strcmp(type, "Whitespace") == 0) {
        return add_words(t);
    } else if (strcmp(type, "CharDelimiterSplit") == 0) {
        mx_pre_step *s = new_pre(t);
        s->kind = MX_PRE_STRING;
        s->behavior = MX_REMOVED;
        s->find = json_keep(t, v, "delimiter", " ", &s->n_find);
    } else if (strcmp(type, "FixedLength") == 0) {
        mx_pre_step *s = new_pre(t);
        s->kind = MX_PRE_LENGTH;
        s->length = mx_json_get_int(v, "length", 5);
    } else {
        return unknown(v, where, "pre_tokenizer");
    }
    return MX_OK;
}

mx_status mx_json_read_pretok(mx_tokenizer *t, const mx_json_node *v, const char *where,
                              bool *byte_level)
{
    if (!v)
        return MX_OK;
    int n;
    MX_TRY(check_steps(v, "pretokenizers", where, &n));
    t->pretok.step = MX_NEW_N(&t->arena, mx_pre_step, n);
    return add_pretok(t, v, where, byte_level);
}

static mx_status read_dec_replace(mx_tokenizer *t, const mx_json_node *v, const char *where,
                                  mx_dec_step *s)
{
    const char *regex;
    s->kind = MX_DEC_REPLACE;
    MX_TRY(json_read_pattern(t, mx_json_get(v, "pattern"), where, &s->find, &s->n_find, &regex));
    s->content = json_keep(t, v, "content", "", &s->n_content);
    return regex ? open_regex(&s->regex, regex, s->n_find, v, where) : MX_OK;
}

static mx_status add_decoder(mx_tokenizer *t, const mx_json_node *v, const char *where)
{
    const char *type = mx_json_get_text(v, "type", "");
    if (v->type == MX_JSON_NULL)
        return MX_OK;
    if (strcmp(type, "Sequence") == 0) {
        const mx_json_node *list = mx_json_get(v, "decoders");
        for (const mx_json_node *m = list && list->type == MX_JSON_ARRAY ? list->first : NULL; m;
             m = m->next)
            MX_TRY(add_decoder(t, m, where));
        return MX_OK;
    }
    mx_dec_step *s = &t->decoder.step[t->decoder.n++];
    if (strcmp(type, "Replace") == 0)
        return read_dec_replace(t, v, where, s);
    if (strcmp(type, "ByteLevel") == 0) {
        s->kind = MX_DEC_BYTES;
    } else if (strcmp(type, "ByteFallback") == 0) {
        s->kind = MX_DEC_BYTE_FALLBACK;
    } else if (strcmp(type, "Fuse") == 0) {
        s->kind = MX_DEC_FUSE;
    } else if (strcmp(type, "Strip") == 0) {
        s->kind = MX_DEC_STRIP;
        s->content = json_keep(t, v, "content", " ", &s->n_content);
        s->start = mx_json_get_int(v, "start", 0);
        s->stop = mx_json_get_int(v, "stop", 0);
    } else if (strcmp(type, "Metaspace") == 0) {
        s->kind = MX_DEC_METASPACE;
        s->find = json_keep(t, v, "replacement", "\xE2\x96\x81", &s->n_find);
        const char *scheme = mx_json_get_text(v, "prepend_scheme", NULL);
        s->drop_first =
            scheme ? strcmp(scheme, "never") != 0 : mx_json_get_bool(v, "add_prefix_space", true);
    } else if (strcmp(type, "BPEDecoder") == 0) {
        s->kind = MX_DEC_SUFFIX;
        s->find = json_keep(t, v, "suffix", "</w>", &s->n_find);
    } else {
        t->decoder.n--;
        return unknown(v, where, "decoder");
    }
    return MX_OK;
}

mx_status mx_json_read_decoder(mx_tokenizer *t, const mx_json_node *v, const char *where)
{
    if (!v || v->type == MX_JSON_NULL) {
        t->decoder.join = " ";
        return MX_OK;
    }
    int n;
    MX_TRY(check_steps(v, "decoders", where, &n));
    t->decoder.step = MX_NEW_N(&t->arena, mx_dec_step, n);
    return add_decoder(t, v, where);
}

/* Whether a token has the id is checked when all are known. */
static mx_status add_id(mx_tokens *to, const mx_json_node *v, const char *where)
{
    if (v->type != MX_JSON_INT || v->i < 0 || v->i > INT32_MAX)
        return mx_fail(MX_INPUT,
                       "%s: byte %u: the post_processor names a number that is not a token id; "
                       "expected a number from 0; get the file again from where the model came",
                       where, v->at);
    if (to->n == MAX_STEPS)
        return mx_fail(MX_INPUT, "%s: byte %u: the post_processor adds more than %d ids", where,
                       v->at, MAX_STEPS);
    mx_tokens_add(to, (int32_t)v->i);
    return MX_OK;
}

/* {"SpecialToken": {"id": name}} and {"Sequence": {"id": "A"}} items of a template. */
static mx_status read_template(mx_tokenizer *t, const mx_json_node *v, const char *where)
{
    const mx_json_node *single = mx_json_get(v, "single"),
                       *table = mx_json_get(v, "special_tokens");
    mx_tokens *to = &t->prefix;
    for (const mx_json_node *m = single && single->type == MX_JSON_ARRAY ? single->first : NULL; m;
         m = m->next) {
        if (mx_json_get(m, "Sequence")) {
            to = &t->suffix;
            continue;
        }
        const char *name = mx_json_get_text(mx_json_get(m, "SpecialToken"), "id", "");
        const mx_json_node *ids = mx_json_get(mx_json_get(table, name), "ids");
        if (!ids || ids->type != MX_JSON_ARRAY)
            return mx_fail(MX_INPUT,
                           "%s: byte %u: the template names \"%.60s\", which is not in its "
                           "special_tokens",
                           where, m->at, name);
        for (const mx_json_node *k = ids->first; k; k = k->next)
            MX_TRY(add_id(to, k, where));
    }
    return MX_OK;
}

/* "cls": ["[CLS]", 101] */
static mx_status add_pair_id(const mx_json_node *v, const char *key, const char *where,
                             mx_tokens *to)
{
    const mx_json_node *pair = mx_json_get(v, key);
    if (!pair || pair->type != MX_JSON_ARRAY || pair->n != 2)
        return mx_fail(MX_INPUT, "%s: byte %u: the post_processor's \"%s\" must be [text, id]",
                       where, v->at, key);
    return add_id(to, pair->first->next, where);
}

mx_status mx_json_read_post(mx_tokenizer *t, const mx_json_node *v, const char *where)
{
    if (!v || v->type == MX_JSON_NULL)
        return MX_OK;
    const char *type = mx_json_get_text(v, "type", "");
    if (strcmp(type, "Sequence") == 0) {
        const mx_json_node *list = mx_json_get(v, "processors");
        for (const mx_json_node *m = list && list->type == MX_JSON_ARRAY ? list->first : NULL; m;
             m = m->next)
            MX_TRY(mx_json_read_post(t, m, where));
        return MX_OK;
    }
    if (strcmp(type, "TemplateProcessing") == 0)
        return read_template(t, v, where);
    if (strcmp(type, "BertProcessing") == 0 || strcmp(type, "RobertaProcessing") == 0) {
        MX_TRY(add_pair_id(v, "cls", where, &t->prefix));
        return add_pair_id(v, "sep", where, &t->suffix);
    }
    if (strcmp(type, "ByteLevel") == 0) /* changes offsets only */
        return MX_OK;
    return unknown(v, where, "post_processor");
}
