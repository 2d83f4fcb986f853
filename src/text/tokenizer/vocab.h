/* vocab.h - the pieces of a tokenizer: id -> bytes, and bytes -> id through a hash.
 *
 * Ids may have holes (n = MX_NO_PIECE). Only pieces added with `find` true are found by their
 * bytes; the others exist for decoding alone.
 */
#ifndef MX_TEXT_VOCAB_H
#define MX_TEXT_VOCAB_H

#include "base/arena.h"
#include <string.h>

enum { MX_NO_PIECE = -1 };

typedef struct {
    const uint8_t *s; /* borrowed from the caller of mx_vocab_set */
    int32_t n;        /* bytes, or MX_NO_PIECE */
} mx_piece;

typedef struct {
    mx_piece *piece; /* owns; n_ids */
    int32_t n_ids;
    uint32_t *slot; /* owns; 0 = empty, else id + 1 */
    uint32_t mask;
} mx_vocab;

/* Room for ids 0..n_ids-1. */
void mx_vocab_init(mx_vocab *v, int32_t n_ids);
void mx_vocab_fini(mx_vocab *v);
/* The bytes must outlive the vocabulary. When they are there already the first id stays findable.
 */
void mx_vocab_set(mx_vocab *v, int32_t id, const uint8_t *s, size_t n, bool find);
int32_t mx_vocab_find(const mx_vocab *v, const uint8_t *s, size_t n); /* id or -1 */

static inline uint64_t mx_hash_bytes(const uint8_t *s, size_t n)
{
    uint64_t h = n * 0x9E3779B97F4A7C15u, w;
    for (; n >= 8; s += 8, n -= 8) {
        memcpy(&w, s, 8);
        h = (h ^ w) * 0xD6E8FEB86659FD93u;
        h ^= h >> 32;
    }
    w = 0;
    memcpy(&w, s, n);
    h = (h ^ w) * 0xD6E8FEB86659FD93u;
    return h ^ h >> 32;
}

#endif
