/* data_url.h - bytes inside JSON: "data:TYPE;base64,...". How nested columns that hold no text
 * (pictures in Parquet and Arrow files) reach the code above, which knows JSON alone; records may
 * have such strings of their own. */
#ifndef MX_DATA_DATA_URL_H
#define MX_DATA_DATA_URL_H

#include "base/str.h"

/* Appends the bytes as a JSON string. */
void mx_data_url_write(mx_str *out, const void *data, size_t n);
bool mx_data_url_is(const char *text);
/* Appends the bytes that the text stands for. */
mx_status mx_data_url_read(const char *text, size_t n, mx_str *out) MX_MUST_USE;

#endif
