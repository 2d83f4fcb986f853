/* clock.h - seconds: since some moment, for measuring how long something took, and since 1970. */
#ifndef MX_BASE_CLOCK_H
#define MX_BASE_CLOCK_H

#include <time.h>

static inline double mx_clock_of(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* It only ever grows. */
static inline double mx_clock_now(void)
{
    return mx_clock_of(CLOCK_MONOTONIC);
}

/* Seconds since 1970. */
static inline double mx_clock_wall(void)
{
    return mx_clock_of(CLOCK_REALTIME);
}

/* That many seconds from now, for waits with CLOCK_MONOTONIC. */
static inline struct timespec mx_clock_after(double seconds)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_nsec += (long)(seconds * 1e9);
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    return t;
}

#endif
