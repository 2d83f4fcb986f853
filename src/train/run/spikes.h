/* spikes.h - which loss or gradient norm is an outlier, from the last steps alone.
 *
 * A step is a spike when its loss or its gradient norm is above mean + factor x deviation of the
 * last `interval` steps (the sample deviation, divided by n - 1). Until half of the window is
 * known nothing is a spike. Spikes enter the window as every finite value does, so that a level
 * that has changed for good becomes the new normal. The same rule as MaxText's
 * skip_step_on_spikes. The window is part of a checkpoint: a resumed run decides as the one that
 * was never stopped.
 */
#ifndef MX_TRAIN_SPIKES_H
#define MX_TRAIN_SPIKES_H

#include "base/arena.h"
#include <jansson.h>

typedef struct {
    float *loss, *norm; /* rings of `cap` values */
    int64_t n, cap;     /* values ever added; size of the window */
    double factor;
} mx_spikes;

void mx_spikes_init(mx_spikes *s, mx_arena *a, int64_t interval, double factor);
/* What the next step may reach; +infinity while too little is known. */
void mx_spikes_limits(const mx_spikes *s, float *loss, float *norm);
/* Values that are not finite are left out. */
void mx_spikes_add(mx_spikes *s, float loss, float norm);

json_t *mx_spikes_to_json(const mx_spikes *s);
/* Takes what it can read; a window of another size keeps the latest values. */
void mx_spikes_from_json(mx_spikes *s, const json_t *j);

#endif
