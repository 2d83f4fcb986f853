/* sentencepiece.h - what a SentencePiece model has beside its pieces: how text is normalized and
 * joined. */
#ifndef MX_TEXT_SENTENCEPIECE_H
#define MX_TEXT_SENTENCEPIECE_H

#include "text/tokenizer/added.h"
#include "text/tokenizer/charsmap.h"
#include "text/tokenizer/vocab.h"

enum {
    MX_SP_NORMAL = 1,
    MX_SP_UNKNOWN,
    MX_SP_CONTROL,
    MX_SP_USER_DEFINED,
    MX_SP_UNUSED,
    MX_SP_BYTE
};

typedef struct {
    bool add_dummy_prefix, remove_extra_spaces, escape_spaces, space_as_suffix;
    mx_charsmap charsmap, denormal; /* denormal: applied to decoded text, usually empty */
    uint8_t *type;                  /* per piece */
    int32_t n_pieces;
    const char *unk_surface;
    mx_added_set user_defined; /* found whole in the text; owns */
} mx_sentencepiece;

/* Appends the text as the model sees it (spaces are U+2581). `first`: at the start of the text,
 * where the dummy prefix goes. Any bytes are accepted. */
void mx_sentencepiece_normalize(const mx_sentencepiece *m, const uint8_t *p, size_t n, bool first,
                                mx_str *out);
/* Appends the text of the pieces. */
void mx_sentencepiece_decode(const mx_sentencepiece *m, const mx_piece *piece, const int32_t *ids,
                             int64_t n, bool skip_special, mx_str *out);

#endif
