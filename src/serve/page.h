/* page.h - page.html, which the build turns into bytes. */
#ifndef MX_SERVE_PAGE_H
#define MX_SERVE_PAGE_H

#include <stddef.h>

extern const unsigned char mx_page[];
extern const size_t mx_page_bytes;

#endif
