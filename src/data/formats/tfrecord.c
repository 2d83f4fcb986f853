/* tfrecord.c - TFRecord files:
 *     length u64 | masked CRC-32C of the length u32 | data | masked CRC-32C of the data u32
 * Plain files are indexed by hopping over the lengths (whose checksums are verified on the way);
 * gzip files are streams. What the data holds is payload.c's business.
 */
#include "base/crc32c.h"
#include "data/formats/payload.h"
#include "data/formats/source.h"
#include "data/formats/stream.h"

#include <string.h>

typedef struct {
    bool compressed;
    int64_t *at; /* (n_records) */
    int64_t n, cap;
    mx_stream stream;
} state;

static mx_status bad_length(int64_t at)
{
    return mx_fail(
        MX_INPUT,
        "the checksum of the record length at offset %lld is wrong: the file is damaged or no "
        "TFRecord file; where the next record begins cannot be known",
        (long long)at);
}

/* The head may lie at the end of a truncated file. */
static mx_status record_head(mx_source *s, int64_t at, uint64_t *n)
{
    const uint8_t *p;
    size_t got;
    MX_TRY(mx_shard_peek(&s->file, at, 12, &p, &got));
    if (got < 12)
        return mx_fail(MX_INPUT, "the file ends inside a record at offset %lld: it is truncated",
                       (long long)at);
    if (mx_crc32c_masked(p, 8) != mx_le32(p + 8))
        return bad_length(at);
    *n = mx_le64(p);
    if (*n > (uint64_t)(s->file.size_bytes - at - 12) ||
        s->file.size_bytes - at - 12 - (int64_t)*n < 4)
        return mx_fail(
            MX_INPUT,
            "the record of %llu bytes at offset %lld ends past the end of the file: it is "
            "truncated",
            (unsigned long long)*n, (long long)at);
    return MX_OK;
}

static mx_status index_file(mx_source *s)
{
    state *t = s->state;
    for (int64_t at = 0; at < s->file.size_bytes;) {
        uint64_t n;
        MX_TRY(mx_status_wrap(record_head(s, at, &n), "%s", s->file.path));
        MX_GROW(t->at, t->n, t->cap);
        t->at[t->n++] = at;
        at += 16 + (int64_t)n;
    }
    s->n_records = t->n;
    return MX_OK;
}

static mx_status tfrecord_open(mx_source *s)
{
    state *t = mx_realloc(NULL, sizeof *t);
    *t = (state){0};
    s->state = t;
    const uint8_t *p;
    size_t got;
    MX_TRY(mx_shard_peek(&s->file, 0, 12, &p, &got));
    t->compressed = got >= 2 && p[0] == 0x1f && p[1] == 0x8b &&
                    !(got >= 12 && mx_crc32c_masked(p, 8) == mx_le32(p + 8));
    return t->compressed ? mx_stream_open(&t->stream, &s->file, MX_STREAM_GZIP) : index_file(s);
}

static mx_status check_data(const mx_source *s, const uint8_t *p, size_t n, mx_record *r)
{
    if (mx_crc32c_masked(p, n) != mx_le32(p + n))
        return mx_fail(MX_INPUT,
                       "the checksum of the record is wrong: the file is damaged, fetch it again");
    return mx_payload_decode(s, p, n, r);
}

static mx_status tfrecord_read(mx_source *s, int64_t i, mx_record *r)
{
    state *t = s->state;
    uint64_t n;
    const uint8_t *p;
    size_t got;
    r->offset = t->at[i];
    MX_TRY(record_head(s, t->at[i], &n));
    MX_TRY(mx_shard_peek(&s->file, t->at[i] + 12, n + 4, &p, &got));
    return check_data(s, p, n, r);
}

static mx_status next_in_stream(mx_source *s, const uint8_t **p, size_t *n, mx_record *r, bool *end)
{
    mx_stream *z = &((state *)s->state)->stream;
    MX_TRY(mx_stream_fill(z, 12));
    size_t have = z->to - z->from;
    r->offset = z->out_at;
    *end = have == 0;
    if (*end)
        return MX_OK;
    const uint8_t *head = (const uint8_t *)z->buf + z->from;
    if (have < 12)
        return mx_fail(MX_INPUT, "the stream ends inside a record: it is truncated");
    if (mx_crc32c_masked(head, 8) != mx_le32(head + 8))
        return bad_length(z->out_at);
    uint64_t len = mx_le64(head);
    if (len > s->options.max_record_bytes)
        return mx_fail(MX_INPUT, "the record has %llu bytes, max_record_bytes is %zu",
                       (unsigned long long)len, s->options.max_record_bytes);
    MX_TRY(mx_stream_fill(z, len + 16));
    if (z->to - z->from < len + 16)
        return mx_fail(MX_INPUT, "the stream ends inside a record: it is truncated");
    *p = (const uint8_t *)z->buf + z->from + 12;
    *n = len;
    mx_stream_take(z, len + 16);
    s->consumed = mx_stream_consumed(z);
    return MX_OK;
}

static mx_status tfrecord_next(mx_source *s, mx_record *r, bool *end)
{
    const uint8_t *p;
    size_t n;
    mx_status st = next_in_stream(s, &p, &n, r, end);
    s->broken = st != MX_OK;
    if (st || *end)
        return st;
    return check_data(s, p, n, r);
}

static mx_status tfrecord_rewind(mx_source *s)
{
    state *t = s->state;
    mx_stream_close(&t->stream);
    return mx_stream_open(&t->stream, &s->file, MX_STREAM_GZIP);
}

static void tfrecord_close(mx_source *s)
{
    state *t = s->state;
    if (t) {
        mx_stream_close(&t->stream);
        mx_free(t->at);
    }
    mx_free(t);
}

static bool tfrecord_sniff(const uint8_t *head, size_t n)
{
    return n >= 12 && mx_crc32c_masked(head, 8) == mx_le32(head + 8);
}

const mx_source_kind mx_source_kind_tfrecord = {
    .name = "tfrecord", .doc = "TFRecord of tf.train.Example, JSON or text; .gz too",
    .suffixes = " .tfrecord .tfrecords .tfrecord.gz .tfrecords.gz ",
    .sniff = tfrecord_sniff, .open = tfrecord_open, .read = tfrecord_read, .next = tfrecord_next,
    .rewind = tfrecord_rewind, .close = tfrecord_close,
};
