/* encode_whole.c - examples as post-training sees them: each is one text, tokenized from its start.
 *
 * Where a record has a prompt, the prompt is tokenized a second time alone, and the completion
 * begins at the first token in which the two differ: usually after the prompt, one token earlier
 * where the last letters of one and the first of the other make a token. The two sides of a
 * preference begin at the earlier of their places. Begin and end tokens: what the tokenizer itself
 * adds to a text, and an end token after texts and completions that have none; conversations are
 * what the chat template says and nothing else. ORPO's sides (sides_apart) begin each at its own
 * place, at most one token before the prompt's end, and have begin and end tokens around
 * conversations too, as TRL's ORPO trainer does it.
 */
#include "data/load/encode.h"

#include <string.h>

/* A text without the end token's text at its end, which finish() brings as a token. */
static mx_text_range without_end(const mx_encoder *e, mx_text_range s)
{
    size_t n = 0;
    int32_t eos = e->add_eos ? mx_tokenizer_eos(e->tokenizer) : -1;
    const char *text = eos >= 0 ? mx_tokenizer_token(e->tokenizer, eos, &n) : NULL;
    if (text && n && s.len >= n && memcmp(s.text + s.len - n, text, n) == 0)
        s.len -= n;
    return s;
}

static mx_status tokenize(const mx_encoder *e, const mx_str *text, bool rendered, mx_tokens *out)
{
    mx_encode_options o = {.add_special = !rendered && e->add_bos,
                           .special_in_text = rendered || e->parse_special ? MX_SPECIAL_PARSE
                                                                           : MX_SPECIAL_TEXT};
    out->n = 0;
    return mx_tokenizer_encode(e->tokenizer, mx_str_text(text), text->len, &o, out);
}

static void finish(const mx_encoder *e, mx_document *d)
{
    int32_t eos = e->add_eos ? mx_tokenizer_eos(e->tokenizer) : -1;
    if (eos >= 0 && (d->ids.n == 0 || d->ids.ids[d->ids.n - 1] != eos))
        mx_tokens_add(&d->ids, eos);
}

static int64_t common(const mx_tokens *a, const mx_tokens *b)
{
    int64_t n = 0;
    while (n < a->n && n < b->n && a->ids[n] == b->ids[n])
        n++;
    return n;
}

/* Everything is trained from token `from` on, or from the first. */
static void mark(const mx_encoder *e, mx_document *d, int64_t from)
{
    mx_encode_mark(d, 0, e->loss_on == MX_LOSS_ALL);
    mx_encode_mark(d, from, true);
}

/* Where an answer begins, `alone` being the prompt's tokens. */
static int64_t begin_of(const mx_encoder *e, const mx_tokens *alone, mx_document *d)
{
    int64_t n = common(alone, &d->ids);
    if (!e->sides_apart)
        return n;
    n = n < alone->n ? alone->n - 1 : n;
    int32_t bos = e->add_bos ? mx_tokenizer_bos(e->tokenizer) : -1;
    if (bos < 0 || (d->ids.n && d->ids.ids[0] == bos))
        return n;
    mx_tokens_add(&d->ids, bos);
    memmove(d->ids.ids + 1, d->ids.ids, sizeof *d->ids.ids * (size_t)(d->ids.n - 1));
    d->ids.ids[0] = bos;
    return n + 1;
}

static void mark_sides(const mx_encoder *e, mx_document out[2], const int64_t begins[2])
{
    int64_t first = begins[0] < begins[1] ? begins[0] : begins[1];
    for (int k = 0; k < 2; k++)
        mark(e, &out[k], e->sides_apart ? begins[k] : first);
}

/* --- texts --- */

static mx_status encode_text(const mx_encoder *e, mx_text_range text, mx_document *d)
{
    mx_str s = {0};
    text = without_end(e, text);
    mx_str_add_n(&s, text.text, text.len);
    mx_status st = tokenize(e, &s, false, &d->ids);
    mx_str_fini(&s);
    finish(e, d);
    mx_encode_mark(d, 0, true);
    return st;
}

