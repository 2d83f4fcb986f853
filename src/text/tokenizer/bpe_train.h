/* bpe_train.h - learning a byte-level BPE tokenizer from text.
 *
 * Text is cut into words by one of the known patterns, words are counted, and the most frequent
 * pair of neighbouring symbols is merged again and again. The result is a tokenizer.json: special
 * tokens first, then the 256 bytes in the order of their printable spelling, then one token per
 * merge. Given the same text and settings it equals what the Hugging Face trainer makes.
 */
#ifndef MX_TEXT_BPE_TRAIN_H
#define MX_TEXT_BPE_TRAIN_H

#include "base/status.h"
#include "base/str.h"

typedef struct mx_bpe_trainer mx_bpe_trainer;

typedef struct {
    const char *pattern;        /* gpt2 | cl100k | llama3 | o200k | qwen; NULL: llama3 */
    int32_t vocab_size;         /* at most; special tokens and bytes included */
    int64_t min_frequency;      /* a pair seen less often is not merged */
    const char *const *special; /* names, NULL-terminated; the first begins a text; NULL: none */
} mx_bpe_train_options;

mx_status mx_bpe_trainer_open(mx_bpe_trainer **out,
                              const mx_bpe_train_options *options) MX_MUST_USE;
/* One document. Bytes that are not UTF-8 are left out and counted. */
void mx_bpe_trainer_feed(mx_bpe_trainer *t, const char *text, size_t n);
int64_t mx_bpe_trainer_bytes(const mx_bpe_trainer *t);     /* fed so far */
int64_t mx_bpe_trainer_bad_bytes(const mx_bpe_trainer *t); /* of these, left out */
/* Learns, and appends the tokenizer.json. *n_tokens is the size of the vocabulary it came to. */
void mx_bpe_trainer_finish(mx_bpe_trainer *t, mx_str *json, int32_t *n_tokens);
void mx_bpe_trainer_close(mx_bpe_trainer *t);

#endif
