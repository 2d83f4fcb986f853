/* completions.c - /v1/completions: texts or token ids to go on with. */
#include "base/json_doc.h"
#include "serve/api_call.h"

#include <math.h>
#include <string.h>

enum { USUAL_TOKENS = 16, MOST_PROMPTS = 1024, MOST_TOP = 20 };

static bool read_ids(mx_fields *f, const char *field, const json_t *list, mx_tokens *out)
{
    size_t i;
    const json_t *x;
    json_array_foreach((json_t *)list, i, x)
    {
        json_int_t id = json_integer_value(x);
        if (!json_is_integer(x) || id < 0 || id > INT32_MAX) {
            mx_field_wrong(f, field,
                           "must be a string, a list of strings, a list of token ids "
                           "or a list of such lists; item %zu is none",
                           i);
            return false;
        }
        mx_tokens_add(out, (int32_t)id);
    }
    return true;
}

static void read_prompt(mx_api_call *c, mx_fields *f, const char *field, const json_t *p)
{
    mx_tokens t = {0};
    mx_encode_options o = {.add_special = mx_field_bool(f, "add_special_tokens", true),
                           .special_in_text = MX_SPECIAL_PARSE};
    bool text = json_is_string(p), read = true;
    if (text) {
        mx_status st = mx_tokenizer_encode(c->served->tokenizer, json_string_value(p),
                                           json_string_length(p), &o, &t);
        if (st)
            mx_field_wrong(f, field, "cannot be tokenized: %s", mx_status_text(st));
        read = !st;
        mx_status_free(st);
    } else if (json_is_array(p)) {
        read = read_ids(f, field, p, &t);
    } else {
        mx_field_wrong(f, field, "must be a string or a list, not %s", mx_json_kind(p));
        read = false;
    }
    if (read)
        mx_api_call_add_prompt(c, f, &t, text ? json_string_value(p) : NULL);
    mx_tokens_fini(&t);
}

void mx_prompts_read(mx_api_call *c, mx_fields *f, const char *field)
{
    const json_t *p = mx_field_get(f, field);
    const json_t *first = json_array_get(p, 0);
    bool several = json_is_array(p) && (json_is_string(first) || json_is_array(first));
    size_t n = several ? json_array_size(p) : 1;
    if (!p || n == 0 || n > MOST_PROMPTS) {
        mx_field_wrong(f, field, "must be a text or token ids, or a list of at most %d of them",
                       MOST_PROMPTS);
        return;
    }
    c->prompts = MX_NEW_N(&c->arena, mx_tokens, n);
    c->texts = MX_NEW_N(&c->arena, const char *, n);
    for (size_t i = 0; i < n && !f->param; i++)
        read_prompt(c, f, field, several ? json_array_get(p, i) : p);
}

static void read(mx_api_call *c, mx_fields *f)
{
    c->o.max_new = mx_field_int(f, "max_tokens", USUAL_TOKENS, 0, INT32_MAX);
    c->echo = mx_field_bool(f, "echo", false);
    c->n_top = (int)mx_field_int(f, "logprobs", -1, 0, MOST_TOP);
    c->logprobs = c->n_top >= 0;
    c->n_top = c->logprobs ? c->n_top : 0;
    c->o.log_probs = c->logprobs;
    c->o.n_top = c->n_top;
    c->o.prompt_log_probs = c->logprobs && c->echo;
    if (mx_field_get(f, "suffix"))
        mx_field_wrong(f, "suffix", "is not supported");
    if (c->o.max_new == 0 && !c->echo)
        mx_field_wrong(f, "max_tokens", "must be at least 1 without `echo`");
    mx_prompts_read(c, f, "prompt");
}

/* --- writing --- */

static json_t *number(float x)
{
    return isfinite(x) ? json_real(x) : isnan(x) ? json_null() : json_real(-9999);
}

static json_t *top_of(const mx_part *p, int64_t t)
{
    const mx_request *r = p->r;
    json_t *top = json_object();
    for (int k = 0; k < r->n_top; k++) {
        json_t *name = mx_token_name(p->call->served, r->top[t * r->n_top + k].id);
        if (!json_object_get(top, json_string_value(name)))
            json_object_set_new(top, json_string_value(name),
                                number(r->top[t * r->n_top + k].log_prob));
        json_decref(name);
    }
    json_t *own = mx_token_name(p->call->served, r->tokens.ids[t]);
    if (!json_object_get(top, json_string_value(own)))
        json_object_set_new(top, json_string_value(own), number(r->log_prob[t]));
    json_decref(own);
    return top;
}

static bool starts_with(const char *text, const char *with, size_t n)
{
    return strncmp(text, with, n) == 0;
}

