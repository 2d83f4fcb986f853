/* stream.c - see stream.h. Concatenated gzip members and zstd frames are one stream, as gzip and
 * zstd themselves treat them; zstd skippable frames are passed over by the library. */
#include "data/formats/stream.h"

#include "base/arena.h"
#include <string.h>
#include <zlib.h>
#include <zstd.h>

enum { STEP = 256 * 1024, WINDOW_LOG = 27, MAX_RATIO = 2000,
       BOMB_BYTES = 64 << 20 };

mx_status mx_stream_open(mx_stream *s, mx_shard_file *file, mx_stream_codec codec)
{
    *s = (mx_stream){.file = file, .codec = codec};
    if (codec == MX_STREAM_ZSTD) {
        s->decoder = ZSTD_createDCtx();
        if (s->decoder)
            ZSTD_DCtx_setParameter(s->decoder, ZSTD_d_windowLogMax, WINDOW_LOG);
    } else {
        z_stream *z = mx_realloc(NULL, sizeof *z);
        *z = (z_stream){0};
        if (inflateInit2(z, 15 + 16) == Z_OK)
            s->decoder = z;
        else
            mx_free(z);
    }
    return s->decoder ? MX_OK
                      : mx_fail(MX_MEMORY, "%s: no memory for the decompressor", file->path);
}

static mx_status damaged(mx_stream *s, const char *why)
{
    return mx_fail(MX_INPUT,
                   "%s: %s near compressed byte %lld (decompressed offset %lld); the file is "
                   "truncated or damaged, fetch it again",
                   s->file->path, why, (long long)s->in_at,
                   (long long)(s->out_at + (int64_t)(s->to - s->from)));
}

static mx_status step_zstd(mx_stream *s, const uint8_t *in, size_t n_in, size_t *used, size_t room,
                           size_t *made)
{
    ZSTD_inBuffer i = {in, n_in, 0};
    ZSTD_outBuffer o = {s->buf + s->to, room, 0};
    size_t r = ZSTD_decompressStream(s->decoder, &o, &i);
    if (ZSTD_isError(r))
        return damaged(s, ZSTD_getErrorName(r));
    *used = i.pos;
    *made = o.pos;
    s->mid_frame = r != 0;
    return MX_OK;
}

static mx_status step_gzip(mx_stream *s, const uint8_t *in, size_t n_in, size_t *used, size_t room,
                           size_t *made)
{
    z_stream *z = s->decoder;
    z->next_in = (unsigned char *)in;
    z->avail_in = (unsigned)n_in;
    z->next_out = (unsigned char *)s->buf + s->to;
    z->avail_out = (unsigned)room;
    int r = inflate(z, Z_NO_FLUSH);
    if (r != Z_OK && r != Z_STREAM_END && r != Z_BUF_ERROR)
        return damaged(s, z->msg ? z->msg : "not a gzip stream");
    *used = n_in - z->avail_in;
    *made = room - z->avail_out;
    s->mid_frame = r != Z_STREAM_END;
    if (r == Z_STREAM_END)
        inflateReset(z);
    return MX_OK;
}

static void make_room(mx_stream *s, size_t need)
{
    if (s->from && s->from >= s->to - s->from) { /* moving is cheap: less than was taken */
        memcpy(s->buf, s->buf + s->from, s->to - s->from);
        s->to -= s->from;
        s->from = 0;
    }
    size_t want = s->from + need + STEP;
    if (s->to + STEP > want)
        want = s->to + STEP;
    if (want > s->cap) {
        s->cap = want > 2 * s->cap ? want : 2 * s->cap;
        s->buf = mx_realloc(s->buf, s->cap);
    }
}

mx_status mx_stream_fill(mx_stream *s, size_t need)
{
    while (!s->end && s->to - s->from < need) {
        const uint8_t *in;
        size_t n_in, used = 0, made = 0;
        make_room(s, need);
        MX_TRY(mx_shard_peek(s->file, s->in_at, STEP, &in, &n_in));
        n_in = n_in < STEP ? n_in : STEP;
        bool no_input = n_in == 0;
        if (no_input && !s->mid_frame) {
            s->end = true;
            break;
        }
        MX_TRY(s->codec == MX_STREAM_ZSTD ? step_zstd(s, in, n_in, &used, s->cap - s->to, &made)
                                          : step_gzip(s, in, n_in, &used, s->cap - s->to, &made));
        s->in_at += (int64_t)used;
        s->to += made;
        int64_t out = s->out_at + (int64_t)(s->to - s->from);
        if (out > BOMB_BYTES && out / MAX_RATIO > s->in_at)
            return mx_fail(MX_INPUT,
                           "%s: %lld compressed bytes became %lld (more than %d-fold): refused as "
                           "a compression bomb",
                           s->file->path, (long long)s->in_at, (long long)out, MAX_RATIO);
        if (no_input && !made)
            return damaged(s, "the compressed stream ends in the middle");
    }
    return MX_OK;
}

void mx_stream_take(mx_stream *s, size_t n)
{
    s->from += n;
    s->out_at += (int64_t)n;
}

int64_t mx_stream_consumed(const mx_stream *s)
{
    double made = (double)s->out_at + (double)(s->to - s->from);
    return made > 0 ? (int64_t)((double)s->in_at * (double)s->out_at / made) : 0;
}

mx_status mx_stream_line(mx_stream *s, size_t max_bytes, const char **text, size_t *n,
                         int64_t *offset, bool *end)
{
    size_t seen = 0;
    for (;;) {
        MX_TRY(mx_stream_fill(s, seen + 1));
        size_t have = s->to - s->from;
        const char *p = s->buf + s->from;
        const char *nl = have > seen ? memchr(p + seen, '\n', have - seen) : NULL;
        *offset = s->out_at;
        if (nl || s->end) {
            *end = !nl && have == 0;
            *text = p;
            *n = nl ? (size_t)(nl - p) : have;
            mx_stream_take(s, *n + (nl ? 1 : 0));
            if (*n && p[*n - 1] == '\r')
                --*n;
            return MX_OK;
        }
        if (have > max_bytes)
            return mx_fail(MX_INPUT,
                           "the line is longer than %zu bytes: this is not a file of lines, or "
                           "max_record_bytes is too small",
                           max_bytes);
        seen = have;
    }
}

void mx_stream_close(mx_stream *s)
{
    if (s->decoder && s->codec == MX_STREAM_ZSTD)
        ZSTD_freeDCtx(s->decoder);
    else if (s->decoder) {
        inflateEnd(s->decoder);
        mx_free(s->decoder);
    }
    mx_free(s->buf);
    *s = (mx_stream){0};
}
