/* reference_cache.h - the reference's log-probabilities for every row of the data, computed before
 * the first step: precompute_ref_log_probs. The reference is not needed after that, nor is its
 * memory.
 *
 * RUN/reference.safetensors holds it, so that a run that goes on does not compute it again:
 *     rows (N, 3) int64: hash of the row's tokens and labels, where its numbers begin, how many
 *     logps (M) float32: of the labels of each row, in turn
 */
#ifndef MX_POST_REFERENCE_CACHE_H
#define MX_POST_REFERENCE_CACHE_H

#include "post/reference.h"

typedef struct mx_reference_cache mx_reference_cache;

mx_status mx_reference_cache_open(mx_reference_cache **out, const mx_objective_run *o) MX_MUST_USE;
void mx_reference_cache_close(mx_reference_cache *c); /* NULL is a no-op */
/* As mx_reference_run; an error for a row that was not in the data. */
mx_status mx_reference_cache_find(mx_reference_cache *c, const mx_batch *b, int64_t row,
                                  int64_t rows, const float **logps) MX_MUST_USE;

#endif
