/* inspect_run.h - what `maxc inspect` says about run folders. */
#ifndef MX_CMD_INSPECT_RUN_H
#define MX_CMD_INSPECT_RUN_H

#include "base/arena.h"
#include "base/str.h"

/* inspect_run.c: the story of one. */
mx_status mx_inspect_run(const char *path, mx_str *out) MX_MUST_USE;

/* inspect_curve.c: a metric of up to MX_CURVE_RUNS of them, in text (of one) and as pictures. */
enum { MX_CURVE_RUNS = 6 };
typedef struct {
    const char *svg, *png; /* files; "": none */
    bool dark;             /* the PNG */
    const char *metric;    /* that is drawn; "": reward where there is one, else loss */
} mx_inspect_pictures;
mx_status mx_inspect_curve(const char *const *paths, int n, const mx_inspect_pictures *p,
                           mx_str *out) MX_MUST_USE;

/* inspect_samples.c: what its model answered, over time; nothing where there are no samples. */
void mx_inspect_samples(const char *path, mx_str *out);

/* inspect_runs.c: many in a table, as text or JSON; of two also where they differ. */
mx_status mx_inspect_runs(const char *const *paths, int n, bool json, mx_str *out) MX_MUST_USE;
/* The run folders in a folder, sorted by name, in the arena. */
int mx_inspect_find_runs(const char *folder, mx_arena *a, const char ***paths);

#endif
