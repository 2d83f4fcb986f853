/* maxc_reward.h - a reward as a shared library: what `maxc grpo reward_library=FILE` opens.
 *
 *     static int score(void *state, const maxc_reward_answer *answer, size_t n, double *score,
 *                      char *error, size_t error_bytes)
 *     {
 *         for (size_t i = 0; i < n; i++)
 *             score[i] = answer[i].completion_bytes < 100;
 *         return 0;
 *     }
 *     const maxc_reward maxc_reward_library = {
 *         .version = MAXC_REWARD_VERSION, .name = "short", .score = score,
 *     };
 *
 * Build with `cc -shared -fPIC -o short.so short.c $(pkg-config --cflags maxc)`.
 * examples/reward.c is a whole one. The library is opened once by each process of a run and called
 * by one thread at a time, not always the same. It runs inside the program: no sandbox, no time
 * limit; reward_command has both.
 */
#ifndef MAXC_REWARD_H
#define MAXC_REWARD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Of the two structs below. A library of another version is refused. */
#define MAXC_REWARD_VERSION 1

/* An answer to be judged. Everything is the caller's, until the call returns. */
typedef struct {
    const char *prompt;      /* as the model saw it */
    const char *completion;  /* the answer's text without special tokens; ends with a 0 byte */
    size_t completion_bytes; /* without that one; the text may hold others */
    const char *record;      /* every column of the prompt's record, a JSON object */
    int64_t tokens;          /* of the answer */
    int64_t max_tokens;      /* max_completion_length */
    int truncated;           /* 1: it was ended by max_tokens */
} maxc_reward_answer;

/* Functions that fail return another number than 0 and may write a text of at most error_bytes,
 * its 0 byte included, to `error`: the run ends with it, and nothing is updated. */
typedef struct {
    int version;      /* MAXC_REWARD_VERSION */
    const char *name; /* in metrics: rewards/NAME/mean */
    /* Before the first answer, after the last; either may be NULL. */
    int (*open)(void **state, char *error, size_t error_bytes);
    void (*close)(void *state);
    /* n answers; NAN for one that cannot be judged: it teaches nothing. */
    int (*score)(void *state, const maxc_reward_answer *answers, size_t n, double *scores,
                 char *error, size_t error_bytes);
} maxc_reward;

/* What the library defines. */
extern const maxc_reward maxc_reward_library;

#ifdef __cplusplus
}
#endif
#endif
