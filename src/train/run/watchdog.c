/* watchdog.c - the watching thread. A step tells it the time under a mutex; it sleeps until the
 * limit. */
#include "train/run/watchdog.h"

#include "base/clock.h"
#include "base/arena.h"
#include "base/crash.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { KEPT = 32, ENOUGH = 8 };
static const double TIMES_MEDIAN = 20, LEAST_SECONDS = 60;

struct mx_watchdog {
    mx_watchdog_options o;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool running, watching, closing;
    int64_t step, reports;
    double began;  /* of this step, monotonic seconds */
    double report; /* seconds into the step when the next report is due */
    double took[KEPT];
    int64_t n_took;
};

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double limit(const mx_watchdog *w)
{
    double sorted[KEPT];
    if (w->o.limit_s > 0)
        return w->o.limit_s;
    if (w->n_took < ENOUGH)
        return 0;
    size_t n = w->n_took < KEPT ? (size_t)w->n_took : KEPT;
    memcpy(sorted, w->took, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, ascending);
    double found = TIMES_MEDIAN * sorted[n / 2];
    return found > LEAST_SECONDS ? found : LEAST_SECONDS;
}

static void write_report(const mx_watchdog *w, int64_t step, double seconds)
{
    char text[256];
    const char *node = mx_crash_node();
    int n = snprintf(text, sizeof text,
                     "maxc: watchdog: step %lld has taken %.1f s%s%.100s; every thread:\n",
                     (long long)step, seconds, node ? ", last node " : "", node ? node : "");
    (void)!write(w->o.fd, text, (size_t)n);
    mx_stack_print_all(w->o.fd);
}

/* Sleeps until something changes or `until`, a day at most: what is further away may be no time
 * that the clock can tell. */
static void wait_until(mx_watchdog *w, double until)
{
    double latest = mx_clock_now() + 86400;
    until = until < latest ? until : latest;
    struct timespec t = {.tv_sec = (time_t)until,
                         .tv_nsec = (long)(1e9 * (until - (double)(time_t)until))};
    pthread_cond_timedwait(&w->wake, &w->lock, &t);
}

static void *watch(void *arg)
{
    mx_watchdog *w = arg;
    pthread_mutex_lock(&w->lock);
    while (!w->closing) {
        if (!w->watching || w->report <= 0) {
            pthread_cond_wait(&w->wake, &w->lock);
            continue;
        }
        double now = mx_clock_now(), seconds = now - w->began;
        if (seconds < w->report) {
            wait_until(w, w->began + w->report);
            continue;
        }
        int64_t step = w->step;
        w->report = 2 * seconds;
        w->reports++;
        pthread_mutex_unlock(&w->lock); /* the step may go on while we write */
        write_report(w, step, seconds);
        if (w->o.on_stall)
            w->o.on_stall(w->o.ctx, step, seconds);
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

static int start_thread(mx_watchdog *w)
{
    /* the thread takes no signals: they are for the loop */
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int error = pthread_create(&w->thread, NULL, watch, w);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (!error)
        pthread_setname_np(w->thread, "watchdog");
    return error;
}

mx_status mx_watchdog_open(mx_watchdog **out, const mx_watchdog_options *o)
{
    void *memory;
    *out = NULL;
    MX_TRY(mx_alloc(&memory, sizeof(mx_watchdog), "the watchdog"));
    mx_watchdog *w = memory;
    pthread_condattr_t attr;
    w->o = *o;
    pthread_mutex_init(&w->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&w->wake, &attr);
    pthread_condattr_destroy(&attr);
    int error = start_thread(w);
    w->running = error == 0;
    if (error) {
        mx_watchdog_close(w);
        errno = error;
        return mx_fail_errno(MX_DEVICE, "cannot start the watchdog's thread");
    }
    *out = w;
    return MX_OK;
}

void mx_watchdog_step(mx_watchdog *w, int64_t step)
{
    pthread_mutex_lock(&w->lock);
    double now = mx_clock_now();
    if (w->watching)
        w->took[w->n_took++ % KEPT] = now - w->began;
    w->step = step;
    w->began = now;
    w->report = limit(w);
    w->watching = true;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
}

void mx_watchdog_pause(mx_watchdog *w)
{
    pthread_mutex_lock(&w->lock);
    w->watching = false;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
}

int64_t mx_watchdog_reports(mx_watchdog *w)
{
    pthread_mutex_lock(&w->lock);
    int64_t n = w->reports;
    pthread_mutex_unlock(&w->lock);
    return n;
}

double mx_watchdog_limit(mx_watchdog *w)
{
    pthread_mutex_lock(&w->lock);
    double seconds = limit(w);
    pthread_mutex_unlock(&w->lock);
    return seconds;
}

void mx_watchdog_close(mx_watchdog *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->closing = true;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
    if (w->running)
        pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->wake);
    pthread_mutex_destroy(&w->lock);
    mx_free(w);
}
