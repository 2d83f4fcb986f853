/* tokenizer_input_test.c - what users can do wrong, and texts that are hard: damaged files, bytes
 * that are not UTF-8, special-token strings in text, very long words, many threads. */
#include "../test.h"

#include "base/file.h"
#include "base/utf8.h"
#include "text/tokenizer/tokenizer.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FIXTURES "tests/fixtures/tokenizers/"

static mx_tokenizer *open_fixture(const char *path)
{
    mx_tokenizer *t = NULL;
    mx_status st = mx_tokenizer_open(&t, path, NULL);
    MX_ASSERT(!st, "%s", mx_status_text(st));
    return t;
}

static mx_status open_text(const char *text)
{
    mx_tokenizer *t;
    mx_status st = mx_tokenizer_open_bytes(&t, "given", text, strlen(text), NULL);
    mx_tokenizer_close(t);
    return st;
}

#define BPE(vocab, merges)                                                                         \
    "{\"model\":{\"type\":\"BPE\",\"vocab\":" vocab ",\"merges\":" merges "}}"

MX_TEST(tokenizer_json_errors_say_what_and_where)
{
    MX_CHECK_OK(open_text(BPE("{\"a\":0,\"b\":1,\"ab\":2}", "[\"a b\"]")));
    MX_CHECK_OK(open_text(BPE("{\"a\":0,\"b\":1,\"ab\":2}", "[[\"a\",\"b\"]]")));
    MX_CHECK_ERROR(open_text("{\"model\":"), "byte 9");
    MX_CHECK_ERROR(open_text("{}"), "not a tokenizer.json");
    MX_CHECK_ERROR(open_text(BPE("{\"a\":0,\"a\":1}", "[]")), "appears twice");
    MX_CHECK_ERROR(open_text(BPE("{\"a\":-1}", "[]")), "token id");
    MX_CHECK_ERROR(open_text(BPE("{\"a\":99999999999}", "[]")), "token id");
    MX_CHECK_ERROR(open_text(BPE("{\"a\":0}", "[\"a b\"]")), "merge 0");
    MX_CHECK_ERROR(open_text(BPE("{\"a\":0}", "[\"ab\"]")), "pair");
    MX_CHECK_ERROR(open_text(BPE("[]", "[]")), "vocab");
    MX_CHECK_ERROR(open_text("{\"model\":{\"type\":\"WordPiece\",\"vocab\":{}}}"), "WordPiece");
    MX_CHECK_ERROR(
        open_text("{\"pre_tokenizer\":{\"type\":\"Magic\"},\"model\":{\"type\":\"BPE\"}}"),
        "Magic");
    MX_CHECK_ERROR(open_text("{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"},"
                             "\"behavior\":\"Isolated\"},\"model\":{\"type\":\"BPE\"}}"),
                   "regular expression");
    MX_CHECK_ERROR(
        open_text("{\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAAA\"},"
                  "\"model\":{}}"),
        "normalization map");
}

#define WITH(part)                                                                                 \
    "{" part ",\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":5},\"merges\":[]}}"
#define BERT(cls, sep)                                                                             \
    WITH("\"post_processor\":{\"type\":\"BertProcessing\",\"cls\":" cls ",\"sep\":" sep "}")
#define TEMPLATE(id)                                                                               \
    WITH("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{"                       \
         "\"SpecialToken\":{\"id\":\"s\"}}],\"special_tokens\":{\"s\":{\"ids\":[" id "]}}}")

