/* reward_model.h - a model that says what an answer is worth: in the graph, and as a judge. */
#ifndef MX_POST_REWARD_MODEL_H
#define MX_POST_REWARD_MODEL_H

#include "models/model.h"
#include "post/reward.h"

/* (B, 1) scores of rows, by the hidden state of the token whose row number of (B S) the input
 * `last` (B) gives: the root "scores". */
mx_node *mx_scores_of(mx_graph *g, const mx_head *h, const mx_build *b);

/* reward_model_path: a directory in the form of Hugging Face's ForSequenceClassification, with a
 * tokenizer of its own. */
typedef struct mx_reward_model mx_reward_model;
mx_status mx_reward_model_open(mx_reward_model **out, const mx_config *c) MX_MUST_USE;
void mx_reward_model_close(mx_reward_model *m); /* NULL is a no-op */
/* score[i * stride] of answer i, after its prompt. */
mx_status mx_reward_model_judge(mx_reward_model *m, const mx_reward_input *answers, int64_t n,
                                double *score, int stride) MX_MUST_USE;

#endif
