/* failures.h - how much of a long run is progress when chips fail now and then.
 *
 * Failures come at random, at a rate that grows with the number of chips. Work since the last
 * checkpoint is lost, and a restart takes its time. Checkpoints are written as often as loses the
 * least: every sqrt(2 x seconds of a checkpoint x time between failures), Young's rule.
 */
#ifndef MX_PLAN_FAILURES_H
#define MX_PLAN_FAILURES_H

typedef struct {
    double between;    /* seconds between failures of the whole machine */
    double checkpoint; /* seconds that a checkpoint holds up training */
    double restart;    /* seconds from a failure to the first new step */
} mx_failures;

typedef struct {
    double interval;                  /* seconds between checkpoints */
    double goodput;                   /* share of the time that is progress */
    double writing, lost, restarting; /* shares of the rest */
} mx_goodput_forecast;

mx_goodput_forecast mx_failures_goodput(const mx_failures *f);

#endif