/* Ids that would reach the embedding must be ids of tokens. */
MX_TEST(tokenizer_ids_are_ids_of_tokens)
{
    MX_CHECK_OK(open_text(BERT("[\"a\",0]", "[\"b\",5]")));
    MX_CHECK_ERROR(open_text(BERT("[\"a\",4294967301]", "[\"b\",1]")), "not a token id");
    MX_CHECK_ERROR(open_text(BERT("[\"a\",0]", "[\"b\",-1]")), "not a token id");
    MX_CHECK_ERROR(open_text(BERT("[\"a\",0]", "[\"b\",6]")), "adds id 6, which no token has");
    MX_CHECK_ERROR(open_text(BERT("[\"a\",0]", "[\"b\",3]")), "adds id 3, which no token has");
    MX_CHECK_ERROR(open_text(BERT("[\"a\"]", "[\"b\",5]")), "must be [text, id]");
    MX_CHECK_OK(open_text(TEMPLATE("5")));
    MX_CHECK_ERROR(open_text(TEMPLATE("-1")), "not a token id");
    MX_CHECK_ERROR(open_text(TEMPLATE("2147483648")), "not a token id");
    MX_CHECK_ERROR(open_text(TEMPLATE("1000")), "adds id 1000, which no token has");
    MX_CHECK_ERROR(open_text(BPE("{\"a\":0,\"b\":16777215}", "[]")), "too far beyond");
    MX_CHECK_ERROR(open_text(WITH("\"added_tokens\":[{\"id\":-7,\"content\":\"x\"}]")), "token id");
    MX_CHECK_ERROR(open_text(WITH("\"added_tokens\":[{\"id\":9000000,\"content\":\"x\"}]")),
                   "too far beyond");
    MX_CHECK_ERROR(open_text("AA== 9000000\n"), "far beyond");
}

MX_TEST(tokenizer_and_model_must_belong_together)
{
    mx_tokenizer *t = NULL;
    const char *text = TEMPLATE("5");
    MX_CHECK_OK(mx_tokenizer_open_bytes(&t, "given", text, strlen(text), NULL));
    MX_CHECK_OK(mx_tokenizer_check_model(t, 6));
    MX_CHECK_ERROR(mx_tokenizer_check_model(t, 5), "id 5 at the beginning of every text");
    mx_tokenizer_close(t);
}

/* `part` of a tokenizer.json whose list has `n` times the item. */
static mx_status open_many(const char *head, const char *item, int n, const char *tail)
{
    mx_str s = {0};
    mx_str_add(&s, head);
    for (int i = 0; i < n; i++)
        mx_str_addf(&s, "%s%s", i && item[0] == '{' ? "," : "", item);
    mx_str_add(&s, tail);
    mx_status st = open_text(mx_str_text(&s));
    mx_str_fini(&s);
    return st;
}

#define SPLIT                                                                                      \
    "{\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\","                            \
    "\"pattern\":{\"Regex\":\""
#define MODEL ",\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}}"

/* Rules of a file are limited in number, size and work, and the error says the limit. */
MX_TEST(tokenizer_rules_are_limited)
{
    clock_t start = clock();
    MX_CHECK_ERROR(open_many(SPLIT, "[", 300000, "\"}}" MODEL), "at most 16384");
    MX_CHECK_ERROR(open_many(SPLIT, "[", 16000, "\"}}" MODEL), "regular expression");
    MX_CHECK_ERROR(open_many(SPLIT, "[a&&[^", 2600, "\"}}" MODEL), "regular expression");
    MX_CHECK_ERROR(open_many(SPLIT, "\\\\b", 5000, "\"}}" MODEL), "at most 262144");
    MX_CHECK_ERROR(open_many(SPLIT, "(", 16000, "\"}}" MODEL), "byte 17: the regular expression");
    /* whatever the case: PCRE2 would look up a million characters for each of these ranges */
    MX_CHECK_ERROR(open_many(SPLIT "(?xi)[", "\\\\x{0}-\\\\x{10ffff}", 900, "]\"}}" MODEL),
                   "at most 32 are accepted");
    MX_CHECK_OK(open_many(SPLIT "(?i)[", "a-z", 32, "]\"}}" MODEL));
    MX_CHECK_OK(open_many(SPLIT "(?:i)[", "a-z", 900, "]\"}}" MODEL));
    MX_CHECK_ERROR(open_many("{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[",
                             "{\"type\":\"Digits\"}", 200000, "]}" MODEL),
                   "more than 64 pretokenizers");
    MX_CHECK_ERROR(open_many("{\"decoder\":{\"type\":\"Sequence\",\"decoders\":[",
                             "{\"type\":\"Fuse\"}", 100, "]}" MODEL),
                   "more than 64 decoders");
    MX_CHECK_ERROR(open_many("{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[",
                             "{\"type\":\"NFC\"}", 100, "]}" MODEL),
                   "more than 64 normalizers");
    MX_CHECK_ERROR(open_many("{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"", "a",
                             3000, "\",-1]]}}"),
                   "at most 1024");
    MX_CHECK_ERROR(open_many("", "QUFB", 3000, " 0\n"), "at most 1024");
    /* An object that has a list but is no Sequence still needs room for itself. */
    MX_CHECK_OK(open_text("{\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\","
                          "\"pretokenizers\":[]}" MODEL));
    double took = (double)(clock() - start) / CLOCKS_PER_SEC;
    MX_CHECK(took < 30, "%.1f s", took);
}

