/* ranks.h - several ranks as processes of one test. */
#ifndef MX_TESTS_DIST_RANKS_H
#define MX_TESTS_DIST_RANKS_H

#include "dist/comm.h"
#include <sys/types.h>

enum { RANKS_MAX = 8 };

/* A port that was free a moment ago. */
int ranks_port(void);
/* Sets what a launcher sets, for this process. */
void ranks_be(int rank, int size, int port);
/* Starts a process for each rank, which calls `run` and exits with what it gives (0: all is well).
 */
void ranks_start(int size, int (*run)(int rank, void *ctx), void *ctx, pid_t *pids);
/* Waits for all: status[r] is the exit status, 128 + signal when killed. */
void ranks_wait(int size, const pid_t *pids, int *status);
/* Both; every rank must exit with 0. */
void ranks_run(int size, int (*run)(int rank, void *ctx), void *ctx);

#endif
