/* chat.c - /v1/chat/completions: messages through the model's own template. */
#include "base/json_doc.h"
#include "infer/prompt.h"
#include "serve/tools.h"

#include <math.h>
#include <string.h>

enum { MOST_TOP = 20 };

/* The prompt's tokens: images stand where the template says. */
static mx_status encode(mx_api_call *c, const mx_pictures *pictures, const mx_str *text,
                        bool add_special, mx_tokens *out)
{
    const mx_served *s = c->served;
    mx_encode_options marks = {.add_special = add_special, .special_in_text = MX_SPECIAL_PARSE};
    if (!pictures->n)
        return mx_tokenizer_encode(s->tokenizer, mx_str_text(text), text->len, &marks, out);
    MX_TRY(mx_pictures_encode(pictures, s->tokenizer, mx_str_text(text), text->len,
                              add_special, out));
    return mx_image_set_new(&c->o.images, &s->model->spec, pictures->pixels, pictures->n_images);
}

/* Clients send the arguments of calls as texts, templates are written for objects, as in
 * transformers. A copy of the messages with objects, or NULL where there are no such calls. */
static json_t *with_objects(const json_t *messages)
{
    size_t i, k;
    json_t *m, *call, *out = json_deep_copy(messages);
    bool any = false;
    json_array_foreach(out, i, m) json_array_foreach(json_object_get(m, "tool_calls"), k, call)
    {
        json_t *function = json_object_get(call, "function");
        const json_t *text = json_object_get(function, "arguments");
        json_t *object = json_is_string(text) ? json_loadb(json_string_value(text),
                                                           json_string_length(text), 0, NULL)
                                              : NULL;
        any |= json_is_object(object);
        if (json_is_object(object))
            json_object_set(function, "arguments", object);
        json_decref(object);
    }
    if (any)
        return out;
    json_decref(out);
    return NULL;
}

/* A copy of the messages in which content that is null, as it is beside calls, is an empty text;
 * NULL: there is none. */
static json_t *with_texts(const json_t *messages)
{
    size_t i;
    json_t *m, *out = json_deep_copy(messages);
    bool any = false;
    json_array_foreach(out, i, m)
    {
        json_t *content = json_object_get(m, "content");
        any |= !content || json_is_null(content);
        if (!content || json_is_null(content))
            json_object_set_new(m, "content", json_string(""));
    }
    if (any)
        return out;
    json_decref(out);
    return NULL;
}

/* Templates that put the arguments into a text (DeepSeek's) get them as they came, those that add
 * to the content of every message an empty one in place of null. */
static mx_status render(const mx_served *s, const json_t *messages, mx_chat_options o, mx_str *out)
{
    json_t *form[4] = {with_objects(messages), json_deep_copy(messages)};
    form[2] = form[0] ? with_texts(form[0]) : NULL;
    form[3] = with_texts(messages);
    mx_status st = MX_OK;
    bool tried = false;
    for (int i = 0; i < 4; i++) {
        if (form[i] && (!tried || st)) {
            mx_status_free(st);
            mx_str_clear(out);
            st = mx_messages_render(form[i], s->chat, s->tokenizer, o, out);
            tried = true;
        }
        json_decref(form[i]);
    }
    return st;
}

static void read_messages(mx_api_call *c, mx_fields *f, json_t *messages,
                          const json_t *variables)
{
    mx_pictures pictures = {0};
    mx_chat_images(c->served, f, messages, &pictures);
    if (f->param) {
        mx_pictures_close(&pictures);
        return;
    }
    bool goes_on = mx_field_bool(f, "continue_final_message", false);
    mx_chat_options o = {.add_generation_prompt =
                             mx_field_bool(f, "add_generation_prompt", !goes_on),
                         .continue_final_message = goes_on,
                         .tools = c->tools,
                         .variables = variables};
    mx_str text = {0};
    mx_tokens t = {0};
    mx_status st = render(c->served, messages, o, &text);
    if (!st)
        st = encode(c, &pictures, &text, mx_field_bool(f, "add_special_tokens", false), &t);
    mx_pictures_close(&pictures);
    if (st)
        mx_field_wrong(f, "messages", "do not go through the chat template: %s",
                       mx_status_text(st));
    int64_t left = c->served->max_length - t.n;
    const char *limit =
        mx_field_get(f, "max_completion_tokens") ? "max_completion_tokens" : "max_tokens";
    c->o.max_new = mx_field_int(f, limit, left > 0 ? left : 1, 1, INT32_MAX);
    if (!st)
        mx_api_call_add_prompt(c, f, &t, NULL);
    mx_status_free(st);
    mx_tokens_fini(&t);
    mx_str_fini(&text);
}

