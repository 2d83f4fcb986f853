/* tools.c - functions that the model may call.
 *
 * The template shows them to the model. A forced call (tool_choice required, or by name) is held to
 *     {"name": "NAME", "arguments": ARGUMENTS}
 * with the arguments' schema. A free one is what the model writes in the form of its family
 * (tool_calls.h); what stands before is text.
 */
#include "serve/tools.h"

#include "base/json_doc.h"
#include <stdio.h>
#include <string.h>

static const char ARGUMENTS[] = "\"arguments\": ";

/* --- reading --- */

static const json_t *function_of(const json_t *tool)
{
    return json_object_get(tool, "function");
}

static const char *name_of(const json_t *tool)
{
    const char *name = json_string_value(json_object_get(function_of(tool), "name"));
    return name ? name : "";
}

static bool check_tools(mx_fields *f, const json_t *tools)
{
    size_t i;
    const json_t *t;
    if (!json_is_array(tools) || json_array_size(tools) > 128) {
        mx_field_wrong(f, "tools", "must be a list of at most 128 functions");
        return false;
    }
    json_array_foreach((json_t *)tools, i, t)
    {
        const char *type = json_string_value(json_object_get(t, "type"));
        const json_t *p = json_object_get(function_of(t), "parameters");
        bool fine = !p || json_is_null(p) || json_is_object(p);
        if (!type || strcmp(type, "function") != 0 || !*name_of(t) || !fine) {
            mx_field_wrong(f, "tools",
                           "has in place %zu no {\"type\": \"function\", \"function\": "
                           "{\"name\": ..., \"parameters\": {...}}}",
                           i);
            return false;
        }
    }
    return true;
}

/* {"name": "NAME", "arguments": a document of the schema} */
static mx_pattern *call_of(mx_api_call *c, mx_fields *f, const json_t *tool)
{
    mx_arena *a = &c->arena;
    const json_t *schema = json_object_get(function_of(tool), "parameters");
    json_t *name = json_string(name_of(tool));
    char *quoted = json_dumps(name, JSON_ENCODE_ANY);
    const char *head = mx_arena_printf(a, "{\"name\": %s, %s", quoted, ARGUMENTS);
    mx_pattern *p = NULL;
    if (schema && json_object_size(schema)) {
        mx_status st = mx_pattern_schema(a, schema, &p);
        if (st)
            mx_field_wrong(f, "tools", "has a function %s that cannot be forced: %s", name_of(tool),
                           mx_status_text(st));
        mx_status_free(st);
    } else if (json_is_object(schema)) {
        p = mx_pattern_any_object(a);
    } else { /* it has no parameters */
        p = mx_pattern_text(a, "{}", 2);
    }
    mx_free(quoted);
    json_decref(name);
    p = mx_pattern_then(a, mx_pattern_text(a, head, strlen(head)), p);
    return mx_pattern_then(a, p, mx_pattern_text(a, "}", 1));
}

static void force(mx_api_call *c, mx_fields *f, const char *name)
{
    mx_pattern *all = NULL;
    size_t i;
    const json_t *t;
    json_array_foreach(c->tools, i, t)
    {
        if (name && strcmp(name, name_of(t)) != 0)
            continue;
        mx_pattern *p = call_of(c, f, t);
        all = all ? mx_pattern_or(&c->arena, all, p) : p;
    }
    if (!all)
        mx_field_wrong(f, "tool_choice", "names a function that `tools` does not have");
    if (c->pattern)
        mx_field_wrong(f, "tool_choice", "does not go with `response_format`");
    mx_automaton *m = NULL;
    mx_status st = f->param ? MX_OK : mx_automaton_open(&m, all);
    if (st)
        mx_field_wrong(f, "tools", "cannot be followed: %s", mx_status_text(st));
    mx_status_free(st);
    mx_automaton_close(m);
    c->pattern = all;
    c->forced = true;
}

