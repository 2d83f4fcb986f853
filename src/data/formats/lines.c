/* lines.c - see lines.h. The walk goes through the shard's window, so that reading records in order
 * costs one pread per mebibyte, and finding one record far away costs one or two small ones. */
#include "data/formats/lines.h"

#include "base/arena.h"
#include <string.h>

enum { MARK_RECORDS = 16, MARK_BYTES = 4096, FIRST_LOOK = 4096 };

static bool blank(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)p[i] > ' ')
            return false;
    return true;
}

/* The line at `at`: how long it is without its end, whether it is blank, where the next one begins.
 * Goes through the line in parts, so that a line of any length costs no memory. */
static mx_status line_at(mx_shard_file *f, int64_t at, size_t *n, bool *empty, int64_t *next)
{
    int64_t pos = at;
    uint8_t last = 0;
    *empty = true;
    for (;;) {
        const uint8_t *p;
        size_t got;
        MX_TRY(mx_shard_peek(f, pos, FIRST_LOOK, &p, &got));
        const uint8_t *nl = got ? memchr(p, '\n', got) : NULL;
        size_t k = nl ? (size_t)(nl - p) : got;
        *empty = *empty && blank((const char *)p, k);
        last = k ? p[k - 1] : last;
        pos += (int64_t)k;
        if (!nl && got && pos < f->size_bytes)
            continue;
        *n = (size_t)(pos - at);
        *next = pos + (nl ? 1 : 0);
        if (*n && last == '\r')
            --*n;
        return MX_OK;
    }
}

static int64_t first_offset(mx_shard_file *f, const uint8_t *p, size_t n)
{
    (void)f;
    return n >= 3 && memcmp(p, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
}

/* From `at`: the next record's offset and length and where the one after it may begin. */
static mx_status record_at(const mx_lines *l, mx_shard_file *f, int64_t at, size_t max_bytes,
                           int64_t *offset, size_t *n, int64_t *next)
{
    size_t k;
    bool empty;
    *offset = -1;
    while (at < f->size_bytes) {
        MX_TRY(line_at(f, at, &k, &empty, next));
        if (*offset >= 0 && empty)
            return MX_OK;
        if (!empty) {
            if (*offset < 0)
                *offset = at;
            *n = (size_t)(at - *offset) + k;
            if (!l->paragraphs)
                return MX_OK;
            if (*n > max_bytes)
                return mx_fail(MX_INPUT,
                               "%s: the paragraph at offset %lld is longer than %zu bytes; use "
                               "text_unit=file",
                               f->path, (long long)*offset, max_bytes);
        }
        at = *next;
    }
    *next = at;
    return MX_OK;
}

mx_status mx_lines_index(mx_lines *l, mx_shard_file *f, bool paragraphs)
{
    *l = (mx_lines){.paragraphs = paragraphs};
    const uint8_t *p;
    size_t got, n;
    MX_TRY(mx_shard_peek(f, 0, 3, &p, &got));
    int64_t at = first_offset(f, p, got), offset;
    while (at < f->size_bytes) {
        /* no limit here: an overlong line is one bad record, met when it is read */
        MX_TRY(record_at(l, f, at, SIZE_MAX / 8, &offset, &n, &at));
        if (offset < 0)
            break;
        const mx_line_mark *last = l->n_marks ? &l->marks[l->n_marks - 1] : NULL;
        if (!last || l->n_records - last->record >= MARK_RECORDS ||
            offset - last->offset >= MARK_BYTES) {
            MX_GROW(l->marks, l->n_marks, l->cap_marks);
            l->marks[l->n_marks++] = (mx_line_mark){l->n_records, offset};
        }
        l->n_records++;
    }
    return MX_OK;
}

mx_status mx_lines_get(mx_lines *l, mx_shard_file *f, int64_t i, size_t max_bytes,
                       const char **text, size_t *n, int64_t *offset)
{
    int64_t lo = 0, hi = l->n_marks;
    while (hi - lo > 1) {
        int64_t mid = lo + (hi - lo) / 2;
        if (l->marks[mid].record <= i)
            lo = mid;
        else
            hi = mid;
    }
    int64_t record = l->marks[lo].record, at = l->marks[lo].offset, next = at;
    if (l->at_record > record && l->at_record <= i) { /* the usual case: the one after the last */
        record = l->at_record;
        at = l->at_offset;
    }
    for (;; record++, at = next) {
        /* records passed over may be overlong; only the one that is asked for must fit */
        size_t limit = record == i ? max_bytes : SIZE_MAX / 8;
        MX_TRY(record_at(l, f, at, limit, offset, n, &next));
        if (*offset < 0)
            return mx_fail(MX_INPUT,
                           "%s: record %lld is gone; the file changed while it was in use", f->path,
                           (long long)i);
        if (record == i)
            break;
    }
    l->at_record = i + 1;
    l->at_offset = next;
    if (*n > max_bytes)
        return mx_fail(MX_INPUT,
                       "the line has %zu bytes, max_record_bytes is %zu; raise it, unless this is "
                       "not a file of lines",
                       *n, max_bytes);
    const uint8_t *p;
    size_t got;
    MX_TRY(mx_shard_peek(f, *offset, *n, &p, &got));
    if (got < *n)
        return mx_fail(MX_INPUT, "%s: record %lld is gone; the file changed while it was in use",
                       f->path, (long long)i);
    *text = (const char *)p;
    return MX_OK;
}

void mx_lines_fini(mx_lines *l)
{
    mx_free(l->marks);
    *l = (mx_lines){0};
}
