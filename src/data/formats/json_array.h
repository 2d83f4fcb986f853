/* json_array.h - where the elements of one large JSON array are. */
#ifndef MX_DATA_JSON_ARRAY_H
#define MX_DATA_JSON_ARRAY_H

#include "data/formats/shard.h"

typedef struct {
    int64_t *at; /* owns; (2 n): begin and end of each element */
    int64_t n, cap;
} mx_json_array;

/* Does the file begin with '[' (after blanks and a byte-order mark)? */
mx_status mx_json_array_is(mx_shard_file *f, bool *yes) MX_MUST_USE;
/* One pass over the file. Finds elements by brackets, strings and commas; what is inside them is
 * checked when they are read. */
mx_status mx_json_array_index(mx_json_array *a, mx_shard_file *f) MX_MUST_USE;
void mx_json_array_fini(mx_json_array *a);

#endif