/* d: prompt and answer; *begins: the first token that is not the prompt's. */
static mx_status encode_answer(const mx_encoder *e, mx_text_range prompt, mx_text_range answer,
                               mx_document *d, int64_t *begins)
{
    mx_str s = {0};
    mx_tokens alone = {0};
    mx_status st;
    mx_str_add_n(&s, prompt.text, prompt.len);
    MX_TRY_OUT(st, tokenize(e, &s, false, &alone));
    answer = without_end(e, answer);
    mx_str_add_n(&s, answer.text, answer.len);
    MX_TRY_OUT(st, tokenize(e, &s, false, &d->ids));
    *begins = begin_of(e, &alone, d);
    finish(e, d);
out:
    mx_tokens_fini(&alone);
    mx_str_fini(&s);
    return st;
}

/* Without a prompt of its own, a pair's is what its sides have in common, up to a space. Where one
 * side begins the other, its last character is the answer, as TRL's extract_prompt has it. */
static mx_text_range common_prompt(mx_text_range side[2])
{
    size_t n = 0;
    while (n < side[0].len && n < side[1].len && side[0].text[n] == side[1].text[n])
        n++;
    bool ends = n == side[0].len || n == side[1].len;
    n -= ends && n;
    while (n && n < side[0].len && ((unsigned char)side[0].text[n] & 0xC0) == 0x80)
        n--; /* not inside a character */
    n -= !ends && n && side[0].text[n - 1] == ' ';
    mx_text_range prompt = {side[0].text, n};
    for (int k = 0; k < 2; k++)
        side[k] = (mx_text_range){side[k].text + n, side[k].len - n};
    return prompt;
}

static mx_status encode_pair(const mx_encoder *e, const mx_example *x, mx_document out[2])
{
    mx_text_range side[2] = {x->chosen, x->rejected}, prompt = x->prompt;
    int64_t begins[2];
    if (!prompt.text)
        prompt = common_prompt(side);
    for (int k = 0; k < 2; k++)
        MX_TRY(encode_answer(e, prompt, side[k], &out[k], &begins[k]));
    mark_sides(e, out, begins);
    return MX_OK;
}

/* --- conversations --- */

/* The token that the text's byte `at` belongs to, or the one after it where `end` is asked for:
 * by the tokens of the text before it. */
static mx_status token_at(const mx_encoder *e, const mx_str *text, size_t at, bool end,
                          const mx_tokens *ids, int64_t *token)
{
    mx_str head = {0};
    mx_tokens alone = {0};
    mx_str_add_n(&head, mx_str_text(text), at);
    mx_status st = tokenize(e, &head, true, &alone);
    *token = common(&alone, ids);
    *token += end && *token < alone.n && *token < ids->n; /* a token that goes on after the end */
    mx_tokens_fini(&alone);
    mx_str_fini(&head);
    return st;
}

static mx_status mark_assistant(const mx_encoder *e, const mx_str *text,
                                const mx_chat_spans *spans, mx_document *d)
{
    mx_encode_mark(d, 0, false);
    for (int i = 0; i < spans->n; i++) {
        int64_t from, to;
        MX_TRY(token_at(e, text, spans->v[i].begin, false, &d->ids, &from));
        MX_TRY(token_at(e, text, spans->v[i].end, true, &d->ids, &to));
        if (to > from)
            memset(d->trained + from, true, (size_t)(to - from));
    }
    return MX_OK;
}

/* The first token after the first n messages and what begins an answer. */
static mx_status after_prompt(const mx_encoder *e, const mx_example *x, json_t *messages, size_t n,
                               mx_document *d, int64_t *begins)
{
    mx_str head = {0};
    mx_tokens alone = {0};
    mx_status st = mx_chat_text(e, messages, x->tools, n, true, &head);
    if (!st)
        st = tokenize(e, &head, true, &alone);
    *begins = begin_of(e, &alone, d);
    mx_tokens_fini(&alone);
    mx_str_fini(&head);
    return st;
}

