/* file.h - a whole file in memory, or line by line. */
#ifndef MX_BASE_FILE_H
#define MX_BASE_FILE_H

#include "base/arena.h"
#include "base/status.h"
#include "base/str.h"
#include <stddef.h>
#include <stdio.h>

/* Reads `path` ("-" is standard input) whole, with 16 zero bytes after the last one, so that
 * parsers may look a little ahead. A file larger than max_bytes is refused. Memory is the arena's.
 */
mx_status mx_file_read(mx_arena *a, const char *path, size_t max_bytes, char **text,
                       size_t *n) MX_MUST_USE;
/* The next line with its newline; empty at the end. A line of more than MX_LINE_BYTES is refused (a
 * device or a binary file would fill the memory) or, with `pieces`, comes in parts of that size. */
enum { MX_LINE_BYTES = 64 << 20 };
mx_status mx_file_line(FILE *f, bool pieces, mx_str *line) MX_MUST_USE;
/* The largest text that is read whole from standard input: it and what is made of it take about 16
 * times its size, which has to fit into what memory is free. */
size_t mx_file_most_of_stdin(void);
bool mx_file_exists(const char *path); /* a regular file */
bool mx_dir_exists(const char *path);

#endif
