/* api_call.c - see api_call.h: what all endpoints of the engine have in common. */
#include "serve/api_call.h"

#include "base/json_doc.h"
#include "base/rng.h"
#include "base/utf8.h"
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

enum { MOST_STOPS = 64, MOST_ANSWERS = 128, MOST_PARTS = 1024, MOST_BIASES = 1024, MOST_TOP = 20 };

/* --- errors --- */

static const char *type_of(int status)
{
    return status == 401   ? "authentication_error"
           : status == 404 ? "not_found_error"
           : status == 429 ? "rate_limit_error"
           : status >= 500 ? "server_error"
                           : "invalid_request_error";
}

void mx_json_add(mx_str *out, json_t *doc)
{
    char *text = doc ? json_dumps(doc, JSON_COMPACT) : NULL;
    mx_str_add(out, text ? text : "{}");
    mx_free(text);
    json_decref(doc);
}

void mx_error_object(mx_str *out, const mx_api *api, const mx_api_error *e)
{
    if (api && api->error) {
        api->error(out, e);
        return;
    }
    json_t *o = json_pack("{s:{s:s, s:s, s:s?, s:s?}}", "error", "message", e->message, "type",
                          type_of(e->status), "param", e->param, "code", e->code);
    if (!o) /* a message with bytes of the client's that are no text */
        o = json_pack("{s:{s:s, s:s, s:n, s:n}}", "error", "message",
                      "the request is not valid UTF-8", "type", type_of(e->status), "param",
                      "code");
    mx_json_add(out, o);
}

/* --- reading --- */

static void read_bias(mx_api_call *c, mx_fields *f)
{
    const json_t *v = mx_field_get(f, "logit_bias"), *x;
    const char *key;
    if (!v)
        return;
    if (!json_is_object(v) || json_object_size(v) > MOST_BIASES) {
        mx_field_wrong(f, "logit_bias", "must be an object of at most %d token ids", MOST_BIASES);
        return;
    }
    mx_logit_bias *b = MX_NEW_N(&c->arena, mx_logit_bias, json_object_size(v));
    json_object_foreach((json_t *)v, key, x)
    {
        int64_t id;
        double bias = json_number_value(x);
        if (!mx_parse_i64(key, &id) || id < 0 || id >= c->served->vocab || !json_is_number(x) ||
            !(bias >= -100 && bias <= 100)) {
            mx_field_wrong(f, "logit_bias",
                           "must give token ids from 0 to %lld numbers from -100 "
                           "to 100",
                           (long long)c->served->vocab - 1);
            return;
        }
        b[c->o.n_bias++] = (mx_logit_bias){(int32_t)id, (float)bias};
    }
    c->o.bias = b;
}

static void read_sampling(mx_api_call *c, mx_fields *f)
{
    const mx_sampling *usual = &c->served->usual;
    mx_sampling *s = &c->o.sampling;
    uint64_t seed = 0;
    s->temperature = mx_field_float(f, "temperature", usual->temperature, 0, 2);
    s->top_p = mx_field_float(f, "top_p", usual->top_p, 0, 1);
    s->top_k = mx_field_int(f, "top_k", usual->top_k, -1, INT32_MAX);
    s->top_k = s->top_k < 0 ? 0 : s->top_k;
    s->min_p = mx_field_float(f, "min_p", usual->min_p, 0, 1);
    s->repetition_penalty =
        mx_field_float(f, "repetition_penalty", usual->repetition_penalty, 0.01, 100);
    s->presence_penalty = mx_field_float(f, "presence_penalty", 0, -2, 2);
    s->frequency_penalty = mx_field_float(f, "frequency_penalty", 0, -2, 2);
    if (mx_field_get(f, "top_p") && s->top_p == 0)
        mx_field_wrong(f, "top_p", "must be more than 0");
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != sizeof seed)
        seed = c->served->seed ^ (uint64_t)(uintptr_t)c;
    s->seed = (uint64_t)mx_field_int(f, "seed", (int64_t)(seed >> 1), INT64_MIN, INT64_MAX);
}

