/* maxc_test.c - the public header: logits are the golden's, however the tokens are fed; answers
 * are those of `maxc generate`; errors are reported. */
#include "maxc.h"

#include "../test.h"
#include "base/str.h"
#include "store/safetensors.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char model[] = "tests/fixtures/models/llama3";

static void check_fine(maxc_error *e)
{
    MX_CHECK(e == NULL, "%s", maxc_error_text(e));
    maxc_error_free(e);
}

static void check_refused(maxc_error *e, int code, const char *part)
{
    MX_CHECK(maxc_error_code(e) == code && strstr(maxc_error_text(e), part), "%d: %s",
             maxc_error_code(e), maxc_error_text(e));
    maxc_error_free(e);
}

MX_TEST(api_logits_are_the_goldens)
{
    mx_st_file golden = {0};
    MX_CHECK_OK(mx_st_open(&golden, "tests/fixtures/models/llama3/golden.safetensors"));
    const mx_st_tensor *t = mx_st_find(&golden, "logits"), *in = mx_st_find(&golden, "input_ids");
    maxc_model *m = NULL;
    maxc_model_options o = {.device = "cpu", .n_threads = 1, .max_length = 64};
    check_fine(maxc_model_open(&m, model, &o));
    int64_t vocab = maxc_model_vocab_size(m), n = t->n / vocab / 2;
    float *want = malloc(sizeof *want * (size_t)t->n);
    int32_t *ids = malloc(sizeof *ids * (size_t)in->n);
    MX_CHECK_OK(mx_st_read(t, 0, t->n, MX_ST_F32, want, NULL));
    MX_CHECK_OK(mx_st_read(in, 0, in->n, MX_ST_I32, ids, NULL));
    MX_CHECK(maxc_logits(m) == NULL && maxc_length(m) == 0);
    for (int64_t piece = 1; piece <= n; piece += 5) {
        check_fine(maxc_reset(m));
        for (int64_t at = 0; at < n; at += piece)
            check_fine(maxc_feed(m, ids + at, (size_t)(at + piece < n ? piece : n - at)));
        MX_CHECK(maxc_length(m) == n);
        double worst = 0;
        for (int64_t i = 0; i < vocab; i++)
            worst = fmax(worst, fabs(maxc_logits(m)[i] - want[(n - 1) * vocab + i]));
        MX_CHECK(worst < 1e-3, "in pieces of %lld: %g", (long long)piece, worst);
    }
    free(want);
    free(ids);
    maxc_model_close(m);
    mx_st_close(&golden);
}

static int collect(void *context, const char *text, size_t n)
{
    mx_str_add_n(context, text, n);
    return ((mx_str *)context)->len >= 10;
}

MX_TEST(api_writes_and_is_stopped)
{
    maxc_model *m = NULL;
    maxc_model_options o = {.device = "cpu", .n_threads = 1, .max_length = 100};
    check_fine(maxc_model_open(&m, "gpt3-52k", &o)); /* random weights, bytes */
    mx_str once = {0}, again = {0};
    maxc_generate_options g = {.max_new_tokens = 30, .temperature = 1, .seed = 3, .ignore_eos = 1};
    check_fine(maxc_generate(m, "abc", &g, collect, &once));
    check_fine(maxc_generate(m, "abc", &g, collect, &again));
    MX_CHECK(once.len >= 10 && strcmp(once.text, again.text) == 0, "%s, %s", once.text, again.text);
    g.max_new_tokens = 97;
    check_refused(maxc_generate(m, "abc", &g, NULL, NULL), MAXC_USAGE, "max_length is 100");
    mx_str_fini(&once);
    mx_str_fini(&again);
    int32_t *ids = NULL;
    size_t n = 0;
    char *text = NULL;
    check_fine(maxc_tokenize(m, "h\xc3\xa4", 3, &ids, &n));
    check_fine(maxc_detokenize(m, ids, n, &text));
    MX_CHECK(n == 4 && strcmp(text, "h\xc3\xa4") == 0, "%zu tokens, %s", n, text);
    maxc_free(text);
    maxc_free(ids);
    check_fine(maxc_detokenize(m, NULL, 0, &text));
    MX_CHECK(*text == 0);
    maxc_free(text);
    maxc_model_close(m);
}

MX_TEST(api_says_what_is_wrong)
{
    maxc_model *m = NULL;
    check_refused(maxc_model_open(&m, "./tests/nowhere", NULL), MAXC_INPUT, "neither a directory");
    MX_CHECK(m == NULL);
    check_refused(maxc_model_open(&m, model, &(maxc_model_options){.dtype = "float16"}), MAXC_USAGE,
                  "float32 or bfloat16");
    check_fine(maxc_model_open(&m, model, &(maxc_model_options){.device = "cpu", .max_length = 8}));
    int32_t bad[] = {1, -7}, many[9] = {0}, *ids;
    size_t n;
    check_refused(maxc_feed(m, bad, 2), MAXC_INPUT, "token 1 is -7");
    check_refused(maxc_feed(m, many, 9), MAXC_USAGE, "8");
    check_refused(maxc_tokenize(m, "a", 1, &ids, &n), MAXC_INPUT, "no tokenizer");
    check_refused(maxc_generate(m, "a", NULL, NULL, NULL), MAXC_INPUT, "no tokenizer");
    maxc_model_close(m);
    check_refused(maxc_run((const char *[]){"docter", NULL}), MAXC_USAGE, "did you mean `doctor`");
    MX_CHECK(freopen("/dev/null", "w", stdout) != NULL);
    check_fine(maxc_run((const char *[]){"version", "format=json", NULL}));
    MX_CHECK(maxc_error_code(NULL) == MAXC_OK && *maxc_error_text(NULL) == 0);
    maxc_model_close(NULL);
    maxc_error_free(NULL);
}
