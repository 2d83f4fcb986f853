/* sample.h - the next token from logits.
 *
 * In this order: what is not allowed and what is banned goes; bias; penalties (repetition on prompt
 * and answer, presence and frequency on the answer); temperature; min-p, top-k, top-p; sampling.
 * Log-probabilities are the model's own, from before all of that.
 */
#ifndef MX_INFER_SAMPLE_H
#define MX_INFER_SAMPLE_H

#include <stdbool.h>
#include <stdint.h>

#define MX_LEAST_TEMPERATURE 1e-5

typedef struct {
    double temperature; /* below MX_LEAST_TEMPERATURE: greedy */
    int64_t top_k;      /* 0: all; what is as likely as the last one stays */
    double top_p;       /* outside (0, 1): all */
    double min_p;       /* 0: all */
    double repetition_penalty, presence_penalty, frequency_penalty; /* 1, 0, 0: none */
    uint64_t seed;
} mx_sampling;

typedef struct {
    int32_t id;
    float log_prob;
} mx_choice;

typedef struct {
    int32_t id;
    float bias;
} mx_logit_bias;

/* The token is a pure function of logits and (seed, stream, step). Ties go to the lower id. */
typedef struct {
    mx_sampling how;
    const float *logits; /* (vocab) */
    int64_t vocab;
    const int32_t *seen; /* tokens so far: n_prompt of the prompt, then the answer's */
    int64_t n_prompt, n_seen;
    const int32_t *banned; /* ids that are not sampled */
    int n_banned;
    const mx_logit_bias *bias;
    int n_bias;
    const uint32_t *allowed; /* a bit for each id; NULL: all are */
    uint64_t stream, step;
    bool no_log_prob; /* it is not computed; NaN still tells of a NaN logit */
    void *work;       /* scratch memory for vocab (float, int32) pairs: 8 * vocab bytes */
} mx_sample_args;
mx_choice mx_sample_next(const mx_sample_args *a);

/* The uniform number in [0, 1) that a step samples with. */
double mx_sample_uniform(const mx_sampling *s, uint64_t stream, uint64_t step);

/* The same where all that was seen counts for every penalty. */
mx_choice mx_sample(const mx_sampling *s, const float *logits, int64_t vocab, const int32_t *seen,
                    int64_t n_seen, uint64_t stream, uint64_t step, void *work);

/* log sum exp, which turns logits into log-probabilities; NaN where a logit is. */
double mx_log_sum_exp(const float *logits, int64_t n);
/* The k most likely ids with their log-probabilities, the likeliest first; gives their number.
 * `work` as above. */
int mx_most_likely(const float *logits, int64_t vocab, double log_sum, int k, mx_choice *out,
                   void *work);

#endif
