/* json_scan.h - one JSON object, read straight into a record; for lines at hundreds of MB/s. */
#ifndef MX_DATA_JSON_SCAN_H
#define MX_DATA_JSON_SCAN_H

#include "data/formats/source.h"

/* Adds the members of the object `text` to r: strings as text, null as null, everything else as
 * JSON text. Only the columns that s asks for are decoded; all of the text is checked. */
mx_status mx_json_scan_object(const mx_source *s, const char *text, size_t n,
                              mx_record *r) MX_MUST_USE;
/* Appends the JSON string literal of UTF-8 text, with its quotes. */
void mx_json_write_string(mx_str *out, const char *text, size_t n);

/* Appends a number that reads back as the same double; null when it is not finite. */
void mx_json_write_double(mx_str *out, double v);

#endif
