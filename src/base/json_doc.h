/* json_doc.h - whole JSON documents from files we did not write, through jansson.
 *
 * Strict: RFC 8259, UTF-8 only, duplicate keys refused, 64-bit integers exact and larger ones
 * reals, no NUL in strings.
 * Size, depth and number of values are capped before the first node is allocated, so a hostile
 * file costs time and memory in proportion to the cap and not to its cleverness.
 * The document is a json_t; release it with json_decref.
 */
#ifndef MX_BASE_JSON_DOC_H
#define MX_BASE_JSON_DOC_H

#include "base/status.h"
#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    size_t max_bytes;
    int max_depth;
    int64_t max_values;
} mx_json_limits;

/* 64 MiB, 64 levels, 2 million values: enough for the index of a trillion-parameter model. */
extern const mx_json_limits mx_json_limits_default;

/* `where` names the document in errors (a path). NULL limits are the default ones. */
mx_status mx_json_parse(const char *text, size_t n, const char *where, const mx_json_limits *limits,
                        json_t **out) MX_MUST_USE;
mx_status mx_json_load(const char *path, const mx_json_limits *limits, json_t **out) MX_MUST_USE;
const char *mx_json_kind(const json_t *v); /* "an object", "an integer"..., for messages */
/* Compact text in the order of its keys; reals in 15 digits where those say the same, as people
 * write them, else in the 17 that always do. NULL: it is no value. Release with mx_free. */
char *mx_json_compact(const json_t *v);
/* Compact or indented text with sorted keys. Release with mx_free. */
char *mx_json_text(const json_t *v, int indent);

#endif
