/* batch_ranks.h - the virtual ranks of an engine: rank 0 has the requests, all compute its batches.
 *
 * Rank 0 hands over what a batch is made of before it launches its own; the others copy it, and
 * meet it in the collectives of the program. Scheduling and sampling are
 * rank 0's alone.
 */
#ifndef MX_INFER_BATCH_RANKS_H
#define MX_INFER_BATCH_RANKS_H

#include "infer/batch.h"

typedef struct mx_batch_ranks mx_batch_ranks;

mx_batch_ranks *mx_batch_ranks_new(int n_ranks);
void mx_batch_ranks_free(mx_batch_ranks *r);

/* Rank 0. How many pages the caches have; once, before the first batch. */
void mx_batch_ranks_set_pages(mx_batch_ranks *r, int64_t pages);
/* Returns when all others have taken it; an error where one of them has failed. */
mx_status mx_batch_ranks_send(mx_batch_ranks *r, const mx_engine_batch_input *in) MX_MUST_USE;
/* There will be no more. */
void mx_batch_ranks_end(mx_batch_ranks *r);

/* The others. 0: rank 0 has ended before it knew. */
int64_t mx_batch_ranks_pages(mx_batch_ranks *r);
/* The next batch into b's input; `done` counts those that this rank has taken. false: there are no
 * more. */
bool mx_batch_ranks_take(mx_batch_ranks *r, int64_t *done, mx_engine_batch *b);
/* This rank cannot go on. */
void mx_batch_ranks_fail(mx_batch_ranks *r);

#endif
