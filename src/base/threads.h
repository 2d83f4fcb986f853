/* threads.h - the threads that parallel loops run on. */
#ifndef MX_BASE_THREADS_H
#define MX_BASE_THREADS_H

#include "base/status.h"

/* As many as OpenMP offers the calling thread. */
int mx_threads_offered(void);
/* Parallel loops take n threads from now on; 0: as many as OpenMP offers. Gives their number. They
 * are started here, before memory is used for anything else; MX_MEMORY when there cannot be so
 * many, or their stacks are too small. */
mx_status mx_threads_start(int n, int *started) MX_MUST_USE;
/* The calling thread's parallel loops take n of them: OpenMP keeps that number for each thread that
 * calls, and what was planned for n has no workspace for more. */
void mx_threads_use(int n);

#endif
