/* printable.h - text of somebody else, made fit for a terminal and for a log of lines. */
#ifndef MX_BASE_PRINTABLE_H
#define MX_BASE_PRINTABLE_H

#include <stddef.h>

/* Copies text[0..n), or up to its first NUL, into `out`, which is terminated and returned; what
 * does not fit is cut at a character. Newlines and tabs become \n and \t; other control characters,
 * bytes that are not UTF-8, and characters that change the direction of text or have no width
 * become \xNN. What has been made printable once stays as it is. cap > 0. */
char *mx_printable(char *out, size_t cap, const char *text, size_t n);

#endif
