/* train_sets.h - the datasets a configuration names: files, patterns, mixtures, the hub, or none.
 * */
#ifndef MX_TRAIN_TRAIN_SETS_H
#define MX_TRAIN_TRAIN_SETS_H

#include "base/config.h"
#include "data/load/dataset.h"

/* paths, kind and weight of each set are filled in; order and sources are the caller's. Hub files
 * are fetched. Memory from the arena. */
mx_status mx_train_sets(const mx_config *c, bool evaluation, mx_arena *a, mx_dataset_options **sets,
                        int *n) MX_MUST_USE;
/* Data to evaluate on that is named by a run that does not evaluate is refused. */
mx_status mx_eval_data_refuse(const mx_config *c) MX_MUST_USE;
/* Whether this kind of data is made, not read: it needs no file, no tokenizer, no end. */
bool mx_data_is_made(const char *kind);
/* What it is called then; NULL of data that is read. */
const char *mx_data_made_name(const char *kind);

#endif