static mx_status encode_chat(const mx_encoder *e, const mx_example *x, mx_document *d)
{
    mx_str text = {0};
    mx_chat_spans spans = {0};
    bool plain = false;
    mx_status st;
    int64_t begins = 0;
    MX_TRY_OUT(st, mx_chat_assistant(e, x->messages, x->tools, &text, &spans, &plain));
    if (plain) {
        st = mx_encode_chat(e, x->messages, x->tools, d);
        goto out;
    }
    MX_TRY_OUT(st, tokenize(e, &text, true, &d->ids));
    size_t n = x->n_prompt, all = json_array_size(x->messages);
    if (!n && e->answers_last && e->loss_on == MX_LOSS_COMPLETION && all > 1)
        n = all - 1;
    if (e->loss_on != MX_LOSS_ALL && n)
        MX_TRY_OUT(st, after_prompt(e, x, x->messages, n, d, &begins));
    if (e->loss_on == MX_LOSS_ASSISTANT) { /* nothing of the prompt, not even the assistant's
                                            * turns */
        MX_TRY_OUT(st, mark_assistant(e, &text, &spans, d));
        if (begins)
            memset(d->trained, false, (size_t)begins);
        goto out;
    }
    mark(e, d, begins);
out:
    mx_chat_spans_fini(&spans);
    mx_str_fini(&text);
    return st;
}

/* Messages that both sides begin with, if the record does not say what the prompt is. */
static size_t prompt_messages(const mx_example *x)
{
    size_t n = x->n_prompt, most = json_array_size(x->chosen_messages);
    if (n)
        return n;
    while (n + 1 < most && n + 1 < json_array_size(x->rejected_messages) &&
           json_equal(json_array_get(x->chosen_messages, n),
                      json_array_get(x->rejected_messages, n)))
        n++;
    return n;
}

static mx_status encode_pair_of_chats(const mx_encoder *e, const mx_example *x, mx_document out[2])
{
    json_t *side[2] = {x->chosen_messages, x->rejected_messages};
    int64_t begins[2] = {0};
    size_t n = prompt_messages(x);
    for (int k = 0; k < 2; k++) {
        mx_str text = {0};
        mx_status st = mx_chat_text(e, side[k], x->tools, json_array_size(side[k]), false, &text);
        if (!st)
            st = tokenize(e, &text, true, &out[k].ids);
        if (!st && n)
            st = after_prompt(e, x, side[k], n, &out[k], &begins[k]);
        if (!st && e->sides_apart)
            finish(e, &out[k]);
        mx_str_fini(&text);
        MX_TRY(st);
    }
    mark_sides(e, out, begins);
    return MX_OK;
}

mx_status mx_encode_whole(const mx_encoder *e, const mx_example *x, mx_document out[2])
{
    int64_t begins = 0;
    switch (x->kind) {
    case MX_EXAMPLE_TEXT: return encode_text(e, x->text, &out[0]);
    case MX_EXAMPLE_CHAT:
        return e->chat ? encode_chat(e, x, &out[0])
                       : mx_encode_chat(e, x->messages, x->tools, &out[0]);
    case MX_EXAMPLE_COMPLETION:
        MX_TRY(encode_answer(e, x->prompt, x->completion, &out[0], &begins));
        mark(e, &out[0], begins);
        return MX_OK;
    case MX_EXAMPLE_PREFERENCE:
        if (!x->chosen_messages)
            return encode_pair(e, x, out);
        if (!e->chat)
            return mx_fail(MX_INPUT, "chosen and rejected are conversations, and the model has no "
                           "chat template; set chat_template_path");
        return encode_pair_of_chats(e, x, out);
    default: break;
    }
    MX_ASSERT(false, "example kind %d", x->kind);
    return MX_OK;
}
