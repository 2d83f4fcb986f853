/* inspect_data.h - what `maxc inspect` says about a data file. */
#ifndef MX_CMD_INSPECT_DATA_H
#define MX_CMD_INSPECT_DATA_H

#include "base/str.h"
#include <jansson.h>

/* Format, size, columns and the first `n` records (at most three): lines of text, or with `json`
 * one object. Appended to `out`. */
mx_status mx_inspect_data(const char *path, int64_t n, bool json, mx_str *out) MX_MUST_USE;

/* Lines "name: value" as one object; a name that comes again makes a list. The caller owns it. */
json_t *mx_inspect_lines(const char *text);

#endif
