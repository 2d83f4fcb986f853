/* endpoints.c - what is answered without a request of the engine. */
#include "base/json_doc.h"
#include "base/version.h"
#include "infer/prompt.h"
#include "serve/page.h"
#include "serve/server_impl.h"

#include <string.h>
#include <time.h>

/* Takes the document. */
static void answer_json(mx_exchange *x, json_t *doc)
{
    x->status = doc ? 200 : 500;
    mx_json_add(&x->out, doc);
}

static void answer_error(mx_exchange *x, const char *message, const char *param)
{
    x->status = 400;
    mx_error_object(&x->out, mx_api_of_path(x->path),
                    &(mx_api_error){400, message, param, "invalid_value"});
}

static void answer_unavailable(mx_exchange *x, const char *message)
{
    x->status = 503;
    mx_error_object(&x->out, NULL, &(mx_api_error){503, message, NULL, "unavailable"});
}

static void answer_no_model(mx_exchange *x, const char *name)
{
    mx_str why = {0};
    mx_str_addf(&why, "`%s` does not exist here; `%s` does", name, x->server->served->name);
    x->status = 404;
    mx_error_object(&x->out, NULL,
                    &(mx_api_error){404, mx_str_text(&why), "model", "model_not_found"});
    mx_str_fini(&why);
}

static void health(mx_exchange *x)
{
    mx_str why = {0};
    bool well = mx_server_healthy(x->server, &why);
    x->status = well ? 200 : 503;
    if (!well)
        mx_error_object(&x->out, NULL,
                        &(mx_api_error){503, mx_str_text(&why), NULL, "unhealthy"});
    else
        mx_str_add(&x->out, "{\"status\":\"ok\"}");
    mx_str_fini(&why);
}

static void version(mx_exchange *x)
{
    answer_json(x, json_pack("{s:s}", "version", MX_VERSION));
}

/* What /v1/models lists. */
typedef struct {
    const mx_served *served;
    json_t *data;
} listing;

static void list_model(listing *l, const char *name, const char *parent)
{
    json_t *takes = json_pack(l->served->images ? "[s, s]" : "[s]", "text", "image");
    json_array_append_new(
        l->data, json_pack("{s:s, s:s, s:I, s:s, s:s, s:s?, s:I, s:o}", "id", name, "object",
                           "model", "created", (json_int_t)time(NULL), "owned_by", "maxc", "root",
                           l->served->name, "parent", parent, "max_model_len",
                           (json_int_t)l->served->max_length, "input_modalities", takes));
}

static void list_adapter(void *ctx, const char *name, int64_t calls)
{
    listing *l = ctx;
    (void)calls;
    list_model(l, name, l->served->name);
}

static void models(mx_exchange *x)
{
    listing l = {x->server->served, json_array()};
    list_model(&l, l.served->name, NULL);
    if (l.served->adapters)
        mx_adapter_names_each(l.served->adapters, list_adapter, &l);
    answer_json(x, json_pack("{s:s, s:o}", "object", "list", "data", l.data));
}

/* /v1/models/NAME */
static void model(mx_exchange *x)
{
    listing l = {x->server->served, json_array()};
    const char *name = x->path + strlen("/v1/models/");
    json_t *found = NULL, *one;
    size_t i;
    list_model(&l, l.served->name, NULL);
    if (l.served->adapters)
        mx_adapter_names_each(l.served->adapters, list_adapter, &l);
    json_array_foreach(l.data, i, one)
        if (strcmp(json_string_value(json_object_get(one, "id")), name) == 0)
            found = json_incref(one);
    json_decref(l.data);
    if (found) {
        answer_json(x, found);
        return;
    }
    answer_no_model(x, name);
}

static mx_engine_counts counts_of(mx_server *s, mx_server_metrics *m)
{
    pthread_mutex_lock(&s->lock);
    mx_engine_counts c = s->counts;
    if (m)
        *m = s->metrics;
    pthread_mutex_unlock(&s->lock);
    return c;
}

static void metrics(mx_exchange *x)
{
    mx_server_metrics m;
    mx_engine_counts c = counts_of(x->server, &m);
    x->status = 200;
    const mx_served *served = x->server->served;
    mx_server_metrics_print(&m, &c, served->name, served->adapters, &x->out);
}

static void load(mx_exchange *x)
{
    mx_engine_counts c = counts_of(x->server, NULL);
    answer_json(x, json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "running", (json_int_t)c.running,
                             "waiting", (json_int_t)c.waiting, "cache_pages", (json_int_t)c.pages,
                             "cache_pages_used", (json_int_t)c.pages_held, "prompt_tokens",
                             (json_int_t)c.prompt_tokens, "new_tokens", (json_int_t)c.new_tokens));
}

