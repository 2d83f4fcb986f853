/* serve.c - maxc serve MODEL: the model behind an OpenAI-compatible HTTP server. */
#include "base/signals.h"
#include "cmd/model_text.h"
#include "exec/quant_config.h"
#include "infer/engine_mesh.h"
#include "serve/server.h"

#include <stdio.h>
#include <string.h>

/* What generation_config.json says of sampling; else all tokens as likely as they are. */
static mx_sampling usual_sampling(const mx_model_ref *m)
{
    const json_t *g = m->dir.generation_config;
    const json_t *t = json_object_get(g, "temperature"), *k = json_object_get(g, "top_k");
    const json_t *p = json_object_get(g, "top_p"), *least = json_object_get(g, "min_p");
    const json_t *r = json_object_get(g, "repetition_penalty");
    mx_sampling s = {.temperature = 1, .top_p = 1, .repetition_penalty = 1};
    s.temperature = json_is_number(t) ? json_number_value(t) : s.temperature;
    s.top_p = json_is_number(p) ? json_number_value(p) : s.top_p;
    s.top_k = json_is_integer(k) ? json_integer_value(k) : 0;
    s.min_p = json_is_number(least) ? json_number_value(least) : 0;
    s.repetition_penalty = json_is_number(r) ? json_number_value(r) : 1;
    return s;
}

/* The last part of what was asked for, unless another name is given. */
static const char *name_of(const mx_config *c, const char *model, mx_arena *a)
{
    const char *given = mx_config_text(c, "served_model_name");
    if (*given)
        return given;
    char *name = mx_arena_strdup(a, model);
    size_t n = strlen(name);
    while (n > 1 && name[n - 1] == '/')
        name[--n] = 0;
    const char *slash = strrchr(name, '/');
    return slash && slash[1] ? slash + 1 : name;
}

/* One of lora=: NAME=FOLDER. */
typedef struct {
    const char *name, *path;
} given_adapter;

static mx_status read_adapters(const mx_config *c, mx_arena *a, given_adapter **out, int *n)
{
    const char *const *list;
    *n = mx_config_list(c, "lora", &list);
    *out = MX_NEW_N(a, given_adapter, *n);
    for (int i = 0; i < *n; i++) {
        char *name = mx_arena_strdup(a, list[i]), *path = strchr(name, '=');
        if (!path || path == name || !path[1])
            return mx_fail(MX_USAGE, "lora=%s: expected NAME=FOLDER, as in lora=poet=adapters/poet",
                           list[i]);
        *path++ = 0;
        (*out)[i] = (given_adapter){name, path};
    }
    return MX_OK;
}

/* Places for the adapters given, or as many as are asked for, and their rank. */
static mx_status size_adapters(const mx_config *c, const given_adapter *given, int n,
                               mx_engine_options *o)
{
    int64_t most = 0;
    for (int i = 0; i < n; i++) {
        mx_adapter a;
        MX_TRY(mx_adapter_open(&a, given[i].path));
        for (int k = 0; k < a.lora.n_only; k++)
            most = a.lora.only[k].rank > most ? a.lora.only[k].rank : most;
        mx_adapter_close(&a);
    }
    o->adapter_slots = mx_config_int(c, "max_loras");
    o->adapter_slots = o->adapter_slots > n ? o->adapter_slots : n;
    o->adapter_rank = mx_config_int(c, "max_lora_rank");
    if (!o->adapter_rank)
        o->adapter_rank = most ? most : 16;
    return MX_OK;
}

/* Requests may have images: the family has them, and they are not ruled out. */
static bool takes_images(const mx_config *c, const mx_model_spec *m)
{
    return m->family->images && mx_config_int(c, "max_images") > 0;
}

static mx_status load_adapter(mx_adapter_names *names, const given_adapter *given)
{
    mx_adapter a = {0};
    mx_status st = mx_adapter_open(&a, given->path);
    if (!st)
        st = mx_adapter_names_load(names, given->name, &a);
    mx_adapter_close(&a);
    return st;
}

typedef struct {
    mx_model_text *m;
    mx_invocation *inv;
    int64_t slots; /* of adapters */
} job;

