/* metrics.h - what a run measures, step by step: metrics.jsonl and TensorBoard event files.
 *
 *     mx_metrics *m;
 *     MX_TRY(mx_metrics_open(&m, run_dir, &(mx_metrics_options){.tensorboard = true}));
 *     mx_metrics_log(m, step, (mx_metric[]){{"loss", loss}, {"learning_rate", lr}}, 2);
 *     MX_TRY(mx_metrics_close(m));
 *
 * metrics.jsonl has one line for each call, {"step": 12, "time": 1721999109.250, "loss": 2.5, ...},
 * written at once, so that it can be followed and outlives a crash. JSON has no NaN: it and the
 * infinities are written as the strings "NaN", "Infinity", "-Infinity". When a run resumes at
 * start_step, lines of that step and later ones are cut off first (the work they describe is done
 * again), and so is a line that a crash left unfinished.
 *
 * Logging never fails: training is worth more than its log. When the disk is full or broken, the
 * records are dropped, half-written ones removed, and the next that can be written carries
 * "dropped": N. mx_metrics_close reports the first failure.
 *
 * One thread at a time.
 */
#ifndef MX_TRAIN_METRICS_H
#define MX_TRAIN_METRICS_H

#include "base/arena.h"
#include "base/io.h"
#include "train/report/events.h"

typedef struct mx_metrics mx_metrics;
typedef struct {
    bool tensorboard;    /* write run_dir/tensorboard/events.out.tfevents.* too */
    int64_t start_step;  /* the first step this process will log */
    const char *copy;    /* a second metrics.jsonl, or NULL */
    const mx_io *io;     /* NULL: the system's */
    double (*now)(void); /* seconds since 1970; NULL: the clock */
} mx_metrics_options;

mx_status mx_metrics_open(mx_metrics **m, const char *run_dir,
                          const mx_metrics_options *o) MX_MUST_USE;
void mx_metrics_log(mx_metrics *m, int64_t step, const mx_metric *v, int n);
int64_t mx_metrics_dropped(const mx_metrics *m); /* records that could not be written, all files */
const char *mx_metrics_problem(const mx_metrics *m); /* why, the first time; "" when all is well */
/* Closes the files. An error when records were lost or a close failed. NULL is a no-op. */
mx_status mx_metrics_close(mx_metrics *m) MX_MUST_USE;

/* A metric read back: y[i] at step x[i], in file order; NaN and infinities as such. */
typedef struct {
    double *x, *y;
    int64_t n;
} mx_series;
/* Lines without `name` are passed over; a line that is not JSON is an error unless it is the last.
 */
mx_status mx_metrics_read(const char *path, const char *name, mx_arena *a,
                          mx_series *out) MX_MUST_USE;

#endif
