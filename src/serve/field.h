/* field.h - the fields of a JSON request, each with its type and range.
 *
 * The first field that is wrong is kept, with what was expected and found; later questions then
 * give defaults. A field that is absent or null is not there.
 */
#ifndef MX_SERVE_FIELD_H
#define MX_SERVE_FIELD_H

#include "base/arena.h"
#include "base/str.h"
#include <jansson.h>

typedef struct {
    const json_t *object;
    const char *param; /* the field that is wrong; NULL: none */
    mx_str why;
} mx_fields;

void mx_fields_fini(mx_fields *f);
/* Keeps it, if it is the first. */
void mx_field_wrong(mx_fields *f, const char *name, const char *fmt, ...) MX_PRINTF(3, 4);
const json_t *mx_field_get(const mx_fields *f, const char *name); /* NULL: not there */

bool mx_field_bool(mx_fields *f, const char *name, bool usual);
int64_t mx_field_int(mx_fields *f, const char *name, int64_t usual, int64_t least, int64_t most);
double mx_field_float(mx_fields *f, const char *name, double usual, double least, double most);
const char *mx_field_text(mx_fields *f, const char *name, const char *usual); /* borrowed */
/* A text or a list of at most `most` texts, none of them empty; gives their number. */
int mx_field_texts(mx_fields *f, const char *name, mx_arena *a, const char *const **out, int most);
/* A list of token ids below `vocab`. */
int mx_field_ids(mx_fields *f, const char *name, mx_arena *a, const int32_t **out, int64_t vocab);

#endif
