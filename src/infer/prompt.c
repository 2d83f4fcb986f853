/* prompt.c - see prompt.h. */
#include "infer/prompt.h"

#include "base/json_doc.h"
#include <string.h>

void mx_prompt_from_text(mx_prompt *p, const char *text, size_t n)
{
    *p = (mx_prompt){.text = mx_realloc(NULL, n + 1)};
    memcpy(p->text, text, n);
    p->text[n] = 0;
}

void mx_prompt_close(mx_prompt *p)
{
    mx_free(p->text);
    json_decref(p->messages);
    json_decref(p->tools);
    mx_free(p->adapter);
    *p = (mx_prompt){0};
}

/* --- reading --- */

static bool looks_like_messages(const char *line)
{
    const char *s = line + strspn(line, " \t");
    if (*s == '{')
        return strstr(s, "\"messages\"") || (strstr(s, "\"prompt\"") && strstr(s, "\"adapter\""));
    return *s == '[' && s[1 + strspn(s + 1, " \t")] == '{';
}

mx_status mx_messages_check(const json_t *list)
{
    size_t i;
    const json_t *m;
    if (!json_array_size(list))
        return mx_fail(MX_INPUT, "\"messages\" must be a list that is not empty");
    json_array_foreach((json_t *)list, i, m) {
        const json_t *content = json_object_get(m, "content");
        if (!json_is_string(json_object_get(m, "role")))
            return mx_fail(MX_INPUT, "message %zu has no \"role\"; expected {\"role\": \"user\", "
                           "\"content\": \"...\"}", i + 1);
        bool none = !content || json_is_null(content);
        if (none && !json_array_size(json_object_get(m, "tool_calls")))
            return mx_fail(MX_INPUT, "message %zu has no \"content\"; only one with \"tool_calls\" "
                           "may have none", i + 1);
        if (!none && !json_is_string(content) && !json_is_array(content))
            return mx_fail(MX_INPUT, "the \"content\" of message %zu is neither text nor a list",
                           i + 1);
    }
    return MX_OK;
}

/* "adapter", and with it the text of "prompt" in place of the line's. */
static mx_status take_adapter(mx_prompt *p, const json_t *doc)
{
    const json_t *adapter = json_object_get(doc, "adapter"), *text = json_object_get(doc, "prompt");
    if (adapter && !json_is_string(adapter))
        return mx_fail(MX_INPUT, "\"adapter\" must be the name of one, or \"\" for none");
    if (adapter)
        p->adapter = mx_strdup(json_string_value(adapter));
    if (json_object_get(doc, "messages"))
        return MX_OK;
    if (!json_is_string(text))
        return mx_fail(MX_INPUT, "\"prompt\" must be a text");
    mx_free(p->text);
    p->text = mx_strdup(json_string_value(text));
    return MX_OK;
}

static mx_status take_messages(mx_prompt *p, const char *line, size_t n)
{
    json_t *doc;
    MX_TRY(mx_json_parse(line, n, "a conversation", NULL, &doc));
    const json_t *list = json_is_array(doc) ? doc : json_object_get(doc, "messages");
    mx_status st = json_is_object(doc) ? take_adapter(p, doc) : MX_OK;
    bool text_alone = json_is_object(doc) && !list;
    if (!st && !text_alone)
        st = mx_messages_check(list);
    if (!st && !text_alone) {
        p->messages = json_incref((json_t *)list);
        p->tools = json_incref(json_object_get(doc, "tools"));
    }
    json_decref(doc);
    return st;
}

mx_status mx_prompt_from_line(mx_prompt *p, const char *line, size_t n)
{
    json_t *string = *line == '"' ? json_loadb(line, n, JSON_DECODE_ANY, NULL) : NULL;
    if (json_is_string(string))
        mx_prompt_from_text(p, json_string_value(string), json_string_length(string));
    else
        mx_prompt_from_text(p, line, n);
    json_decref(string);
    return looks_like_messages(line) ? take_messages(p, line, n) : MX_OK;
}

/* --- to tokens --- */

/* A user's message. Pictures that the text has no place for come before it, as parts of a list. */
static json_t *message_of(const mx_prompt_setup *w, const char *text)
{
    const mx_pictures *pictures = w->pictures;
    if (!pictures->n || mx_pictures_marked(pictures, text, strlen(text)))
        return json_pack("[{s:s, s:s}]", "role", "user", "content", text);
    json_t *parts = json_array();
    for (int i = 0; i < pictures->n; i++)
        json_array_append_new(parts, json_pack("{s:s}", "type", "image"));
    json_array_append_new(parts, json_pack("{s:s, s:s}", "type", "text", "text", text));
    return json_pack("[{s:s, s:o}]", "role", "user", "content", parts);
}

