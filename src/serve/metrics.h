/* metrics.h - /metrics: Prometheus text with the metric names of vLLM, for its dashboards. */
#ifndef MX_SERVE_METRICS_H
#define MX_SERVE_METRICS_H

#include "infer/engine.h"
#include "serve/adapters.h"

enum { MX_BUCKETS = 16 };

/* Counts of values in each bucket; cumulative only when printed. */
typedef struct {
    int64_t count[MX_BUCKETS + 1];
    double sum;
} mx_histogram;

typedef struct {
    mx_histogram first_token, between_tokens, per_token, whole, queue, prefill, decode, inference;
    mx_histogram prompt, written, step, most_new, answers;
    int64_t stopped, cut, failed, gone; /* requests by how they ended */
} mx_server_metrics;

/* A request has ended; `gone`: because its client went away. max_new: tokens it asked for. */
void mx_server_metrics_add(mx_server_metrics *m, const mx_request *r, int64_t max_new, bool gone);
/* A request has tokens up to r->tokens.n; *seen and *at, of the news before, are brought up to
 * date. */
void mx_server_metrics_news(mx_server_metrics *m, const mx_request *r, int64_t *seen, double *at);
/* A step of the engine had this many tokens. */
void mx_server_metrics_step(mx_server_metrics *m, int64_t tokens);
/* A call has come that asks for n answers. */
void mx_server_metrics_call(mx_server_metrics *m, int64_t n);
/* adapters NULL: there are none. */
void mx_server_metrics_print(const mx_server_metrics *m, const mx_engine_counts *c,
                             const char *model, mx_adapter_names *adapters, mx_str *out);

#endif