/* Moves *offset over the characters that begin in token t. Special tokens have some where they are
 * shown, and where they stand in `text`, what is left of the echoed prompt; NULL: it has none. A
 * space that the tokenizer puts before a text has none there. */
static void pass_token(const mx_part *p, int64_t t, const char **text, int64_t *offset)
{
    const mx_api_call *c = p->call;
    int32_t id = p->r->tokens.ids[t];
    mx_str bytes = {0};
    mx_token_raw(c->served, id, &bytes);
    const char *raw = mx_str_text(&bytes);
    size_t n = bytes.len;
    bool given = *text && t < p->r->n_prompt, found = given && starts_with(*text, raw, n);
    if (!found && mx_tokenizer_is_special(c->served->tokenizer, id))
        n = t >= p->r->n_prompt && c->o.show_special ? n : 0;
    else if (given && !found && *raw == ' ' && starts_with(*text, raw + 1, n - 1))
        raw++, n--;
    for (size_t i = 0; i < n; i++)
        *offset += (raw[i] & 0xc0) != 0x80;
    if (given)
        *text += strnlen(*text, n);
    mx_str_fini(&bytes);
}

/* Tokens [from, to); *offset: characters before them. */
static json_t *logprobs_of(const mx_part *p, int64_t from, int64_t to, int64_t *offset)
{
    const mx_request *r = p->r;
    json_t *tokens = json_array(), *values = json_array(), *tops = json_array();
    json_t *offsets = json_array();
    const char *text = from == 0 ? p->call->texts[p->prompt] : NULL;
    for (int64_t t = from; t < to; t++) {
        json_t *name = mx_token_name(p->call->served, r->tokens.ids[t]);
        json_array_append_new(offsets, json_integer(*offset));
        pass_token(p, t, &text, offset);
        json_array_append_new(tokens, name);
        json_array_append_new(values, number(r->log_prob[t]));
        json_array_append_new(tops, isnan(r->log_prob[t]) ? json_null() : top_of(p, t));
    }
    return json_pack("{s:o, s:o, s:o, s:o}", "tokens", tokens, "token_logprobs", values,
                     "top_logprobs", tops, "text_offset", offsets);
}

/* The prompt's text where it is echoed; as tokens it was never a text. */
static void add_echo(const mx_part *p, mx_str *out)
{
    const mx_api_call *c = p->call;
    const mx_tokens *t = &c->prompts[p->prompt];
    mx_decode_options o = {.skip_special = true};
    if (c->echo && c->texts[p->prompt])
        mx_str_add(out, c->texts[p->prompt]);
    else if (c->echo)
        mx_status_free(mx_tokenizer_decode(c->served->tokenizer, t->ids, t->n, &o, out));
}

static json_t *choice_of(const mx_part *p, const mx_str *text, json_t *logprobs)
{
    const mx_request *r = p->r;
    return json_pack("{s:i, s:o, s:o, s:s?, s:o}", "index", p->index, "text",
                     json_stringn(mx_str_text(text), text->len), "logprobs",
                     logprobs ? logprobs : json_null(), "finish_reason", mx_finish_name(r),
                     "stop_reason", mx_stop_reason(r));
}

static json_t *whole(const mx_part *p)
{
    const mx_request *r = p->r;
    mx_str text = {0};
    int64_t offset = 0, from = p->call->echo ? 0 : r->n_prompt;
    add_echo(p, &text);
    mx_str_add_n(&text, mx_str_text(&r->reply.text), r->reply.text.len);
    json_t *l = p->call->logprobs ? logprobs_of(p, from, r->n_prompt + r->n_text, &offset) : NULL;
    json_t *o = choice_of(p, &text, l);
    mx_str_fini(&text);
    return o;
}

static json_t *piece(mx_part *p, bool last)
{
    const mx_request *r = p->r;
    mx_str text = {0};
    int64_t to = r->n_prompt + r->n_text;
    if (!p->begun) {
        p->scored = p->call->echo ? 0 : r->n_prompt;
        add_echo(p, &text);
    }
    mx_str_add_n(&text, mx_str_text(&r->reply.text) + p->sent, r->reply.settled - p->sent);
    if (!text.len && !last && p->begun) {
        mx_str_fini(&text);
        return NULL;
    }
    p->begun = true;
    p->sent = r->reply.settled;
    json_t *l = p->call->logprobs ? logprobs_of(p, p->scored, to, &p->offset) : NULL;
    p->scored = to;
    json_t *o = choice_of(p, &text, l);
    mx_str_fini(&text);
    return o;
}

const mx_api mx_api_completions = {.path = "/v1/completions",
                                   .id_prefix = "cmpl-",
                                   .object = "text_completion",
                                   .chunk_object = "text_completion",
                                   .read = read,
                                   .whole = whole,
                                   .piece = piece};
