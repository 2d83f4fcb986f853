/* token_stream.c - decoding token by token.
 *
 * What a token adds to the text can depend on tokens before it (a leading space that only the first
 * word loses, a character spread over byte tokens). So the text of a small window of recent tokens
 * is decoded with and without the new ones, and the difference is what is new. It is held back
 * while it ends inside a character. The window moves on whenever text has been given out.
 */
#include "text/tokenizer/decoder.h"
#include "text/tokenizer/tokenizer.h"

#include "base/utf8.h"

enum { MOST_HELD = 8 }; /* tokens; a character has at most 4 bytes, the rest is damage */

void mx_token_stream_init(mx_token_stream *s, const mx_tokenizer *t, bool skip_special)
{
    *s = (mx_token_stream){.tokenizer = t, .skip_special = skip_special};
}

void mx_token_stream_fini(mx_token_stream *s)
{
    mx_tokens_fini(&s->ids);
}

static mx_status decode(const mx_token_stream *s, mx_str *text)
{
    mx_decode_options o = {.skip_special = s->skip_special, .raw = true};
    return mx_tokenizer_decode(s->tokenizer, s->ids.ids, s->ids.n, &o, text);
}

static bool ends_in_replacement(const mx_str *t)
{
    return t->len >= 3 && memcmp(t->text + t->len - 3, "\xEF\xBF\xBD", 3) == 0;
}

/* Everything has been given out. Forgets the tokens before those just given out and keeps these as
 * the context of the next, unless they have no text when they stand first (a lone space mark). */
static mx_status move_window(mx_token_stream *s, size_t text_bytes)
{
    mx_token_stream tail = {s->tokenizer, s->skip_special, s->ids, 0, 0};
    mx_str text = {0};
    tail.ids.ids += s->n_settled;
    tail.ids.n -= s->n_settled;
    mx_status st = decode(&tail, &text);
    s->settled_bytes = text_bytes;
    if (!st && text.len) {
        memmove(s->ids.ids, tail.ids.ids, (size_t)tail.ids.n * sizeof *s->ids.ids);
        s->ids.n = tail.ids.n;
        s->settled_bytes = text.len;
    }
    s->n_settled = s->ids.n;
    mx_str_fini(&text);
    return st;
}

static mx_status push(mx_token_stream *s, bool last, mx_str *out)
{
    mx_str text = {0};
    mx_status st = decode(s, &text);
    size_t from = s->settled_bytes < text.len ? s->settled_bytes : text.len;
    bool enough = last || s->ids.n - s->n_settled > MOST_HELD;
    size_t tail = mx_utf8_incomplete_tail((const uint8_t *)mx_str_text(&text), text.len);
    bool held = !enough && (tail || ends_in_replacement(&text));
    if (!st && !held && from < text.len) {
        mx_add_lossy(out, text.text + from, text.len - from);
        st = move_window(s, text.len);
    }
    mx_str_fini(&text);
    return st;
}

mx_status mx_token_stream_push(mx_token_stream *s, int32_t id, mx_str *out)
{
    mx_tokens_add(&s->ids, id);
    mx_status st = push(s, false, out);
    if (st)
        s->ids.n--; /* an id that does not exist leaves the stream as it was */
    return st;
}

mx_status mx_token_stream_finish(mx_token_stream *s, mx_str *out)
{
    return push(s, true, out);
}
