/* lexer.h - hand-written splitters for the pre-tokenizer patterns that published tokenizers use.
 *
 * A lexer takes a text position and gives the end of the piece that starts there: a match of the
 * pattern, or the gap before the next match (the "Isolated" behaviour of a Split). Each is linear,
 * never backtracks, and equals the regular expression it stands for on every valid UTF-8 text;
 * tests compare them with PCRE2. They are found by the exact text of the pattern, so a pattern that
 * differs in one character goes through PCRE2.
 */
#ifndef MX_TEXT_LEXER_H
#define MX_TEXT_LEXER_H

#include "text/tokenizer/unicode.h"

/* p < end; the text is valid UTF-8. Returns the end of the piece that starts at p. */
typedef const uint8_t *(*mx_lex)(const mx_unicode *u, const uint8_t *p, const uint8_t *end);

typedef struct {
    const char *name;
    const char *pattern; /* as the files spell it */
    mx_lex lex;
    bool gaps; /* some characters match nothing */
} mx_lexer;

extern const mx_lexer mx_lexer_list[]; /* ends with a NULL name */
const mx_lexer *mx_lexer_find(const char *pattern);
const mx_lexer *mx_lexer_named(const char *name); /* gpt2, cl100k, llama3, qwen, o200k */

#endif
