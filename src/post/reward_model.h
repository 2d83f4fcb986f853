/* reward_model.h - a model that says what an answer is worth: in the graph, and as a judge. */
#ifndef MX_POST_REWARD_MODEL_H
#define MX_POST_REWARD_MODEL_H

#include "data/load/loader.h"
#include "device/device.h"
#include "models/model.h"
#include "post/reward.h"

/* (B, 1) scores of rows, by the hidden state of the token that is 1 in the input `last` (B, S), the
 * others being 0: the root "scores". A mask and not an index, so that rows may be cut anyhow. */
mx_node *mx_scores_of(mx_graph *g, const mx_head *h, const mx_build *b);
/* The last token of rows of a batch, from `row` on, into such a program: as in transformers the
 * last that is not `pad`. */
mx_status mx_scores_feed(mx_exec *e, const mx_batch *b, int64_t row, int64_t rows, int32_t pad);
/* What TRL pads such rows with: the padding token, or else the end token. */
int32_t mx_scores_pad(const mx_tokenizer *t);

/* reward_model_path: a directory in the form of Hugging Face's ForSequenceClassification, with a
 * tokenizer of its own. */
typedef struct mx_reward_model mx_reward_model;
mx_status mx_reward_model_open(mx_reward_model **out, const mx_config *c) MX_MUST_USE;
void mx_reward_model_close(mx_reward_model *m); /* NULL is a no-op */
/* score[i * stride] of answer i, after its prompt. */
mx_status mx_reward_model_judge(mx_reward_model *m, const mx_reward_input *answers, int64_t n,
                                double *score, int stride) MX_MUST_USE;

#endif
