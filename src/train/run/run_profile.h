/* run_profile.h - what the parts of the profile share; private to src/train/run/run_profile*.c. */
#ifndef MX_TRAIN_RUN_PROFILE_H
#define MX_TRAIN_RUN_PROFILE_H

#include "train/run/run_state.h"

typedef struct {
    const char *name; /* "model.layers.*.mlp matmul" */
    double seconds, flops, bytes;
    int64_t n;
} mx_profile_total;

struct mx_run_profile {
    int64_t first, last; /* steps, counted from 1 */
    mx_str trace;
    mx_profile_total *total;
    int n_totals, cap_totals;
    double began; /* of the first step, in the device's clock */
    double sum;
    /* Of a pipeline, over all stages and steps: */
    double span_s, idle_s, share_of_equal;
};

/* A bar of the trace. */
typedef struct {
    const char *label, *kind;
    const char *total;   /* of which it is a part in nodes.txt; all layers are one */
    int process, thread; /* in which it is shown */
    double began, ended; /* the device's clock */
    mx_cost cost;
} mx_profile_event;

/* Of the step that runs. */
void mx_run_profile_add(mx_run *r, const mx_profile_event *e);

#endif
