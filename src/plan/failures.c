/* failures.c - see failures.h. */
#include "plan/failures.h"

#include <math.h>

/* With rate r, a stretch of `interval` and its checkpoint takes on average
 * (1 / r + restart) (e^(r (interval + checkpoint)) - 1): it is tried until no failure meets it. */
mx_goodput_forecast mx_failures_goodput(const mx_failures *f)
{
    mx_goodput_forecast g = {.interval = sqrt(2 * f->checkpoint * f->between), .goodput = 1};
    double least = fmax(f->checkpoint, 1e-3 * f->between);
    g.interval = fmax(g.interval, least);
    double tries = exp((g.interval + f->checkpoint) / f->between) - 1;
    double whole = (f->between + f->restart) * tries;
    g.goodput = g.interval / whole;
    g.writing = f->checkpoint / whole;
    g.restarting = f->restart * tries / whole;
    g.lost = 1 - g.goodput - g.writing - g.restarting;
    return g;
}
