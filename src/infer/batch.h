/* batch.h - a model over a cache in pages: tokens of any sequences in, logits out.
 *
 * A token is a row of the batch, whether it is one of a prompt or the next one of an answer. There
 * is a program for each of several batch sizes; a batch takes the smallest that holds it. What a
 * token gives depends on its own sequence alone, bit for bit.
 */
#ifndef MX_INFER_BATCH_H
#define MX_INFER_BATCH_H

#include "exec/step.h"

typedef struct mx_batch mx_batch;

typedef struct {
    int64_t tokens;     /* of a batch at most */
    int64_t sequences;  /* that the cache holds at once; as many logits a batch gives */
    int64_t max_length; /* of a sequence */
    int64_t page;       /* tokens of a page */
    int64_t pages;
    mx_compile_options compile;
} mx_batch_settings;

/* Bytes of the cache for one token; an error where the family's caches cannot lie in pages. */
mx_status mx_batch_token_bytes(const mx_model_spec *m, const mx_batch_settings *o,
                               int64_t *bytes) MX_MUST_USE;
/* Adds programs to the session. Weights are loaded by the caller, before or after. */
mx_status mx_batch_open(mx_batch **out, mx_session *s, const mx_model_spec *m,
                        const mx_batch_settings *o) MX_MUST_USE;
void mx_batch_close(mx_batch *b); /* NULL is a no-op */

/* One batch, filled by the caller: token i of `n` is token[i] at position[i] of sequence row[i],
 * kept in slot[i]; logits are wanted of tokens last[0..n_last). table (sequences, columns): the
 * page of each `page` positions. */
typedef struct {
    int64_t n, n_last;
    int32_t *token, *position, *row, *slot, *last;
    int32_t *table;
    int64_t columns;
} mx_batch_input;
mx_batch_input *mx_batch_input_of(mx_batch *b); /* the batch's own; what is in it stays */
mx_status mx_batch_run(mx_batch *b) MX_MUST_USE;
const float *mx_batch_logits(const mx_batch *b, int64_t i); /* (vocab) of token last[i]; borrowed */

#endif
