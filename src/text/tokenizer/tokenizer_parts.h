/* tokenizer_parts.h - what a tokenizer is made of, for the files that load one.
 *
 *     encoding   text -> added tokens cut out -> normalizer -> added tokens of the normalized kind
 *                cut out -> pre-tokenizer -> model (BPE or unigram) -> prefix and suffix ids
 *     decoding   ids -> token texts -> decoder
 *
 * SentencePiece has its own normalizer and decoding rules (sentencepiece.c) around the same models.
 */
#ifndef MX_TEXT_TOKENIZER_PARTS_H
#define MX_TEXT_TOKENIZER_PARTS_H

#include "text/tokenizer/added.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/decoder.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/pretok.h"
#include "text/tokenizer/sentencepiece.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/unigram.h"
#include <pthread.h>

/* Bytes of a piece that is looked for at every place of a text, or cut at every place when it is
 * loaded; published ones have up to 200. */
enum { MX_MAX_PIECE_BYTES = 1024 };

typedef enum { MX_MODEL_BPE, MX_MODEL_UNIGRAM } mx_text_model;
typedef struct mx_scratch mx_scratch;
typedef struct mx_tokenizer_format mx_tokenizer_format;

struct mx_tokenizer {
    mx_arena arena;
    mx_unicode unicode;
    const mx_tokenizer_format *format;
    const char *kind; /* for reports: "tokenizer.json (BPE)" */
    mx_text_model model;
    mx_bpe bpe;
    mx_unigram unigram;
    mx_sentencepiece *sentencepiece; /* the arena's; NULL for other kinds */
    mx_added_set added;              /* looked for in the text as it is */
    mx_added_set added_normalized;   /* looked for after normalization */
    bool parse_special;              /* the library's own default */
    bool add_special;                /* likewise: whether its encode() adds prefix and suffix */
    mx_normalizer normalizer;
    mx_pretok pretok;
    mx_token_decoder decoder;
    mx_tokens prefix, suffix;
    mx_piece *token; /* owns; n_tokens: what decoding starts from */
    bool *special;   /* owns; n_tokens */
    int32_t n_tokens;
    int32_t bos, eos, pad;
    pthread_mutex_t lock; /* of the free list */
    mx_scratch *free;     /* owns; scratch objects that are not in use */
};

/* What one encoding call needs to itself. */
struct mx_scratch {
    mx_scratch *next;
    mx_bpe_scratch *bpe;
    mx_unigram_scratch unigram;
    mx_regex_scratch *regex;
    mx_pre_buffer *buffer; /* one per pre-tokenizer step */
    mx_str normal[2];
    mx_str repaired; /* the text with U+FFFD for what is not UTF-8 */
};

/* What a tokenizer is read from. The text is followed by 16 zero bytes and may be changed. */
typedef struct {
    const char *path;
    char *text;
    size_t n;
    const mx_tokenizer_options *options; /* NULL: none */
} mx_tokenizer_source;

/* A kind of tokenizer, found by scanning for `const mx_tokenizer_format`. */
struct mx_tokenizer_format {
    const char *type; /* as tokenizer_type has it */
    const char *file; /* what folders call its file; NULL: it is built in and has none */
    bool takes_pattern; /* its file does not say how text is cut into words: the options do */
    /* Is this one of its files? NULL: where no other says so. */
    bool (*is)(const mx_tokenizer_source *s);
    /* Fills an allocated, zeroed tokenizer. A built-in one gets no text. */
    mx_status (*load)(mx_tokenizer *t, const mx_tokenizer_source *s);
};
extern const mx_tokenizer_format *const mx_tokenizer_format_table[]; /* ends with NULL */
extern const int mx_tokenizer_format_count;

/* Begin, end and padding tokens from the files beside `path`, as far as they are not known. */
void mx_tokenizer_read_config(mx_tokenizer *t, const char *path);

/* Room for the ids 0..n-1; keeps what is there. */
void mx_tokenizer_grow(mx_tokenizer *t, int32_t n);

#endif
