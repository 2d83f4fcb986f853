/* bench_serve.c - maxc bench serve: the engine under load.
 *
 *     maxc bench serve model_name=smollm2-135m concurrency=32 input_tokens=128 output_tokens=128
 * Prompts are random, and so are weights, unless load_parameters_path=DIR says where they are, as
 * quantization= needs: neither changes what a step costs. `requests` of them come all at once,
 * `concurrency` at a time, or with request_rate=R at random (Poisson), R a second on average.
 * lengths=sharegpt draws lengths from log-normal distributions around the given ones, as those of
 * conversations are spread. HTTP is not part of it.
 */
#include "cmd/bench.h"

#include "base/clock.h"
#include "base/rng.h"
#include "exec/quant_config.h"
#include "exec/step_config.h"
#include "infer/engine_mesh.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const mx_invocation *inv;
    mx_engine *engine;
    int64_t n, concurrency, input, output, vocab;
    double rate;
    bool spread;
    double start;
    double *arrives; /* (n) seconds after the start */
    double *last;    /* (n) when its last token came; 0: none has */
    double *first;   /* (n) time to the first token */
    double *between; /* times between tokens */
    int64_t n_between, cap_between, sent, running, done, read, written;
} load;

static double uniform(int64_t i, int what)
{
    mx_random4 r = mx_philox(11, (uint64_t)what, (uint64_t)i);
    return mx_uniform_f64(r.v[0], r.v[1]);
}

/* A length around `mean`, of the same mean. */
static int64_t length_of(const load *l, int64_t i, int what, int64_t mean)
{
    const double spread = 1;
    if (!l->spread)
        return mean;
    double u = 1 - uniform(i, what), v = uniform(i, what + 1);
    double normal = sqrt(-2 * log(u)) * cos(2 * M_PI * v);
    double n = (double)mean * exp(spread * normal - spread * spread / 2);
    double most = 4.0 * (double)mean;
    return n < 4 ? 4 : n > most ? (int64_t)most : (int64_t)n;
}

static mx_status send(load *l, int64_t i)
{
    mx_tokens prompt = {0};
    int64_t n = length_of(l, i, 1, l->input);
    mx_request_options o = {.sampling = {.repetition_penalty = 1},
                            .max_new = length_of(l, i, 3, l->output),
                            .ignore_eos = true,
                            .owner = &l->last[i]};
    for (int64_t k = 0; k < n; k++)
        mx_tokens_add(&prompt, (int32_t)(uniform(i * 100000 + k, 5) * (double)l->vocab));
    mx_request *r;
    mx_status st = mx_engine_admit(l->engine, &prompt, &o, &r);
    mx_tokens_fini(&prompt);
    l->read += n;
    l->running++;
    return st;
}

static mx_status send_due(load *l)
{
    double now = mx_clock_now() - l->start;
    while (l->sent < l->n &&
           (l->rate > 0 ? l->arrives[l->sent] <= now : l->running < l->concurrency))
        MX_TRY(send(l, l->sent++));
    return MX_OK;
}

static void follow(load *l, mx_request *r)
{
    double *last = r->owner;
    int64_t i = last - l->last;
    if (*last) {
        MX_GROW(l->between, l->n_between, l->cap_between);
        l->between[l->n_between++] = r->last - *last;
    } else {
        l->first[i] = r->first - (l->rate > 0 ? l->start + l->arrives[i] : r->arrived);
    }
    *last = r->last;
    if (!r->finish)
        return;
    l->written += r->tokens.n - r->n_prompt;
    l->done++;
    l->running--;
    mx_engine_cancel(l->engine, r);
}

static mx_status drive(load *l)
{
    l->start = mx_clock_now();
    while (l->done < l->n) {
        MX_TRY(send_due(l));
        if (!mx_engine_busy(l->engine)) { /* the next is not due yet */
            struct timespec t = {.tv_nsec = 200000};
            nanosleep(&t, NULL);
            continue;
        }
        MX_TRY(mx_engine_step(l->engine));
        for (mx_request *r; (r = mx_engine_take(l->engine));)
            follow(l, r);
    }
    return MX_OK;
}

