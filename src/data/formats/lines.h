/* lines.h - random access to the lines (or paragraphs) of an uncompressed file.
 *
 * One pass notes a mark, (record, offset), every 16 records or 4 KiB, whichever is more often; a
 * record is found by binary search and by walking from its mark. Blank lines are no records. A
 * byte-order mark at the start is skipped; "\r\n" ends a line like "\n".
 */
#ifndef MX_DATA_LINES_H
#define MX_DATA_LINES_H

#include "data/formats/shard.h"

typedef struct {
    int64_t record, offset;
} mx_line_mark;

typedef struct {
    mx_line_mark *marks; /* owns */
    int64_t n_marks, cap_marks, n_records;
    bool paragraphs; /* records are runs of non-blank lines */
    int64_t at_record, at_offset; /* walked to: record at_record is searched from at_offset on */
} mx_lines;

mx_status mx_lines_index(mx_lines *l, mx_shard_file *f, bool paragraphs) MX_MUST_USE;
/* Record i: borrowed until the next call, without its line end. */
mx_status mx_lines_get(mx_lines *l, mx_shard_file *f, int64_t i, size_t max_bytes,
                       const char **text, size_t *n, int64_t *offset) MX_MUST_USE;
void mx_lines_fini(mx_lines *l);

#endif
