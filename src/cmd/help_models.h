/* help_models.h - the files of configs/models, and which of them are built. */
#ifndef MX_CMD_HELP_MODELS_H
#define MX_CMD_HELP_MODELS_H

#include "base/status.h"

/* One line for each: its name, family and number of weights, or why it is not built. */
mx_status mx_help_models(const char *home) MX_MUST_USE;

#endif