static void print_times(const mx_invocation *inv, const char *what, double *v, int64_t n)
{
    char name[64];
    if (!n)
        return;
    snprintf(name, sizeof name, "%s, median", what);
    mx_bench_print(inv, name, 1e3 * mx_bench_median(v, (int)n), "ms");
    snprintf(name, sizeof name, "%s, 99 of 100 within", what);
    mx_bench_print(inv, name, 1e3 * v[n * 99 / 100], "ms");
}

static void print(const mx_invocation *inv, load *l)
{
    double took = mx_clock_now() - l->start;
    mx_engine_counts c = mx_engine_count(l->engine);
    mx_bench_print(inv, "output tokens per second", (double)l->written / took, "tokens/s");
    mx_bench_print(inv, "tokens per second, prompts included",
                   (double)(l->written + l->read) / took, "tokens/s");
    mx_bench_print(inv, "requests per second", (double)l->n / took, "requests/s");
    mx_bench_print(inv, "tokens of a batch, mean", (double)c.batch_tokens / (double)c.steps,
                   "tokens");
    print_times(inv, "time to first token", l->first, l->n);
    print_times(inv, "time between tokens", l->between, l->n_between);
    mx_bench_print(inv, "share of steps outside the model", 100 * (1 - c.model_s / c.step_s), "%");
    mx_bench_print(inv, "preemptions", (double)c.preemptions, "");
}

/* `use` of an engine. */
static mx_status measure(void *ctx, mx_engine *e)
{
    load *l = ctx;
    l->engine = e;
    l->vocab = mx_engine_vocab(e);
    MX_TRY(drive(l));
    print(l->inv, l);
    return MX_OK;
}

static mx_status run_engine(load *l, const mx_invocation *inv, const mx_model_ref *ref)
{
    const mx_config *c = inv->config;
    int64_t most = l->spread ? 4 : 1;
    mx_engine_options eo = {.model = ref,
                            .device = mx_config_text(c, "device"),
                            .n_threads = (int)mx_config_int(c, "num_threads"),
                            .sequences = l->concurrency,
                            .step_tokens = mx_config_int(c, "prefill_chunk_size"),
                            .max_length = most * (l->input + l->output),
                            .memory_share = mx_config_float(c, "gpu_memory_utilization"),
                            .no_prefix_cache = true};
    MX_TRY(mx_compute_dtype(c, NULL, &eo.compute));
    MX_TRY(mx_weight_quant_configure(&eo.quant, c, ref->dir.config));
    return mx_engine_run(&(mx_engine_use){c, &eo, "`maxc bench serve`", measure, l});
}

static mx_status run(mx_invocation *inv)
{
    const mx_config *c = inv->config;
    mx_model_ref ref = {0};
    mx_arena a = {0};
    load l = {.inv = inv,
              .n = mx_config_int(c, "requests"),
              .concurrency = mx_config_int(c, "concurrency"),
              .input = mx_config_int(c, "input_tokens"),
              .output = mx_config_int(c, "output_tokens"),
              .rate = mx_config_float(c, "request_rate"),
              .spread = strcmp(mx_config_text(c, "lengths"), "sharegpt") == 0};
    double at = 0;
    l.arrives = MX_NEW_N(&a, double, l.n);
    l.last = MX_NEW_N(&a, double, l.n);
    l.first = MX_NEW_N(&a, double, l.n);
    for (int64_t i = 0; i < l.n && l.rate > 0; i++)
        l.arrives[i] = at += -log(1 - uniform(i, 6)) / l.rate;
    const char *dir = mx_config_text(c, "load_parameters_path");
    mx_status st = mx_model_ref_open(&ref, *dir ? dir : mx_config_text(c, "model_name"), inv->home,
                                     c);
    if (!st)
        st = run_engine(&l, inv, &ref);
    mx_model_ref_close(&ref);
    mx_free(l.between);
    mx_arena_fini(&a);
    return st;
}

const mx_bench mx_bench_serve = {"serve", "the engine under load: tokens a second, latencies",
                                 run, .meshes = true};
