/* chat_template.c - opening a template, finding it in a directory, rendering a conversation.
 *
 * What the template sees, as in transformers: messages, tools, documents (none when absent),
 * add_generation_prompt, the special tokens, and the caller's variables. A message that carries its
 * reasoning under one of the names reasoning_content, thinking or reasoning is given
 * reasoning_content, and thinking in front when it has none, because published templates disagree
 * about the name.
 */
#include "text/jinja/chat_template.h"

#include "base/io.h"
#include "base/json_doc.h"
#include "text/jinja/jinja.h"
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MAX_TEMPLATE_BYTES = 1 << 20 };

mx_status mx_chat_template_open_n(mx_chat_template **out, const char *text, size_t n)
{
    mx_arena own = {0};
    mx_jtokens tokens = {0};
    *out = NULL;
    if (n > MAX_TEMPLATE_BYTES)
        return mx_fail(MX_INPUT, "the chat template has %zu bytes; at most %d are accepted", n,
                       MAX_TEMPLATE_BYTES);
    mx_chat_template *t = MX_NEW(&own, mx_chat_template);
    t->arena = own; /* the template lives in its own arena */
    char *copy = mx_arena_alloc(&t->arena, n + 1); /* zeroed */
    t->text = memcpy(copy, text, n);
    /* names the interpreter binds itself, at fixed places */
    static const char *const special[] = {"loop", "caller", "varargs", "kwargs"};
    for (int i = 0; i < 4; i++)
        mx_jinja_intern(t, special[i], strlen(special[i]));
    mx_status st = mx_jinja_lex(t, text, n, &tokens);
    if (!st)
        st = mx_jinja_parse(t, &tokens);
    mx_free(tokens.v);
    if (st)
        mx_chat_template_close(t);
    else
        *out = t;
    return st;
}

mx_status mx_chat_template_open(mx_chat_template **t, const char *text)
{
    return mx_chat_template_open_n(t, text, strlen(text));
}

void mx_chat_template_close(mx_chat_template *t)
{
    if (!t)
        return;
    mx_free(t->names);
    mx_arena own = t->arena;
    mx_arena_fini(&own);
}

bool mx_chat_template_has_generation(const mx_chat_template *t)
{
    return t->has_generation;
}

const char *mx_chat_template_text(const mx_chat_template *t)
{
    return t ? t->text : NULL;
}

void mx_chat_spans_fini(mx_chat_spans *s)
{
    mx_free(s->v);
    *s = (mx_chat_spans){0};
}

/* --- finding it --- */
/* *found is false when there is no such file. */
static mx_status read_file(const char *path, mx_str *text, bool *found)
{
    char *read;
    size_t n;
    *found = access(path, F_OK) == 0;
    if (!*found)
        return MX_OK;
    MX_TRY(mx_io_read_file(NULL, path, MAX_TEMPLATE_BYTES, &read, &n));
    mx_str_add_n(text, read, n);
    mx_free(read);
    return MX_OK;
}

static mx_status open_file(mx_chat_template **t, const char *path, bool *found)
{
    mx_str text = {0};
    mx_status st = read_file(path, &text, found);
    if (!st && *found)
        st = mx_status_wrap(mx_chat_template_open_n(t, mx_str_text(&text), text.len), "%s", path);
    mx_str_fini(&text);
    return st;
}

/* "chat_template": a string, or [{"name": ..., "template": ...}]. NULL when it has no such
 * template. */
static const json_t *named_template(const json_t *config, const char *name, mx_str *others)
{
    const json_t *v = json_object_get(config, "chat_template"), *item;
    size_t i;
    if (json_is_string(v))
        return strcmp(name, "default") == 0 ? v : NULL;
    json_array_foreach((json_t *)v, i, item)
    {
        const char *its = json_string_value(json_object_get(item, "name"));
        if (its && strcmp(its, name) == 0)
            return json_object_get(item, "template");
        if (its)
            mx_str_addf(others, " %s", its);
    }
    return NULL;
}

/* *config is NULL where the file is not there. */
static mx_status load_config(const char *path, json_t **config)
{
    struct stat about;
    *config = NULL;
    return stat(path, &about) == 0 ? mx_json_load(path, NULL, config) : MX_OK;
}

static mx_status open_config(mx_chat_template **t, const char *path, const char *name)
{
    mx_str others = {0};
    json_t *config;
    mx_status st = load_config(path, &config);
    const json_t *text = config ? named_template(config, name, &others) : NULL;
    if (st)
        return st;
    if (json_is_string(text))
        st = mx_status_wrap(
            mx_chat_template_open_n(t, json_string_value(text), json_string_length(text)),
            "%s, chat_template \"%s\"", path, name);
    else
        st = mx_fail(
            MX_INPUT,
            "%s has no chat template named \"%s\"%s%s; a model without one is a base model: "
            "give a template with chat_template_path, or use plain text",
            path, name, others.len ? ", only:" : " (and there is no chat_template.jinja beside it)",
            mx_str_text(&others));
    json_decref(config);
    mx_str_fini(&others);
    return st;
}

