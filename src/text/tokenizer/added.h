/* added.h - the added tokens of a tokenizer.json: strings that are found in the text before
 * anything else happens to it, leftmost first, the longest at each place.
 */
#ifndef MX_TEXT_ADDED_H
#define MX_TEXT_ADDED_H

#include "text/tokenizer/unicode.h"

typedef struct {
    const uint8_t *s; /* what is looked for; borrowed */
    uint32_t n;
    const char *name; /* its content before normalization; NULL: the same */
    uint32_t n_name;
    int32_t id;
    bool special;
    bool lstrip, rstrip; /* swallow white space on that side */
    bool single_word;    /* only where no word character is next to it */
} mx_added;

typedef struct {
    mx_added *token; /* owns; sorted by bytes once finished */
    int n, cap;
    bool first[256]; /* some token starts with this byte */
    uint8_t start[4];
    int n_start; /* number of distinct first bytes when at most 4, else 0 */
} mx_added_set;

void mx_added_put(mx_added_set *s, mx_added token);
void mx_added_finish(mx_added_set *s);
void mx_added_fini(mx_added_set *s);

/* Length of the longest token at p, 0 when there is none. */
size_t mx_added_longest(const mx_added_set *s, const uint8_t *p, size_t n);

typedef struct {
    size_t start, stop; /* what the token covers, white space included */
    const mx_added *token;
} mx_added_match;

/* The first token in text[at..n). `from` is where the text before it starts (white space before
 * that is not swallowed), and *resume is where to look next. Special tokens are passed over, as
 * text, when parse_special is false. */
bool mx_added_next(const mx_added_set *s, const mx_unicode *u, const uint8_t *text, size_t n,
                   size_t from, size_t *resume, bool parse_special, mx_added_match *m);

#endif
