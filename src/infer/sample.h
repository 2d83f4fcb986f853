/* sample.h - the next token from logits. */
#ifndef MX_INFER_SAMPLE_H
#define MX_INFER_SAMPLE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    double temperature; /* 0: greedy */
    int64_t top_k;      /* 0: all */
    double top_p;       /* outside (0, 1): all */
    double min_p;       /* 0: all */
    double repetition_penalty, presence_penalty, frequency_penalty; /* 1, 0, 0: none */
    uint64_t seed;
} mx_sampling;

typedef struct {
    int32_t id;
    float log_prob; /* under the model's own distribution, before any of the above */
} mx_choice;

/* `seen` are the tokens so far (for the penalties). The draw is a pure function of (seed, stream,
 * step). `work` has room for vocab (float, int32) pairs: 8 * vocab bytes. Ties go to the lower
 * id. */
mx_choice mx_sample(const mx_sampling *s, const float *logits, int64_t vocab, const int32_t *seen,
                    int64_t n_seen, uint64_t stream, uint64_t step, void *work);

#endif