/* Twenty steps that each double the text. */
static mx_tokenizer *open_doubling(const char *part, const char *list)
{
    mx_str s = {0};
    mx_tokenizer *t = NULL;
    mx_str_addf(&s, "{\"%s\":{\"type\":\"Sequence\",\"%s\":[", part, list);
    for (int i = 0; i < 20; i++)
        mx_str_addf(&s, "%s{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},"
                    "\"content\":\"aa\"}", i ? "," : "");
    mx_str_add(&s, "]}" MODEL);
    MX_CHECK_OK(mx_tokenizer_open_bytes(&t, "given", s.text, s.len, NULL));
    mx_str_fini(&s);
    return t;
}

MX_TEST(tokenizer_replacements_cannot_grow_a_text_without_end)
{
    mx_tokens ids = {0};
    mx_str text = {0};
    mx_tokenizer *t = open_doubling("normalizer", "normalizers");
    MX_CHECK_ERROR(mx_tokenizer_encode(t, "aaaa", 4, NULL, &ids), "more than 64 times");
    mx_tokenizer_close(t);
    t = open_doubling("decoder", "decoders");
    MX_CHECK_ERROR(mx_tokenizer_decode(t, (int32_t[]){0, 0}, 2, NULL, &text), "more than 64 times");
    MX_CHECK(text.len == 0, "%zu bytes", text.len);
    mx_tokenizer_close(t);
    mx_tokens_fini(&ids);
    mx_str_fini(&text);
}

MX_TEST(tokenizer_path_errors)
{
    mx_tokenizer *t;
    MX_CHECK_ERROR(mx_tokenizer_open(&t, "no/such/file", NULL), "no/such/file");
    MX_CHECK_ERROR(mx_tokenizer_open(&t, "tests", NULL), "no tokenizer.json");
    MX_CHECK_ERROR(mx_tokenizer_open(&t, FIXTURES "texts.json", NULL), "expected an object");
    MX_CHECK_ERROR(mx_tokenizer_open(&t, "/dev/null", NULL), "not a regular file");
    MX_CHECK(t == NULL, "no tokenizer after an error");
}

/* All 256 bytes and two merges. */
static void make_ranks(mx_str *out)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (int i = 0; i < 256; i++)
        mx_str_addf(out, "%c%c== %d\n", digit[i >> 2], digit[(i & 3) << 4], i);
    mx_str_add(out, "YWI= 256\nYWJh 257\n"); /* ab, aba */
}

MX_TEST(rank_files)
{
    mx_str text = {0};
    mx_tokenizer *t;
    mx_tokens ids = {0};
    make_ranks(&text);
    MX_CHECK_ERROR(mx_tokenizer_open_bytes(&t, "r", text.text, text.len, NULL),
                   "tokenizer_pattern=");
    MX_CHECK_ERROR(
        mx_tokenizer_open_bytes(&t, "r", text.text, text.len, &(mx_tokenizer_options){"gpt3"}),
        "gpt3");
    MX_CHECK_OK(
        mx_tokenizer_open_bytes(&t, "r", text.text, text.len, &(mx_tokenizer_options){"gpt2"}));
    MX_CHECK_OK(mx_tokenizer_encode(t, "abab aba<|endoftext|>", 21, NULL, &ids));
    MX_CHECK(ids.n == 17 && ids.ids[0] == 256 && ids.ids[1] == 256 && ids.ids[2] == ' ', "%lld ids",
             (long long)ids.n);
    ids.n = 0;
    mx_encode_options parse = {.special_in_text = MX_SPECIAL_PARSE};
    MX_CHECK_OK(mx_tokenizer_encode(t, "aba<|endoftext|>", 16, &parse, &ids));
    MX_CHECK(ids.n == 2 && ids.ids[0] == 257 && ids.ids[1] == 258,
             "a special token parsed on request");
    mx_tokenizer_close(t);
    mx_str_add(&text, "YWI= 256\n");
    MX_CHECK_ERROR(mx_tokenizer_open_bytes(&t, "r", text.text, text.len, NULL),
                   "r:259: rank 256 appears twice");
    MX_CHECK_ERROR(mx_tokenizer_open_bytes(&t, "r", "AA== 0\nAQ== x\n", 14, NULL), "r:2:");
    MX_CHECK_ERROR(mx_tokenizer_open_bytes(&t, "r", "AA== 0\n", 7, &(mx_tokenizer_options){"gpt2"}),
                   "0x01");
    mx_tokens_fini(&ids);
    mx_str_fini(&text);
}

