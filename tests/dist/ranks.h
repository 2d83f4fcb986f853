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
/* Waits for so many seconds at most: then the rest is killed, with status 128 + SIGKILL. False when
 * that was needed. */
bool ranks_wait_for(double seconds, int size, const pid_t *pids, int *status);
/* Both; every rank must exit with 0. */
void ranks_run(int size, int (*run)(int rank, void *ctx), void *ctx);

/* In a rank's process: meets the others. Says why it failed; then both are NULL. The limits are for
 * a heartbeat and for a call; 0: the usual ones. */
mx_coord *ranks_meet(double heartbeat_s, double call_s);
mx_comm *ranks_join(mx_coord **coord, double heartbeat_s, double call_s);
void ranks_leave(mx_coord *coord, mx_comm *comm);
/* What ranks_meet asks for, to be changed. */
mx_coord_options ranks_options(double heartbeat_s, double call_s);

/* In a rank's process: says what is wrong and counts it. */
#define EXPECT(bad, cond, ...) ((cond) ? 0 : (printf("    " __VA_ARGS__), printf("\n"), (bad) = 1))

#endif
