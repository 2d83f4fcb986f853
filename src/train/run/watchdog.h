/* watchdog.h - a thread that notices a step that does not end, and writes down every stack.
 *
 *     mx_watchdog *w;
 *     MX_TRY(mx_watchdog_open(&w, &(mx_watchdog_options){.fd = log_fd}));
 *     for (...) { mx_watchdog_step(w, step); ... }   each call says: still alive
 *     mx_watchdog_pause(w);                          before a save or an evaluation
 *     mx_watchdog_close(w);
 *
 * The limit is given, or found: 20 times the median of the last steps, and never less than a
 * minute. Before eight steps are known there is no found limit, so compiling and loading are not
 * disturbed. A stall is reported when it begins, and again each time it has lasted twice as long.
 * The run is not ended: whether to wait is for the reader of the log to decide, or for `on_stall`.
 */
#ifndef MX_TRAIN_WATCHDOG_H
#define MX_TRAIN_WATCHDOG_H

#include "base/status.h"
#include <stdint.h>

typedef struct mx_watchdog mx_watchdog;
typedef struct {
    double limit_s; /* 0: found from the steps */
    int fd;         /* where stacks go: the log, or 2 */
    /* Called by the watchdog's thread after a report; may be NULL. */
    void (*on_stall)(void *ctx, int64_t step, double seconds);
    void *ctx;
} mx_watchdog_options;

mx_status mx_watchdog_open(mx_watchdog **w, const mx_watchdog_options *o) MX_MUST_USE;
void mx_watchdog_step(mx_watchdog *w, int64_t step); /* `step` begins; also ends a pause */
void mx_watchdog_pause(mx_watchdog *w);
int64_t mx_watchdog_reports(mx_watchdog *w);
double mx_watchdog_limit(mx_watchdog *w); /* seconds; 0 while there is none */
void mx_watchdog_close(mx_watchdog *w);   /* NULL is a no-op */

#endif