/* The tools that the list names, of those there are; NULL: it names another one, or none. */
static json_t *named_tools(const json_t *tools, const json_t *names)
{
    json_t *out = json_array();
    size_t i, k;
    const json_t *one, *t;
    json_array_foreach((json_t *)names, i, one)
    {
        size_t before = json_array_size(out);
        json_array_foreach((json_t *)tools, k, t)
            if (*name_of(one) && strcmp(name_of(one), name_of(t)) == 0)
                json_array_append(out, (json_t *)t);
        if (json_array_size(out) == before)
            json_array_clear(out);
        if (json_array_size(out) == 0)
            break;
    }
    if (json_array_size(out))
        return out;
    json_decref(out);
    return NULL;
}

/* {"type": "allowed_tools", "allowed_tools": {"mode": "auto" or "required", "tools": [...]}}: the
 * mode, and the tools there are from then on, a new reference. NULL: another choice, or a wrong
 * one. */
static const char *read_allowed(mx_fields *f, const json_t *choice, const json_t *tools,
                                json_t **allowed)
{
    const char *type = json_string_value(json_object_get(choice, "type"));
    const json_t *v = json_object_get(choice, "allowed_tools");
    const char *mode = json_string_value(json_object_get(v, "mode"));
    if (!type || strcmp(type, "allowed_tools") != 0)
        return NULL;
    bool known = mode && (strcmp(mode, "auto") == 0 || strcmp(mode, "required") == 0);
    *allowed = known ? named_tools(tools, json_object_get(v, "tools")) : NULL;
    if (!*allowed)
        mx_field_wrong(f, "tool_choice",
                       "must have `allowed_tools` with a `mode`, auto or required, and a list of "
                       "`tools`, functions that are in the request's `tools`");
    return mode;
}

/* mode: of allowed tools; NULL: the choice is another. */
static void read_choice(mx_api_call *c, mx_fields *f, const json_t *tools, const json_t *choice,
                        const char *mode)
{
    const char *word = mode ? mode : json_string_value(choice);
    const char *name = json_string_value(json_object_get(function_of(choice), "name"));
    if (choice && !name &&
        (!word || (strcmp(word, "none") && strcmp(word, "auto") && strcmp(word, "required")))) {
        mx_field_wrong(f, "tool_choice",
                       "must be none, auto, required, or {\"type\": \"function\", "
                       "\"function\": {\"name\": ...}}");
        return;
    }
    if (!json_array_size(tools)) {
        if (choice && (!word || strcmp(word, "none") != 0))
            mx_field_wrong(f, "tool_choice", "needs `tools`");
        return;
    }
    if (word && strcmp(word, "none") == 0)
        return;
    c->tools = json_deep_copy(tools);
    if (name || (word && strcmp(word, "required") == 0))
        force(c, f, name);
    /* marks of calls that are special tokens are looked for in the text */
    const mx_tokenizer *t = c->served->tokenizer;
    int32_t mark = mx_tokenizer_find(t, c->served->calls->mark);
    if (!c->forced && mark >= 0 && mx_tokenizer_is_special(t, mark))
        c->o.show_special = true;
}

void mx_tools_read(mx_api_call *c, mx_fields *f)
{
    const json_t *tools = mx_field_get(f, "tools"), *choice = mx_field_get(f, "tool_choice");
    json_t *allowed = NULL;
    c->one_call = !mx_field_bool(f, "parallel_tool_calls", true);
    if (tools && !check_tools(f, tools))
        return;
    const char *mode = read_allowed(f, choice, tools, &allowed);
    if (!f->param)
        read_choice(c, f, allowed ? allowed : tools, choice, mode);
    json_decref(allowed);
}

/* --- writing --- */

static json_t *tool_call(const mx_part *p, size_t i, const char *name, json_t *arguments)
{
    char id[96];
    int n = p->call->served->calls->id_chars;
    const char *own = p->call->id + strlen(p->call->api->id_prefix);
    if (n) /* letters and digits */
        snprintf(id, sizeof id, "%.*s%02x%02x", n - 4, own, (unsigned)p->index & 0xff,
                 (unsigned)i & 0xff);
    else
        snprintf(id, sizeof id, "call_%s_%d_%d", p->call->id, p->index, (int)i);
    return json_pack("{s:s, s:s, s:{s:s, s:o}}", "id", id, "type", "function", "function", "name",
                     name, "arguments", arguments);
}

