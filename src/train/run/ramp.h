/* ramp.h - a batch that grows in stages, as MaxText's enable_rampup_batch_size.
 *
 *     stage k = 0 .. n - 1      per_device_batch_size_start + k per_device_batch_size_increment
 *     afterwards                per_device_batch_size
 *
 * A stage lasts until it has seen its share, global_rampup_samples / n sequences, in whole steps:
 * ceil(share / sequences of one update). The stage is a function of the step alone, so a run that
 * is resumed inside the ramp goes on as if it had not been stopped.
 */
#ifndef MX_TRAIN_RAMP_H
#define MX_TRAIN_RAMP_H

#include "exec/batch_plan.h"

typedef struct {
    int64_t n_stages; /* 0: there is no ramp */
    int64_t start, increment; /* sequences of a microbatch on one data rank */
    int64_t per_sequence; /* sequences of an update for each of those: ranks x accumulation */
    double share;         /* sequences of a stage */
} mx_ramp;

/* From the configuration and the plan of the full batch. */
mx_status mx_ramp_make(mx_ramp *r, const mx_config *cfg, const mx_batch_plan *full) MX_MUST_USE;
/* 0 .. n_stages; n_stages is the full batch. Steps count from 0. */
int64_t mx_ramp_stage(const mx_ramp *r, int64_t step);
int64_t mx_ramp_steps(const mx_ramp *r); /* of the whole ramp */
int64_t mx_ramp_microbatch(const mx_ramp *r, int64_t stage);
/* The largest number of sequences that divides the updates of every stage. */
int64_t mx_ramp_unit(const mx_ramp *r);

#endif
