/* encode_chat.c - conversations: rendered by the model's chat template, tokenized, masked.
 *
 * What is trained with completion_only: the bytes that the template marks with {% generation %};
 * for a template without marks, what each assistant message adds to the rendering: with R(k, g) the
 * text of the first k messages (g: with the generation prompt), message k adds R(k+1, no) minus its
 * prefix R(k, yes). Where that is no prefix (templates that rewrite earlier turns), R(k, no) is
 * tried, then an error.
 *
 * Special tokens: the rendered text is tokenized with the template's marks recognised, in runs of
 * equal training flag. When some message's content itself holds a special token's text, that
 * content is found in the rendering and tokenized as ordinary text (unless parse_special).
 */
#include "data/load/encode.h"

#include <string.h>

typedef mx_chat_spans ranges;

static void add_range(ranges *r, size_t begin, size_t end)
{
    if (end <= begin)
        return;
    MX_GROW(r->v, r->n, r->cap);
    r->v[r->n++] = (mx_chat_span){begin, end};
}

static bool inside(const ranges *r, int *i, size_t at)
{
    while (*i < r->n && r->v[*i].end <= at)
        ++*i;
    return *i < r->n && r->v[*i].begin <= at;
}

/* Where the state at `at` may next change: the begin or end of the range ahead. */
static size_t next_edge(const ranges *r, int i, size_t at, size_t end)
{
    if (i >= r->n)
        return end;
    size_t edge = r->v[i].begin > at ? r->v[i].begin : r->v[i].end;
    return edge < end ? edge : end;
}

/* --- rendering --- */

static const char *role_of(json_t *m)
{
    const char *role = json_string_value(json_object_get(m, "role"));
    return role ? role : "";
}

static mx_status render(const mx_encoder *e, json_t *messages, json_t *tools, size_t n, bool prompt,
                        mx_str *out, mx_chat_spans *spans)
{
    char bos[64] = "", eos[64] = "";
    struct {
        int32_t id;
        char *text;
    } marks[2] = {{mx_tokenizer_bos(e->tokenizer), bos}, {mx_tokenizer_eos(e->tokenizer), eos}};
    for (int i = 0; i < 2; i++) {
        size_t len = 0;
        const char *t =
            marks[i].id >= 0 ? mx_tokenizer_token(e->tokenizer, marks[i].id, &len) : NULL;
        if (t && len < sizeof bos)
            memcpy(marks[i].text, t, len);
    }
    json_t *head = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append(head, json_array_get(messages, i));
    mx_chat_options o = {.add_generation_prompt = prompt,
                         .tools = tools,
                         .bos_token = *bos ? bos : NULL,
                         .eos_token = *eos ? eos : NULL,
                         .now = 1735689600}; /* a template that prints today's date must not make
                                                data depend on the day of the run */
    mx_status st = mx_chat_render(e->chat, head, &o, out, spans);
    json_decref(head);
    return st;
}

static bool has_prefix(const mx_str *s, const mx_str *prefix)
{
    return s->len >= prefix->len && memcmp(mx_str_text(s), mx_str_text(prefix), prefix->len) == 0;
}

/* What assistant message k adds, as a range of `whole`. */
static mx_status added_by(const mx_encoder *e, json_t *messages, json_t *tools, size_t k,
                          const mx_str *whole, ranges *trained)
{
    mx_str before = {0}, after = {0};
    mx_status st = MX_OK;
    bool last = k + 1 == json_array_size(messages), found = false;
    if (!last)
        st = render(e, messages, tools, k + 1, false, &after, NULL);
    const mx_str *to = last ? whole : &after;
    for (int with_prompt = 1; !st && !found && with_prompt >= 0 && k > 0; with_prompt--) {
        mx_str_clear(&before);
        st = render(e, messages, tools, k, with_prompt, &before, NULL);
        found = !st && has_prefix(to, &before) && has_prefix(whole, to);
    }
    if (!st && (found || k == 0))
        add_range(trained, k == 0 ? 0 : before.len, to->len);
    else if (!st)
        st = mx_fail(
            MX_INPUT,
            "the chat template has no {%% generation %%} marks, and it renders earlier "
            "messages differently once message %zu follows, so what the assistant wrote cannot be "
            "told; add the marks to the template, or train on everything with loss_on=all",
            k);
    mx_str_fini(&before);
    mx_str_fini(&after);
    return st;
}

static mx_status find_trained(const mx_encoder *e, json_t *messages, json_t *tools,
                              const mx_str *text, const mx_chat_spans *spans, ranges *trained)
{
    if (e->loss_on != MX_LOSS_ASSISTANT) {
        add_range(trained, 0, text->len);
        return MX_OK;
    }
    if (mx_chat_template_has_generation(e->chat)) {
        for (int i = 0; i < spans->n; i++)
            add_range(trained, spans->v[i].begin, spans->v[i].end);
        return MX_OK;
    }
    for (size_t k = 0; k < json_array_size(messages); k++)
        if (strcmp(role_of(json_array_get(messages, k)), "assistant") == 0)
            MX_TRY(added_by(e, messages, tools, k, text, trained));
    return MX_OK;
}

/* --- special tokens in contents --- */