/* Files of a directory that may hold "chat_template"; the second is older processors'. */
static const char *const configs[] = {"tokenizer_config.json", "chat_template.json"};

static mx_status config_has(const char *dir, const char *file, bool *has)
{
    mx_str path = {0};
    mx_str_addf(&path, "%s/%s", dir, file);
    json_t *config;
    mx_status st = load_config(mx_str_text(&path), &config);
    const json_t *v = json_object_get(config, "chat_template");
    *has = json_is_string(v) || json_array_size(v);
    json_decref(config);
    mx_str_fini(&path);
    return st;
}

mx_status mx_chat_template_in_dir(const char *dir, bool *has)
{
    mx_str path = {0};
    struct stat about;
    mx_str_addf(&path, "%s/chat_template.jinja", dir);
    *has = stat(mx_str_text(&path), &about) == 0;
    mx_str_fini(&path);
    for (int i = 0; i < 2 && !*has; i++)
        MX_TRY(config_has(dir, configs[i], has));
    return MX_OK;
}

mx_status mx_chat_template_open_dir(mx_chat_template **t, const char *dir, const char *name)
{
    mx_str path = {0};
    bool found = false, is_default = !name || strcmp(name, "default") == 0;
    *t = NULL;
    if (is_default)
        mx_str_addf(&path, "%s/chat_template.jinja", dir);
    else
        mx_str_addf(&path, "%s/additional_chat_templates/%s.jinja", dir, name);
    mx_status st =
        !is_default && strchr(name, '/') ? MX_OK : open_file(t, mx_str_text(&path), &found);
    if (!st && !found) {
        bool first, second = false;
        st = config_has(dir, configs[0], &first);
        if (!st && !first)
            st = config_has(dir, configs[1], &second);
        mx_str_clear(&path);
        mx_str_addf(&path, "%s/%s", dir, configs[second]);
        if (!st)
            st = open_config(t, mx_str_text(&path), is_default ? "default" : name);
    }
    mx_str_fini(&path);
    return st;
}

/* --- rendering --- */
static void bind(mx_jctx *c, const char *name, mx_jv v)
{
    const char *known = mx_jinja_interned(c->t, name);
    if (known) /* otherwise the template never says it */
        mx_jbind(c, c->frame, known, v);
}

static void bind_text(mx_jctx *c, const char *name, const char *text)
{
    if (text)
        bind(c, name, mx_jv_part(c, text, strlen(text)));
}

static mx_status bind_json(mx_jctx *c, const char *name, const json_t *j)
{
    mx_jv v;
    MX_TRY(mx_jv_from_json(c, j, 0, &v));
    bind(c, name, v);
    return MX_OK;
}

static mx_jv key(mx_jctx *c, const char *name)
{
    return mx_jv_part(c, name, strlen(name));
}

static mx_status alias_reasoning(mx_jctx *c, mx_jv *message)
{
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    mx_jv value = MX_JV_NULL;
    bool found = false;
    for (int i = 0; i < 3 && !found; i++) {
        MX_TRY(mx_jdict_get(c, message->dict, key(c, names[i]), &value, &found));
        found = found && value.kind != MX_JV_NONE;
    }
    if (!found)
        return MX_OK;
    mx_jv d = mx_jv_dict(c);
    MX_TRY(mx_jdict_set(c, d.dict, key(c, "thinking"), value));
    for (size_t i = 0; i < message->dict->n; i++)
        MX_TRY(mx_jdict_set(c, d.dict, message->dict->key[i], message->dict->val[i]));
    MX_TRY(mx_jdict_set(c, d.dict, key(c, "reasoning_content"), value));
    *message = d;
    return MX_OK;
}

/* --- going on with the last message: a mark is put after its text and everything from the mark on
 * is cut from the result --- */
static const char MARK[] = "CONTINUE_FINAL_MESSAGE_TAG ";

static mx_status add_mark(mx_jctx *c, mx_jdict *d, const char *name, mx_jv text)
{
    mx_jv marked;
    MX_TRY(mx_jbinary(c, '+', text, key(c, MARK), &marked));
    return mx_jdict_set(c, d, key(c, name), marked);
}

static mx_status mark_last(mx_jctx *c, const mx_jlist *messages)
{
    mx_jv content, text;
    bool found = false;
    if (messages->n)
        MX_TRY(mx_jdict_get(c, messages->v[messages->n - 1].dict, key(c, "content"), &content,
                            &found));
    if (found && content.kind == MX_JV_STRING)
        return add_mark(c, messages->v[messages->n - 1].dict, "content", content);
    for (size_t i = found && content.kind == MX_JV_LIST ? content.list->n : 0; i-- > 0;) {
        if (content.list->v[i].kind != MX_JV_DICT)
            continue;
        MX_TRY(mx_jdict_get(c, content.list->v[i].dict, key(c, "text"), &text, &found));
        if (found && text.kind == MX_JV_STRING)
            return add_mark(c, content.list->v[i].dict, "text", text);
    }
    return mx_fail(MX_INPUT, "continue_final_message: the last message has no text to continue");
}

