/* run.h - a training run: from a configuration to checkpoints. */
#ifndef MX_TRAIN_RUN_H
#define MX_TRAIN_RUN_H

#include "base/config.h"

/* Trains (or goes on training) the run the configuration describes. MX_STOPPED when a signal asked
 * it to stop and a durable checkpoint was written. */
mx_status mx_run_train(const mx_config *c, const char *command_line) MX_MUST_USE;
/* The same for an objective of src/post; NULL: none. */
struct mx_objective;
mx_status mx_run_objective(const mx_config *c, const struct mx_objective *objective,
                           const char *command_line) MX_MUST_USE;

#endif