static void add_call(json_t *calls, json_t *call)
{
    if (call)
        json_array_append_new(calls, call);
}

/* The name has been written; arguments follow from *from on. */
static const char *forced_name(const mx_part *p, char *name, size_t cap, size_t *from)
{
    const char *text = mx_str_text(&p->r->reply.text), *at = strstr(text, ARGUMENTS);
    json_t *head = NULL;
    if (!at)
        return NULL;
    mx_str s = {0};
    mx_str_add_n(&s, text, (size_t)(at - text));
    while (s.len && s.text[s.len - 1] != ',')
        s.text[--s.len] = 0;
    s.text[s.len - 1] = '}';
    head = json_loads(mx_str_text(&s), 0, NULL);
    const char *found = json_string_value(json_object_get(head, "name"));
    snprintf(name, cap, "%s", found ? found : "");
    *from = (size_t)(at - text) + sizeof ARGUMENTS - 1;
    json_decref(head);
    mx_str_fini(&s);
    return name;
}

/* A forced call has ended with its last brace, not by a limit or a stop text. */
static bool ends_whole(const mx_request *r)
{
    return r->finish == MX_FINISH_STOP && r->reply.stopped_by < 0;
}

json_t *mx_tools_calls(const mx_part *p, size_t *n_text)
{
    const mx_str *text = &p->r->reply.text;
    json_t *calls = json_array();
    const char *all = mx_str_text(text);
    *n_text = text->len;
    if (p->call->forced) { /* one that is cut short has the arguments so far */
        char name[256];
        size_t from, brace = ends_whole(p->r);
        if (forced_name(p, name, sizeof name, &from))
            add_call(calls, tool_call(p, 0, name,
                                      json_stringn(all + from, text->len - from - brace)));
        *n_text = 0;
        return calls;
    }
    if (!p->call->tools)
        return calls;
    json_decref(calls);
    json_t *read = mx_calls_read(p->call->served->calls, p->call->tools, all, text->len, n_text);
    json_t *call;
    size_t i;
    calls = json_array();
    json_array_foreach(read, i, call)
    {
        const char *name = json_string_value(json_object_get(call, "name"));
        if (name && (i == 0 || !p->call->one_call))
            add_call(calls, tool_call(p, i, name,
                                      json_incref(json_object_get(call, "arguments"))));
    }
    json_decref(read);
    return calls;
}

size_t mx_tools_visible(const mx_part *p)
{
    size_t n = p->r->reply.settled;
    if (p->call->forced)
        return 0;
    return p->call->tools
               ? mx_calls_before(p->call->served->calls, mx_str_text(&p->r->reply.text), n)
               : n;
}

json_t *mx_tools_delta(mx_part *p, bool last)
{
    const mx_request *r = p->r;
    char name[256];
    size_t from;
    if (!p->call->forced || !forced_name(p, name, sizeof name, &from))
        return NULL;
    json_t *delta = NULL;
    if (p->sent < from) { /* the call begins */
        p->sent = from;
        delta = tool_call(p, 0, name, json_string(""));
        json_object_set_new(delta, "index", json_integer(0));
    }
    /* the last brace is not the arguments'; until the end any may be the last */
    size_t to = r->reply.settled;
    bool brace = to > from && mx_str_text(&r->reply.text)[to - 1] == '}';
    to -= brace && (!last || ends_whole(r));
    if (to > p->sent) {
        json_t *piece = json_stringn(mx_str_text(&r->reply.text) + p->sent, to - p->sent);
        if (delta)
            json_object_set_new(json_object_get(delta, "function"), "arguments", piece);
        else
            delta = json_pack("{s:i, s:{s:o}}", "index", 0, "function", "arguments", piece);
        p->sent = to;
    }
    return delta;
}
