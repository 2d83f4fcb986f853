/* pattern.h - which texts are allowed: patterns of bytes, and the automaton that follows a text.
 *
 * A pattern is built in an arena, by hand, from a regular expression or from a JSON schema. The
 * automaton is a DFA over bytes whose states are made as texts reach them; a state is a number, 0
 * the first. Characters beyond ASCII are their UTF-8 bytes.
 */
#ifndef MX_INFER_PATTERN_H
#define MX_INFER_PATTERN_H

#include "base/arena.h"
#include <jansson.h>

typedef struct mx_pattern mx_pattern;

typedef struct {
    uint32_t from, to; /* code points, both included */
} mx_char_range;

mx_pattern *mx_pattern_text(mx_arena *a, const char *text, size_t n);
typedef struct {
    const char *text;
    size_t n;
} mx_word;
/* One of the words, which are put in order; none: no text at all. */
mx_pattern *mx_pattern_words(mx_arena *a, mx_word *words, size_t n);
/* One character of the ranges, which are ordered and do not meet. */
mx_pattern *mx_pattern_chars(mx_arena *a, const mx_char_range *r, int n);
mx_pattern *mx_pattern_then(mx_arena *a, mx_pattern *x, mx_pattern *y); /* NULL is the empty text */
mx_pattern *mx_pattern_or(mx_arena *a, mx_pattern *x, mx_pattern *y);
mx_pattern *mx_pattern_repeat(mx_arena *a, mx_pattern *x, int least, int most); /* -1: any */
/* No text at all: what it is part of falls away, too. */
mx_pattern *mx_pattern_never(mx_arena *a);
bool mx_pattern_is_never(const mx_pattern *p);

/* A regular expression: literals, `.`, classes, \d \w \s, groups, `|`, `* + ? {m,n}`, and ^ and $
 * at its ends. in_string: the text is the inside of a JSON string, so that what would have to be
 * escaped there is left out, and an expression without ^ and $ may stand anywhere. */
mx_status mx_pattern_regex(mx_arena *a, const char *text, size_t n, bool in_string,
                           mx_pattern **out) MX_MUST_USE;
/* Documents of a JSON schema; one that cannot be followed is an error that names the keyword. */
mx_status mx_pattern_schema(mx_arena *a, const json_t *schema, mx_pattern **out) MX_MUST_USE;
/* Any JSON object; values in it nest five deep. */
mx_pattern *mx_pattern_any_object(mx_arena *a);

typedef struct mx_automaton mx_automaton;
/* An error where too many places of the pattern may begin a text. The pattern must stay. */
mx_status mx_automaton_open(mx_automaton **out, const mx_pattern *p) MX_MUST_USE;
void mx_automaton_close(mx_automaton *m);                                /* NULL is a no-op */
int32_t mx_automaton_next(mx_automaton *m, int32_t state, uint8_t byte); /* -1: not allowed */
bool mx_automaton_accepts(const mx_automaton *m, int32_t state);         /* the text is whole */
bool mx_automaton_ends(mx_automaton *m, int32_t state);                  /* nothing may follow */
/* Where the automaton has grown large, it keeps one state alone, as number 0; true: it did. */
bool mx_automaton_trim(mx_automaton *m, int32_t state);

#endif
