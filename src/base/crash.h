/* crash.h - what the program says when it dies, and the stacks of its threads.
 *
 * After mx_crash_install a SIGSEGV, SIGBUS, SIGFPE, SIGILL or SIGABRT prints, to standard error and
 * to the log:
 *     maxc: SIGSEGV (address 0x10) in thread 4711 (maxc), step 1200, node model.layers.3.mlp
 *       #0 mx_matmul_contract at src/ops/matmul.c:88
 *       #1 ...
 *
 * and then lets the signal take its course, so that the exit status and core file are as ever. File
 * and line come from libbacktrace and the program's debug information; without it, from execinfo's
 * symbols.
 *
 * Handlers belong to the process and so do these settings: they are the program's few globals.
 * Everything here may be called from a signal handler.
 */
#ifndef MX_BASE_CRASH_H
#define MX_BASE_CRASH_H

#include "base/status.h"
#include <stdint.h>

mx_status mx_crash_install(void) MX_MUST_USE;
/* A second place for the report, or -1. */
void mx_crash_set_log(int fd);
/* What the program is doing. `node` must stay readable for ever (a graph's or a literal's name);
 * NULL is nothing. Cheap enough for every node: one relaxed store. */
void mx_crash_set_step(int64_t step);
void mx_crash_set_node(const char *node);
const char *mx_crash_node(void);

/* Every thread's stack with its id and name; a thread that does not answer within two seconds is
 * named with what the kernel knows. Not for signal handlers. How many threads answered. */
int mx_stack_print_all(int fd);

#endif