/* Every prefix of a model is refused or works; nothing else. */
MX_TEST(sentencepiece_cut_anywhere)
{
    mx_arena a = {0};
    char *text;
    size_t n;
    MX_CHECK_OK(mx_file_read(&a, "tests/fuzz/corpus/tokenizer/llama2.model", 1 << 20, &text, &n));
    int refused = 0;
    for (size_t k = 0; k < n; k += 3) {
        mx_tokenizer *t;
        mx_status st = mx_tokenizer_open_bytes(&t, "cut", text, k, NULL);
        refused += st != MX_OK;
        mx_status_free(st);
        mx_tokenizer_close(t);
    }
    MX_CHECK(refused > 100, "only %d prefixes were refused", refused);
    mx_arena_fini(&a);
}

static void check_round_trip(const mx_tokenizer *t, const char *text, size_t n, mx_encode_options o)
{
    mx_tokens ids = {0};
    mx_str back = {0};
    MX_CHECK_OK(mx_tokenizer_encode(t, text, n, &o, &ids));
    MX_CHECK_OK(mx_tokenizer_decode(t, ids.ids, ids.n, &(mx_decode_options){.raw = true}, &back));
    MX_CHECK(back.len == n && memcmp(mx_str_text(&back), text, n) == 0, "\"%.*s\"",
             n < 60 ? (int)n : 60, text);
    mx_tokens_fini(&ids);
    mx_str_fini(&back);
}

/* MX_ROUND_TRIPS texts for each byte-level kind; every fourth has bytes that are not UTF-8. */
MX_TEST(byte_level_kinds_round_trip)
{
    static const char *const kind[] = {"byte", FIXTURES "gpt2", FIXTURES "llama3",
                                       FIXTURES "gpt-oss", FIXTURES "deepseek-v3"};
    const char *asked = getenv("MX_ROUND_TRIPS");
    int64_t count = 4000;
    if (asked)
        MX_CHECK(mx_parse_i64(asked, &count), "MX_ROUND_TRIPS=%s", asked);
    for (int k = 0; k < 5; k++) {
        mx_tokenizer *t = open_fixture(kind[k]);
        uint64_t x = 7;
        for (int64_t i = 0; i < count; i++) {
            uint8_t text[256];
            size_t n = 0;
            int m = (int)(i % 40);
            for (int j = 0; j < m; j++) {
                x = x * 6364136223846793005u + 1442695040888963407u;
                uint32_t r = (uint32_t)(x >> 32);
                if (i % 4 == 3 && r % 5 == 0)
                    text[n++] = (uint8_t)(r >> 8);
                else if (r % 3)
                    n += (size_t)mx_utf8_encode(r >> 8 & 0x7F, text + n);
                else if ((r >> 8) % 0x110000 < 0xD800 || (r >> 8) % 0x110000 > 0xDFFF)
                    n += (size_t)mx_utf8_encode((r >> 8) % 0x110000, text + n);
            }
            check_round_trip(t, (char *)text, n,
                             (mx_encode_options){.special_in_text = MX_SPECIAL_TEXT});
        }
        mx_tokenizer_close(t);
    }
}