static mx_status holds_special(const mx_encoder *e, const char *text, size_t n, bool *found)
{
    mx_tokens t = {0};
    mx_encode_options o = {.special_in_text = MX_SPECIAL_PARSE};
    mx_status st = mx_tokenizer_encode(e->tokenizer, text, n, &o, &t);
    *found = false;
    for (int64_t i = 0; i < t.n && !*found; i++)
        *found = mx_tokenizer_is_special(e->tokenizer, t.ids[i]);
    mx_tokens_fini(&t);
    return st;
}

/* Ranges of the rendering that are contents holding special-token text. Templates may trim
 * contents, so the trimmed text is what is looked for. */
static mx_status find_contents(const mx_encoder *e, json_t *messages, const mx_str *text,
                               ranges *plain)
{
    size_t at = 0, k;
    json_t *m;
    if (e->parse_special)
        return MX_OK;
    json_array_foreach (messages, k, m) {
        json_t *content = json_object_get(m, "content");
        const char *s = json_string_value(content);
        size_t n = json_string_length(content);
        while (n && (unsigned char)*s <= ' ')
            s++, n--;
        while (n && (unsigned char)s[n - 1] <= ' ')
            n--;
        if (!n)
            continue;
        const char *hit = memmem(mx_str_text(text) + at, text->len - at, s, n);
        bool special;
        MX_TRY(holds_special(e, s, n, &special));
        if (special && !hit)
            return mx_fail(
                MX_INPUT,
                "message %zu contains the text of a special token, and the chat template "
                "changes the message, so the two cannot be told apart; remove it from the data, "
                "or set special_in_text=parse to let it through",
                k);
        if (special)
            add_range(plain, (size_t)(hit - text->text), (size_t)(hit - text->text) + n);
        if (hit)
            at = (size_t)(hit - text->text) + n;
    }
    return MX_OK;
}

/* --- without a template --- */

static mx_status plain_message(const mx_encoder *e, json_t *m, mx_str *line, mx_document *d)
{
    const char *role = role_of(m);
    json_t *content = json_object_get(m, "content");
    bool all = e->loss_on != MX_LOSS_ASSISTANT, assistant = strcmp(role, "assistant") == 0;
    if (json_is_array(content))
        return mx_fail(MX_INPUT, "a message has a list as content, which needs a chat template");
    mx_str_clear(line);
    mx_str_addf(line, "%c%s: ", *role >= 'a' && *role <= 'z' ? *role - 32 : *role,
                *role ? role + 1 : "");
    MX_TRY(mx_encode_text(e, line->text, line->len, false, all, d));
    mx_str_clear(line);
    if (json_is_string(content))
        mx_str_add_n(line, json_string_value(content), json_string_length(content));
    mx_str_add(line, "\n");
    MX_TRY(mx_encode_text(e, line->text, line->len, e->parse_special, all || assistant, d));
    if (assistant && e->add_eos)
        mx_encode_id(mx_tokenizer_eos(e->tokenizer), true, d);
    return MX_OK;
}

static mx_status encode_plain(const mx_encoder *e, json_t *messages, mx_document *d)
{
    mx_str line = {0};
    mx_status st = MX_OK;
    if (e->add_bos)
        mx_encode_id(mx_tokenizer_bos(e->tokenizer), false, d);
    for (size_t k = 0; !st && k < json_array_size(messages); k++)
        st = plain_message(e, json_array_get(messages, k), &line, d);
    mx_str_fini(&line);
    return st;
}

mx_status mx_chat_text(const mx_encoder *e, json_t *messages, json_t *tools, size_t n, bool prompt,
                       mx_str *out)
{
    return render(e, messages, tools, n, prompt, out, NULL);
}

mx_status mx_chat_assistant(const mx_encoder *e, json_t *messages, json_t *tools, mx_str *out,
                            mx_chat_spans *spans, bool *plain)
{
    ranges trained = {0}, contents = {0};
    mx_status st;
    *plain = false;
    MX_TRY_OUT(st, render(e, messages, tools, json_array_size(messages), false, out, spans));
    MX_TRY_OUT(st, find_contents(e, messages, out, &contents));
    *plain = contents.n > 0;
    MX_TRY_OUT(st, find_trained(e, messages, tools, out, spans, &trained));
    mx_chat_spans_fini(spans);
    *spans = trained;
    trained = (ranges){0};
out:
    mx_free(trained.v);
    mx_free(contents.v);
    return st;
}

mx_status mx_encode_chat(const mx_encoder *e, json_t *messages, json_t *tools, mx_document *d)
{
    if (!e->chat)
        return encode_plain(e, messages, d);
    mx_str text = {0};
    mx_chat_spans spans = {0};
    ranges trained = {0}, plain = {0};
    mx_status st;
    MX_TRY_OUT(st, render(e, messages, tools, json_array_size(messages), false, &text, &spans));
    MX_TRY_OUT(st, find_trained(e, messages, tools, &text, &spans, &trained));
    MX_TRY_OUT(st, find_contents(e, messages, &text, &plain));
    int it = 0, ip = 0;
    for (size_t at = 0; at < text.len;) {
        bool train = inside(&trained, &it, at), as_text = inside(&plain, &ip, at);
        size_t a = next_edge(&trained, it, at, text.len), b = next_edge(&plain, ip, at, text.len);
        size_t end = a < b ? a : b;
        MX_TRY_OUT(st, mx_encode_text(e, text.text + at, end - at, !as_text, train, d));
        at = end;
    }
out:
    mx_str_fini(&text);
    mx_chat_spans_fini(&spans);
    mx_free(trained.v);
    mx_free(plain.v);
    return st;
}
