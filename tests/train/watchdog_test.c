/* watchdog_test.c - a stalled step is reported with stacks, once and then ever more rarely. */
#include "train/run/watchdog.h"

#include "../test.h"
#include "base/crash.h"
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void nap(double seconds)
{
    nanosleep(
        &(struct timespec){(time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds))},
        NULL);
}

__attribute__((noinline)) static void stuck_in_a_collective(double seconds)
{
    for (int i = 0; i < 10; i++)
        nap(seconds / 10);
    __asm__ volatile("" ::: "memory");
}

static atomic_int stalls;
static void count_stall(void *ctx, int64_t step, double seconds)
{
    (void)ctx;
    if (step == 7 && seconds >= 0.2)
        atomic_fetch_add(&stalls, 1);
}

/* Longer than the clock can tell: it waits, and holds nobody up. */
MX_TEST(watchdog_waits_for_limits_beyond_time)
{
    static const double limits[] = {1e9, 1e19, 1e300, 1.7e308};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        mx_watchdog *w;
        MX_CHECK_OK(mx_watchdog_open(&w, &(mx_watchdog_options){.limit_s = limits[i], .fd = 2}));
        for (int64_t step = 0; step < 100; step++)
            mx_watchdog_step(w, step);
        nap(0.01);
        MX_CHECK(mx_watchdog_reports(w) == 0);
        mx_watchdog_close(w);
    }
}

MX_TEST(watchdog_reports_a_stall_with_every_stack)
{
    int fd[2];
    static char text[65536];
    mx_watchdog *w;
    MX_CHECK(pipe(fd) == 0);
    mx_crash_set_node("all_reduce.12");
    MX_CHECK_OK(mx_watchdog_open(
        &w, &(mx_watchdog_options){.limit_s = 0.2, .fd = fd[1], .on_stall = count_stall}));
    for (int i = 0; i < 7; i++) {
        mx_watchdog_step(w, i);
        nap(0.01);
    }
    MX_CHECK(mx_watchdog_reports(w) == 0, "no report while steps are short");
    mx_watchdog_step(w, 7);
    stuck_in_a_collective(1.0);
    mx_watchdog_step(w, 8);
    int64_t reports = mx_watchdog_reports(w);
    /* at 0.2, 0.4 and 0.8 s: fewer only when the machine is slow */
    MX_CHECK(reports >= 1 && reports <= 3, "%d reports", (int)reports);
    MX_CHECK(atomic_load(&stalls) >= 1, "on_stall");
    mx_watchdog_close(w);
    close(fd[1]);
    size_t n = 0;
    for (ssize_t k; n < sizeof text - 1 && (k = read(fd[0], text + n, sizeof text - 1 - n)) > 0;)
        n += (size_t)k;
    MX_CHECK(strstr(text, "maxc: watchdog: step 7 has taken 0.") != NULL, "%s", text);
    MX_CHECK(strstr(text, "last node all_reduce.12") != NULL, "%s", text);
    MX_CHECK(strstr(text, "stuck_in_a_collective at tests/train/watchdog_test.c:") != NULL, "%s",
             text);
    MX_CHECK(strstr(text, "(watchdog), this one:") != NULL, "%s", text);
    close(fd[0]);
}

MX_TEST(watchdog_pauses_and_finds_its_limit)
{
    int fd = open("/dev/null", O_WRONLY);
    mx_watchdog *w;
    MX_CHECK_OK(mx_watchdog_open(&w, &(mx_watchdog_options){.limit_s = 0.1, .fd = fd}));
    mx_watchdog_step(w, 0);
    mx_watchdog_pause(w);
    nap(0.4);
    MX_CHECK(mx_watchdog_reports(w) == 0, "a pause is not a stall");
    mx_watchdog_step(w, 1);
    nap(0.4);
    MX_CHECK(mx_watchdog_reports(w) > 0, "watching again after the pause");
    mx_watchdog_close(w);
    MX_CHECK_OK(mx_watchdog_open(&w, &(mx_watchdog_options){.fd = fd}));
    for (int i = 0; i < 8; i++) {
        MX_CHECK(mx_watchdog_limit(w) == 0, "no limit before steps are known");
        mx_watchdog_step(w, i);
    }
    mx_watchdog_step(w, 8);
    MX_CHECK(mx_watchdog_limit(w) == 60, "short steps: the least limit, %g", mx_watchdog_limit(w));
    mx_watchdog_close(w);
    mx_watchdog_close(NULL);
    close(fd);
}
