/* reference.h - the reference model: log-probabilities of a batch's tokens under the weights that
 * training began with, frozen.
 *
 * Where adapters are trained from nothing, the reference is the model without them: the same
 * weights in the same memory. Otherwise it is a second copy, in the compute dtype, of
 * reference_path, else of what the run began with.
 */
#ifndef MX_POST_REFERENCE_H
#define MX_POST_REFERENCE_H

#include "train/run/objective.h"

typedef struct mx_reference mx_reference;

/* temperature divides the logits. `policy`: the weights that are trained, as they are when
 * mx_reference_run is called. */
mx_status mx_reference_open(mx_reference **out, const mx_objective_run *o, double temperature,
                            bool policy) MX_MUST_USE;
/* The memory that it will take. */
mx_status mx_reference_beside(const mx_objective_run *o, double temperature, bool policy,
                              mx_beside *out) MX_MUST_USE;
void mx_reference_close(mx_reference *r); /* NULL is a no-op */

/* Rows [row, row + rows) of b: (rows, S) log-probabilities of their labels, 0 where there is none;
 * borrowed until the next call. */
mx_status mx_reference_run(mx_reference *r, const mx_batch *b, int64_t row, int64_t rows,
                           const float **logps) MX_MUST_USE;
/* In stages every rank asks at once for what `feed` will need, of all rows of b in microbatches of
 * `rows`; mx_reference_find gives it. Without stages the latter asks by itself. */
mx_status mx_reference_ahead(mx_reference *r, const mx_batch *b, int64_t rows) MX_MUST_USE;
mx_status mx_reference_find(mx_reference *r, const mx_batch *b, int64_t row, int64_t rows,
                            const float **logps) MX_MUST_USE;
/* The rows of the last mx_reference_run, those of all ranks of a mesh: (ranks x rows, S). */
const float *mx_reference_of_all(const mx_reference *r, int64_t rows);

#endif
