/* reward.h - what an answer is worth.
 *
 * A built-in reward is one const struct (`const mx_reward mx_reward_NAME`) in a file of src/post,
 * found by tools/scan. Others come from a model (reward_judge.c), a shared library
 * (reward_library.c) or a command (reward_command.c). NAN says that the answer
 * cannot be judged: it is left out of its group's baseline and teaches nothing.
 */
#ifndef MX_POST_REWARD_H
#define MX_POST_REWARD_H

#include "base/config.h"
#include "text/tokenizer/regex.h"
#include <jansson.h>

/* One answer to be judged; everything is borrowed. */
typedef struct {
    const char *prompt;
    const char *answer; /* its text, without special tokens */
    size_t n_answer;
    const json_t *record; /* every column of the prompt's record */
    int64_t tokens, max_tokens;
    bool truncated; /* ended by max_completion_length */
} mx_reward_input;

/* The schema that answers must follow: reward_schema, or that of a record (reward_schema.c). */
typedef struct mx_schemas mx_schemas;
mx_status mx_schemas_open(mx_schemas **out, const mx_config *c) MX_MUST_USE;
void mx_schemas_close(mx_schemas *s); /* NULL is a no-op */

/* Settings of rewards; read once. */
typedef struct {
    mx_regex *pattern; /* of `format` */
    mx_regex_scratch *scratch;
    mx_schemas *schemas; /* of `json_schema` */
    mx_status error;     /* what a reward could not do; the first */
} mx_reward_context;

typedef struct {
    const char *name, *doc;
    double (*score)(mx_reward_context *c, const mx_reward_input *j);
} mx_reward;

extern const mx_reward *const mx_reward_table[];
extern const int mx_reward_count;

enum { MX_MAX_REWARDS = 16 };

/* The rewards of a run. */
typedef struct mx_rewards mx_rewards;
bool mx_rewards_are_set(const mx_config *c); /* does any key say what an answer is worth? */
mx_status mx_rewards_open(mx_rewards **out, const mx_config *c) MX_MUST_USE;
void mx_rewards_close(mx_rewards *r); /* NULL is a no-op */
bool mx_rewards_have_model(const mx_rewards *r); /* that runs on the device */
int mx_rewards_count(const mx_rewards *r);
const char *mx_rewards_name(const mx_rewards *r, int k);
/* The weighted sum of an answer's scores, without those that are NAN; NAN: all are. */
const double *mx_rewards_weights(const mx_rewards *r); /* one each */
double mx_rewards_sum(const mx_rewards *r, const double *score);
/* score[i * count + k]: reward k of answer i. */
mx_status mx_rewards_score(mx_rewards *r, const mx_reward_input *answers, int64_t n,
                           double *score) MX_MUST_USE;

/* The answer that a record wants: the first of answer, solution, ground_truth, completion, as
 * text; what follows "#### " where it has that (GSM8K). NULL: none. */
const char *mx_reference_answer(const json_t *record, char *buf, size_t cap);
/* What stands between <answer> and </answer>, else the whole, without spaces around it. */
void mx_extracted_answer(const mx_reward_input *j, const char **text, size_t *n);

#endif
