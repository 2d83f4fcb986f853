/* utf8.h - reading, checking and printing UTF-8 (RFC 3629: no surrogates, no overlong forms, at
 * most U+10FFFF). */
#ifndef MX_BASE_UTF8_H
#define MX_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Length of the valid character at p, or 0. *cp is set when it is valid. p < end. */
int mx_utf8_decode(const uint8_t *p, const uint8_t *end, uint32_t *cp);
/* Bytes written to out (1-4). cp must be a scalar value. */
int mx_utf8_encode(uint32_t cp, uint8_t *out);
/* Number of leading bytes of p[0..n) that are valid UTF-8; n when all are. */
size_t mx_utf8_valid_prefix(const uint8_t *p, size_t n);
/* At an invalid position: how many bytes form one "maximal subpart", to be shown as one U+FFFD. */
int mx_utf8_bad_length(const uint8_t *p, const uint8_t *end);
/* Bytes at the end of p[0..n) that begin a character which may still be completed (0-3). */
size_t mx_utf8_incomplete_tail(const uint8_t *p, size_t n);

/* Decodes a character of text already known to be valid. */
static inline int mx_utf8_next(const uint8_t *p, uint32_t *cp)
{
    if (p[0] < 0x80) {
        *cp = p[0];
        return 1;
    }
    if (p[0] < 0xE0) {
        *cp = (uint32_t)(p[0] & 0x1F) << 6 | (p[1] & 0x3F);
        return 2;
    }
    if (p[0] < 0xF0) {
        *cp = (uint32_t)(p[0] & 0x0F) << 12 | (uint32_t)(p[1] & 0x3F) << 6 | (p[2] & 0x3F);
        return 3;
    }
    *cp = (uint32_t)(p[0] & 0x07) << 18 | (uint32_t)(p[1] & 0x3F) << 12 |
          (uint32_t)(p[2] & 0x3F) << 6 | (p[3] & 0x3F);
    return 4;
}

/* Text from outside, made fit for a terminal and for a log of lines. Copies text[0..n), or up to
 * its first NUL, into `out`, which is terminated and returned; what does not fit is cut at a
 * character. Newlines and tabs become \n and \t; other control characters, bytes that are not
 * UTF-8, and characters that change the direction of text or have no width become \xNN. What has
 * been made printable once stays as it is. cap > 0. */
char *mx_printable(char *out, size_t cap, const char *text, size_t n);

#endif
