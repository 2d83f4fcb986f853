/* metrics.h - /metrics: Prometheus text with the metric names of vLLM, for its dashboards. */
#ifndef MX_SERVE_METRICS_H
#define MX_SERVE_METRICS_H

#include "infer/engine.h"

enum { MX_BUCKETS = 16 };

/* Counts of values in each bucket; cumulative only when printed. */
typedef struct {
    int64_t count[MX_BUCKETS + 1];
    double sum;
} mx_histogram;

typedef struct {
    mx_histogram first_token, between_tokens, whole, queue, prefill, decode, prompt, written;
    int64_t stopped, cut, failed, gone; /* requests by how they ended */
} mx_server_metrics;

/* A request has ended; `gone`: because its client went away. */
void mx_server_metrics_add(mx_server_metrics *m, const mx_request *r, bool gone);
void mx_server_metrics_print(const mx_server_metrics *m, const mx_engine_counts *c,
                             const char *model, mx_str *out);

#endif