/* Fields that would change an answer elsewhere, and do not here. */
static void refuse(mx_fields *f)
{
    static const char *const fields[] = {"allowed_token_ids", "bad_words", "logits_processors",
                                         "truncate_prompt_tokens", "prompt_embeds",
                                         "guided_grammar", "structural_tag"};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const json_t *v = mx_field_get(f, fields[i]);
        if (v && (!json_is_array(v) || json_array_size(v)))
            mx_field_wrong(f, fields[i], "is not supported");
    }
    if (mx_field_bool(f, "use_beam_search", false))
        mx_field_wrong(f, "use_beam_search", "is not supported");
    if (mx_field_float(f, "length_penalty", 1, -1e9, 1e9) != 1)
        mx_field_wrong(f, "length_penalty", "is not supported");
    if (mx_field_int(f, "priority", 0, INT32_MIN, INT32_MAX) != 0)
        mx_field_wrong(f, "priority", "is not supported: requests are served in order");
    if (mx_field_get(f, "prompt_logprobs"))
        mx_field_wrong(f, "prompt_logprobs",
                       "is not supported; /v1/completions gives them with `echo` and `logprobs`");
}

/* Fields of OpenAI's that change nothing here; a wrong type is a mistake all the same. */
static void check_ignored(mx_fields *f)
{
    static const char *const texts[] = {"user", "service_tier", "safety_identifier",
                                        "prompt_cache_key", "verbosity"};
    const json_t *v = mx_field_get(f, "metadata");
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        mx_field_text(f, texts[i], NULL);
    mx_field_bool(f, "store", false);
    if (v && !json_is_object(v))
        mx_field_wrong(f, "metadata", "must be an object, not %s", mx_json_kind(v));
}

static void read_common(mx_api_call *c, mx_fields *f)
{
    mx_request_options *o = &c->o;
    const char *model = mx_field_text(f, "model", c->served->name);
    c->model = mx_arena_strdup(&c->arena, model);
    if (strcmp(model, c->served->name) != 0 && c->served->adapters)
        o->adapter = mx_adapter_names_hold(c->served->adapters, model);
    if (strcmp(model, c->served->name) != 0 && !o->adapter)
        mx_field_wrong(f, "model", "is `%s`, which does not exist here; `%s` does", model,
                       c->served->name);
    read_sampling(c, f);
    read_bias(c, f);
    c->n = mx_field_int(f, "n", 1, 1, MOST_ANSWERS);
    c->best_of = mx_field_int(f, "best_of", c->n, 1, MOST_ANSWERS);
    if (c->best_of < c->n)
        mx_field_wrong(f, "best_of", "is %lld, but must be at least `n`, %lld",
                       (long long)c->best_of, (long long)c->n);
    o->n_stop = mx_field_texts(f, "stop", &c->arena, &o->stop, MOST_STOPS);
    o->n_stop_ids = mx_field_ids(f, "stop_token_ids", &c->arena, &o->stop_ids, c->served->vocab);
    o->min_new = mx_field_int(f, "min_tokens", 0, 0, INT32_MAX);
    o->ignore_eos = mx_field_bool(f, "ignore_eos", false);
    o->show_special = !mx_field_bool(f, "skip_special_tokens", true);
    o->keep_stop = mx_field_bool(f, "include_stop_str_in_output", false);
    o->salt = mx_field_text(f, "cache_salt", NULL);
    o->salt = o->salt ? mx_arena_strdup(&c->arena, o->salt) : NULL;
    c->stream = mx_field_bool(f, "stream", false);
    c->ids = mx_field_bool(f, "return_token_ids", false);
    refuse(f);
    check_ignored(f);
    if (c->stream && c->best_of > c->n)
        mx_field_wrong(f, "best_of", "does not go with `stream`");
    const json_t *so = mx_field_get(f, "stream_options");
    mx_fields inner = {.object = so};
    if (so && !json_is_object(so))
        mx_field_wrong(f, "stream_options", "must be an object, not %s", mx_json_kind(so));
    if (so && !c->stream)
        mx_field_wrong(f, "stream_options", "goes only with `stream`");
    c->usage = mx_field_bool(&inner, "include_usage", false);
    c->usage_so_far = mx_field_bool(&inner, "continuous_usage_stats", false);
    if (inner.param)
        mx_field_wrong(f, "stream_options", "%s", mx_str_text(&inner.why));
    mx_fields_fini(&inner);
}

