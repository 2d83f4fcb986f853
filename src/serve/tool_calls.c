/* tool_calls.c - calls of functions as models write them. N is a function's name, P a parameter's.
 *
 *     tags      <tool_call>{"name": N, "arguments": {...}}</tool_call>       Hermes, Qwen 2.5 and 3
 *               <tool_call><function=N><parameter=P>value</parameter>...     Qwen 3 Coder, 3.5
 *               <tool_call>N<arg_key>P</arg_key><arg_value>value</arg_value> GLM 4.5
 *     Mistral   [TOOL_CALLS][{"name": N, "arguments": {...}}, ...]
 *               [TOOL_CALLS]N[ARGS]{...}
 *     JSON      {"name": N, "parameters": {...}}; ...                        Llama 3 and 4
 *     DeepSeek  <｜tool▁call▁begin｜>function<｜tool▁sep｜>N, {...} in a block     V3, R1
 *               <｜tool▁call▁begin｜>N<｜tool▁sep｜>{...}                         V3.1
 *
 * What cannot be read is no call; an answer without any is text.
 */
#include "serve/tool_calls.h"

#include "base/arena.h"
#include "base/json_doc.h"
#include <string.h>

/* A piece of text. */
typedef struct {
    const char *at;
    size_t n;
} span;

static span trim(span s)
{
    while (s.n && strchr(" \t\r\n", s.at[0]) && s.at[0])
        s.at++, s.n--;
    while (s.n && strchr(" \t\r\n", s.at[s.n - 1]) && s.at[s.n - 1])
        s.n--;
    return s;
}

/* Cuts s at the first `mark`: what stands before it; s goes on after it. Without one, all of s. */
static span cut(span *s, const char *mark, bool *found)
{
    const char *hit = s->n ? memmem(s->at, s->n, mark, strlen(mark)) : NULL;
    span head = {s->at, hit ? (size_t)(hit - s->at) : s->n};
    *found = hit != NULL;
    size_t used = head.n + (hit ? strlen(mark) : 0);
    *s = (span){s->at + used, s->n - used};
    return head;
}

/* Takes the arguments: an object, or the text of one. */
static void add_call(json_t *calls, span name, json_t *arguments)
{
    name = trim(name);
    json_t *text = json_is_string(arguments) ? json_incref(arguments) : NULL;
    if (json_is_object(arguments)) {
        char *dumped = mx_json_compact(arguments);
        text = dumped ? json_string(dumped) : NULL;
        mx_free(dumped);
    }
    json_t *called = json_stringn(name.at, name.n);
    if (text && called && name.n)
        json_array_append_new(calls,
                              json_pack("{s:O, s:O}", "name", called, "arguments", text));
    json_decref(called);
    json_decref(text);
    json_decref(arguments);
}

/* {"name": ..., "arguments" or "parameters": ...} */
static bool add_object(json_t *calls, const json_t *call)
{
    const json_t *name = json_object_get(call, "name");
    json_t *arguments = json_object_get(call, "arguments");
    size_t before = json_array_size(calls);
    if (!arguments)
        arguments = json_object_get(call, "parameters");
    if (json_is_string(name) && arguments)
        add_call(calls, (span){json_string_value(name), json_string_length(name)},
                 json_incref(arguments));
    return json_array_size(calls) > before;
}

/* The JSON value at the beginning of s, which goes on after it; NULL: there is none. */
static json_t *take_json(span *s)
{
    json_error_t e;
    *s = trim(*s);
    json_t *v = json_loadb(s->at, s->n, JSON_DISABLE_EOF_CHECK, &e);
    if (v)
        *s = (span){s->at + e.position, s->n - (size_t)e.position};
    return v;
}

/* --- values without types: the tool's schema says what they are --- */

static const json_t *schema_of(const json_t *tools, span name, span parameter)
{
    size_t i;
    const json_t *t;
    json_array_foreach((json_t *)tools, i, t)
    {
        const json_t *f = json_object_get(t, "function");
        const char *its = json_string_value(json_object_get(f, "name"));
        if (its && strlen(its) == name.n && memcmp(its, name.at, name.n) == 0)
            return json_object_getn(
                json_object_get(json_object_get(f, "parameters"), "properties"), parameter.at,
                parameter.n);
    }
    return NULL;
}

