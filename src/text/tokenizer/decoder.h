/* decoder.h - token texts back to text: the decoders of tokenizer.json as a flat list of steps. */
#ifndef MX_TEXT_DECODER_H
#define MX_TEXT_DECODER_H

#include "text/tokenizer/regex.h"
#include "text/tokenizer/vocab.h"
#include "base/str.h"

typedef enum {
    MX_DEC_BYTES,         /* token texts are raw bytes: joined (byte level) */
    MX_DEC_REPLACE,       /* in each token, `find` (or `regex`) -> `content` */
    MX_DEC_BYTE_FALLBACK, /* runs of <0xNN> become characters, or U+FFFD for each */
    MX_DEC_FUSE,          /* all tokens become one */
    MX_DEC_STRIP,         /* up to `start`, `stop` times `content` off the ends of each token */
    MX_DEC_METASPACE,     /* `find` -> " ", without the first one */
    MX_DEC_SUFFIX,        /* end-of-word `find` -> " ", nothing at the end (BPEDecoder) */
} mx_dec_kind;

typedef struct {
    mx_dec_kind kind;
    const char *find, *content; /* borrowed */
    size_t n_find, n_content;
    mx_regex *regex; /* owns */
    int64_t start, stop;
    bool drop_first; /* MX_DEC_METASPACE */
} mx_dec_step;

typedef struct {
    mx_dec_step *step; /* the arena's */
    int n;
    const char *join; /* between tokens when there is no decoder at all */
} mx_token_decoder;

/* Appends the text of the tokens to `out`; `token` is changed. False when a step makes it longer
 * than mx_text_limit allows. */
bool mx_decoder_run(const mx_token_decoder *d, mx_piece *token, int64_t n, mx_str *out);
void mx_decoder_fini(mx_token_decoder *d);

/* Appends p[0..n) with U+FFFD for each maximal piece that is not UTF-8. */
void mx_add_lossy(mx_str *out, const char *p, size_t n);

#endif
