/* run_state.h - what the parts of a training run share; private to src/train/run*.c. */
#ifndef MX_TRAIN_RUN_STATE_H
#define MX_TRAIN_RUN_STATE_H

#include "base/progress.h"
#include "data/loader.h"
#include "store/run_lock.h"
#include "train/batch_plan.h"
#include "train/metrics.h"
#include "train/schedule.h"
#include "train/state.h"
#include "train/step.h"
#include "train/train_data.h"

typedef struct {
    const mx_config *c;
    mx_arena arena;
    const char *folder;
    const char *like;          /* directory whose tokenizer files go into checkpoints; NULL: none */
    mx_run_lock lock;
    mx_model_spec model;
    mx_batch_plan batch;
    mx_schedule schedule;
    int64_t steps;             /* of the whole run */
    mx_session *session;
    mx_step_options options;
    mx_step step, apply, eval; /* apply: with accumulation; eval: when evaluating */
    bool accumulates, evaluates;
    mx_train_data data, eval_data;
    mx_run_state at;           /* progress */
    mx_ckpt *ckpt;             /* NULL: checkpointing is off */
    mx_metrics *metrics;
    mx_progress progress;
    double flops_per_step, peak_flops;
    int64_t skipped;           /* updates left out because something was not finite */
    double last_eval;          /* NAN: none yet */
} mx_run;

/* run_setup.c: everything before the first step. */
mx_status mx_run_open(mx_run *r, const mx_config *c, const char *command_line) MX_MUST_USE;
void mx_run_close(mx_run *r);
/* run_loop.c: steps, evaluation, checkpoints, until the end or a signal. */
mx_status mx_run_loop(mx_run *r) MX_MUST_USE;

#endif