MX_TEST(special_tokens_in_text)
{
    mx_tokenizer *t = open_fixture(FIXTURES "llama3");
    static const char text[] = "a<|eot|>b";
    mx_tokens ids = {0};
    int32_t eot = mx_tokenizer_find(t, "<|eot|>");
    MX_CHECK(eot == 2002 && mx_tokenizer_is_special(t, eot) && !mx_tokenizer_is_special(t, 0), "%d",
             eot);
    MX_CHECK_OK(mx_tokenizer_encode(t, text, 9, NULL, &ids));
    MX_CHECK(ids.n == 3 && ids.ids[1] == eot, "tokenizer.json parses by default");
    ids.n = 0;
    MX_CHECK_OK(
        mx_tokenizer_encode(t, text, 9, &(mx_encode_options){false, MX_SPECIAL_TEXT}, &ids));
    for (int64_t i = 0; i < ids.n; i++)
        MX_CHECK(ids.ids[i] < 2000, "id %d promoted from text", ids.ids[i]);
    mx_tokenizer_close(t);
    t = open_fixture(FIXTURES "llama2-sentencepiece/tokenizer.model");
    ids.n = 0;
    MX_CHECK_OK(mx_tokenizer_encode(t, "x</s>", 5, NULL, &ids));
    MX_CHECK(ids.ids[ids.n - 1] != 2, "SentencePiece does not parse by default");
    ids.n = 0;
    MX_CHECK_OK(
        mx_tokenizer_encode(t, "x</s>", 5, &(mx_encode_options){true, MX_SPECIAL_PARSE}, &ids));
    MX_CHECK(ids.ids[0] == 1 && ids.ids[ids.n - 1] == 2, "parsed on request, begin added");
    MX_CHECK(mx_tokenizer_bos(t) == 1 && mx_tokenizer_eos(t) == 2 && mx_tokenizer_pad(t) == -1,
             "ids");
    mx_tokens_fini(&ids);
    mx_tokenizer_close(t);
}

MX_TEST(decode_refuses_ids_outside)
{
    mx_tokenizer *t = open_fixture(FIXTURES "gpt2");
    mx_str out = {0};
    MX_CHECK_ERROR(mx_tokenizer_decode(t, (int32_t[]){5, 2001}, 2, NULL, &out),
                   "id 2001 at position 1");
    MX_CHECK_ERROR(mx_tokenizer_decode(t, (int32_t[]){-1}, 1, NULL, &out), "id -1");
    MX_CHECK(out.len == 0, "nothing written");
    mx_str_fini(&out);
    mx_tokenizer_close(t);
}