static mx_status cut_at_mark(mx_str *text)
{
    size_t n = sizeof MARK - 2; /* without the blank, which a template may trim */
    for (size_t at = text->len >= n ? text->len - n + 1 : 0; at-- > 0;) {
        if (memcmp(text->text + at, MARK, n) != 0)
            continue;
        bool trimmed = text->text[at + n] != ' ';
        while (trimmed && at > 0 && strchr(" \n\t\r\f\v", text->text[at - 1]))
            at--;
        text->len = at;
        text->text[at] = 0;
        return MX_OK;
    }
    return mx_fail(MX_INPUT,
                   "continue_final_message: the template does not print the last message, so it "
                   "cannot be continued");
}

static mx_status bind_messages(mx_jctx *c, const json_t *messages, bool mark)
{
    mx_jv list;
    if (!json_is_array(messages))
        return mx_fail(MX_INPUT, "a conversation must be a JSON array of messages");
    MX_TRY(mx_jv_from_json(c, messages, 0, &list));
    for (size_t i = 0; i < list.list->n; i++) {
        if (list.list->v[i].kind != MX_JV_DICT)
            return mx_fail(MX_INPUT,
                           "message %zu is not a JSON object with \"role\" and \"content\"", i);
        MX_TRY(alias_reasoning(c, &list.list->v[i]));
    }
    if (mark)
        MX_TRY(mark_last(c, list.list));
    bind(c, "messages", list);
    return MX_OK;
}

static mx_status bind_all(mx_jctx *c, const json_t *messages, const mx_chat_options *o)
{
    const char *name;
    json_t *v;
    bind_text(c, "bos_token", o->bos_token);
    bind_text(c, "eos_token", o->eos_token);
    bind_text(c, "pad_token", o->pad_token);
    bind_text(c, "unk_token", o->unk_token);
    json_object_foreach((json_t *)o->variables, name, v) MX_TRY(bind_json(c, name, v));
    MX_TRY(bind_messages(c, messages, o->continue_final_message));
    MX_TRY(bind_json(c, "tools", o->tools));
    MX_TRY(bind_json(c, "documents", o->documents));
    bind(c, "add_generation_prompt", mx_jv_bool(o->add_generation_prompt));
    return MX_OK;
}

static mx_chat_limits with_defaults(mx_chat_limits l)
{
    l.steps = l.steps > 0 ? l.steps : 20000000;
    l.output_bytes = l.output_bytes ? l.output_bytes : (size_t)64 << 20;
    l.memory_bytes = l.memory_bytes ? l.memory_bytes : (size_t)512 << 20;
    l.depth = l.depth > 0 ? l.depth : 400;
    return l;
}

mx_status mx_chat_render(const mx_chat_template *t, const json_t *messages,
                         const mx_chat_options *o, mx_str *out, mx_chat_spans *spans)
{
    const mx_chat_options plain = {0};
    mx_str text = {0};
    mx_jframe globals = {0};
    o = o ? o : &plain;
    if (o->continue_final_message && o->add_generation_prompt)
        return mx_fail(MX_USAGE,
                       "continue_final_message and add_generation_prompt exclude each other: the "
                       "first goes on with the last message, the second begins a new one");
    mx_jctx c = {.t = t,
                 .out = &text,
                 .limits = with_defaults(o->limits),
                 .frame = &globals,
                 .spans = spans};
    int first_span = spans ? spans->n : 0;
    c.steps = c.allowed = c.limits.steps;
    c.per_byte = o->limits.steps > 0 ? 0 : 64;
    c.now = o->now ? o->now : (int64_t)time(NULL);
    mx_jframe top = {.parent = &globals};
    mx_status st = bind_all(&c, messages, o);
    c.frame = &top;
    if (!st)
        st = mx_jexec(&c, &t->body);
    if (!st && o->continue_final_message)
        st = cut_at_mark(&text);
    for (int i = first_span; spans && i < spans->n; i++) {
        mx_chat_span *s = &spans->v[i]; /* a continued message may have been cut */
        s->begin = (s->begin < text.len ? s->begin : text.len) + out->len;
        s->end = (s->end < text.len ? s->end : text.len) + out->len;
    }
    if (!st)
        mx_str_add_n(out, mx_str_text(&text), text.len);
    else if (spans)
        spans->n = first_span;
    mx_str_fini(&text);
    mx_arena_fini(&c.arena);
    return st;
}
