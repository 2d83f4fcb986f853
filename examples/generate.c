/* generate.c - the library from another program: what comes next, and an answer as it is written.
 *
 *     cc generate.c $(pkg-config --cflags --libs maxc) -o generate
 *     ./generate runs/demo "Once upon a time"
 */
#include <maxc.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int write_text(void *context, const char *text, size_t n_bytes)
{
    fwrite(text, 1, n_bytes, context);
    fflush(context);
    return 0; /* go on */
}

/* The most likely token after the prompt. */
static maxc_error *print_next(maxc_model *m, const char *prompt)
{
    int32_t *ids = NULL;
    size_t n = 0;
    char *text = NULL;
    maxc_error *e = maxc_tokenize(m, prompt, strlen(prompt), &ids, &n);
    if (!e)
        e = maxc_feed(m, ids, n);
    if (!e) {
        const float *logits = maxc_logits(m);
        int32_t best = 0;
        for (int64_t i = 1; i < maxc_model_vocab_size(m); i++)
            best = logits[i] > logits[best] ? (int32_t)i : best;
        e = maxc_detokenize(m, &best, 1, &text);
        if (!e)
            printf("%zu tokens; the next one is %d, \"%s\"\n", n, best, text);
    }
    maxc_free(text);
    maxc_free(ids);
    return e;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: %s MODEL PROMPT\n", argv[0]);
        return MAXC_USAGE;
    }
    maxc_model *m = NULL;
    maxc_generate_options o = {.max_new_tokens = 40};
    maxc_error *e = maxc_model_open(&m, argv[1], NULL);
    if (!e)
        e = print_next(m, argv[2]);
    if (!e)
        e = maxc_generate(m, argv[2], &o, write_text, stdout);
    if (!e)
        printf("\n");
    if (e)
        fprintf(stderr, "%s\n", maxc_error_text(e));
    int code = maxc_error_code(e);
    maxc_error_free(e);
    maxc_model_close(m);
    return code;
}
