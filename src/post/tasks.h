/* tasks.h - a file of prompts whose answers can be judged, asked while a model is trained.
 *
 * Every task_interval steps, before the first and after the last, each prompt of task_path gets
 * task_samples answers by the weights as they are. Metrics: eval/reward, the mean; eval/pass@1, the
 * share of right answers; eval/pass@k, the share of prompts with a right one among k answers.
 * An answer is right when the first of the rewards gives it 1 or more. Some of the answers are
 * written to RUN/samples.jsonl, which `maxc inspect RUN` shows.
 */
#ifndef MX_POST_TASKS_H
#define MX_POST_TASKS_H

#include "train/run/objective.h"

/* An objective's `measure` and `measure_end`. */
mx_status mx_tasks_measure(mx_objective_run *o, int64_t step, mx_metric *out, int *n) MX_MUST_USE;
void mx_tasks_close(mx_objective_run *o);

#endif
