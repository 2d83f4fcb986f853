/* retention.h - which checkpoints stay, and the removal of the others.
 *
 * A checkpoint stays when it is one of the last `keep_last`, when its step is a multiple of
 * `keep_every`, when it is one of the `keep_best` by metric, or when a process is reading it. At
 * least one with a readable manifest always stays. Damaged ones are not counted and not touched:
 * they are evidence.
 */
#ifndef MX_STORE_RETENTION_H
#define MX_STORE_RETENTION_H

#include "base/io.h"
#include <stdint.h>

typedef struct {
    int keep_last;      /* 0: every one stays */
    int64_t keep_every; /* 0: no such rule */
    int keep_best;      /* 0: no such rule */
    bool best_is_max;   /* the metric is better when larger; else a loss */
} mx_retention;

/* Removes what the policy does not keep. Removal is a rename out of sight, then deletion. */
mx_status mx_retention_apply(const mx_io *io, const char *root,
                             const mx_retention *policy) MX_MUST_USE;
/* Removes what killed processes left behind. Only under the run's lock. */
mx_status mx_retention_sweep(const mx_io *io, const char *root) MX_MUST_USE;
/* Takes one checkpoint away (a damaged one whose step is written again). */
mx_status mx_retention_remove(const mx_io *io, const char *root, int64_t step) MX_MUST_USE;

#endif
