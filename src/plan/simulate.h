/* simulate.h - a training step, event by event.
 *
 * Two loops. Inside a stage, the layers of one microbatch: kernels on one stream, gathers of the
 * next layer's weights and scatters of gradients on another. Across stages, the actions of the
 * pipeline's schedule: each starts when its stage is free and its input has arrived. At the end,
 * gradients are summed over replicas beside the last backward pass, and the optimizer runs.
 */
#ifndef MX_PLAN_SIMULATE_H
#define MX_PLAN_SIMULATE_H

#include "plan/cost.h"

typedef enum { MX_STREAM_COMPUTE, MX_STREAM_NETWORK, MX_STREAMS } mx_stream;

typedef struct {
    char name[32];
    int stage;
    mx_stream stream;
    double start, end; /* seconds */
} mx_event;

typedef struct {
    mx_event *event; /* owns */
    int n, cap;
} mx_trace;
void mx_trace_fini(mx_trace *t);

typedef struct {
    double seconds;    /* of an update */
    double compute;    /* of which kernels, on the busiest stage */
    double network;    /* waiting for collectives */
    double bubble;     /* waiting for other stages */
    double optimizer;  /* update and what is left of summing gradients */
    double stragglers; /* waiting for the slowest of all nodes */
} mx_step_time;

/* What of summing gradients over replicas does not fit beside the last backward pass, of `window`
 * seconds, what of giving out new weights does not fit beside the next forward pass, and the
 * update. */
double mx_update_seconds(const mx_cost_request *q, double window);

/* trace: NULL, or where the events go. */
void mx_simulate_step(const mx_cost_request *q, const mx_layer_costs *c, mx_step_time *out,
                      mx_trace *trace);

#endif