void mx_api_call_add_prompt(mx_api_call *c, mx_fields *f, const mx_tokens *t, const char *text)
{
    int64_t most = c->served->max_length;
    const char *field = c->api->read == mx_chat_read         ? "messages"
                        : c->api == &mx_api_embeddings ? "input"
                                                       : "prompt";
    if (t->n == 0)
        mx_field_wrong(f, field, "is empty, and the tokenizer adds no token of its own");
    for (int64_t i = 0; i < t->n; i++)
        if (t->ids[i] < 0 || t->ids[i] >= c->served->model->spec.summary.vocab)
            mx_field_wrong(f, field, "has token %d, which the model does not have", t->ids[i]);
    bool fits = t->n < most || (t->n == most && c->o.max_new == 0) || c->api->counts;
    if (!fits)
        mx_field_wrong(f, field, "has %lld tokens, but the model's context is %lld tokens",
                       (long long)t->n, (long long)most);
    else if (c->o.max_new > most - t->n && !c->api->counts)
        mx_field_wrong(f, "max_tokens",
                       "is %lld, but the context of %lld tokens leaves %lld after "
                       "a prompt of %lld",
                       (long long)c->o.max_new, (long long)most, (long long)(most - t->n),
                       (long long)t->n);
    c->texts[c->n_prompts] = text ? mx_arena_strdup(&c->arena, text) : NULL;
    c->prompts[c->n_prompts++] = (mx_tokens){
        .ids = mx_arena_copy(&c->arena, t->ids, sizeof *t->ids * (size_t)t->n), .n = t->n};
    c->prompt_tokens += t->n;
}

static void make_parts(mx_api_call *c, mx_fields *f)
{
    int64_t parts = c->n_prompts * c->best_of;
    if (c->best_of > c->n) /* the likeliest are given */
        c->o.log_probs = true;
    if (parts > MOST_PARTS) {
        mx_field_wrong(f, "n", "times the number of prompts is %lld answers, at most %d are given",
                       (long long)parts, MOST_PARTS);
        return;
    }
    c->n_parts = (int)parts;
    c->part = MX_NEW_N(&c->arena, mx_part, parts);
    for (int i = 0; i < c->n_parts; i++)
        c->part[i] = (mx_part){.call = c, .index = i, .prompt = (int)(i / c->best_of)};
    c->choices = json_array();
    for (int i = 0; i < c->n_parts; i++)
        json_array_append_new(c->choices, json_null());
    for (int i = 0; i < c->n_parts && c->pattern && c->served->bytes && !f->param; i++) {
        mx_status st =
            mx_constraint_open(&c->part[i].constraint, c->served->bytes, c->pattern);
        if (st)
            mx_field_wrong(f, "response_format", "cannot be followed: %s", mx_status_text(st));
        else
            mx_constraint_prepare(c->part[i].constraint);
        mx_status_free(st);
    }
}

static void read_all(mx_api_call *c, mx_fields *f)
{
    if (!f->param)
        read_common(c, f);
    if (!f->param)
        mx_api_call_read_form(c, f);
    if (!f->param)
        c->api->read(c, f);
    if (!f->param && c->o.min_new > c->o.max_new && mx_field_get(f, "min_tokens"))
        mx_field_wrong(f, "min_tokens", "is %lld, but the answer has at most %lld tokens",
                       (long long)c->o.min_new, (long long)c->o.max_new);
    if (!f->param)
        make_parts(c, f);
}

bool mx_api_call_read(mx_api_call *c, const mx_served *s, const mx_api *api, const char *body,
                      size_t n, int *status, mx_str *error)
{
    static const mx_json_limits limits = {64 << 20, 64, 4 << 20};
    json_t *doc = NULL, *own = NULL;
    mx_fields f = {0};
    *c = (mx_api_call){.served = s, .api = api, .created = time(NULL)};
    unsigned char random[12];
    if (getrandom(random, sizeof random, GRND_NONBLOCK) != sizeof random)
        memcpy(random, &c, sizeof c);
    int at = snprintf(c->id, sizeof c->id, "%s", api->id_prefix);
    for (int i = 0; i < 12; i++)
        at += snprintf(c->id + at, sizeof c->id - (size_t)at, "%02x", random[i]);
    mx_status st = mx_json_parse(body, n, "the request", &limits, &doc);
    if (!st && !json_is_object(doc))
        st = mx_fail(MX_INPUT, "the request is %s, expected an object", mx_json_kind(doc));
    mx_api_error e = {.status = 400, .code = st ? "invalid_json" : "invalid_value"};
    if (!st) {
        f.object = doc;
        if (api->convert)
            f.object = own = api->convert(&f);
        read_all(c, &f);
        bool named = json_is_string(json_object_get(doc, "model"));
        if (f.param && named && strcmp(f.param, "model") == 0)
            e = (mx_api_error){.status = 404, .code = "model_not_found"};
        e.param = f.param;
    }
    e.message = st ? mx_status_text(st) : mx_str_text(&f.why);
    *status = e.status;
    if (st || f.param)
        mx_error_object(error, api, &e);
    bool ok = !st && !f.param;
    mx_fields_fini(&f);
    mx_status_free(st);
    json_decref(own);
    json_decref(doc);
    if (!ok)
        mx_api_call_fini(c);
    return ok;
}

