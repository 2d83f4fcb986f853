/* bpe_train_test.c - training: the merges of the reference trainer on the golden texts
 * (tests/fixtures/tokenizers/trained_merges.json: 700 tokens, llama3 pattern), and a tokenizer that
 * works. */
#include "../test.h"

#include "base/json_tree.h"
#include "text/tokenizer/bpe_train.h"
#include "text/tokenizer/tokenizer.h"
#include <string.h>

#define FIXTURES "tests/fixtures/tokenizers/"

static const char *const special[] = {"<|begin_of_text|>", "<|end_of_text|>", NULL};

static bool same(const mx_json_node *a, const mx_json_node *b)
{
    return a->n == b->n && memcmp(a->s, b->s, a->n) == 0;
}

MX_TEST(training_gives_the_reference_merges)
{
    mx_arena a = {0};
    const mx_json_node *texts, *want, *root;
    mx_bpe_trainer *t;
    mx_str json = {0};
    int32_t n_tokens;
    MX_CHECK_OK(mx_json_tree_load(&texts, &a, FIXTURES "texts.json"));
    MX_CHECK_OK(mx_json_tree_load(&want, &a, FIXTURES "trained_merges.json"));
    MX_CHECK_OK(mx_bpe_trainer_open(
        &t, &(mx_bpe_train_options){.vocab_size = 700, .min_frequency = 2, .special = special}));
    for (const mx_json_node *v = texts->first; v; v = v->next)
        mx_bpe_trainer_feed(t, v->s, v->n);
    mx_bpe_trainer_finish(t, &json, &n_tokens);
    MX_CHECK(n_tokens == 700, "%d tokens", n_tokens);
    MX_CHECK_OK(mx_json_tree_parse(&root, &a, json.text, json.len, "trained"));
    const mx_json_node *got = mx_json_get(mx_json_get(root, "model"), "merges");
    MX_CHECK(got->n == want->n, "%u merges, expected %u", got->n, want->n);
    const mx_json_node *x = got->first, *y = want->first;
    for (int i = 0; x && y; x = x->next, y = y->next, i++)
        MX_CHECK(same(x->first, y->first) && same(x->first->next, y->first->next),
                 "merge %d: %s %s", i, x->first->s, x->first->next->s);
    mx_tokenizer *k;
    mx_tokens ids = {0};
    MX_CHECK_OK(mx_tokenizer_open_bytes(&k, "trained", json.text, json.len, NULL));
    MX_CHECK_OK(mx_tokenizer_encode(k, "The quick brown fox", 19, NULL, &ids));
    MX_CHECK(ids.n > 0 && ids.n < 16 && mx_tokenizer_bos(k) == 0, "%lld ids", (long long)ids.n);
    mx_tokens_fini(&ids);
    mx_tokenizer_close(k);
    mx_bpe_trainer_close(t);
    mx_str_fini(&json);
    mx_arena_fini(&a);
}

MX_TEST(training_says_what_it_cannot_do)
{
    mx_bpe_trainer *t;
    mx_str json = {0};
    int32_t n;
    MX_CHECK_ERROR(mx_bpe_trainer_open(&t, &(mx_bpe_train_options){.vocab_size = 100}),
                   "256 bytes");
    MX_CHECK_ERROR(
        mx_bpe_trainer_open(&t, &(mx_bpe_train_options){.vocab_size = 300, .pattern = "cjk"}),
        "cjk");
    MX_CHECK_OK(mx_bpe_trainer_open(&t, &(mx_bpe_train_options){.vocab_size = 300}));
    mx_bpe_trainer_feed(t,
                        "ab\xFF"
                        "ab",
                        5);
    MX_CHECK(mx_bpe_trainer_bytes(t) == 5 && mx_bpe_trainer_bad_bytes(t) == 1,
             "bad bytes are counted");
    mx_bpe_trainer_finish(t, &json, &n);
    MX_CHECK(n == 257, "%d tokens: one merge, then no pair is left", n);
    mx_bpe_trainer_close(t);
    mx_str_fini(&json);
}
