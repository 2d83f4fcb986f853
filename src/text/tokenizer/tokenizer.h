/* tokenizer.h - text to token ids and back, exactly as the tokenizer's own library does it.
 *
 * One object for every kind: Hugging Face tokenizer.json, SentencePiece tokenizer.model, tiktoken
 * rank files, and a built-in byte tokenizer (ids 0-255 are the bytes, 256 begin, 257 end, 258
 * padding).
 *
 * A tokenizer is immutable once open; any number of threads may encode and decode with it at the
 * same time. Text may be any bytes. Where it is not valid UTF-8, byte-level kinds keep the bytes (a
 * run of bad bytes is encoded on its own), the others see U+FFFD for each; which of the two, and
 * whether bad text is acceptable at all, is for the caller to check first (mx_utf8_valid_prefix).
 */
#ifndef MX_TEXT_TOKENIZER_H
#define MX_TEXT_TOKENIZER_H

#include "base/arena.h"
#include "base/status.h"
#include "base/str.h"

typedef struct mx_tokenizer mx_tokenizer;

/* A growing array of ids. Zero-initialised is empty; release with mx_tokens_fini. */
typedef struct {
    int32_t *ids; /* owns */
    int64_t n, cap;
} mx_tokens;

void mx_tokens_add(mx_tokens *t, int32_t id);
void mx_tokens_reserve(mx_tokens *t, int64_t more);
void mx_tokens_fini(mx_tokens *t);

/* Special-token strings ("<|eot_id|>") that occur in the text itself: */
typedef enum {
    MX_SPECIAL_AS_LIBRARY, /* as the kind's own library: tokenizer.json parses, the others do not */
    MX_SPECIAL_PARSE,      /* they become the special token */
    MX_SPECIAL_TEXT,       /* they are ordinary text: what training data and user content need */
} mx_special_in_text;

typedef struct {
    const char *pattern; /* rank files: gpt2 | cl100k | llama3 | o200k | qwen; NULL = by size */
    /* huggingface | sentencepiece | tiktoken | byte: which file of a folder is taken, and what it
     * must be; NULL or "auto": found from the files */
    const char *type;
} mx_tokenizer_options;

typedef struct {
    bool add_special; /* what the post-processor adds: begin and end of sequence */
    mx_special_in_text special_in_text;
} mx_encode_options;

typedef struct {
    bool skip_special; /* leave special tokens out */
    bool raw;          /* keep bytes that are not UTF-8 instead of writing U+FFFD */
} mx_decode_options;

/* `path` is a file, a Hugging Face directory, or NULL or "byte" for the byte tokenizer. */
mx_status mx_tokenizer_open(mx_tokenizer **out, const char *path,
                            const mx_tokenizer_options *options) MX_MUST_USE;
/* The same for the bytes of a tokenizer file of any kind; `path` names them in errors, and says
 * where the files beside it are. */
mx_status mx_tokenizer_open_bytes(mx_tokenizer **out, const char *path, const char *bytes, size_t n,
                                  const mx_tokenizer_options *options) MX_MUST_USE;
void mx_tokenizer_close(mx_tokenizer *t);

/* Appends to `out`. NULL options: nothing added, special_in_text as the library. Fails only when a
 * rule of the tokenizer file takes too much work or room for the text. */
mx_status mx_tokenizer_encode(const mx_tokenizer *t, const char *text, size_t n,
                              const mx_encode_options *options, mx_tokens *out) MX_MUST_USE;
/* Appends to `out`. An id outside the vocabulary is an error that names it and its position. */
mx_status mx_tokenizer_decode(const mx_tokenizer *t, const int32_t *ids, int64_t n,
                              const mx_decode_options *options, mx_str *out) MX_MUST_USE;

/* "byte", "tokenizer.json (BPE)", ... for reports. */
const char *mx_tokenizer_kind(const mx_tokenizer *t);
/* What tokenizer_type calls it: huggingface, sentencepiece, tiktoken or byte. */
const char *mx_tokenizer_type(const mx_tokenizer *t);
/* What folders call a file of its type; NULL: it is built in. */
const char *mx_tokenizer_file(const mx_tokenizer *t);
/* Whether the kind's own library adds special tokens when it is not told (tokenizer.json: yes). */
bool mx_tokenizer_adds_special(const mx_tokenizer *t);
/* One more than the largest id. */
int32_t mx_tokenizer_vocab_size(const mx_tokenizer *t);
/* An error when ids that the tokenizer adds by itself (begin, end) are beyond a model's vocabulary.
 * Others may be: a text that has them is refused when it comes. */
mx_status mx_tokenizer_check_model(const mx_tokenizer *t, int64_t vocab) MX_MUST_USE;
/* Ids, or -1 where the tokenizer has none. */
int32_t mx_tokenizer_bos(const mx_tokenizer *t);
int32_t mx_tokenizer_eos(const mx_tokenizer *t);
int32_t mx_tokenizer_pad(const mx_tokenizer *t);
/* The id of a token given by its text ("<|eot_id|>", "</s>", " the"), or -1. */
int32_t mx_tokenizer_find(const mx_tokenizer *t, const char *token);
/* The token's text (borrowed; *n bytes), or NULL when there is no such id. */
const char *mx_tokenizer_token(const mx_tokenizer *t, int32_t id, size_t *n);
bool mx_tokenizer_is_special(const mx_tokenizer *t, int32_t id);

/* Decoding as tokens arrive: text is given out only in complete characters. */
typedef struct {
    const mx_tokenizer *tokenizer; /* borrowed */
    bool skip_special;
    mx_tokens ids;        /* what still influences the text to come */
    int64_t n_settled;    /* of these, how many are already in the text given out */
    size_t settled_bytes; /* length of the text of ids[0..n_settled) */
} mx_token_stream;

void mx_token_stream_init(mx_token_stream *s, const mx_tokenizer *t, bool skip_special);
/* Appends to `out` the text that `id` completes (often none). */
mx_status mx_token_stream_push(mx_token_stream *s, int32_t id, mx_str *out) MX_MUST_USE;
/* Appends what is left, with U+FFFD for characters that were never completed. */
mx_status mx_token_stream_finish(mx_token_stream *s, mx_str *out) MX_MUST_USE;
void mx_token_stream_fini(mx_token_stream *s);

#endif
