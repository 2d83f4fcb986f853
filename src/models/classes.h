/* classes.h - models that give a whole sequence scores instead of the next token's distribution:
 * what Hugging Face calls ForSequenceClassification. The head is score.weight (classes, d), on the
 * hidden state of the last token; there is no lm_head. */
#ifndef MX_MODELS_CLASSES_H
#define MX_MODELS_CLASSES_H

#include "models/model.h"

#define MX_SCORE_WEIGHT "score.weight"

/* How many scores a configuration's model gives; 0: it predicts tokens. */
int64_t mx_classes_of(const json_t *config);
/* Makes it a model of one score, as its configuration will say: a reward model. */
mx_status mx_classes_make_reward(mx_model_spec *m) MX_MUST_USE;
/* The head of such a model, in place of the one that the family has built; others stay. */
void mx_classes_head(mx_graph *g, const mx_model_spec *m, const mx_build *b, mx_head *h);

#endif
