/* perplexity.h - how well a model predicts a text: exp of the mean loss of its tokens. Activations
 * are rounded to 8 bits where config.json asks for it. */
#ifndef MX_TRAIN_PERPLEXITY_H
#define MX_TRAIN_PERPLEXITY_H

#include "exec/model_ref.h"

typedef struct {
    const int32_t *ids;
    int64_t n;
    int64_t length; /* tokens of a window; the first of each is given */
    mx_dtype compute;
    const char *device;
    int n_threads;
} mx_perplexity_of;

mx_status mx_perplexity(const mx_model_ref *m, const mx_perplexity_of *of, double *out) MX_MUST_USE;

#endif
