/* settings.h - the configuration's words turned into what the step is built from. */
#ifndef MX_TRAIN_SETTINGS_H
#define MX_TRAIN_SETTINGS_H

#include "base/config.h"
#include "train/step.h"

/* Optimizer, precision, recomputation and compile options of a training step. Values that name
 * something this build does not do are refused here, before anything is allocated. Strings are
 * borrowed from the configuration or live in the arena. */
mx_status mx_settings_step(const mx_config *c, const mx_model_spec *m, mx_arena *a,
                           mx_step_options *o) MX_MUST_USE;
/* device=auto resolved. */
const char *mx_settings_device(const mx_config *c);

#endif
