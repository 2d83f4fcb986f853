/* reward.c - a reward as a shared library: 1 for each word of the record's column "words" that the
 * answer has, divided by their number.
 *
 *     cc -shared -fPIC reward.c $(pkg-config --cflags maxc) -o words.so
 *     maxc grpo load_parameters_path=MODEL dataset_path=questions.jsonl reward_library=./words.so
 */
#include <maxc_reward.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The texts of the list after "words": in a record, each in `word`; NULL: there are no more. A
 * program of more ambition would bring a JSON parser. */
static const char *next_word(const char *at, char *word, size_t cap)
{
    const char *from = strchr(at, '"'), *end = strchr(at, ']');
    const char *to = from ? strchr(from + 1, '"') : NULL;
    if (!to || (end && end < from) || (size_t)(to - from) > cap)
        return NULL;
    memcpy(word, from + 1, (size_t)(to - from - 1));
    word[to - from - 1] = 0;
    return to + 1;
}

static int score(void *state, const maxc_reward_answer *answers, size_t n, double *scores,
                 char *error, size_t error_bytes)
{
    (void)state;
    for (size_t i = 0; i < n; i++) {
        char word[64];
        const char *at = strstr(answers[i].record, "\"words\":[");
        double wanted = 0, found = 0;
        if (!at) {
            snprintf(error, error_bytes, "the record has no list \"words\": %s", answers[i].record);
            return 1;
        }
        for (at += strlen("\"words\":"); (at = next_word(at, word, sizeof word)); wanted++)
            found += strstr(answers[i].completion, word) != NULL;
        scores[i] = wanted > 0 ? found / wanted : NAN;
    }
    return 0;
}

const maxc_reward maxc_reward_library = {
    .version = MAXC_REWARD_VERSION,
    .name = "words",
    .score = score,
};
