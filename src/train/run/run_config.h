/* run_config.h - the configuration of a run folder: written by every start, compared on resume.
 *
 * base_output_directory/run_name/config.yml holds every key, so it can be given back as it is. A
 * run that is resumed with other values says which; keys that would make the saved state
 * meaningless (sizes, optimizer, seeds, packing: flagged in the schema) are refused unless
 * allow_config_change.
 */
#ifndef MX_TRAIN_RUN_CONFIG_H
#define MX_TRAIN_RUN_CONFIG_H

#include "base/config.h"
#include "base/io.h"

/* The folder of the run, in the arena: base_output_directory/run_name. Without a run_name it is the
 * model's name and the local time. */
const char *mx_run_folder(const mx_config *cfg, mx_arena *a);

/* Compares with folder/config.yml where that exists and steps were made with it; `report` gets one
 * line per difference. MX_USAGE when something differs that cannot change. */
mx_status mx_run_config_compare(const mx_config *cfg, const char *folder,
                                mx_str *report) MX_MUST_USE;

/* Writes folder/config.yml and folder/command.txt, durably and each at once. `io` may be NULL. */
void mx_run_config_text(const mx_config *cfg, mx_str *out); /* what config.yml holds */
mx_status mx_run_config_save(const mx_config *cfg, const char *folder, const char *command_line,
                             const mx_io *io) MX_MUST_USE;

#endif
