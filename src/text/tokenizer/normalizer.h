/* normalizer.h - the normalizers of tokenizer.json, as a flat list of steps run one after another.
 */
#ifndef MX_TEXT_NORMALIZER_H
#define MX_TEXT_NORMALIZER_H

#include "text/tokenizer/charsmap.h"
#include "text/tokenizer/regex.h"
#include "text/tokenizer/unicode.h"

typedef enum {
    MX_NORM_FORM, /* NFC, NFD, NFKC, NFKD */
    MX_NORM_LOWER,
    MX_NORM_STRIP,         /* white space at the ends */
    MX_NORM_STRIP_ACCENTS, /* drops \p{M} */
    MX_NORM_PREPEND,       /* `content` before a text that is not empty */
    MX_NORM_REPLACE,       /* `find` (or `regex`) -> `content` */
    MX_NORM_CHARSMAP,      /* SentencePiece's precompiled map */
    MX_NORM_NMT,           /* control characters dropped, odd spaces to " " */
} mx_norm_kind;

typedef struct {
    mx_norm_kind kind;
    mx_normal_form form;
    bool left, right;
    const char *find, *content; /* borrowed */
    size_t n_find, n_content;
    mx_regex *regex; /* owns */
    mx_charsmap charsmap;
} mx_norm_step;

typedef struct {
    mx_norm_step *step; /* the arena's */
    int n;
} mx_normalizer;

/* Runs all steps over p[0..n); the result is in buf[0] or buf[1], which is returned. NULL when a
 * regular expression gave up, or replacements made the text longer than mx_text_limit(n). */
const mx_str *mx_normalizer_run(const mx_normalizer *z, const mx_unicode *u, mx_regex_scratch *s,
                                const uint8_t *p, size_t n, mx_str buf[2]);
void mx_normalizer_fini(mx_normalizer *z);

#endif
