/* clock.h - seconds that only ever grow, for measuring how long something took. */
#ifndef MX_BASE_CLOCK_H
#define MX_BASE_CLOCK_H

#include <time.h>

static inline double mx_clock_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
