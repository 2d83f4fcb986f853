/* post_run.h - whole runs of post-training verbs on the fixture's model, for tests. */
#ifndef MX_TESTS_POST_POST_RUN_H
#define MX_TESTS_POST_POST_RUN_H

#include "base/status.h"
#include <jansson.h>

#define POST "tests/fixtures/post/"

/* A new folder, in `buf`; removed by post_remove. */
char *post_folder(char *buf, size_t cap);
void post_remove(const char *folder);
/* `maxc VERB` as FOLDER/NAME: float32, one thread, records in the file's order, unless the settings
 * (space-separated key=value) say otherwise. What it prints goes nowhere. */
mx_status post_run(const char *verb, const char *folder, const char *name, const char *settings);
/* The lines of its metrics.jsonl that have a loss; json_decref it. */
json_t *post_metrics(const char *folder, const char *name);
/* One number of one step, from 0. */
double post_number(const json_t *metrics, size_t step, const char *name);

#endif
