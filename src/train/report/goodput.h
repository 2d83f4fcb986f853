/* goodput.h - where the time of a run went, across all its restarts.
 *
 *     step        the steps whose results are in the model: the good part
 *     compile     building and compiling graphs and kernels
 *     load        reading weights and state
 *     data wait   the step stood still for its batch
 *     checkpoint  the step stood still for a save
 *     eval        evaluation
 *     restart     the run was down
 *     lost        steps that were done, lost in a crash and done again
 *     other       the rest: start-up, logging, shutdown
 *
 * They add up to the time since the first start. The account is a small JSON file,
 * RUN/goodput.json, replaced at once on every save, so a crash loses only what came after the last
 * save; that time is counted as down. Times are seconds since 1970 given by the caller, so tests
 * need no clock.
 *
 *     mx_goodput_open(&g, run_dir, now, first_step);   the checkpoint this process starts from
 *     mx_goodput_enter(&g, MX_GOODPUT_STEP, now);      from now on time belongs to steps
 *     mx_goodput_commit(&g, step, now);                work up to `step` (not included) is durable
 *     mx_goodput_save(&g, now);                        now and then, and at the end
 */
#ifndef MX_TRAIN_GOODPUT_H
#define MX_TRAIN_GOODPUT_H

#include "base/io.h"
#include "base/str.h"

typedef enum {
    MX_GOODPUT_STEP,
    MX_GOODPUT_COMPILE,
    MX_GOODPUT_LOAD,
    MX_GOODPUT_DATA,
    MX_GOODPUT_CHECKPOINT,
    MX_GOODPUT_EVAL,
    MX_GOODPUT_RESTART,
    MX_GOODPUT_LOST,
    MX_GOODPUT_OTHER,
    MX_GOODPUT_N
} mx_goodput_kind;
extern const char *const mx_goodput_name[MX_GOODPUT_N];

enum { MX_GOODPUT_MARKS = 64 };
typedef struct {
    double seconds[MX_GOODPUT_N];
    int64_t attempts, steps_lost;
    double first_start, last_seen;
    mx_goodput_kind now_in;
    double since;
    int64_t last_step; /* one past the last step that was done */
    struct {
        int64_t step;
        double step_seconds;  /* seconds[STEP] when everything before `step` was done */
    } mark[MX_GOODPUT_MARKS]; /* the latest durable points, oldest first */
    int n_marks;
    double read_bytes, read_seconds; /* of weights, by this process, within "load"; not saved */
    bool was_damaged; /* the file could not be read: it was set aside, and a new account begun */
    const mx_io *io;
    char path[4096];
} mx_goodput;

/* Reads the account of earlier attempts, if any, and starts this one in "other". `io` NULL: the
 * system's. */
mx_status mx_goodput_open(mx_goodput *g, const char *run_dir, double now, int64_t first_step,
                          const mx_io *io) MX_MUST_USE;
void mx_goodput_enter(mx_goodput *g, mx_goodput_kind kind, double now);
void mx_goodput_step_done(mx_goodput *g, int64_t step); /* `step` is finished */
void mx_goodput_commit(mx_goodput *g, int64_t step, double now);
mx_status mx_goodput_save(mx_goodput *g, double now) MX_MUST_USE;
double
mx_goodput_total(const mx_goodput *g); /* seconds since the first start, as far as accounted */
double mx_goodput_fraction(const mx_goodput *g); /* step / total */
/* A table: kind, time, share; one line each, empty ones left out. */
void mx_goodput_report(const mx_goodput *g, mx_str *out);
/* Reads only, for `maxc inspect`. MX_INPUT when there is no account. */
mx_status mx_goodput_read(mx_goodput *g, const char *run_dir) MX_MUST_USE;

#endif