/* Fields that would change the answer, and do not here. */
static void refuse(mx_fields *f)
{
    static const char *const fields[] = {"functions", "function_call", "audio", "prediction",
                                         "web_search_options"};
    const json_t *kinds = mx_field_get(f, "modalities"), *kind;
    size_t i;
    if (kinds && !json_is_array(kinds))
        mx_field_wrong(f, "modalities", "must be a list, not %s", mx_json_kind(kinds));
    if (mx_field_bool(f, "echo", false))
        mx_field_wrong(f, "echo", "is not supported in chats");
    for (i = 0; i < sizeof fields / sizeof *fields; i++) {
        const json_t *v = mx_field_get(f, fields[i]);
        bool empty = json_is_array(v) && !json_array_size(v);
        if (v && !empty && !json_is_null(v))
            mx_field_wrong(f, fields[i], "is not supported%s",
                           i < 2 ? "; `tools` and `tool_choice` are" : "");
    }
    json_array_foreach((json_t *)kinds, i, kind)
        if (!json_is_string(kind) || strcmp(json_string_value(kind), "text") != 0)
            mx_field_wrong(f, "modalities", "must be [\"text\"]: answers are texts");
    if (mx_field_get(f, "chat_template"))
        mx_field_wrong(f, "chat_template",
                       "is not taken from requests: the model's own is used; "
                       "`chat_template_kwargs` are variables for it");
}

/* Variables of the template: chat_template_kwargs, and reasoning_effort, which templates of models
 * that reason know. A new reference; NULL: none. */
static json_t *read_variables(mx_fields *f)
{
    static const char *const efforts[] = {"none", "minimal", "low", "medium", "high", "xhigh"};
    const json_t *more = mx_field_get(f, "chat_template_kwargs");
    const char *effort = mx_field_text(f, "reasoning_effort", NULL);
    bool known = !effort;
    for (size_t i = 0; i < sizeof efforts / sizeof *efforts; i++)
        known |= effort && strcmp(effort, efforts[i]) == 0;
    if (!known)
        mx_field_wrong(f, "reasoning_effort",
                       "is `%s`, but must be none, minimal, low, medium, high or xhigh", effort);
    if (more && !json_is_object(more))
        mx_field_wrong(f, "chat_template_kwargs", "must be an object, not %s", mx_json_kind(more));
    if (f->param || (!more && !effort))
        return NULL;
    json_t *all = more ? json_deep_copy(more) : json_object();
    if (effort && !json_object_get(all, "reasoning_effort"))
        json_object_set_new(all, "reasoning_effort", json_string(effort));
    return all;
}

void mx_chat_read(mx_api_call *c, mx_fields *f)
{
    const json_t *messages = mx_field_get(f, "messages");
    c->logprobs = mx_field_bool(f, "logprobs", false);
    c->n_top = (int)mx_field_int(f, "top_logprobs", 0, 0, MOST_TOP);
    if (c->n_top && !c->logprobs)
        mx_field_wrong(f, "top_logprobs", "goes only with `logprobs`");
    c->o.log_probs = c->logprobs;
    c->o.n_top = c->n_top;
    refuse(f);
    mx_tools_read(c, f);
    json_t *variables = read_variables(f);
    if (!c->served->chat)
        mx_field_wrong(f, "messages",
                       "need a chat template, and this model has none; use "
                       "/v1/completions");
    mx_status st = mx_messages_check(messages);
    if (st)
        mx_field_wrong(f, "messages", "are not as expected: %s", mx_status_text(st));
    mx_status_free(st);
    c->prompts = MX_NEW_N(&c->arena, mx_tokens, 1);
    c->texts = MX_NEW_N(&c->arena, const char *, 1);
    json_t *own = f->param ? NULL : json_deep_copy(messages);
    if (own)
        read_messages(c, f, own, variables);
    json_decref(own);
    json_decref(variables);
}

/* --- writing --- */

static json_t *entry(const mx_part *p, int32_t id, float log_prob)
{
    return json_pack("{s:o, s:f, s:o}", "token", mx_token_name(p->call->served, id), "logprob",
                     isfinite(log_prob) ? log_prob : -9999.0, "bytes",
                     mx_token_byte_list(p->call->served, id));
}

