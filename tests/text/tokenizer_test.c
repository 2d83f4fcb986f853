/* tokenizer_test.c - every golden case of every tokenizer kind: ids, ids with special tokens,
 * decoded text.
 *
 * tests/fixtures/tokenizers/texts.json has the texts; KIND/cases.json has {"before": ids that the
 * post-processor puts first, "cases": [[ids, decoded]]} in the same order, without `decoded` where
 * it equals the text.
 */
#include "../test.h"

#include "base/json_tree.h"
#include "text/tokenizer/tokenizer.h"
#include <string.h>

#define FIXTURES "tests/fixtures/tokenizers/"

static bool same_ids(const mx_tokens *got, const mx_json_node *before, const mx_json_node *ids)
{
    const mx_json_node *part[2] = {before, ids};
    int64_t k = 0;
    for (int i = 0; i < 2; i++)
        for (const mx_json_node *v = part[i] ? part[i]->first : NULL; v; v = v->next, k++)
            if (k >= got->n || got->ids[k] != v->i)
                return false;
    return k == got->n;
}

static void check_case(const mx_tokenizer *t, const mx_json_node *text, const mx_json_node *before,
                       const mx_json_node *c)
{
    const mx_json_node *ids = c->first, *decoded = ids->next ? ids->next : text;
    mx_tokens got = {0};
    mx_str out = {0};
    MX_CHECK_OK(mx_tokenizer_encode(t, text->s, text->n, NULL, &got));
    MX_CHECK(same_ids(&got, NULL, ids), "ids of \"%.60s\" (%lld, expected %u; first %d)", text->s,
             (long long)got.n, ids->n, got.n ? got.ids[0] : -1);
    got.n = 0;
    for (const mx_json_node *v = ids->first; v; v = v->next)
        mx_tokens_add(&got, (int32_t)v->i);
    MX_CHECK_OK(mx_tokenizer_decode(t, got.ids, got.n, NULL, &out));
    MX_CHECK(out.len == decoded->n && memcmp(mx_str_text(&out), decoded->s, out.len) == 0,
             "decoded \"%.60s\" for \"%.60s\"", mx_str_text(&out), decoded->s);
    got.n = 0;
    MX_CHECK_OK(
        mx_tokenizer_encode(t, text->s, text->n, &(mx_encode_options){.add_special = true}, &got));
    if (strstr(mx_tokenizer_kind(t), "json"))
        MX_CHECK(same_ids(&got, before, ids), "ids with special tokens of \"%.60s\"", text->s);
    mx_tokens_fini(&got);
    mx_str_fini(&out);
}

static void check_kind(const char *kind, const char *file)
{
    mx_arena a = {0};
    const mx_json_node *texts, *cases;
    mx_tokenizer *t;
    int n = 0;
    MX_CHECK_OK(mx_json_tree_load(&texts, &a, FIXTURES "texts.json"));
    MX_CHECK_OK(mx_json_tree_load(&cases, &a, mx_arena_printf(&a, FIXTURES "%s/cases.json", kind)));
    mx_status st = mx_tokenizer_open(&t, mx_arena_printf(&a, FIXTURES "%s/%s", kind, file), NULL);
    bool open = !st;
    MX_CHECK_OK(st);
    if (open && texts && cases) {
        const mx_json_node *text = texts->first, *c = mx_json_get(cases, "cases")->first;
        for (; text && c; text = text->next, c = c->next, n++)
            check_case(t, text, mx_json_get(cases, "before"), c);
        MX_CHECK(!text && !c && n == 555, "%d cases", n);
    }
    mx_tokenizer_close(t);
    mx_arena_fini(&a);
}

MX_TEST(tokenizer_golden_gpt2)
{
    check_kind("gpt2", "tokenizer.json");
}
MX_TEST(tokenizer_golden_llama3)
{
    check_kind("llama3", "tokenizer.json");
}
MX_TEST(tokenizer_golden_qwen3)
{
    check_kind("qwen3", "tokenizer.json");
}
MX_TEST(tokenizer_golden_gpt_oss)
{
    check_kind("gpt-oss", "tokenizer.json");
}
MX_TEST(tokenizer_golden_deepseek)
{
    check_kind("deepseek-v3", "tokenizer.json");
}
MX_TEST(tokenizer_golden_llama2_json)
{
    check_kind("llama2-json", "tokenizer.json");
}
MX_TEST(tokenizer_golden_gemma_json)
{
    check_kind("gemma-json", "tokenizer.json");
}
MX_TEST(tokenizer_golden_llama2_sentencepiece)
{
    check_kind("llama2-sentencepiece", "tokenizer.model");
}
MX_TEST(tokenizer_golden_gemma_sentencepiece)
{
    check_kind("gemma-sentencepiece", "tokenizer.model");
}
MX_TEST(tokenizer_golden_unigram_sentencepiece)
{
    check_kind("unigram-sentencepiece", "tokenizer.model");
}