void mx_api_call_fini(mx_api_call *c)
{
    if (c->served)
        mx_adapter_names_release(c->served->adapters, c->o.adapter);
    mx_image_set_release(c->o.images);
    for (int i = 0; i < c->n_parts; i++)
        mx_constraint_close(c->part[i].constraint);
    json_decref(c->choices);
    json_decref(c->tools);
    mx_arena_fini(&c->arena);
    *c = (mx_api_call){0};
}

/* --- answering --- */

const char *mx_finish_name(const mx_request *r)
{
    return r->finish == MX_FINISH_STOP ? "stop" : r->finish == MX_FINISH_LENGTH ? "length" : NULL;
}

json_t *mx_stop_reason(const mx_request *r)
{
    const mx_reply *text = &r->reply;
    if (text->stopped_by >= 0)
        return json_string(text->stop[text->stopped_by]);
    return r->stop_id >= 0 ? json_integer(r->stop_id) : json_null();
}

static json_t *usage_of(const mx_api_call *c)
{
    return json_pack("{s:I, s:I, s:I, s:{s:I}}", "prompt_tokens", (json_int_t)c->prompt_tokens,
                     "completion_tokens", (json_int_t)c->new_tokens, "total_tokens",
                     (json_int_t)(c->prompt_tokens + c->new_tokens), "prompt_tokens_details",
                     "cached_tokens", (json_int_t)c->cached_tokens);
}

/* Takes `choices` and `usage`, which may be NULL. */
static void add_document(const mx_api_call *c, const char *object, json_t *choices, json_t *usage,
                         mx_str *out)
{
    json_t *doc = json_pack("{s:s, s:s, s:I, s:s, s:o}", "id", c->id, "object", object, "created",
                            (json_int_t)c->created, "model", c->model, "choices", choices);
    if (doc && !usage && c->usage) /* as OpenAI's: it comes in the last chunk */
        usage = json_null();
    if (doc && usage)
        json_object_set_new(doc, "usage", usage);
    char *text = doc ? json_dumps(doc, JSON_COMPACT) : NULL;
    mx_str_addf(out, c->stream ? "data: %s\n\n" : "%s", text ? text : "{}");
    mx_free(text);
    json_decref(doc);
}

static json_t *list_of(const int32_t *ids, int64_t n)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < n; i++)
        json_array_append_new(list, json_integer(ids[i]));
    return list;
}

/* Of a choice, as vLLM gives them: the ids of its prompt, once, and of tokens that are new. */
static void add_ids(const mx_api_call *c, mx_part *p, json_t *choice)
{
    const mx_request *r = p->r;
    if (!c->ids || !choice)
        return;
    if (!p->n_ids)
        json_object_set_new(choice, "prompt_token_ids", list_of(r->tokens.ids, r->n_prompt));
    int64_t from = p->n_ids ? p->n_ids : r->n_prompt;
    json_object_set_new(choice, "token_ids", list_of(r->tokens.ids + from, r->tokens.n - from));
    p->n_ids = r->tokens.n;
}

/* As vLLM's continuous_usage_stats; NULL where it is not asked for. */
static json_t *usage_so_far(const mx_api_call *c, const mx_part *p)
{
    json_int_t prompt = p->r->n_prompt, n = p->r->tokens.n - p->r->n_prompt;
    return c->usage && c->usage_so_far
               ? json_pack("{s:I, s:I, s:I}", "prompt_tokens", prompt, "completion_tokens", n,
                           "total_tokens", prompt + n)
               : NULL;
}

static void add_chunk(const mx_api_call *c, const mx_part *p, json_t *choice, mx_str *out)
{
    add_document(c, c->api->chunk_object, json_pack("[o]", choice), usage_so_far(c, p), out);
}

static void stream_piece(mx_api_call *c, mx_part *p, bool last, mx_str *out)
{
    if (!p->begun && c->api->first)
        add_chunk(c, p, c->api->first(p), out);
    json_t *piece = c->api->piece(p, last);
    add_ids(c, p, piece);
    if (piece)
        add_chunk(c, p, piece, out);
}