/* Tokens [from, to). */
static json_t *logprobs_of(const mx_part *p, int64_t from, int64_t to)
{
    const mx_request *r = p->r;
    json_t *content = json_array();
    if (!p->call->logprobs) {
        json_decref(content);
        return json_null();
    }
    for (int64_t t = from; t < to; t++) {
        json_t *tops = json_array(), *one = entry(p, r->tokens.ids[t], r->log_prob[t]);
        for (int k = 0; k < r->n_top; k++) {
            const mx_choice *x = &r->top[t * r->n_top + k];
            json_array_append_new(tops, entry(p, x->id, x->log_prob));
        }
        json_object_set_new(one, "top_logprobs", tops);
        json_array_append_new(content, one);
    }
    return json_pack("{s:o, s:n}", "content", content, "refusal");
}

/* An answer that ended by itself and has calls has the finish reason tool_calls. */
static const char *finish_of(const mx_part *p, bool calls)
{
    return calls && p->r->finish == MX_FINISH_STOP ? "tool_calls" : mx_finish_name(p->r);
}

static json_t *whole(const mx_part *p)
{
    const mx_request *r = p->r;
    size_t n;
    json_t *calls = mx_tools_calls(p, &n), *message;
    bool any = json_array_size(calls) > 0;
    message = json_pack("{s:s, s:n, s:o}", "role", "assistant", "refusal", "content",
                        any && !n ? json_null() : json_stringn(mx_str_text(&r->reply.text), n));
    if (any)
        json_object_set(message, "tool_calls", calls);
    json_decref(calls);
    return json_pack("{s:i, s:o, s:o, s:s?, s:o}", "index", p->index, "message", message,
                     "logprobs", logprobs_of(p, r->n_prompt, r->n_prompt + r->n_text),
                     "finish_reason", finish_of(p, any), "stop_reason", mx_stop_reason(r));
}

static json_t *first(const mx_part *p)
{
    return json_pack("{s:i, s:{s:s, s:s}, s:n, s:n}", "index", p->index, "delta", "role",
                     "assistant", "content", "", "logprobs", "finish_reason");
}

/* What is new of calls: a forced one as it is written, free ones once they are whole. */
static json_t *new_calls(mx_part *p, bool last, bool *any)
{
    size_t n;
    *any = p->call->forced;
    json_t *delta = mx_tools_delta(p, last);
    if (delta)
        return json_pack("[o]", delta);
    if (p->call->forced || !last)
        return NULL;
    json_t *calls = mx_tools_calls(p, &n);
    *any = json_array_size(calls) > 0;
    for (size_t i = 0; i < json_array_size(calls); i++)
        json_object_set_new(json_array_get(calls, i), "index", json_integer((json_int_t)i));
    if (*any)
        return calls;
    json_decref(calls);
    return NULL;
}

static json_t *piece(mx_part *p, bool last)
{
    const mx_request *r = p->r;
    int64_t to = r->n_prompt + r->n_text;
    bool any;
    if (!p->begun)
        p->scored = r->n_prompt;
    p->begun = true;
    json_t *calls = new_calls(p, last, &any);
    size_t shown = last && !any ? r->reply.settled : mx_tools_visible(p);
    size_t n = shown > p->sent ? shown - p->sent : 0;
    if (!n && !last && !calls)
        return NULL;
    json_t *delta = json_object();
    if (n)
        json_object_set_new(delta, "content",
                            json_stringn(mx_str_text(&r->reply.text) + p->sent, n));
    if (calls)
        json_object_set_new(delta, "tool_calls", calls);
    json_t *o = json_pack("{s:i, s:o, s:o, s:s?}", "index", p->index, "delta", delta, "logprobs",
                          logprobs_of(p, p->scored, to), "finish_reason", finish_of(p, any));
    if (last)
        json_object_set_new(o, "stop_reason", mx_stop_reason(r));
    p->sent += n;
    p->scored = to;
    return o;
}

const mx_api mx_api_chat = {.path = "/v1/chat/completions",
                            .id_prefix = "chatcmpl-",
                            .object = "chat.completion",
                            .chunk_object = "chat.completion.chunk",
                            .read = mx_chat_read,
                            .first = first,
                            .whole = whole,
                            .piece = piece};

const mx_api mx_api_count_chat = {
    .path = "/tokenize", .id_prefix = "tok-", .counts = true, .read = mx_chat_read};
