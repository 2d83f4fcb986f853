/* signals.h - a polite stop: SIGTERM, SIGINT and SIGUSR1 ask the run to save and end.
 *
 * The handler only raises a flag; the loop looks at it between steps, finishes the step, writes a
 * durable checkpoint and ends with status 75. More signals change nothing, except that a third
 * SIGINT (someone at the keyboard means it) ends the process at once, which is safe: a checkpoint
 * is whole or absent. SIGPIPE is ignored, so that a closed pipe is an error and not an end; so is
 * SIGXFSZ, and a file that may not grow any more (`ulimit -f`) is a failed write.
 */
#ifndef MX_BASE_SIGNALS_H
#define MX_BASE_SIGNALS_H

#include "base/status.h"

/* `said`: what the first SIGINT prints, a line, borrowed for good; NULL: nothing. */
mx_status mx_signals_install(const char *said) MX_MUST_USE;
void mx_signals_limit_files(void); /* SIGXFSZ alone, for what is no run */
int mx_stop_signal(void);      /* the first signal that asked to stop, 0 when none has */
int mx_stop_count(void);       /* how many have */
double mx_stop_age(void);      /* seconds since the first; 0 when none */
void mx_stop_request(int sig); /* as if the signal had come */
/* A line is being rewritten on the terminal: the message about the stop takes its place. */
void mx_stop_clears_line(bool on);
void mx_stop_clear(void);      /* forgets, for tests and for servers that go on */

#endif
