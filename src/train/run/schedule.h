/* schedule.h - the learning rate as a pure function of the step.
 *
 * A schedule of n steps is cut into warmup, a stable part and a decay; steps count from 0:
 *
 *     warmup     w = (int)(n * warmup_steps_fraction); rate = peak * step / w, so step 0 has rate 0
 *     cosine     the n - w steps after it decay; no stable part
 *     wsd        the last d = (int)(n * wsd_decay_steps_fraction) steps decay, the rest is stable
 *     constant   everything after the warmup is stable
 *
 * A decay of d steps goes from the peak at its first step to the final rate at its last one, with
 * x = i / (d - 1):  linear  peak + (final - peak) x      cosine  a = (cos(pi x) + 1) / 2,
 * peak a + final (1 - a).  A decay of one step is at the final rate. After n steps the rate is 0:
 * a run with more steps than its schedule measures what was trained. The same as MaxText's.
 * Post-training with semantics=trl has transformers' cosine, x = i / d, and w is rounded up.
 * linear (transformers') is peak (n - step) / (n - w) after the warmup: 0 after the last step.
 */
#ifndef MX_TRAIN_SCHEDULE_H
#define MX_TRAIN_SCHEDULE_H

#include "base/config.h"

typedef enum { MX_DECAY_NONE, MX_DECAY_LINEAR, MX_DECAY_COSINE, MX_DECAY_TO_ZERO } mx_decay;

typedef struct {
    double peak, final;
    int64_t steps;  /* of the schedule */
    int64_t warmup; /* steps of it, at the start */
    int64_t decay;  /* steps of it, at the end */
    mx_decay shape;
    bool open;      /* transformers': the final rate is that of the step after the last */
} mx_schedule;

/* From learning_rate, lr_schedule_type, warmup_steps_fraction and their relatives. */
mx_schedule mx_schedule_make(const mx_config *cfg);
/* The same as transformers has it. */
mx_schedule mx_schedule_make_open(const mx_config *cfg);
/* Number of steps of a run: `steps`, or the schedule's length when that is -1. */
int64_t mx_schedule_run_steps(const mx_config *cfg);
double mx_schedule_rate(const mx_schedule *s, int64_t step);

#endif