static const char *role_of(const json_t *messages, size_t i)
{
    const char *role = json_string_value(json_object_get(json_array_get(messages, i), "role"));
    return role ? role : "";
}

static mx_status add_system(json_t *messages, const char *text)
{
    if (strcmp(role_of(messages, 0), "system") == 0)
        return mx_fail(MX_USAGE, "the conversation begins with a system message, and system= gives "
                       "another; leave one out");
    json_t *m = json_pack("{s:s, s:s}", "role", "system", "content", text);
    if (!m || json_array_insert_new(messages, 0, m))
        return mx_fail(MX_INPUT, "system= is not valid UTF-8");
    return MX_OK;
}

/* The token's text for the template, which takes C strings; NULL: there is none. */
static const char *token_text(const mx_tokenizer *t, int32_t id, char *buf, size_t cap)
{
    size_t n = 0;
    const char *text = mx_tokenizer_token(t, id, &n);
    if (!text || n >= cap)
        return NULL;
    memcpy(buf, text, n);
    buf[n] = 0;
    return buf;
}

mx_status mx_messages_render(const json_t *messages, const mx_chat_template *chat,
                             const mx_tokenizer *t, mx_chat_options o, mx_str *out)
{
    char bos[256], eos[256];
    o.bos_token = token_text(t, mx_tokenizer_bos(t), bos, sizeof bos);
    o.eos_token = token_text(t, mx_tokenizer_eos(t), eos, sizeof eos);
    return mx_chat_render(chat, messages, &o, out, NULL);
}

static mx_status render(const mx_prompt_setup *w, const json_t *messages, const json_t *tools,
                        mx_str *out)
{
    bool goes_on = strcmp(role_of(messages, json_array_size(messages) - 1), "assistant") == 0;
    mx_chat_options o = {.add_generation_prompt = !goes_on, .continue_final_message = goes_on,
                         .tools = tools};
    return mx_messages_render(messages, w->chat, w->tokenizer, o, out);
}

static mx_status encode_chat(const mx_prompt *p, const mx_prompt_setup *w, mx_tokens *out)
{
    json_t *messages = p->messages ? json_copy(p->messages) : message_of(w, p->text);
    mx_str text = {0};
    mx_encode_options marks = {.special_in_text = MX_SPECIAL_PARSE};
    mx_status st = messages ? MX_OK : mx_fail(MX_INPUT, "the prompt is not valid UTF-8");
    if (!st && w->system && *w->system)
        st = add_system(messages, w->system);
    if (!st)
        st = render(w, messages, p->tools, &text);
    if (!st && w->pictures->n)
        st = mx_pictures_encode(w->pictures, w->tokenizer, mx_str_text(&text), text.len, false,
                                out);
    else if (!st)
        st = mx_tokenizer_encode(w->tokenizer, mx_str_text(&text), text.len, &marks, out);
    json_decref(messages);
    mx_str_fini(&text);
    return st;
}

mx_status mx_prompt_encode(const mx_prompt *p, const mx_prompt_setup *w, mx_tokens *out)
{
    size_t n = strlen(p->text);
    mx_encode_options plain = {.add_special = true, .special_in_text = MX_SPECIAL_TEXT};
    if (!w->pictures->n && mx_pictures_marked(w->pictures, p->text, n))
        return mx_fail(MX_USAGE, "the prompt has a place for an image, %s, but none is given; add "
                       "image=FILE", w->pictures->processor.spec.mark);
    if (w->chat)
        return encode_chat(p, w, out);
    if (p->messages)
        return mx_fail(MX_USAGE, "a conversation needs a chat template, and the model has none or "
                       "use_chat_template=false; give chat_template_path=FILE");
    if (w->system && *w->system)
        return mx_fail(MX_USAGE, "system= needs a chat template, and the model has none or "
                       "use_chat_template=false; put the text into the prompt");
    if (w->pictures->n)
        return mx_pictures_encode(w->pictures, w->tokenizer, p->text, n, true, out);
    return mx_tokenizer_encode(w->tokenizer, p->text, n, &plain, out);
}