static mx_status serve(void *ctx, mx_engine *e)
{
    mx_model_text *m = ((job *)ctx)->m;
    mx_invocation *inv = ((job *)ctx)->inv;
    int64_t slots = ((job *)ctx)->slots;
    const mx_config *c = inv->config;
    mx_server *s = NULL;
    mx_served served = {.model = &m->ref,
                        .tokenizer = m->tok,
                        .chat = m->chat,
                        .calls = mx_call_form_of(mx_chat_template_text(m->chat)),
                        .name = name_of(c, inv->args[0], &m->arena),
                        .max_length = mx_engine_max_length(e),
                        .vocab = mx_engine_vocab(e),
                        .width = mx_engine_width(e),
                        .most_images = mx_config_int(c, "max_images"),
                        .most_pixels = mx_config_int(c, "max_image_pixels"),
                        .usual = usual_sampling(&m->ref)};
    mx_server_options so = {.host = mx_config_text(c, "host"),
                            .port = mx_config_int(c, "port"),
                            .api_key = mx_config_text(c, "api_key"),
                            .most_calls = mx_config_int(c, "max_concurrent_requests"),
                            .body_bytes = mx_config_int(c, "max_body_bytes"),
                            .stuck_s = mx_config_float(c, "stuck_seconds"),
                            .runtime_adapters = mx_config_bool(c, "runtime_lora"),
                            .drain_s = mx_config_float(c, "drain_seconds"),
                            .call_s = mx_config_float(c, "request_seconds")};
    mx_token_bytes *bytes = NULL;
    mx_image_processor processor;
    given_adapter *given;
    int n;
    mx_status st;
    if (takes_images(c, &m->ref.spec)) {
        mx_image_spec spec;
        m->ref.spec.family->images(m->ref.spec.config, &spec);
        MX_TRY(mx_image_processor_open(&processor, &spec, m->ref.path));
        served.images = &processor;
    }
    if (slots)
        mx_adapter_names_open(&served.adapters, e, slots, served.name);
    MX_TRY_OUT(st, mx_signals_install(NULL));
    MX_TRY_OUT(st, read_adapters(c, &m->arena, &given, &n));
    for (int i = 0; i < n; i++)
        MX_TRY_OUT(st, load_adapter(served.adapters, &given[i]));
    MX_TRY_OUT(st, mx_token_bytes_open(&bytes, m->tok, served.vocab));
    served.bytes = bytes;
    MX_TRY_OUT(st, mx_server_open(&s, e, &served, &so));
    printf("%s: http://%s:%d\n", served.name, so.host, mx_server_port(s));
    fflush(stdout);
    st = mx_server_run(s);
out:
    mx_server_close(s);
    mx_token_bytes_close(bytes);
    mx_adapter_names_close(served.adapters);
    return st;
}

static mx_status run(mx_invocation *inv)
{
    const mx_config *c = inv->config;
    mx_model_text m = {0};
    mx_status st = mx_model_text_open(&m, inv);
    mx_engine_options eo = {.model = &m.ref,
                            .tokenizer = m.tok,
                            .device = mx_config_text(c, "device"),
                            .n_threads = (int)mx_config_int(c, "num_threads"),
                            .compute = m.compute,
                            .sequences = mx_config_int(c, "batch"),
                            .step_tokens = mx_config_int(c, "prefill_chunk_size"),
                            .max_length = mx_config_int(c, "max_model_len"),
                            .cache_tokens = mx_config_int(c, "cache_tokens"),
                            .memory_share = mx_config_float(c, "gpu_memory_utilization"),
                            .draft_tokens = mx_config_int(c, "speculative_tokens"),
                            .mtp = mx_drafts_by_mtp(c),
                            .no_prefix_cache = !mx_config_bool(c, "enable_prefix_caching"),
                            .stop_ids = m.stop_ids,
                            .n_stop_ids = m.n_stop_ids};
    given_adapter *given;
    int n;
    if (!st)
        st = read_adapters(c, &m.arena, &given, &n);
    if (!st)
        st = size_adapters(c, given, n, &eo);
    if (!st)
        st = mx_weight_quant_configure(&eo.quant, c, m.ref.dir.config);
    if (!st)
        eo.images = takes_images(c, &m.ref.spec);
    if (!st)
        st = mx_engine_run(&(mx_engine_use){c, &eo, "serve", serve,
                                            &(job){&m, inv, eo.adapter_slots}});
    mx_model_text_close(&m);
    return st;
}

const mx_verb mx_verb_serve = {
    .name = "serve",
    .doc = "serve a model over HTTP, as OpenAI's API does",
    .usage = "MODEL [host=127.0.0.1] [port=8000] [api_key=...]",
    .help = "MODEL as in `maxc help generate`. Answers /v1/completions, /v1/chat/completions,\n"
            "/v1/messages, /v1/embeddings, /v1/models, /tokenize, /detokenize, /health and\n"
            "/metrics; a page to chat with the model is at /. lora=NAME=DIR serves adapters\n"
            "beside it. SIGTERM or Ctrl-C finishes the requests under way; a second one ends at\n"
            "once. See docs/serving.md.",
    .min_args = 1,
    .max_args = 1,
    .run = run,
};
