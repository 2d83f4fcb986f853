/* text.c - plain text files.
 *
 * text_unit says what a record is:
 *   file       (default) the file is one long text, given in blocks: record i is what lies between
 *              cut(i) and cut(i + 1), where cut(i) is the first line start at or after i * 64 KiB.
 *              A cut is found by looking at one place in the file: no index, no scan. Without a
 *              line end within 64 KiB the cut falls between two characters.
 *   line       every non-blank line
 *   paragraph  runs of lines between blank lines
 * Text that is not UTF-8 is an error: guessing an encoding would train on rubbish silently.
 */
#include "data/formats/lines.h"
#include "data/formats/source.h"

#include <string.h>

enum { BLOCK = 64 * 1024 };

typedef struct {
    bool blocks;
    mx_lines lines;
} state;

static mx_status text_open(mx_source *s)
{
    const char *unit = s->options.text_unit ? s->options.text_unit : "file";
    state *t = mx_realloc(NULL, sizeof *t);
    *t = (state){.blocks = strcmp(unit, "file") == 0};
    s->state = t;
    if (t->blocks) {
        s->n_records = (s->file.size_bytes + BLOCK - 1) / BLOCK;
        return MX_OK;
    }
    bool paragraph = strcmp(unit, "paragraph") == 0;
    if (!paragraph && strcmp(unit, "line") != 0)
        return mx_fail(MX_USAGE, "text_unit=%s: expected file, line or paragraph", unit);
    MX_TRY(mx_lines_index(&t->lines, &s->file, paragraph));
    s->n_records = t->lines.n_records;
    return MX_OK;
}

/* Both ends of a block are computed by this one function, so blocks tile the file exactly. */
static mx_status cut(mx_source *s, int64_t i, int64_t *at)
{
    int64_t size = s->file.size_bytes;
    *at = i * BLOCK < size ? i * BLOCK : size;
    if (i == 0 || *at == size)
        return MX_OK;
    const uint8_t *p;
    size_t got;
    MX_TRY(mx_shard_peek(&s->file, *at - 1, BLOCK, &p, &got));
    size_t look = got < BLOCK ? got : BLOCK;
    const uint8_t *nl = memchr(p, '\n', look);
    size_t skip = nl ? (size_t)(nl - p) : 0;
    if (!nl)
        while (skip + 1 < got && (p[skip + 1] & 0xc0) == 0x80) /* inside a character */
            skip++;
    *at += (int64_t)skip;
    return MX_OK;
}

static mx_status read_block(mx_source *s, int64_t i, const char **text, size_t *n, int64_t *offset)
{
    int64_t end;
    MX_TRY(cut(s, i, offset));
    MX_TRY(cut(s, i + 1, &end));
    const uint8_t *p;
    size_t got;
    *n = (size_t)(end - *offset);
    MX_TRY(mx_shard_peek(&s->file, *offset, *n, &p, &got));
    if (*offset == 0 && *n >= 3 && memcmp(p, "\xef\xbb\xbf", 3) == 0) {
        p += 3;
        *n -= 3;
    }
    *text = (const char *)p;
    return MX_OK;
}

static mx_status text_read(mx_source *s, int64_t i, mx_record *r)
{
    state *t = s->state;
    const char *text;
    size_t n;
    if (t->blocks)
        MX_TRY(read_block(s, i, &text, &n, &r->offset));
    else
        MX_TRY(mx_lines_get(&t->lines, &s->file, i, s->options.max_record_bytes, &text, &n,
                            &r->offset));
    size_t valid = mx_utf8_valid(text, n);
    if (valid < n)
        return mx_fail(MX_INPUT,
                       "byte %zu (0x%02x) is not UTF-8; convert the file (iconv -t UTF-8), or "
                       "set bad_record_policy=skip",
                       valid, (unsigned char)text[valid]);
    mx_record_add(r, "text", MX_CELL_TEXT, text, n);
    return MX_OK;
}

static void text_close(mx_source *s)
{
    if (s->state)
        mx_lines_fini(&((state *)s->state)->lines);
    mx_free(s->state);
}

const mx_source_kind mx_source_kind_text = {
    .name = "text", .doc = "plain UTF-8 text", .suffixes = " .txt .text .md ",
    .open = text_open, .read = text_read, .close = text_close,
};