static bool may_be_text(const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type"), *t;
    size_t i;
    json_array_foreach((json_t *)type, i, t) if (strcmp(json_string_value(t) ? json_string_value(t)
                                                                              : "",
                                                        "string") == 0) return true;
    return json_is_string(type) ? strcmp(json_string_value(type), "string") == 0
                                : !json_is_array(type);
}

static void set_value(json_t *arguments, const json_t *schema, span name, span value)
{
    json_t *v = NULL;
    if (!may_be_text(schema))
        v = json_loadb(value.at, value.n, JSON_DECODE_ANY, NULL);
    if (!v)
        v = json_stringn(value.at, value.n);
    if (v)
        json_object_setn_new(arguments, name.at, name.n, v);
}

/* --- tags --- */

/* A value between tags may stand on lines of its own. */
static span without_breaks(span s)
{
    if (s.n && s.at[0] == '\n')
        s.at++, s.n--;
    if (s.n && s.at[s.n - 1] == '\n')
        s.n--;
    return s;
}

static void read_function_tag(span body, const json_t *tools, json_t *calls)
{
    bool found;
    json_t *arguments = json_object();
    cut(&body, "<function=", &found);
    span name = trim(cut(&body, ">", &found));
    for (;;) {
        cut(&body, "<parameter=", &found);
        if (!found)
            break;
        span parameter = trim(cut(&body, ">", &found));
        span value = without_breaks(cut(&body, "</parameter>", &found));
        if (found)
            set_value(arguments, schema_of(tools, name, parameter), parameter, value);
    }
    add_call(calls, name, arguments);
}

static void read_argument_tags(span body, const json_t *tools, json_t *calls)
{
    bool found;
    json_t *arguments = json_object();
    span name = trim(cut(&body, "<arg_key>", &found));
    while (found) {
        span parameter = trim(cut(&body, "</arg_key>", &found));
        cut(&body, "<arg_value>", &found);
        span value = cut(&body, "</arg_value>", &found);
        if (found)
            set_value(arguments, schema_of(tools, name, parameter), parameter, value);
        cut(&body, "<arg_key>", &found);
    }
    add_call(calls, name, arguments);
}

static void read_tags(const char *text, size_t n, const json_t *tools, json_t *calls)
{
    span rest = {text, n};
    bool found = false;
    for (cut(&rest, "<tool_call>", &found); found; cut(&rest, "<tool_call>", &found)) {
        bool closed;
        span body = trim(cut(&rest, "</tool_call>", &closed));
        if (body.n && *body.at == '{') {
            json_t *call = json_loadb(body.at, body.n, 0, NULL);
            add_object(calls, call);
            json_decref(call);
        } else if (body.n > 10 && memcmp(body.at, "<function=", 10) == 0) {
            read_function_tag(body, tools, calls);
        } else if (memmem(body.at, body.n, "<arg_key>", 9)) {
            read_argument_tags(body, tools, calls);
        }
    }
}

/* --- the others --- */

static void read_mistral(const char *text, size_t n, const json_t *tools, json_t *calls)
{
    span rest = {text, n};
    bool found;
    (void)tools;
    for (cut(&rest, "[TOOL_CALLS]", &found); found; cut(&rest, "[TOOL_CALLS]", &found)) {
        rest = trim(rest);
        if (rest.n && *rest.at == '[') {
            json_t *list = take_json(&rest), *call;
            size_t i;
            json_array_foreach(list, i, call) add_object(calls, call);
            json_decref(list);
            continue;
        }
        span name = {rest.at, 0};
        while (name.n < rest.n && !strchr("[{", name.at[name.n]))
            name.n++;
        rest = (span){rest.at + name.n, rest.n - name.n};
        while (rest.n && *rest.at != '{')
            rest.at++, rest.n--;
        json_t *arguments = take_json(&rest);
        if (arguments)
            add_call(calls, name, arguments);
    }
}

