/* file.h - a whole file in memory. */
#ifndef MX_BASE_FILE_H
#define MX_BASE_FILE_H

#include "base/arena.h"
#include "base/status.h"
#include <stddef.h>

/* Reads `path` ("-" is standard input) whole, with 16 zero bytes after the last one, so that
 * parsers may look a little ahead. A file larger than max_bytes is refused. Memory is the arena's.
 */
mx_status mx_file_read(mx_arena *a, const char *path, size_t max_bytes, char **text,
                       size_t *n) MX_MUST_USE;
bool mx_file_exists(const char *path); /* a regular file */
bool mx_dir_exists(const char *path);

#endif