static void page(mx_exchange *x)
{
    x->status = 200;
    mx_str_add_n(&x->out, (const char *)mx_page, mx_page_bytes);
}

/* --- tokenize, detokenize --- */

/* The body as an object; NULL: an error has been answered. */
static json_t *body_of(mx_exchange *x)
{
    json_t *doc = NULL;
    mx_status st = mx_json_parse(mx_str_text(&x->body), x->body.len, "the request", NULL, &doc);
    if (!st && !json_is_object(doc))
        st = mx_fail(MX_INPUT, "the request is %s, expected an object", mx_json_kind(doc));
    if (!st)
        return doc;
    answer_error(x, mx_status_text(st), NULL);
    mx_status_free(st);
    json_decref(doc);
    return NULL;
}

/* A model that is named must be there, as for the endpoints of the engine. */
static bool model_is_here(mx_exchange *x, const json_t *doc)
{
    const mx_served *s = x->server->served;
    mx_fields f = {.object = doc};
    const char *name = mx_field_text(&f, "model", s->name);
    int64_t held = 0;
    bool here = strcmp(name, s->name) == 0;
    if (!here && s->adapters)
        mx_adapter_names_release(s->adapters, held = mx_adapter_names_hold(s->adapters, name));
    here |= held > 0;
    if (f.param)
        answer_error(x, mx_str_text(&f.why), f.param);
    else if (!here)
        answer_no_model(x, name);
    here &= !f.param;
    mx_fields_fini(&f);
    return here;
}

/* With `texts`: the tokens by name, too. */
static void answer_ids(mx_exchange *x, const mx_tokens *t, bool texts)
{
    const mx_served *s = x->server->served;
    json_t *ids = json_array(), *names = texts ? json_array() : json_null();
    for (int64_t i = 0; i < t->n; i++) {
        json_array_append_new(ids, json_integer(t->ids[i]));
        if (texts)
            json_array_append_new(names, mx_token_name(s, t->ids[i]));
    }
    answer_json(x, json_pack("{s:I, s:I, s:o, s:o}", "count", (json_int_t)t->n, "max_model_len",
                             (json_int_t)s->max_length, "tokens", ids, "token_strs", names));
}

static void tokenize_prompt(mx_exchange *x, mx_fields *f)
{
    const mx_served *s = x->server->served;
    const json_t *prompt = mx_field_get(f, "prompt");
    mx_tokens t = {0};
    mx_encode_options o = {.add_special = mx_field_bool(f, "add_special_tokens", true),
                           .special_in_text = MX_SPECIAL_PARSE};
    bool texts = mx_field_bool(f, "return_token_strs", false);
    if (!prompt)
        mx_field_wrong(f, "prompt", "or `messages` must be given");
    mx_field_text(f, "prompt", NULL);
    mx_status st = f->param ? MX_OK
                            : mx_tokenizer_encode(s->tokenizer, json_string_value(prompt),
                                                  json_string_length(prompt), &o, &t);
    if (st || f->param)
        answer_error(x, f->param ? mx_str_text(&f->why) : mx_status_text(st), f->param);
    else
        answer_ids(x, &t, texts);
    mx_status_free(st);
    mx_tokens_fini(&t);
}

/* A request read as the endpoint's, for its prompt alone. False: an error has been answered. */
static bool read_prompt(mx_exchange *x, const mx_api *api, mx_api_call *c)
{
    return mx_api_call_read(c, x->server->served, api, mx_str_text(&x->body), x->body.len,
                            &x->status, &x->out);
}

static void tokenize(mx_exchange *x)
{
    mx_api_call c;
    json_t *doc = body_of(x);
    if (!doc)
        return;
    mx_fields f = {.object = doc};
    bool prompt = mx_field_get(&f, "prompt"), messages = mx_field_get(&f, "messages");
    if (prompt && messages) {
        answer_error(x, "`prompt` and `messages` do not go together", "prompt");
    } else if (!messages) {
        if (model_is_here(x, doc))
            tokenize_prompt(x, &f);
    } else if (read_prompt(x, &mx_api_count_chat, &c)) {
        answer_ids(x, &c.prompts[0], json_is_true(mx_field_get(&f, "return_token_strs")));
        mx_api_call_fini(&c);
    }
    mx_fields_fini(&f);
    json_decref(doc);
}

