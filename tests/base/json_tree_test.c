/* json_tree_test.c - what the JSON reader accepts and refuses, and what it makes of it. */
#include "../test.h"

#include "../fuzz/corpus.h"
#include "base/json_tree.h"
#include <string.h>

#define LLVMFuzzerTestOneInput mx_fuzz_json_tree
#include "../fuzz/fuzz_json_tree.c"
#undef LLVMFuzzerTestOneInput

static mx_status parse(const char *text)
{
    mx_arena a = {0};
    const mx_json_node *v;
    mx_status st = mx_json_tree_parse(&v, &a, text, strlen(text), "t");
    mx_arena_fini(&a);
    return st;
}

MX_TEST(json_tree_values)
{
    static const char text[] =
        " {\"i\":-9223372036854775808, \"big\":18446744073709551616,\"r\":-1.5e2,"
        "\"s\":\"a\\n\\u00e9\\ud83d\\ude42\\u0000z\",\"t\":true,\"n\":null,"
        "\"a\":[1,[],{}],\"long\":\"0123456789abcdef\\\\\\\"0123456789\"} ";
    mx_arena a = {0};
    const mx_json_node *v;
    MX_CHECK_OK(mx_json_tree_parse(&v, &a, text, sizeof text - 1, "t"));
    MX_CHECK(v->type == MX_JSON_OBJECT && v->n == 8, "%u members", v->n);
    MX_CHECK(mx_json_get_int(v, "i", 0) == INT64_MIN, "int64 is exact");
    MX_CHECK(mx_json_get(v, "big")->type == MX_JSON_REAL &&
                 mx_json_number(mx_json_get(v, "big")) > 1.8e19,
             "beyond 64 bits it is a double");
    MX_CHECK(mx_json_number(mx_json_get(v, "r")) == -150, "real");
    const mx_json_node *s = mx_json_get(v, "s");
    MX_CHECK(s->n == 10 && memcmp(s->s, "a\n\xC3\xA9\xF0\x9F\x99\x82\0z", 10) == 0,
             "escapes, %u bytes", s->n);
    MX_CHECK(mx_json_get_bool(v, "t", false) && !mx_json_get(v, "none"), "bool, missing");
    MX_CHECK(mx_json_get(v, "n")->type == MX_JSON_NULL, "null");
    MX_CHECK(mx_json_get(v, "a")->n == 3 && mx_json_get(v, "a")->first->next->n == 0, "array");
    MX_CHECK(strcmp(mx_json_get_text(v, "long", ""), "0123456789abcdef\\\"0123456789") == 0,
             "long");
    mx_arena_fini(&a);
}

MX_TEST(json_tree_refuses_what_is_not_json)
{
    static const char *const bad[][2] = {
        {"", "ends"},
        {"{", "byte 1"},
        {"[1,]", "byte 3"},
        {"[1 2]", "byte 3"},
        {"01", "start with 0"},
        {"1.", "digit"},
        {"1e", "exponent"},
        {"+1", "value"},
        {"\"\\x\"", "escape"},
        {"\"\n\"", "control"},
        {"\"\xff\"", "UTF-8"},
        {"\"\xC0\x80\"", "UTF-8"},
        {"\"\\ud800\"", "surrogate"},
        {"\"\\udc00\"", "surrogate"},
        {"\"\\ud83d\\u0041\"", "surrogate"},
        {"\"abc", "ends inside"},
        {"nul", "value"},
        {"{} x", "follows"},
        {"{\"a\" 1}", "':'"},
        {"{a:1}", "member name"},
        {"{\"a\":1,\"a\":2}", "twice"},
        {"1e999", "too large"},
        {"\"\xED\xA0\x80\"", "UTF-8"},
        {"NaN", "value"},
        {"'a'", "value"},
        {"{\"a\":1,\"b\":2,\"c\":3,\"d\":4,\"e\":5,\"f\":6,\"g\":7,\"h\":8,\"i\":9,\"a\":0}",
         "twice"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        MX_CHECK_ERROR(parse(bad[i][0]), bad[i][1]);
    char deep[400];
    memset(deep, '[', 200);
    memset(deep + 200, ']', 199);
    deep[399] = 0;
    MX_CHECK_ERROR(parse(deep), "128 levels");
}

MX_TEST(json_tree_finds_in_large_objects)
{
    mx_str text = {0};
    mx_arena a = {0};
    const mx_json_node *v;
    for (int i = 0; i < 5000; i++)
        mx_str_addf(&text, "%s\"key %d\":%d", i ? "," : "{", i, i);
    mx_str_add(&text, "}");
    MX_CHECK_OK(mx_json_tree_parse(&v, &a, text.text, text.len, "t"));
    for (int i = 0; i < 5000; i++) {
        char key[32];
        snprintf(key, sizeof key, "key %d", i);
        MX_CHECK(mx_json_get_int(v, key, -1) == i, "%s", key);
    }
    MX_CHECK(!mx_json_get(v, "key 5000"), "not there");
    mx_arena_fini(&a);
    mx_str_fini(&text);
}

MX_TEST(json_strings_are_written_to_be_read)
{
    static const char text[] = "a\"b\\c\n\x01\xC3\xA9\x7F\xF0\x9F\x99\x82";
    mx_str out = {0};
    mx_arena a = {0};
    const mx_json_node *v;
    mx_json_add_string(&out, text, sizeof text - 1);
    MX_CHECK_OK(mx_json_tree_parse(&v, &a, out.text, out.len, "t"));
    MX_CHECK(v->n == sizeof text - 1 && memcmp(v->s, text, v->n) == 0, "%s", out.text);
    mx_str_clear(&out);
    mx_json_add_string(&out, "\xE6\x97x\xFF", 4);
    MX_CHECK(strcmp(out.text, "\"\xEF\xBF\xBDx\xEF\xBF\xBD\"") == 0, "%s", out.text);
    mx_str_fini(&out);
    mx_arena_fini(&a);
}

static void cut_everywhere(void *ctx, uint8_t *p, size_t n)
{
    (void)ctx;
    for (size_t k = 0; k <= n; k++)
        mx_fuzz_json_tree(p, k);
}

MX_TEST(fuzz_corpus_json_tree)
{
    int files = corpus_each("tests/fuzz/corpus/json_tree", cut_everywhere, NULL);
    MX_CHECK(files >= 6, "%d files", files);
}
