/* run_summary.h - how a run stands, from its folder, without opening much of it.
 *
 *     RUN/metrics.jsonl   one object a step, and one an evaluation: the last of each counts
 *     RUN/config.yml      how many steps there are to be
 *     RUN/run.lock        a process is working on it
 * The run may be going on meanwhile: a last line without its end is left out, nothing is locked.
 */
#ifndef MX_CMD_RUN_SUMMARY_H
#define MX_CMD_RUN_SUMMARY_H

#include "base/arena.h"
#include "base/config.h"

typedef struct {
    const char *path, *name; /* the folder, and its last part, or parts where names repeat */
    const char *state;       /* running, finished, stopped */
    double step, steps;      /* all numbers: NAN where nothing is known */
    double loss, eval_loss, learning_rate, tokens, tokens_per_second, skipped, rollbacks;
    double time; /* of the last step, seconds since 1970 */
} mx_run_summary;

bool mx_is_run_folder(const char *path);
/* Texts live in the arena, or in `path`. */
void mx_run_summary_at(mx_run_summary *g, const char *path, mx_arena *a);
/* Of several; runs of the same name are called by as many parts of their paths as differ. */
void mx_run_summaries_at(mx_run_summary *g, const char *const *paths, int n, mx_arena *a);
/* Its configuration; NULL when it cannot be read. The caller frees it. */
mx_config *mx_run_summary_config(const char *path);
/* "2026-11-16 09:18:43" into the caller's buffer, which is returned; "-" for NAN. */
const char *mx_format_time(char *buf, size_t cap, double seconds);

#endif
