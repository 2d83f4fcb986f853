/* metrics.c - see metrics.h. */
#include "serve/metrics.h"

#include "base/clock.h"
#include <time.h>

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

void mx_server_metrics_step(mx_server_metrics *m, int64_t n)
{
    add(&m->step, tokens, (double)n);
}

void mx_server_metrics_call(mx_server_metrics *m, int64_t n)
{
    add(&m->answers, tokens, (double)n);
}

/* Tokens that came in one step, as accepted drafts do, share the time since the step before. */
void mx_server_metrics_news(mx_server_metrics *m, const mx_request *r, int64_t *seen, double *at)
{
    int64_t n = r->tokens.n - (*seen ? *seen : r->n_prompt);
    for (int64_t i = 0; i < n && *seen; i++)
        add(&m->between_tokens, seconds, (r->last - *at) / (double)n);
    if (n > 0) {
        *seen = r->tokens.n;
        *at = r->last;
    }
}

void mx_server_metrics_add(mx_server_metrics *m, const mx_request *r, int64_t max_new, bool gone)
{
    int64_t n = r->tokens.n - r->n_prompt;
    double now = mx_clock_now();
    m->gone += gone;
    m->stopped += !gone && r->finish == MX_FINISH_STOP;
    m->cut += !gone && r->finish == MX_FINISH_LENGTH;
    m->failed += !gone && r->finish == MX_FINISH_ERROR;
    add(&m->prompt, tokens, (double)r->n_prompt);
    add(&m->written, tokens, (double)n);
    add(&m->most_new, tokens, (double)max_new);
    add(&m->whole, seconds, now - r->arrived);
    if (r->started)
        add(&m->queue, seconds, r->started - r->arrived);
    if (!r->first)
        return;
    add(&m->first_token, seconds, r->first - r->arrived);
    add(&m->prefill, seconds, r->first - r->started);
    add(&m->decode, seconds, r->last - r->first);
    add(&m->inference, seconds, r->last - r->started);
    if (n > 1)
        add(&m->per_token, seconds, (r->last - r->first) / (double)(n - 1));
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

/* Names in labels: backslashes, quotes and line breaks are escaped. */
static void add_label(mx_str *out, const char *name)
{
    for (; *name; name++)
        if (*name == '\n')
            mx_str_add(out, "\\n");
        else
            mx_str_addf(out, *name == '"' || *name == '\\' ? "\\%c" : "%c", *name);
}

/* Adapters that calls use, whether these wait or run. */
static void add_busy(void *ctx, const char *name, int64_t calls)
{
    mx_str *list = ctx;
    if (!calls)
        return;
    mx_str_add(list, list->len ? "," : "");
    add_label(list, name);
}

static void print_adapters(mx_adapter_names *adapters, mx_str *out)
{
    mx_str busy = {0};
    if (!adapters)
        return;
    mx_adapter_names_each(adapters, add_busy, &busy);
    mx_str_addf(out,
                "# HELP vllm:lora_requests_info Adapters that requests use.\n"
                "# TYPE vllm:lora_requests_info gauge\n"
                "vllm:lora_requests_info{max_lora=\"%lld\",running_lora_adapters=\"%s\","
                "waiting_lora_adapters=\"\"} %lld\n",
                (long long)mx_adapter_names_slots(adapters), mx_str_text(&busy),
                (long long)time(NULL));
    mx_str_fini(&busy);
}

static void print_all(const mx_server_metrics *m, const mx_engine_counts *c, const char *model,
                      mx_str *out)
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
        {"inter_token_latency_seconds", "Time between tokens.", &m->between_tokens, seconds},
        {"request_time_per_output_token_seconds", "Time between tokens, mean of a request.",
         &m->per_token, seconds},
        {"e2e_request_latency_seconds", "Time of whole requests.", &m->whole, seconds},
        {"request_queue_time_seconds", "Time before the first batch.", &m->queue, seconds},
        {"request_prefill_time_seconds", "Time of the prompt.", &m->prefill, seconds},
        {"request_decode_time_seconds", "Time of the answer.", &m->decode, seconds},
        {"request_inference_time_seconds", "Time of prompt and answer.", &m->inference, seconds},
        {"request_prompt_tokens", "Tokens of the prompt.", &m->prompt, tokens},
        {"request_generation_tokens", "Tokens of the answer.", &m->written, tokens},
        {"request_params_max_tokens", "Tokens that requests ask for.", &m->most_new, tokens},
        {"request_params_n", "Answers that requests ask for.", &m->answers, tokens},
        {"iteration_tokens_total", "Tokens of a step.", &m->step, tokens},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        print_number(out, numbers[i].type, numbers[i].name, numbers[i].help, model,
                     numbers[i].value);
    for (size_t i = 0; i < sizeof histograms / sizeof *histograms; i++)
        print_histogram(out, histograms[i].name, histograms[i].help, model, histograms[i].h,
                        histograms[i].bounds);
    print_ends(m, model, out);
}

void mx_server_metrics_print(const mx_server_metrics *m, const mx_engine_counts *c,
                             const char *model, mx_adapter_names *adapters, mx_str *out)
{
    mx_str label = {0};
    add_label(&label, model);
    print_all(m, c, mx_str_text(&label), out);
    print_adapters(adapters, out);
    mx_str_fini(&label);
}
