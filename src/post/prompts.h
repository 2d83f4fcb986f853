/* prompts.h - the prompts of sampling objectives, with whatever else their records hold.
 *
 * A record has a `prompt` (text or messages), `messages` that end with the user's, or a `question`;
 * its other columns (answer, solution, ...) are what rewards are computed from. The order is the
 * datasets' own, a function of seed and place; the place is a few integers.
 */
#ifndef MX_POST_PROMPTS_H
#define MX_POST_PROMPTS_H

#include "train/run/objective.h"
#include <jansson.h>

typedef struct mx_prompts mx_prompts;

typedef struct {
    json_t *record;   /* owns: every column */
    const char *text; /* of the prompt, as it was rendered; owns */
    mx_tokens ids;
} mx_post_prompt;

/* d: has the tokenizer; c: says what becomes of bad records. */
mx_status mx_prompts_open(mx_prompts **out, const mx_train_data *d, const mx_config *c,
                          const mx_dataset_options *sets, int n) MX_MUST_USE;
void mx_prompts_close(mx_prompts *p); /* NULL is a no-op */
/* Takes over what `a` held before; *end: there are no more. */
mx_status mx_prompts_next(mx_prompts *p, mx_post_prompt *a, bool *end) MX_MUST_USE;
void mx_post_prompt_fini(mx_post_prompt *a);
/* The epoch of the last one, which mx_prompts_put_back makes the next again. Of several datasets
 * that are mixed epochs are not counted: 0, and nothing is put back. */
int64_t mx_prompts_epoch(const mx_prompts *p);
void mx_prompts_put_back(mx_prompts *p);
bool mx_prompts_at_start(const mx_prompts *p); /* of an epoch */
/* Takes what the caller finds wrong with the last one; OK when it is to be left out, as
 * bad_record_policy says. */
mx_status mx_prompts_refuse(mx_prompts *p, mx_status st) MX_MUST_USE;

void mx_prompts_position(const mx_prompts *p, mx_str *json);
mx_status mx_prompts_seek(mx_prompts *p, const char *json, size_t n) MX_MUST_USE;
/* Back to where it was opened. */
void mx_prompts_rewind(mx_prompts *p);

#endif
