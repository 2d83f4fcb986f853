/* regex.h - the regular expressions of tokenizer files, run by PCRE2 with its JIT compiler.
 *
 * The files are written for Oniguruma (Ruby syntax). What differs is rewritten when a pattern is
 * compiled: \s is the White_Space property, \w and \b follow UTS 18, ^ and $ match at lines, \uHHHH
 * is a character, [A&&[^B]] is a set difference. Text must be valid UTF-8. A scratch belongs to one
 * thread. Patterns come from strangers: their length, what they become, the steps of a match and
 * the time for all matches in a text are limited. \G is refused: a text is searched in parts.
 */
#ifndef MX_TEXT_REGEX_H
#define MX_TEXT_REGEX_H

#include "base/status.h"
#include <stddef.h>
#include <stdint.h>

typedef struct mx_regex mx_regex;
typedef struct mx_regex_scratch mx_regex_scratch;

mx_status mx_regex_open(mx_regex **out, const char *pattern, size_t n) MX_MUST_USE;
void mx_regex_close(mx_regex *r);

mx_regex_scratch *mx_regex_scratch_new(void); /* and begins a text */
void mx_regex_scratch_free(mx_regex_scratch *s);

/* A new text begins: from now on its matches may take this many seconds of processor time, for
 * which mx_regex_seconds is the usual number. Then they give up. */
void mx_regex_begin(mx_regex_scratch *s, double seconds);
double mx_regex_seconds(size_t bytes);

typedef enum { MX_REGEX_NONE, MX_REGEX_FOUND, MX_REGEX_GAVE_UP } mx_regex_result;
/* The first match at or after `at`: *start and *end are byte offsets. */
mx_regex_result mx_regex_next(const mx_regex *r, mx_regex_scratch *s, const uint8_t *text, size_t n,
                              size_t at, size_t *start, size_t *end);

#endif
