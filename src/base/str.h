/* str.h - a growing string, and the few string questions the program asks. */
#ifndef MX_BASE_STR_H
#define MX_BASE_STR_H

#include "base/status.h"
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

/* Zero-initialised is the empty string (text may then be NULL: use mx_str_text). */
typedef struct {
    char *text; /* owns; NUL-terminated when not NULL */
    size_t len, cap;
} mx_str;

void mx_str_add(mx_str *s, const char *text);
void mx_str_add_n(mx_str *s, const char *text, size_t n);
void mx_str_addf(mx_str *s, const char *fmt, ...) MX_PRINTF(2, 3);
void mx_str_addv(mx_str *s, const char *fmt, va_list ap) MX_PRINTF(2, 0);
const char *mx_str_text(const mx_str *s); /* never NULL; borrowed */
void mx_str_clear(mx_str *s);             /* empties, keeps the memory */
void mx_str_fini(mx_str *s);

bool mx_starts_with(const char *s, const char *prefix);
bool mx_ends_with(const char *s, const char *suffix);
/* Shell-style match: `*` any run of characters, `?` one character. */
bool mx_glob_match(const char *pattern, const char *s);
/* One of the patterns, which commas divide. NULL: none. */
bool mx_glob_any(const char *patterns, const char *s);
/* Edit distance, used for "did you mean". */
int mx_edit_distance(const char *a, const char *b);
/* Whole-string, locale-independent number parsing; false if anything is left over or out of range.
 */
bool mx_parse_i64(const char *s, int64_t *out);
bool mx_parse_f64(const char *s, double *out);
/* The shortest decimal text that mx_parse_f64 reads back to the same double, with a point whatever
 * the locale, into the caller's buffer (32 bytes do), which is returned. */
const char *mx_format_f64(char *buf, size_t cap, double v);
/* "1.50 GiB", "312 MiB", "17 B" into the caller's buffer, which is returned. */
const char *mx_format_bytes(char *buf, size_t cap, double bytes);
/* "1.24 G", "350 k" likewise (powers of 1000). */
const char *mx_format_count(char *buf, size_t cap, double n);

#endif
