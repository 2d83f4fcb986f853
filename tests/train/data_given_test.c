/* data_given_test.c - data that is given is used or refused; evaluation has data of its own; the
 * vocabulary is the tokenizer's; all of it is known before there are weights. */
#include "../test.h"

#include "base/io.h"
#include "tiny_run.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *data_file(const char *folder, const char *name, const char *line, int n)
{
    static char path[4][512];
    static int next;
    char *p = path[next++ % 4];
    snprintf(p, 512, "%.300s/%s", folder, name);
    FILE *f = fopen(p, "w");
    MX_ASSERT(f);
    for (int i = 0; i < n; i++)
        fprintf(f, line, i, i);
    fclose(f);
    return p;
}

#define TEXT_LINE "{\"text\": \"the %d bears sang %d songs\"}\n"

static const char *setting(const char *key, const char *value)
{
    static char text[8][600];
    static int next;
    char *t = text[next++ % 8];
    snprintf(t, 600, "%s=%s", key, value);
    return t;
}

MX_TEST(data_that_is_given_is_used_or_refused)
{
    char folder[256];
    tiny_folder(folder, sizeof folder);
    const char *path = setting("dataset_path", data_file(folder, "a.jsonl", TEXT_LINE, 30));
    MX_CHECK_ERROR(tiny_train(folder, "a", (const char *[]){"dataset_type=corpus", path, NULL}),
                   "`dataset_path` names data, but dataset_type=corpus");
    MX_CHECK_ERROR(tiny_train(folder, "b", (const char *[]){"dataset_type=synthetic", path, NULL}),
                   "but dataset_type=synthetic (argument dataset_type=synthetic) does not read it");
    MX_CHECK_ERROR(tiny_train(folder, "c", (const char *[]){"hf_path=some/where", path, NULL}),
                   "`hf_path` names data, and another key does so too");
    MX_CHECK_ERROR(tiny_train(folder, "d", (const char *[]){"train_split=test", path, NULL}),
                   "`train_split` names data");
    MX_CHECK_OK(tiny_train(folder, "e", (const char *[]){"steps=1", path, NULL}));
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

MX_TEST(evaluation_needs_data_of_its_own)
{
    char folder[256];
    tiny_folder(folder, sizeof folder);
    const char *path = setting("dataset_path", data_file(folder, "a.jsonl", TEXT_LINE, 200));
    const char *other = setting("eval_dataset_path", data_file(folder, "b.jsonl", TEXT_LINE, 9));
    MX_CHECK_ERROR(
        tiny_train(folder, "a", (const char *[]){"steps=2", "eval_interval=1", path, NULL}),
        "there is nothing to evaluate on; name data (eval_dataset_path), hold out a share");
    MX_CHECK_OK(
        tiny_train(folder, "b", (const char *[]){"steps=2", "eval_interval=1", path, other, NULL}));
    MX_CHECK_OK(tiny_train(
        folder, "c", (const char *[]){"steps=2", "eval_interval=1", "eval_split=0.1", path, NULL}));
    char *text = tiny_text(folder, "c", "metrics.jsonl");
    MX_CHECK(tiny_count(text, "eval/loss") == 2, "%s", text);
    free(text);
    MX_CHECK_ERROR(tiny_train(folder, "d",
                              (const char *[]){"steps=2", "eval_interval=1", path, other,
                                               "eval_split=0.1", NULL}),
                   "eval_split=0.1 holds out a share of the training data; leave out one");
    MX_CHECK_ERROR(tiny_train(folder, "g", (const char *[]){"steps=2", path, other, NULL}),
                   "`eval_dataset_path` names data to evaluate on, but eval_interval=-1 does not");
    MX_CHECK_ERROR(tiny_train(folder, "e", (const char *[]){"eval_split=1.5", path, NULL}),
                   "above 0 and below 1");
    MX_CHECK_ERROR(tiny_train(folder, "f", (const char *[]){"eval_split=0.5", NULL}),
                   "this data is made");
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

MX_TEST(preferences_are_no_text_to_train_on)
{
    char folder[256];
    tiny_folder(folder, sizeof folder);
    const char *path = setting(
        "dataset_path",
        data_file(folder, "p.jsonl",
                  "{\"prompt\": \"who %d?\", \"chosen\": \"me %d\", \"rejected\": \"you\"}\n", 30));
    MX_CHECK_ERROR(tiny_train(folder, "a", (const char *[]){"steps=1", path, NULL}),
                   "name the columns: train_data_columns=prompt,chosen");
    MX_CHECK_OK(tiny_train(
        folder, "b", (const char *[]){"steps=1", "train_data_columns=prompt,chosen", path, NULL}));
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

/* The number of tokens of a folder's tokenizer, and where it is. */
static char *tokenizer(const char *name)
{
    static char path[4096];
    char root[3000];
    MX_ASSERT(getcwd(root, sizeof root));
    snprintf(path, sizeof path, "tokenizer_path=%.3000s/%s", root, name);
    return path;
}

static bool config_says(const char *folder, const char *name, const char *line)
{
    char *text = tiny_text(folder, name, "config.yml");
    bool found = strstr(text, line) != NULL;
    free(text);
    return found;
}

MX_TEST(vocabulary_is_the_tokenizers_unless_given)
{
    char folder[256];
    tiny_folder(folder, sizeof folder);
    const char *small = tokenizer("tests/fixtures/vision/gemma3");
    const char *args[] = {"steps=1", small,
                          "vocab_size=", NULL}; /* not the usual one of the test */
    MX_CHECK_OK(tiny_train(folder, "a", args));
    MX_CHECK(config_says(folder, "a", "\nvocab_size: 283\n"));
    MX_CHECK_OK(tiny_train(folder, "b", (const char *[]){"steps=1", "vocab_size=", NULL}));
    MX_CHECK(config_says(folder, "b", "\nvocab_size: 259\n")); /* bytes and three marks */
    MX_CHECK_OK(tiny_train(folder, "c", (const char *[]){"steps=1", small, NULL}));
    MX_CHECK(config_says(folder, "c", "\nvocab_size: 300\n")); /* more is fine */
    MX_CHECK_ERROR(
        tiny_train(folder, "d", (const char *[]){"steps=1", small, "vocab_size=200", NULL}),
        "the tokenizer has 283 tokens, the model's vocabulary only 200 (vocab_size, argument");
    char path[400];
    snprintf(path, sizeof path, "%s/d/r", folder);
    MX_CHECK(access(path, F_OK) != 0, "a start that failed left a folder");
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

/* Nothing of the tokenizer is asked for: not even whether it is there. */
MX_TEST(synthetic_data_needs_no_tokenizer)
{
    char folder[256];
    tiny_folder(folder, sizeof folder);
    MX_CHECK_OK(tiny_train(
        folder, "a",
        (const char *[]){"steps=1", "dataset_type=synthetic", "tokenizer_type=huggingface", NULL}));
    MX_CHECK_ERROR(
        tiny_train(folder, "b", (const char *[]){"steps=1", "tokenizer_type=huggingface", NULL}),
        "tokenizer");
    mx_status_free(mx_io_remove_tree(NULL, folder));
}

/* One that is named and there goes into the checkpoint; one that is not there is not missed. */
MX_TEST(synthetic_data_keeps_the_tokenizer_that_is_named)
{
    char folder[256], path[400];
    tiny_folder(folder, sizeof folder);
    const char *small = tokenizer("tests/fixtures/vision/gemma3");
    const char *args[] = {"steps=1", "dataset_type=synthetic", small, NULL};
    MX_CHECK_OK(tiny_train(folder, "a", args));
    snprintf(path, sizeof path, "%s/a/r/checkpoints/1/tokenizer.json", folder);
    MX_CHECK(access(path, F_OK) == 0, "the checkpoint is without its tokenizer");
    MX_CHECK_ERROR(tiny_train(folder, "b",
                              (const char *[]){"steps=1", "dataset_type=synthetic", small,
                                               "vocab_size=200", NULL}),
                   "the tokenizer has 283 tokens, the model's vocabulary only 200");
    MX_CHECK_OK(tiny_train(folder, "c",
                           (const char *[]){"steps=1", "dataset_type=synthetic",
                                            "tokenizer_path=assets/tokenizer.llama2", NULL}));
    mx_status_free(mx_io_remove_tree(NULL, folder));
}