/* An answer that is JSON and names no function of the request is text. */
static bool is_known(const json_t *tools, const json_t *call)
{
    size_t i;
    const json_t *t, *name = json_object_get(call, "name");
    json_array_foreach((json_t *)tools, i, t) if (json_equal(
        name, json_object_get(json_object_get(t, "function"), "name"))) return true;
    return false;
}

static void read_json(const char *text, size_t n, const json_t *tools, json_t *calls)
{
    span rest = {text, n};
    static const char mark[] = "<|python_tag|>";
    bool fine = true;
    for (rest = trim(rest); fine && rest.n; rest = trim(rest)) {
        if (rest.n >= sizeof mark - 1 && memcmp(rest.at, mark, sizeof mark - 1) == 0)
            rest = (span){rest.at + sizeof mark - 1, rest.n - sizeof mark + 1};
        json_t *call = take_json(&rest);
        fine = is_known(tools, call) && add_object(calls, call);
        json_decref(call);
        rest = trim(rest);
        if (rest.n && *rest.at == ';')
            rest = (span){rest.at + 1, rest.n - 1};
    }
    if (!fine)
        json_array_clear(calls);
}

#define DEEPSEEK_CALLS "<｜tool▁calls▁begin｜>"

static void read_deepseek(const char *text, size_t n, const json_t *tools, json_t *calls)
{
    static const char begin[] = "<｜tool▁call▁begin｜>";
    span rest = {text, n};
    bool found;
    (void)tools;
    for (cut(&rest, begin, &found); found; cut(&rest, begin, &found)) {
        bool fenced;
        span body = cut(&rest, "<｜tool▁call▁end｜>", &found);
        span name = cut(&body, "<｜tool▁sep｜>", &found), before = body;
        span line = cut(&body, "```json", &fenced);
        name = fenced ? line : name; /* else it is the word `function` */
        body = fenced ? body : before;
        json_t *arguments = take_json(&body);
        if (arguments)
            add_call(calls, name, arguments);
    }
}

static const mx_call_form forms[] = {
    {.sign = "<tool_call>", .mark = "<tool_call>", .read = read_tags},
    {.sign = "[TOOL_CALLS]", .mark = "[TOOL_CALLS]", .id_chars = 9, .read = read_mistral},
    {.sign = DEEPSEEK_CALLS, .mark = DEEPSEEK_CALLS, .read = read_deepseek},
    {.sign = "\"parameters\": dictionary",
     .mark = "<|python_tag|>",
     .whole = true,
     .read = read_json},
};

const mx_call_form *mx_call_form_of(const char *chat_template)
{
    for (size_t i = 0; chat_template && i < sizeof forms / sizeof *forms; i++)
        if (strstr(chat_template, forms[i].sign))
            return &forms[i];
    return &forms[0];
}

json_t *mx_calls_read(const mx_call_form *form, const json_t *tools, const char *text, size_t n,
                      size_t *n_text)
{
    json_t *calls = json_array();
    const char *mark = n ? memmem(text, n, form->mark, strlen(form->mark)) : NULL;
    if (mark || form->whole)
        form->read(text, n, tools, calls);
    *n_text = !json_array_size(calls) ? n : form->whole ? 0 : (size_t)(mark - text);
    return calls;
}

size_t mx_calls_before(const mx_call_form *form, const char *text, size_t n)
{
    size_t m = strlen(form->mark);
    const char *hit = n ? memmem(text, n, form->mark, m) : NULL;
    if (form->whole) {
        span s = trim((span){text, n});
        size_t k = s.n < m ? s.n : m;
        if (!s.n || *s.at == '{' || memcmp(s.at, form->mark, k) == 0)
            return 0;
    }
    if (hit)
        return (size_t)(hit - text);
    for (size_t k = m - 1; k > 0; k--) /* may be the beginning of one */
        if (k <= n && memcmp(text + n - k, form->mark, k) == 0)
            return n - k;
    return n;
}
