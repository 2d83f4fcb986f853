/* base64.h - bytes as text, RFC 4648. */
#ifndef MX_TEXT_BASE64_H
#define MX_TEXT_BASE64_H

#include "base/str.h"

void mx_base64_add(mx_str *out, const void *bytes, size_t n);

#endif
