/* messages.c - /v1/messages: Anthropic's form of a chat.
 *
 * A request is turned into one of /v1/chat/completions and read by it: system texts become a
 * message, tool_use and tool_result blocks tool calls and messages of tools, images by base64 data
 * URLs. Answers are content blocks; a stream is a sequence of named events.
 */
#include "base/json_doc.h"
#include "serve/tools.h"

#include <string.h>

static const char *text_of(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

/* --- reading --- */

/* A text, or the texts of a list of text blocks, as one text; NULL: it is neither. */
static json_t *plain_text(const json_t *v)
{
    size_t i;
    const json_t *b;
    mx_str text = {0};
    bool fine = json_is_array(v) || json_is_string(v);
    if (json_is_string(v))
        return json_incref((json_t *)v);
    json_array_foreach((json_t *)v, i, b)
    {
        fine = fine && strcmp(text_of(b, "type"), "text") == 0 &&
               json_is_string(json_object_get(b, "text"));
        mx_str_add(&text, text_of(b, "text"));
    }
    json_t *out = fine ? json_stringn(mx_str_text(&text), text.len) : NULL;
    mx_str_fini(&text);
    return out;
}

static json_t *image_of(const json_t *block)
{
    const json_t *source = json_object_get(block, "source");
    mx_str url = {0};
    if (strcmp(text_of(source, "type"), "base64") == 0)
        mx_str_addf(&url, "data:%s;base64,%s", text_of(source, "media_type"),
                    text_of(source, "data"));
    else
        mx_str_add(&url, text_of(source, "url"));
    json_t *part = json_pack("{s:s, s:{s:s}}", "type", "image_url", "image_url", "url",
                             mx_str_text(&url));
    mx_str_fini(&url);
    return part;
}

static json_t *call_of(const json_t *block)
{
    char *input = mx_json_compact(json_object_get(block, "input"));
    json_t *call = json_pack("{s:s, s:s, s:{s:s, s:s}}", "id", text_of(block, "id"), "type",
                             "function", "function", "name", text_of(block, "name"), "arguments",
                             input ? input : "{}");
    mx_free(input);
    return call;
}

/* What the blocks of one message become. */
typedef struct {
    json_t *parts, *calls, *results;
} blocks;

/* The texts of a result; its images go to the message of the user that comes after it, since
 * templates take them there alone. NULL: it has something else. */
static json_t *result_text(const json_t *content, json_t *parts)
{
    size_t i;
    json_t *b;
    if (!content)
        return json_string("");
    if (!json_is_array(content))
        return plain_text(content);
    json_t *texts = json_array();
    json_array_foreach((json_t *)content, i, b)
    {
        if (strcmp(text_of(b, "type"), "image") == 0)
            json_array_append_new(parts, image_of(b));
        else
            json_array_append(texts, b);
    }
    json_t *text = plain_text(texts);
    json_decref(texts);
    return text;
}

static bool read_block(mx_fields *f, const json_t *block, blocks *to)
{
    const char *type = text_of(block, "type");
    json_t *text = NULL;
    if (strcmp(type, "text") == 0 && json_is_string(json_object_get(block, "text"))) {
        json_array_append_new(to->parts, json_pack("{s:s, s:O}", "type", "text", "text",
                                                   json_object_get(block, "text")));
    } else if (strcmp(type, "image") == 0) {
        json_array_append_new(to->parts, image_of(block));
    } else if (strcmp(type, "tool_use") == 0) {
        json_array_append_new(to->calls, call_of(block));
    } else if (strcmp(type, "tool_result") == 0) {
        text = result_text(json_object_get(block, "content"), to->parts);
        if (text)
            json_array_append_new(to->results,
                                  json_pack("{s:s, s:s, s:o}", "role", "tool", "tool_call_id",
                                            text_of(block, "tool_use_id"), "content", text));
    }
    /* reasoning of earlier answers is not shown to the model again */
    bool thought = strcmp(type, "thinking") == 0 || strcmp(type, "redacted_thinking") == 0;
    bool known = strcmp(type, "text") == 0 || strcmp(type, "image") == 0 ||
                 strcmp(type, "tool_use") == 0 || text || thought;
    if (!known)
        mx_field_wrong(f, "messages",
                       "has a block of type `%s` that is not as expected; text, image, tool_use "
                       "and tool_result are taken",
                       type);
    return known;
}

static bool read_blocks(mx_fields *f, const json_t *list, blocks *to)
{
    size_t i;
    const json_t *b;
    json_array_foreach((json_t *)list, i, b) if (!read_block(f, b, to)) return false;
    return true;
}

static void add_message(mx_fields *f, json_t *out, const json_t *m)
{
    const json_t *content = json_object_get(m, "content");
    const char *role = text_of(m, "role");
    bool known = strcmp(role, "user") == 0 || strcmp(role, "assistant") == 0;
    if (!known || (!json_is_string(content) && !json_is_array(content))) {
        mx_field_wrong(f, "messages", "must be a list of {\"role\": \"user\" or \"assistant\", "
                                      "\"content\": a text or a list of blocks}");
        return;
    }
    if (json_is_string(content)) {
        json_array_append(out, (json_t *)m);
        return;
    }
    blocks to = {json_array(), json_array(), json_array()};
    if (read_blocks(f, content, &to)) {
        json_array_extend(out, to.results);
        json_t *one = json_pack("{s:s, s:O}", "role", role, "content", to.parts);
        if (json_array_size(to.calls))
            json_object_set(one, "tool_calls", to.calls);
        if (json_array_size(to.parts) || json_array_size(to.calls))
            json_array_append(out, one);
        json_decref(one);
    }
    json_decref(to.parts);
    json_decref(to.calls);
    json_decref(to.results);
}

static json_t *messages_of(mx_fields *f)
{
    json_t *out = json_array();
    const json_t *list = mx_field_get(f, "messages"), *system = mx_field_get(f, "system"), *m;
    size_t i;
    json_t *text = system ? plain_text(system) : NULL;
    if (system && !text)
        mx_field_wrong(f, "system", "must be a text or a list of text blocks");
    if (text)
        json_array_append_new(out, json_pack("{s:s, s:o}", "role", "system", "content", text));
    if (!json_array_size(list))
        mx_field_wrong(f, "messages", "must be a list that is not empty");
    json_array_foreach((json_t *)list, i, m) if (!f->param) add_message(f, out, m);
    return out;
}

static json_t *tools_of(mx_fields *f)
{
    const json_t *list = mx_field_get(f, "tools"), *t;
    size_t i;
    if (!list)
        return NULL;
    json_t *out = json_array();
    if (!json_is_array(list))
        mx_field_wrong(f, "tools", "must be a list, not %s", mx_json_kind(list));
    json_array_foreach((json_t *)list, i, t)
    {
        const json_t *schema = json_object_get(t, "input_schema");
        if (!*text_of(t, "name") || !json_is_object(schema)) {
            mx_field_wrong(f, "tools",
                           "has in place %zu no {\"name\": ..., \"input_schema\": {...}}", i);
            break;
        }
        json_array_append_new(out, json_pack("{s:s, s:{s:s, s:s, s:O}}", "type", "function",
                                             "function", "name", text_of(t, "name"), "description",
                                             text_of(t, "description"), "parameters", schema));
    }
    return out;
}

static json_t *choice_of(mx_fields *f)
{
    const json_t *c = mx_field_get(f, "tool_choice");
    const char *type = text_of(c, "type");
    if (!c || strcmp(type, "auto") == 0 || strcmp(type, "none") == 0)
        return c ? json_string(type) : NULL;
    if (strcmp(type, "any") == 0)
        return json_string("required");
    if (strcmp(type, "tool") == 0 && *text_of(c, "name"))
        return json_pack("{s:s, s:{s:s}}", "type", "function", "function", "name",
                         text_of(c, "name"));
    mx_field_wrong(f, "tool_choice",
                   "must have the type auto, any, none, or tool with the name of one");
    return NULL;
}

/* Reasoning is not separated from the answer here. */
static void check_thinking(mx_fields *f)
{
    const json_t *v = mx_field_get(f, "thinking");
    const char *type = text_of(v, "type");
    if (v && strcmp(type, "disabled") != 0)
        mx_field_wrong(f, "thinking", strcmp(type, "enabled") == 0 ||
                                              strcmp(type, "adaptive") == 0
                                          ? "is not supported: give {\"type\": \"disabled\"}"
                                          : "must be an object with the type disabled");
}

/* output_config.format: {"type": "json_schema", "schema": {...}} */
static void add_format(mx_fields *f, json_t *out)
{
    const json_t *config = mx_field_get(f, "output_config");
    json_t *format = json_object_get(config, "format"), *schema = json_object_get(format, "schema");
    if (config && !json_is_object(config))
        mx_field_wrong(f, "output_config", "must be an object, not %s", mx_json_kind(config));
    if (!format || json_is_null(format))
        return;
    if (strcmp(text_of(format, "type"), "json_schema") != 0 || !json_is_object(schema))
        mx_field_wrong(f, "output_config",
                       "must have the format {\"type\": \"json_schema\", \"schema\": {...}}");
    else
        json_object_set_new(out, "response_format",
                            json_pack("{s:s, s:{s:O}}", "type", "json_schema", "json_schema",
                                      "schema", schema));
}

static json_t *convert_fields(mx_fields *f)
{
    static const char *const same[] = {"model", "max_tokens", "temperature", "top_p", "top_k",
                                       "stream", "seed", "cache_salt", "ignore_eos",
                                       "metadata"};
    json_t *out = json_object(), *tools, *choice;
    mx_arena scratch = {0};
    const char *const *stops;
    mx_field_texts(f, "stop_sequences", &scratch, &stops, 64);
    mx_arena_fini(&scratch);
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        if (mx_field_get(f, same[i]))
            json_object_set(out, same[i], (json_t *)mx_field_get(f, same[i]));
    if (mx_field_get(f, "stop_sequences"))
        json_object_set(out, "stop", (json_t *)mx_field_get(f, "stop_sequences"));
    check_thinking(f);
    add_format(f, out);
    const json_t *serial = json_object_get(mx_field_get(f, "tool_choice"),
                                           "disable_parallel_tool_use");
    if (serial && !json_is_boolean(serial))
        mx_field_wrong(f, "tool_choice", "has a disable_parallel_tool_use that is no boolean");
    json_object_set_new(out, "parallel_tool_calls", json_boolean(!json_is_true(serial)));
    json_object_set_new(out, "messages", messages_of(f));
    if ((tools = tools_of(f)))
        json_object_set_new(out, "tools", tools);
    if ((choice = choice_of(f)))
        json_object_set_new(out, "tool_choice", choice);
    return out;
}

static json_t *convert(mx_fields *f)
{
    if (!mx_field_get(f, "max_tokens"))
        mx_field_wrong(f, "max_tokens", "must be given: tokens of the answer at most");
    return convert_fields(f);
}

/* --- writing --- */

static const char *stop_reason(const mx_part *p, bool calls)
{
    const mx_request *r = p->r;
    return r->finish == MX_FINISH_LENGTH ? "max_tokens"
           : calls                       ? "tool_use"
           : r->reply.stopped_by >= 0    ? "stop_sequence"
                                         : "end_turn";
}

static json_t *stop_text(const mx_part *p)
{
    const mx_reply *r = &p->r->reply;
    return r->stopped_by >= 0 ? json_string(r->stop[r->stopped_by]) : json_null();
}

/* A call of chat completions as a block; `whole`: with what it is called with. */
static json_t *tool_block(const json_t *call, bool whole)
{
    const json_t *function = json_object_get(call, "function");
    json_t *input = whole ? json_loads(text_of(function, "arguments"), 0, NULL) : NULL;
    return json_pack("{s:s, s:s, s:s, s:o}", "type", "tool_use", "id", text_of(call, "id"), "name",
                     text_of(function, "name"), "input", input ? input : json_object());
}

static json_t *message(const mx_part *p, json_t *content, const char *reason, json_t *stop)
{
    const mx_api_call *c = p->call;
    return json_pack("{s:s, s:s, s:s, s:s, s:o, s:s?, s:o, s:{s:I, s:I, s:I}}", "id", c->id, "type",
                     "message", "role", "assistant", "model", c->model, "content", content,
                     "stop_reason", reason, "stop_sequence", stop, "usage", "input_tokens",
                     (json_int_t)(c->prompt_tokens - p->r->n_cached), "cache_read_input_tokens",
                     (json_int_t)p->r->n_cached, "output_tokens",
                     (json_int_t)(p->r->tokens.n - p->r->n_prompt));
}

static void write_whole(const mx_part *p, mx_str *out)
{
    size_t n, i;
    json_t *calls = mx_tools_calls(p, &n), *content = json_array(), *call;
    bool any = json_array_size(calls) > 0;
    if (n || !any)
        json_array_append_new(content,
                              json_pack("{s:s, s:o}", "type", "text", "text",
                                        json_stringn(mx_str_text(&p->r->reply.text), n)));
    json_array_foreach(calls, i, call) json_array_append_new(content, tool_block(call, true));
    json_decref(calls);
    mx_json_add(out, message(p, content, stop_reason(p, any), stop_text(p)));
}

/* Takes the data. */
static void event(mx_str *out, const char *name, json_t *data)
{
    json_object_set_new(data, "type", json_string(name));
    mx_str_addf(out, "event: %s\ndata: ", name);
    mx_json_add(out, data);
    mx_str_add(out, "\n\n");
}

static void begin_block(mx_part *p, json_t *block, mx_str *out)
{
    event(out, "content_block_start",
          json_pack("{s:i, s:o}", "index", p->n_blocks, "content_block", block));
}

static void end_block(mx_part *p, mx_str *out)
{
    event(out, "content_block_stop", json_pack("{s:i}", "index", p->n_blocks++));
}

static void add_delta(mx_part *p, const char *type, const char *key, json_t *value, mx_str *out)
{
    event(out, "content_block_delta",
          json_pack("{s:i, s:{s:s, s:o}}", "index", p->n_blocks, "delta", "type", type, key,
                    value));
}

static void stream_calls(mx_part *p, const json_t *calls, mx_str *out)
{
    size_t i;
    const json_t *call;
    json_array_foreach((json_t *)calls, i, call)
    {
        const json_t *function = json_object_get(call, "function");
        begin_block(p, tool_block(call, false), out);
        add_delta(p, "input_json_delta", "partial_json",
                  json_string(text_of(function, "arguments")), out);
        end_block(p, out);
    }
}

static void write_piece(mx_part *p, bool last, mx_str *out)
{
    const mx_request *r = p->r;
    size_t n = 0;
    json_t *calls = last ? mx_tools_calls(p, &n) : NULL;
    bool any = json_array_size(calls) > 0;
    if (!p->begun)
        event(out, "message_start",
              json_pack("{s:o}", "message", message(p, json_array(), NULL, json_null())));
    p->begun = true;
    size_t shown = last && !any ? r->reply.settled : mx_tools_visible(p);
    if (!p->text_open && !p->n_blocks && (shown > p->sent || (last && !any))) {
        begin_block(p, json_pack("{s:s, s:s}", "type", "text", "text", ""), out);
        p->text_open = true;
    }
    if (shown > p->sent) {
        add_delta(p, "text_delta", "text",
                  json_stringn(mx_str_text(&r->reply.text) + p->sent, shown - p->sent), out);
        p->sent = shown;
    }
    if (last) {
        if (p->text_open)
            end_block(p, out);
        stream_calls(p, calls, out);
        event(out, "message_delta",
              json_pack("{s:{s:s, s:o}, s:{s:I}}", "delta", "stop_reason", stop_reason(p, any),
                        "stop_sequence", stop_text(p), "usage", "output_tokens",
                        (json_int_t)(r->tokens.n - r->n_prompt)));
        event(out, "message_stop", json_object());
    }
    json_decref(calls);
}

static void write(mx_part *p, bool last, mx_str *out)
{
    if (p->call->stream)
        write_piece(p, last, out);
    else if (last)
        write_whole(p, out);
}

/* {"type": "error", "error": {"type": ..., "message": ...}} */
static void error(mx_str *out, const mx_api_error *e)
{
    const char *type = e->status == 401   ? "authentication_error"
                       : e->status == 404 ? "not_found_error"
                       : e->status == 413 ? "request_too_large"
                       : e->status == 429 ? "rate_limit_error"
                       : e->status == 503 ? "overloaded_error"
                       : e->status >= 500 ? "api_error"
                                          : "invalid_request_error";
    json_t *o = json_pack("{s:s, s:{s:s, s:s}}", "type", "error", "error", "type", type, "message",
                          e->message);
    mx_json_add(out, o ? o : json_pack("{s:s}", "type", "error"));
}

const mx_api mx_api_messages = {.path = "/v1/messages",
                                .id_prefix = "msg_",
                                .convert = convert,
                                .read = mx_chat_read,
                                .write = write,
                                .error = error};

const mx_api mx_api_count_messages = {.path = "/v1/messages/count_tokens",
                                      .id_prefix = "msg_",
                                      .counts = true,
                                      .convert = convert_fields,
                                      .read = mx_chat_read,
                                      .error = error};
