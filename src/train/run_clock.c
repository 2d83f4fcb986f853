/* run_clock.c - the clock at which a chip at its power limit makes the fastest steps.
 *
 * Left alone, such a chip raises its clock in kernels that wait for memory and has to lower it in
 * the products after them, further than if it had kept to one clock all the time. Which clock is
 * best depends on the chip and on the program, so gpu_clock=auto tries, a few seconds each, as the
 * run goes:
 *
 *     left alone      how fast steps are, and the mean of the clocks seen meanwhile
 *     mean            held there, then STRIDE above and STRIDE below it
 *     further         beyond the best of those, as long as that is the best so far
 *
 * and stays with the fastest, if that gains enough. Results do not depend on it. The device lets
 * the clock go when the run ends.
 */
#include "train/run_state.h"

#include <stdlib.h>
#include <string.h>

enum { STRIDE = 45, GRAIN = 15 };                /* MHz */
enum { SETTLING_STEPS = 3, MEASURED_STEPS = 8 }; /* of a trial, at least */
static const double WARM_SECONDS = 10, SETTLING_SECONDS = 1, MEASURED_SECONDS = 3;
static const double AT_THE_LIMIT = 0.9; /* of the power, where a clock is worth holding */
static const double GAIN = 0.003;       /* below it is noise */

static void stop(mx_run *r, mx_status st)
{
    r->clock.searches = false;
    if (st)
        mx_progress_say(&r->progress, "note: the GPU's clock is left alone: %s",
                        mx_status_text(st));
    mx_status_free(st);
}

static void try_clock(mx_run *r, int mhz)
{
    mx_run_clock *c = &r->clock;
    mx_status st = mx_session_hold_clock(r->session, mhz);
    c->held = mhz;
    c->n = c->n_took = 0;
    c->seconds = 0;
    if (st)
        stop(r, st);
}

mx_status mx_run_clock_open(mx_run *r)
{
    const char *text = mx_config_text(r->c, "gpu_clock");
    r->clock = (mx_run_clock){.searches = strcmp(text, "auto") == 0, .first = true};
    if (!*text || r->clock.searches)
        return MX_OK;
    char *end;
    long mhz = strtol(text, &end, 10);
    if (*end || mhz < 100 || mhz > 10000)
        return mx_fail(MX_USAGE,
                       "%s: gpu_clock is a frequency in MHz, such as 1400, or auto; found %s",
                       mx_config_where(r->c, "gpu_clock"), text);
    mx_status st = mx_session_hold_clock(r->session, (int)mhz);
    if (st)
        stop(r, st);
    return MX_OK;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void decide(mx_run *r)
{
    mx_run_clock *c = &r->clock;
    bool pays = c->best_seconds < c->free_seconds * (1 - GAIN);
    double gain = 100 * (c->free_seconds / c->best_seconds - 1);
    try_clock(r, pays ? c->best : 0);
    if (pays)
        mx_progress_say(&r->progress,
                        "gpu_clock: held at %d MHz, steps are %.1f %% faster (tried %d to %d)",
                        c->best, gain, c->low, c->high);
    else
        mx_progress_say(&r->progress,
                        "gpu_clock: left alone, which is as fast as %d to %d MHz", c->low, c->high);
    stop(r, MX_OK);
}

/* The trial is over: the median of its steps counts. */
static void next_trial(mx_run *r)
{
    mx_run_clock *c = &r->clock;
    qsort(c->took, (size_t)c->n_took, sizeof *c->took, ascending);
    double seconds = c->took[c->n_took / 2];
    if (c->first) {
        c->first = false;
        c->free_seconds = c->best_seconds = seconds;
        if (c->sum_power < AT_THE_LIMIT * c->n_took) {
            mx_progress_say(&r->progress,
                            "gpu_clock: left alone: the chip is not at its power limit");
            stop(r, MX_OK);
            return;
        }
        int mean = (int)(c->sum_mhz / c->n_took);
        c->from = c->low = c->high = (mean + GRAIN / 2) / GRAIN * GRAIN;
        c->best_seconds = 1e30; /* the best of those held */
        try_clock(r, c->from);
        return;
    }
    if (seconds < c->best_seconds) {
        c->best_seconds = seconds;
        c->best = c->held;
    }
    if (c->high == c->from || (c->low != c->from && c->best == c->high))
        try_clock(r, c->high += STRIDE);
    else if (c->low == c->from || c->best == c->low)
        try_clock(r, c->low -= STRIDE);
    else
        decide(r);
}

void mx_run_clock_step(mx_run *r, double seconds)
{
    mx_run_clock *c = &r->clock;
    if (!c->searches)
        return;
    c->n++;
    c->seconds += seconds;
    if (!c->n_took) {
        if (c->n <= SETTLING_STEPS || c->seconds < (c->first ? WARM_SECONDS : SETTLING_SECONDS))
            return;
        c->seconds = seconds;
    }
    if (c->first) {
        int mhz = 0;
        double power = 0;
        mx_status st = mx_session_see_clock(r->session, &mhz, &power);
        if (st) {
            stop(r, st);
            return;
        }
        c->sum_mhz += mhz;
        c->sum_power += power;
    }
    c->took[c->n_took++] = seconds;
    int cap = (int)(sizeof c->took / sizeof *c->took);
    if (c->n_took == cap || (c->n_took >= MEASURED_STEPS && c->seconds >= MEASURED_SECONDS))
        next_trial(r);
}
