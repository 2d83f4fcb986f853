/* endpoints.c - what is answered at once, without the engine. */
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
    char *text = doc ? json_dumps(doc, JSON_COMPACT) : NULL;
    x->status = text ? 200 : 500;
    mx_str_add(&x->out, text ? text : "{}");
    mx_free(text);
    json_decref(doc);
}

static void answer_error(mx_exchange *x, const char *message, const char *param)
{
    x->status = 400;
    mx_error_object(&x->out, 400, message, param, "invalid_value");
}

static void health(mx_exchange *x)
{
    mx_str why = {0};
    bool well = mx_server_healthy(x->server, &why);
    x->status = well ? 200 : 503;
    if (!well)
        mx_error_object(&x->out, 503, mx_str_text(&why), NULL, "unhealthy");
    else
        mx_str_add(&x->out, "{\"status\":\"ok\"}");
    mx_str_fini(&why);
}

static void version(mx_exchange *x)
{
    answer_json(x, json_pack("{s:s}", "version", MX_VERSION));
}

static void models(mx_exchange *x)
{
    const mx_served *s = x->server->served;
    answer_json(x, json_pack("{s:s, s:[{s:s, s:s, s:I, s:s, s:s, s:I}]}", "object", "list", "data",
                             "id", s->name, "object", "model", "created", (json_int_t)time(NULL),
                             "owned_by", "maxc", "root", s->name, "max_model_len",
                             (json_int_t)s->max_length));
}

static mx_engine_counts counts_of(mx_server *s, mx_metrics *m)
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
    mx_metrics m;
    mx_engine_counts c = counts_of(x->server, &m);
    x->status = 200;
    mx_metrics_print(&m, &c, x->server->served->name, &x->out);
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

static mx_status text_of(const mx_served *s, mx_fields *f, mx_str *text, mx_encode_options *o)
{
    const json_t *messages = mx_field_get(f, "messages");
    const char *prompt = mx_field_text(f, "prompt", NULL);
    *o = (mx_encode_options){.add_special = mx_field_bool(f, "add_special_tokens", !messages),
                             .special_in_text = MX_SPECIAL_PARSE};
    mx_chat_options co = {.add_generation_prompt = mx_field_bool(f, "add_generation_prompt", true)};
    if (f->param)
        return MX_OK;
    if (!messages && !prompt)
        return mx_fail(MX_USAGE, "`prompt` or `messages` must be given");
    if (prompt)
        mx_str_add(text, prompt);
    if (prompt)
        return MX_OK;
    if (!s->chat)
        return mx_fail(MX_USAGE, "`messages` need a chat template, and this model has none");
    MX_TRY(mx_messages_check(messages));
    return mx_messages_render(messages, s->chat, s->tokenizer, co, text);
}

static void tokenize(mx_exchange *x)
{
    const mx_served *s = x->server->served;
    json_t *doc = body_of(x), *ids;
    if (!doc)
        return;
    mx_fields f = {.object = doc};
    mx_str text = {0};
    mx_tokens t = {0};
    mx_encode_options o;
    mx_status st = text_of(s, &f, &text, &o);
    if (!st && !f.param)
        st = mx_tokenizer_encode(s->tokenizer, mx_str_text(&text), text.len, &o, &t);
    if (st || f.param) {
        answer_error(x, f.param ? mx_str_text(&f.why) : mx_status_text(st), f.param);
    } else {
        ids = json_array();
        for (int64_t i = 0; i < t.n; i++)
            json_array_append_new(ids, json_integer(t.ids[i]));
        answer_json(x, json_pack("{s:I, s:I, s:o}", "count", (json_int_t)t.n, "max_model_len",
                                 (json_int_t)s->max_length, "tokens", ids));
    }
    mx_status_free(st);
    mx_tokens_fini(&t);
    mx_str_fini(&text);
    mx_fields_fini(&f);
    json_decref(doc);
}

static void detokenize(mx_exchange *x)
{
    const mx_served *s = x->server->served;
    json_t *doc = body_of(x);
    if (!doc)
        return;
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

#define JSON "application/json"
const mx_endpoint mx_endpoints[] = {
    {"GET", "/", "text/html; charset=utf-8", true, page},
    {"GET", "/health", JSON, true, health},
    {"GET", "/ping", JSON, true, health},
    {"GET", "/version", JSON, false, version},
    {"GET", "/load", JSON, false, load},
    {"GET", "/metrics", "text/plain; version=0.0.4; charset=utf-8", false, metrics},
    {"GET", "/v1/models", JSON, false, models},
    {"POST", "/tokenize", JSON, false, tokenize},
    {"POST", "/detokenize", JSON, false, detokenize},
    {0},
};