static double seconds_for(const mx_tokenizer *t, const char *text, size_t n)
{
    struct timespec a, b;
    mx_tokens ids = {0};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
    MX_CHECK_OK(mx_tokenizer_encode(t, text, n, NULL, &ids));
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
    mx_tokens_fini(&ids);
    return (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
}

/* Sixteen times the text may take forty times as long at most; quadratic would be 256 times. */
MX_TEST(long_words_take_linear_time)
{
    enum { SMALL = 24 * 1024, LARGE = 16 * SMALL };
    static const char *const kind[] = {"llama3",
                                       "gpt-oss",
                                       "deepseek-v3",
                                       "llama2-json",
                                       "qwen3",
                                       "llama2-sentencepiece",
                                       "unigram-sentencepiece"};
    static const char *const unit[] = {"a", " ",  "\n ",  "\xCC\x81", "\xCC\x81\xCC\xA3",
                                       "A", "aA", "\xFF", "'"};
    mx_arena a = {0};
    char *text = mx_arena_alloc(&a, LARGE);
    for (size_t k = 0; k < sizeof kind / sizeof *kind; k++) {
        mx_tokenizer *t = open_fixture(mx_arena_printf(&a, FIXTURES "%s", kind[k]));
        for (size_t u = 0; u < sizeof unit / sizeof *unit; u++) {
            size_t n = strlen(unit[u]);
            for (size_t i = 0; i + n <= LARGE; i += n)
                memcpy(text + i, unit[u], n);
            seconds_for(t, text, SMALL);
            double small = seconds_for(t, text, SMALL), large = seconds_for(t, text, LARGE);
            MX_CHECK(large < 40 * small + 0.05, "%s, unit %zu: %.4f s, then %.4f s", kind[k], u,
                     small, large);
        }
        mx_tokenizer_close(t);
    }
    mx_arena_fini(&a);
}

typedef struct {
    const mx_tokenizer *t;
    const char *text;
    size_t n;
    int64_t n_ids;
    uint64_t hash;
} job;

static void *encode_often(void *ctx)
{
    job *j = ctx;
    for (int i = 0; i < 20; i++) {
        mx_tokens ids = {0};
        mx_status_free(mx_tokenizer_encode(j->t, j->text, j->n, NULL, &ids));
        j->n_ids = ids.n;
        j->hash = 0;
        for (int64_t k = 0; k < ids.n; k++)
            j->hash = (j->hash ^ (uint32_t)ids.ids[k]) * 1099511628211u;
        mx_tokens_fini(&ids);
    }
    return NULL;
}

MX_TEST(threads_share_a_tokenizer)
{
    mx_arena a = {0};
    char *text;
    size_t n;
    MX_CHECK_OK(mx_file_read(&a, FIXTURES "texts.json", 1 << 20, &text, &n));
    mx_tokenizer *t = open_fixture(FIXTURES "qwen3");
    job j[4];
    pthread_t thread[4];
    for (int i = 0; i < 4; i++) {
        j[i] = (job){.t = t, .text = text, .n = n};
        pthread_create(&thread[i], NULL, encode_often, &j[i]);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    for (int i = 1; i < 4; i++)
        MX_CHECK(j[i].n_ids == j[0].n_ids && j[i].hash == j[0].hash && j[0].n_ids > 0, "thread %d",
                 i);
    mx_tokenizer_close(t);
    mx_arena_fini(&a);
}

/* Token by token gives the same text as all at once, and only whole characters. */
MX_TEST(streams_give_whole_characters)
{
    static const char *const kind[] = {"llama3", "llama2-json", "gemma-json",
                                       "llama2-sentencepiece", "unigram-sentencepiece"};
    static const char text[] =
        "Hello \xE6\x97\xA5\xE6\x9C\xAC \xF0\x9F\x99\x82\xF0\x9F\x9A\x80 caf\xC3\xA9  two  "
        "spaces\n\tna\xC3\xAFve";
    for (size_t k = 0; k < sizeof kind / sizeof *kind; k++) {
        mx_tokenizer *t = open_fixture(
            k < 3 ? (k == 0   ? FIXTURES "llama3"
                     : k == 1 ? FIXTURES "llama2-json"
                              : FIXTURES "gemma-json")
                  : (k == 3 ? FIXTURES "llama2-sentencepiece" : FIXTURES "unigram-sentencepiece"));
        mx_token_stream s;
        mx_tokens ids = {0};
        mx_str whole = {0}, parts = {0};
        mx_token_stream_init(&s, t, true);
        MX_CHECK_OK(
            mx_tokenizer_encode(t, text, sizeof text - 1, &(mx_encode_options){true, 0}, &ids));
        MX_CHECK_OK(
            mx_tokenizer_decode(t, ids.ids, ids.n, &(mx_decode_options){true, false}, &whole));
        for (int64_t i = 0; i < ids.n; i++) {
            MX_CHECK_OK(mx_token_stream_push(&s, ids.ids[i], &parts));
            MX_CHECK(mx_utf8_valid_prefix((const uint8_t *)mx_str_text(&parts), parts.len) ==
                         parts.len,
                     "%s: a cut character after token %lld", kind[k], (long long)i);
            MX_CHECK(!strstr(mx_str_text(&parts), "\xEF\xBF\xBD"), "%s: U+FFFD after token %lld",
                     kind[k], (long long)i);
        }
        MX_CHECK_ERROR(mx_token_stream_push(&s, 1 << 20, &parts), "outside the vocabulary");
        MX_CHECK_OK(mx_token_stream_finish(&s, &parts));
        MX_CHECK(strcmp(mx_str_text(&parts), mx_str_text(&whole)) == 0,
                 "%s: \"%s\", expected \"%s\"", kind[k], mx_str_text(&parts), mx_str_text(&whole));
        mx_token_stream_fini(&s);
        mx_tokens_fini(&ids);
        mx_str_fini(&whole);
        mx_str_fini(&parts);
        mx_tokenizer_close(t);
    }
}
