/* jsonl.c - JSON lines: one object a line; plain (random access) or .gz / .zst (streams). A plain
 * file that begins with '[' is one array of objects (json_array.h).
 *
 * The compression is recognised by the first bytes (1f 8b; 28 b5 2f fd or a skippable frame 5x 2a
 * 4d 18), not by the name. Blank lines are passed over. An overlong line inside a stream ends the
 * stream: where the next line begins is unknown until it has all been read, and reading it is what
 * the limit forbids.
 */
#include "data/formats/json_array.h"
#include "data/formats/json_scan.h"
#include "data/formats/lines.h"
#include "data/formats/source.h"
#include "data/formats/stream.h"

#include <string.h>

typedef struct {
    bool compressed, is_array;
    mx_stream_codec codec;
    mx_lines lines;
    mx_json_array array;
    mx_stream stream;
} state;

static bool is_gzip(const uint8_t *p, size_t n)
{
    return n >= 2 && p[0] == 0x1f && p[1] == 0x8b;
}

static bool is_zstd(const uint8_t *p, size_t n)
{
    return n >= 4 && (mx_le32(p) == 0xfd2fb528u || (mx_le32(p) & 0xfffffff0u) == 0x184d2a50u);
}

static bool jsonl_sniff(const uint8_t *head, size_t n)
{
    size_t i = n >= 3 && memcmp(head, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    while (i < n && (head[i] == ' ' || head[i] == '\n' || head[i] == '\r' || head[i] == '\t'))
        i++;
    return i < n && (head[i] == '{' || head[i] == '[');
}

static mx_status jsonl_open(mx_source *s)
{
    state *t = mx_realloc(NULL, sizeof *t);
    *t = (state){0};
    s->state = t;
    const uint8_t *p;
    size_t got;
    MX_TRY(mx_shard_peek(&s->file, 0, 4, &p, &got));
    t->compressed = is_gzip(p, got) || is_zstd(p, got);
    if (t->compressed) {
        t->codec = is_zstd(p, got) ? MX_STREAM_ZSTD : MX_STREAM_GZIP;
        return mx_stream_open(&t->stream, &s->file, t->codec);
    }
    MX_TRY(mx_json_array_is(&s->file, &t->is_array));
    if (t->is_array)
        MX_TRY(mx_json_array_index(&t->array, &s->file));
    else
        MX_TRY(mx_lines_index(&t->lines, &s->file, false));
    s->n_records = t->is_array ? t->array.n : t->lines.n_records;
    return MX_OK;
}

static mx_status read_element(mx_source *s, int64_t i, mx_record *r)
{
    const int64_t *at = ((state *)s->state)->array.at + 2 * i;
    size_t n = (size_t)(at[1] - at[0]), got;
    const uint8_t *p;
    r->offset = at[0];
    if (n > s->options.max_record_bytes)
        return mx_fail(MX_INPUT, "the record has %zu bytes, max_record_bytes is %zu", n,
                       s->options.max_record_bytes);
    MX_TRY(mx_shard_peek(&s->file, at[0], n, &p, &got));
    if (got < n)
        return mx_fail(MX_INPUT, "the record is gone; the file changed while it was in use");
    return mx_json_scan_object(s, (const char *)p, n, r);
}

static mx_status jsonl_read(mx_source *s, int64_t i, mx_record *r)
{
    state *t = s->state;
    const char *text;
    size_t n;
    if (t->is_array)
        return read_element(s, i, r);
    MX_TRY(
        mx_lines_get(&t->lines, &s->file, i, s->options.max_record_bytes, &text, &n, &r->offset));
    return mx_json_scan_object(s, text, n, r);
}

static mx_status jsonl_next(mx_source *s, mx_record *r, bool *end)
{
    state *t = s->state;
    const char *text;
    size_t n, i;
    do {
        mx_status st =
            mx_stream_line(&t->stream, s->options.max_record_bytes, &text, &n, &r->offset, end);
        s->broken = st != MX_OK;
        MX_TRY(st);
        s->consumed = mx_stream_consumed(&t->stream);
        if (*end)
            return MX_OK;
        if (r->offset == 0 && n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) {
            text += 3;
            n -= 3;
        }
        for (i = 0; i < n && (unsigned char)text[i] <= ' '; i++)
            ;
    } while (i == n);
    if (s->record == 0 && text[i] == '[') {
        s->broken = true;
        return mx_fail(MX_INPUT, "a JSON array in a compressed file is not read in parts; "
                                 "decompress the file, or write one object to a line");
    }
    return mx_json_scan_object(s, text, n, r);
}

static mx_status jsonl_rewind(mx_source *s)
{
    state *t = s->state;
    mx_stream_close(&t->stream);
    return mx_stream_open(&t->stream, &s->file, t->codec);
}

static void jsonl_close(mx_source *s)
{
    state *t = s->state;
    if (t) {
        mx_lines_fini(&t->lines);
        mx_json_array_fini(&t->array);
        mx_stream_close(&t->stream);
    }
    mx_free(t);
}

const mx_source_kind mx_source_kind_jsonl = {
    .name = "jsonl",
    .doc = "one JSON object a line (.gz and .zst too), or one array of objects",
    .suffixes =
        " .jsonl .ndjson .json .jsonl.gz .jsonl.zst .json.gz .json.zst .ndjson.gz .ndjson.zst ",
    .sniff = jsonl_sniff,
    .open = jsonl_open,
    .read = jsonl_read,
    .next = jsonl_next,
    .rewind = jsonl_rewind,
    .close = jsonl_close,
};