static void detokenize(mx_exchange *x)
{
    const mx_served *s = x->server->served;
    json_t *doc = body_of(x);
    if (!doc)
        return;
    if (!model_is_here(x, doc)) {
        json_decref(doc);
        return;
    }
    mx_fields f = {.object = doc};
    mx_arena a = {0};
    mx_str text = {0};
    const int32_t *ids;
    mx_decode_options o = {.skip_special = mx_field_bool(&f, "skip_special_tokens", false)};
    int n = mx_field_ids(&f, "tokens", &a, &ids, mx_tokenizer_vocab_size(s->tokenizer));
    if (!mx_field_get(&f, "tokens"))
        mx_field_wrong(&f, "tokens", "must be given: a list of token ids");
    mx_status st = f.param ? MX_OK : mx_tokenizer_decode(s->tokenizer, ids, n, &o, &text);
    if (st || f.param)
        answer_error(x, f.param ? mx_str_text(&f.why) : mx_status_text(st), f.param);
    else
        answer_json(x, json_pack("{s:o}", "prompt", json_stringn(mx_str_text(&text), text.len)));
    mx_status_free(st);
    mx_arena_fini(&a);
    mx_str_fini(&text);
    mx_fields_fini(&f);
    json_decref(doc);
}

/* --- adapters --- */

typedef struct {
    mx_adapter_names *names;
    const char *name;
    const mx_adapter *adapter;
} loading;

static mx_status load_on_engine(void *ctx)
{
    loading *l = ctx;
    return mx_adapter_names_load(l->names, l->name, l->adapter);
}

static mx_status load_from(mx_server *s, const char *name, const char *path)
{
    mx_adapter a = {0};
    mx_status st = mx_adapter_open(&a, path);
    if (!st)
        st = mx_server_on_engine(s, load_on_engine, &(loading){s->served->adapters, name, &a});
    mx_adapter_close(&a);
    return st;
}

static void change_adapters(mx_exchange *x, bool loads)
{
    mx_server *s = x->server;
    json_t *doc = s->o.runtime_adapters && s->served->adapters ? body_of(x) : NULL;
    if (!s->o.runtime_adapters || !s->served->adapters) {
        x->status = 403;
        mx_error_object(&x->out, NULL,
                        &(mx_api_error){403,
                                        "adapters are not changed while this server runs; start it "
                                        "with runtime_lora=true and max_loras=N",
                                        NULL, "forbidden"});
    }
    if (!doc)
        return;
    mx_fields f = {.object = doc};
    const char *name = mx_field_text(&f, "lora_name", "");
    const char *path = mx_field_text(&f, "lora_path", "");
    mx_status st = MX_OK;
    if (!f.param)
        st = loads ? load_from(s, name, path)
                   : mx_adapter_names_unload(s->served->adapters, name);
    if (mx_status_code(st) == MX_STOPPED)
        answer_unavailable(x, mx_status_text(st));
    else if (st || f.param)
        answer_error(x, f.param ? mx_str_text(&f.why) : mx_status_text(st), f.param);
    else
        answer_json(x, json_pack("{s:s, s:s}", "status", "ok", "lora_name", name));
    mx_status_free(st);
    mx_fields_fini(&f);
    json_decref(doc);
}

static void load_adapter(mx_exchange *x)
{
    change_adapters(x, true);
}

static void unload_adapter(mx_exchange *x)
{
    change_adapters(x, false);
}

/* --- /v1/messages/count_tokens --- */

static void count_tokens(mx_exchange *x)
{
    mx_api_call c;
    if (!read_prompt(x, &mx_api_count_messages, &c))
        return;
    answer_json(x, json_pack("{s:I}", "input_tokens", (json_int_t)c.prompt_tokens));
    mx_api_call_fini(&c);
}

#define JSON "application/json"
const mx_endpoint mx_endpoints[] = {
    {"GET", "/", "text/html; charset=utf-8", true, page},
    {"GET", "/health", JSON, true, health},
    {"GET", "/ping", JSON, true, health},
    {"GET", "/version", JSON, false, version},
    {"GET", "/load", JSON, false, load},
    {"GET", "/metrics", "text/plain; version=0.0.4; charset=utf-8", false, metrics},
    {"GET", "/v1/models", JSON, false, models},
    {"GET", "/v1/models/", JSON, false, model}, /* and what is below */
    {"POST", "/tokenize", JSON, false, tokenize},
    {"POST", "/detokenize", JSON, false, detokenize},
    {"POST", "/v1/messages/count_tokens", JSON, false, count_tokens},
    {"POST", "/v1/load_lora_adapter", JSON, false, load_adapter},
    {"POST", "/v1/unload_lora_adapter", JSON, false, unload_adapter},
    {0},
};
