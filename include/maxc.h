/* maxc.h - maxc as a library: models, text and verbs from another program.
 *
 *     maxc_model *m;
 *     maxc_error *e = maxc_model_open(&m, "runs/mine", NULL);
 *     if (!e)
 *         e = maxc_generate(m, "Once upon a time", NULL, write_to_stdout, NULL);
 *     if (e)
 *         fprintf(stderr, "%s\n", maxc_error_text(e));
 *     maxc_error_free(e);
 *     maxc_model_close(m);
 *
 * Build with `cc program.c $(pkg-config --cflags --libs maxc)`. examples/generate.c is a whole
 * program.
 *
 * Functions that can fail return NULL, or an error that the caller frees. Objects are opaque; a
 * model serves one thread at a time, several models may be used by several threads. Options are
 * structs whose zero means the default; later versions add members at their end. Nothing here ends
 * the process, and only maxc_run prints to standard output.
 *
 * Model names and recipes are found in configs/ beside the program, in ../share/maxc/configs, in
 * /usr/local/share/maxc/configs or in /usr/share/maxc/configs; the environment variable
 * MAXC_CONFIGS names another folder.
 */
#ifndef MAXC_H
#define MAXC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MAXC_API_VERSION 1

/* "1.2.3" */
const char *maxc_version(void);

/* ---- errors ---- */

typedef struct maxc_error maxc_error;

/* Codes are the program's exit statuses. */
enum {
    MAXC_OK = 0,
    MAXC_CHECK_FAILED = 1, /* a comparison is out of tolerance */
    MAXC_USAGE = 2,        /* arguments or configuration */
    MAXC_INPUT = 3,        /* bad or missing input file */
    MAXC_MEMORY = 4,       /* would not fit */
    MAXC_DEVICE = 5,       /* device, communicator or I/O failure */
    MAXC_STOPPED = 75      /* stopped on request with a durable checkpoint: run again to resume */
};

int maxc_error_code(const maxc_error *e);         /* MAXC_OK for NULL */
const char *maxc_error_text(const maxc_error *e); /* "" for NULL; the error's own */
void maxc_error_free(maxc_error *e);              /* NULL is a no-op */

/* Memory that a function here gave to the caller. NULL is a no-op. */
void maxc_free(void *p);

/* ---- a model and one sequence of tokens ---- */

typedef struct maxc_model maxc_model;

typedef struct {
    const char *device;    /* "cpu", "cuda"; NULL: a GPU where there is one */
    const char *dtype;     /* arithmetic: "float32", "bfloat16"; NULL: float32 */
    int n_threads;         /* 0: every core allowed */
    int64_t max_length;    /* tokens of the sequence at most; 0: the model's, at most 4096 */
    const char *tokenizer; /* file or folder; NULL: the model's own */
} maxc_model_options;

/* `path` is a Hugging Face directory, a run folder (its newest checkpoint), a checkpoint, or a name
 * from `maxc help models` (random weights). Loads the weights and compiles what decoding needs. */
maxc_error *maxc_model_open(maxc_model **out, const char *path, const maxc_model_options *options);
void maxc_model_close(maxc_model *m); /* NULL is a no-op */

int64_t maxc_model_vocab_size(const maxc_model *m); /* logits of a token */
int64_t maxc_model_max_length(const maxc_model *m);

/* Text to tokens, with what the tokenizer puts before it (a begin token); special tokens that occur
 * in the text stay text. *ids is the caller's: maxc_free. */
maxc_error *maxc_tokenize(const maxc_model *m, const char *text, size_t n_bytes, int32_t **ids,
                          size_t *n);
/* Tokens to text, without special tokens. *text ends in NUL and is the caller's: maxc_free. */
maxc_error *maxc_detokenize(const maxc_model *m, const int32_t *ids, size_t n, char **text);

/* Adds tokens to the sequence. */
maxc_error *maxc_feed(maxc_model *m, const int32_t *ids, size_t n);
/* Logits of the next token, vocab_size of them; valid until the next call with this model. NULL
 * before the first maxc_feed. */
const float *maxc_logits(const maxc_model *m);
int64_t maxc_length(const maxc_model *m); /* tokens of the sequence so far */
/* Empties the sequence. */
maxc_error *maxc_reset(maxc_model *m);

/* ---- writing ---- */

typedef struct {
    int64_t max_new_tokens; /* 0: 256, as far as max_length allows */
    double temperature;     /* 0: greedy */
    int64_t top_k;          /* 0: all tokens */
    double top_p;           /* 0: all tokens */
    uint64_t seed;
    int ignore_eos; /* go on after the end token */
} maxc_generate_options;

/* Receives text as it is made, in whole characters, not NUL-terminated. Other than 0 stops. */
typedef int maxc_write(void *context, const char *text, size_t n_bytes);

/* Empties the sequence, feeds the prompt and writes the answer until it ends. */
maxc_error *maxc_generate(maxc_model *m, const char *prompt, const maxc_generate_options *options,
                          maxc_write *write, void *context);

/* ---- verbs ---- */

/* What `maxc WORDS...` does, for instance {"train", "small.yml", "steps=10", NULL}: the same words,
 * files and output. A verb that trains installs signal handlers, as the program does. */
maxc_error *maxc_run(const char *const *words);

#ifdef __cplusplus
}
#endif

#endif
