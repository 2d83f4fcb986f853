/* step_config.h - from configuration keys to what models, steps and passes take. */
#ifndef MX_EXEC_STEP_CONFIG_H
#define MX_EXEC_STEP_CONFIG_H

#include "base/config.h"
#include "exec/step.h"

/* The model to work on: `path` is a Hugging Face directory (its config.json), or a name in
 * configs/models; NULL or "": the model that the keys describe. */
mx_status mx_model_open(mx_model_spec *m, const mx_config *cfg, const char *path) MX_MUST_USE;

/* What is computed in: dtype, or `unset` (NULL: its default) where nothing sets it. Only bfloat16
 * and float32 are; nothing else ever stands for one of them. */
mx_status mx_compute_dtype(const mx_config *cfg, const char *unset, mx_dtype *out) MX_MUST_USE;

/* Options of a step of `kind` for `batch` sequences of max_target_length. Texts live in the arena.
 */
mx_status mx_step_configure(mx_step_options *o, const mx_config *cfg, const mx_model_spec *m,
                            mx_step_kind kind, int64_t batch, mx_arena *a) MX_MUST_USE;

#endif
