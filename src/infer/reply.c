/* reply.c - see reply.h. */
#include "infer/reply.h"

#include <string.h>

void mx_reply_init(mx_reply *r, const mx_tokenizer *t, bool skip_special, const char *const *stop,
                   int n_stop)
{
    *r = (mx_reply){.stop = stop, .n_stop = n_stop, .stopped_by = -1};
    mx_token_stream_init(&r->stream, t, skip_special);
}

void mx_reply_fini(mx_reply *r)
{
    mx_token_stream_fini(&r->stream);
    mx_str_fini(&r->text);
}

/* The text ends at the first stop text in it. What stood before byte `from` has been looked at, but
 * a stop text may begin there. */
static void cut_at_stop(mx_reply *r, size_t from)
{
    size_t first = r->text.len;
    for (int i = 0; i < r->n_stop; i++) {
        size_t n = strlen(r->stop[i]), at = from >= n ? from - n + 1 : 0;
        const char *hit = n && at < r->text.len
                              ? memmem(r->text.text + at, r->text.len - at, r->stop[i], n)
                              : NULL;
        if (hit && (size_t)(hit - r->text.text) < first) {
            first = (size_t)(hit - r->text.text);
            r->stopped_by = i;
        }
    }
    if (r->stopped_by < 0)
        return;
    r->text.len = first + (r->keep_stop ? strlen(r->stop[r->stopped_by]) : 0);
    r->text.text[r->text.len] = 0;
}

/* How many bytes at the end may be the beginning of a stop text. */
static size_t held_back(const mx_reply *r)
{
    size_t most = 0;
    for (int i = 0; i < r->n_stop; i++)
        for (size_t n = strlen(r->stop[i]); n-- > most + 1;)
            if (n <= r->text.len && memcmp(r->text.text + r->text.len - n, r->stop[i], n) == 0)
                most = n;
    return most;
}

mx_status mx_reply_push(mx_reply *r, int32_t id, bool searches)
{
    size_t before = r->text.len;
    MX_TRY(mx_token_stream_push(&r->stream, id, &r->text));
    if (searches)
        cut_at_stop(r, before);
    r->settled = r->text.len - (r->stopped_by < 0 ? held_back(r) : 0);
    return MX_OK;
}

mx_status mx_reply_finish(mx_reply *r)
{
    size_t before = r->text.len;
    if (r->stopped_by < 0) {
        MX_TRY(mx_token_stream_finish(&r->stream, &r->text));
        cut_at_stop(r, before);
    }
    r->settled = r->text.len;
    return MX_OK;
}
