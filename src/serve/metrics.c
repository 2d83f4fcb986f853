/* metrics.c - see metrics.h. */
#include "serve/metrics.h"

#include "base/clock.h"

static const double seconds[MX_BUCKETS] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                           0.25,  0.5,   1,    2.5,  5,    10,   30,   120};
static const double tokens[MX_BUCKETS] = {1,   2,    5,    10,   20,    50,    100,   200,
                                          500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};

static void add(mx_histogram *h, const double *bounds, double x)
{
    int i = 0;
    while (i < MX_BUCKETS && x > bounds[i])
        i++;
    h->count[i]++;
    h->sum += x;
}

void mx_server_metrics_add(mx_server_metrics *m, const mx_request *r, bool gone)
{
    int64_t n = r->tokens.n - r->n_prompt;
    double now = mx_clock_now();
    m->gone += gone;
    m->stopped += !gone && r->finish == MX_FINISH_STOP;
    m->cut += !gone && r->finish == MX_FINISH_LENGTH;
    m->failed += !gone && r->finish == MX_FINISH_ERROR;
    add(&m->prompt, tokens, (double)r->n_prompt);
    add(&m->written, tokens, (double)n);
    add(&m->whole, seconds, now - r->arrived);
    if (r->started)
        add(&m->queue, seconds, r->started - r->arrived);
    if (!r->first)
        return;
    add(&m->first_token, seconds, r->first - r->arrived);
    add(&m->prefill, seconds, r->first - r->started);
    add(&m->decode, seconds, r->last - r->first);
    if (n > 1)
        add(&m->between_tokens, seconds, (r->last - r->first) / (double)(n - 1));
}

static void print_histogram(mx_str *out, const char *name, const char *help, const char *model,
                            const mx_histogram *h, const double *bounds)
{
    int64_t sum = 0;
    mx_str_addf(out, "# HELP vllm:%s %s\n# TYPE vllm:%s histogram\n", name, help, name);
    for (int i = 0; i <= MX_BUCKETS; i++) {
        char bound[32] = "+Inf";
        sum += h->count[i];
        if (i < MX_BUCKETS)
            mx_format_f64(bound, sizeof bound, bounds[i]);
        mx_str_addf(out, "vllm:%s_bucket{le=\"%s\",model_name=\"%s\"} %lld\n", name, bound, model,
                    (long long)sum);
    }
    mx_str_addf(out, "vllm:%s_sum{model_name=\"%s\"} %.9g\n", name, model, h->sum);
    mx_str_addf(out, "vllm:%s_count{model_name=\"%s\"} %lld\n", name, model, (long long)sum);
}

static void print_number(mx_str *out, const char *type, const char *name, const char *help,
                         const char *model, double value)
{
    mx_str_addf(out, "# HELP vllm:%s %s\n# TYPE vllm:%s %s\nvllm:%s{model_name=\"%s\"} %.15g\n",
                name, help, name, type, name, model, value);
}

static void print_ends(const mx_server_metrics *m, const char *model, mx_str *out)
{
    const struct {
        const char *name;
        int64_t n;
    } ends[] = {{"stop", m->stopped}, {"length", m->cut}, {"abort", m->gone}, {"error", m->failed}};
    mx_str_add(out, "# HELP vllm:request_success_total Requests by how they ended.\n"
                    "# TYPE vllm:request_success_total counter\n");
    for (int i = 0; i < 4; i++)
        mx_str_addf(out,
                    "vllm:request_success_total{finished_reason=\"%s\",model_name=\"%s\"} %lld\n",
                    ends[i].name, model, (long long)ends[i].n);
}

void mx_server_metrics_print(const mx_server_metrics *m, const mx_engine_counts *c,
                             const char *model, mx_str *out)
{
    double used = c->pages ? (double)c->pages_held / (double)c->pages : 0;
    const struct {
        const char *type, *name, *help;
        double value;
    } numbers[] = {
        {"gauge", "num_requests_running", "Requests in the batch.", (double)c->running},
        {"gauge", "num_requests_waiting", "Requests that wait.", (double)c->waiting},
        {"gauge", "kv_cache_usage_perc", "Share of the cache in use, 0 to 1.", used},
        {"counter", "prompt_tokens_total", "Tokens of prompts computed.", (double)c->prompt_tokens},
        {"counter", "generation_tokens_total", "Tokens written.", (double)c->new_tokens},
        {"counter", "prefix_cache_queries_total", "Tokens looked for in the prefix cache.",
         (double)c->prefix_queries},
        {"counter", "prefix_cache_hits_total", "Tokens found in it.", (double)c->prefix_hits},
        {"counter", "spec_decode_num_draft_tokens_total", "Draft tokens.",
         (double)c->drafted},
        {"counter", "spec_decode_num_accepted_tokens_total", "Of those, tokens that came.",
         (double)c->accepted},
        {"counter", "num_preemptions_total", "Requests that had to be computed again.",
         (double)c->preemptions},
    };
    const struct {
        const char *name, *help;
        const mx_histogram *h;
        const double *bounds;
    } histograms[] = {
        {"time_to_first_token_seconds", "Time to the first token.", &m->first_token, seconds},
        {"inter_token_latency_seconds", "Time between tokens, mean of a request.",
         &m->between_tokens, seconds},
        {"e2e_request_latency_seconds", "Time of whole requests.", &m->whole, seconds},
        {"request_queue_time_seconds", "Time before the first batch.", &m->queue, seconds},
        {"request_prefill_time_seconds", "Time of the prompt.", &m->prefill, seconds},
        {"request_decode_time_seconds", "Time of the answer.", &m->decode, seconds},
        {"request_prompt_tokens", "Tokens of the prompt.", &m->prompt, tokens},
        {"request_generation_tokens", "Tokens of the answer.", &m->written, tokens},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        print_number(out, numbers[i].type, numbers[i].name, numbers[i].help, model,
                     numbers[i].value);
    for (size_t i = 0; i < sizeof histograms / sizeof *histograms; i++)
        print_histogram(out, histograms[i].name, histograms[i].help, model, histograms[i].h,
                        histograms[i].bounds);
    print_ends(m, model, out);
}