/* What a part's tokens are worth, each. */
static double mean_log_prob(const mx_request *r)
{
    double sum = 0;
    for (int64_t t = r->n_prompt; t < r->tokens.n; t++)
        sum += r->log_prob[t];
    return r->tokens.n > r->n_prompt ? sum / (double)(r->tokens.n - r->n_prompt) : 0;
}

static void finish_part(mx_api_call *c, mx_part *p)
{
    p->done = true;
    c->n_done++;
    c->new_tokens += p->r->tokens.n - p->r->n_prompt;
    if (p->index % c->best_of == 0) /* a prompt is counted once, whatever its answers found */
        c->cached_tokens += p->r->n_cached;
    if (c->best_of > c->n)
        p->score = mean_log_prob(p->r);
    if (c->stream || !c->api->whole)
        return;
    json_t *choice = c->api->whole(p);
    add_ids(c, p, choice);
    json_array_set_new(c->choices, (size_t)p->index, choice);
}

/* The n likeliest answers to each prompt, the likeliest first. */
static void keep_best(mx_api_call *c)
{
    json_t *kept = json_array();
    for (int p = 0; p < c->n_prompts; p++)
        for (int64_t k = 0; k < c->n; k++) {
            mx_part *best = NULL;
            for (int64_t i = p * c->best_of; i < (p + 1) * c->best_of; i++)
                if (c->part[i].done && (!best || c->part[i].score > best->score))
                    best = &c->part[i];
            json_t *choice = json_array_get(c->choices, (size_t)best->index);
            json_object_set_new(choice, "index", json_integer((json_int_t)json_array_size(kept)));
            json_array_append(kept, choice);
            best->done = false;
        }
    json_decref(c->choices);
    c->choices = kept;
}

bool mx_api_call_news(mx_api_call *c, mx_part *p, mx_str *out)
{
    bool last = p->r->finish != MX_FINISH_NOT;
    if (c->api->write)
        c->api->write(p, last, out);
    else if (c->stream)
        stream_piece(c, p, last, out);
    if (last)
        finish_part(c, p);
    if (c->n_done < c->n_parts)
        return false;
    if (c->best_of > c->n)
        keep_best(c);
    if (c->api->write)
        return true;
    if (c->api->document)
        c->api->document(c, out);
    else if (!c->stream)
        add_document(c, c->api->object, json_incref(c->choices), usage_of(c), out);
    else if (c->usage)
        add_document(c, c->api->chunk_object, json_array(), usage_of(c), out);
    if (c->stream)
        mx_str_add(out, "data: [DONE]\n\n");
    return true;
}

void mx_api_call_fail(mx_api_call *c, mx_status why, int *status, mx_str *out)
{
    mx_code code = mx_status_code(why);
    *status = code == MX_USAGE ? 400 : code == MX_STOPPED ? 503 : 500;
    if (c->stream)
        mx_str_add(out, c->api->error ? "event: error\ndata: " : "data: ");
    mx_error_object(out, c->api,
                    &(mx_api_error){.status = *status, .message = mx_status_text(why)});
    if (c->stream)
        mx_str_add(out, "\n\n");
    mx_status_free(why);
}

/* --- tokens by name --- */

void mx_token_raw(const mx_served *s, int32_t id, mx_str *out)
{
    mx_decode_options o = {.raw = true};
    mx_status_free(mx_tokenizer_decode(s->tokenizer, &id, 1, &o, out));
}

json_t *mx_token_name(const mx_served *s, int32_t id)
{
    mx_str raw = {0}, name = {0};
    mx_token_raw(s, id, &raw);
    const uint8_t *bytes = (const uint8_t *)mx_str_text(&raw);
    if (mx_utf8_valid_prefix(bytes, raw.len) == raw.len) {
        mx_str_add_n(&name, mx_str_text(&raw), raw.len);
    } else {
        mx_str_add(&name, "bytes:");
        for (size_t i = 0; i < raw.len; i++)
            mx_str_addf(&name, "\\x%02x", bytes[i]);
    }
    json_t *j = json_stringn(mx_str_text(&name), name.len);
    mx_str_fini(&raw);
    mx_str_fini(&name);
    return j ? j : json_string("");
}

json_t *mx_token_byte_list(const mx_served *s, int32_t id)
{
    mx_str raw = {0};
    json_t *list = json_array();
    mx_token_raw(s, id, &raw);
    for (size_t i = 0; i < raw.len; i++)
        json_array_append_new(list, json_integer((unsigned char)raw.text[i]));
    mx_str_fini(&raw);
    return list;
}
