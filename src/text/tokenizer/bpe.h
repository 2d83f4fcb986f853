/* bpe.h - byte-pair encoding: symbols are merged pairwise, lowest rank first, leftmost first.
 *
 * The merge table maps a pair of ids to (rank, id of the joined piece). Three file kinds fill it:
 * tokenizer.json lists merges (rank = position), rank files and SentencePiece give every split of a
 * piece into two known pieces the rank of the piece.
 *
 * Words start as bytes (`byte_level`) or as characters. A character that is no piece becomes its
 * bytes (`byte_fallback`), or the unknown id. Encoding needs an mx_bpe_scratch per thread; the
 * mx_bpe itself is not changed after loading.
 */
#ifndef MX_TEXT_BPE_H
#define MX_TEXT_BPE_H

#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/vocab.h"

typedef struct {
    uint64_t key; /* left << 32 | right, plus 1 so that 0 is empty */
    uint32_t rank;
    int32_t id;
} mx_merge;

typedef struct {
    mx_vocab vocab;
    mx_merge *merge; /* owns; open addressing */
    uint64_t merge_mask;
    int64_t n_merges;
    uint32_t n_ranks;     /* ranks are below this */
    bool byte_level;      /* symbols are bytes, else characters */
    bool byte_fallback;   /* unknown characters become byte_id[] */
    bool fuse_unk;        /* neighbouring unknowns become one */
    bool whole_words;     /* a word that is a piece is not merged ("ignore_merges") */
    bool split_safe;      /* `bigram` may be used to cut words */
    uint32_t longest;     /* bytes of the longest piece */
    int32_t unk;          /* or -1 */
    int32_t byte_id[256]; /* ids of the bytes (byte level) or of <0xNN>, or -1 */
    int32_t *char_id; /* owns; ids of one-character pieces up to U+FFFF, or -1; character level */
    uint64_t *bigram; /* owns; a Bloom-like bitmap of character pairs inside pieces */
} mx_bpe;

typedef struct mx_bpe_scratch mx_bpe_scratch;

void mx_bpe_reserve(mx_bpe *b, int64_t n_merges); /* before the first add */
/* The lower rank wins when a pair is added twice. */
void mx_bpe_add_merge(mx_bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t id);
/* Fills the merge table with every split of every piece; rank[id] < 0 leaves a piece out. */
void mx_bpe_merges_from_pieces(mx_bpe *b, const int32_t *rank);
/* After vocabulary and merges are there: single-symbol tables and the bigram map. */
void mx_bpe_finish(mx_bpe *b);
void mx_bpe_fini(mx_bpe *b);

mx_bpe_scratch *mx_bpe_scratch_new(void);
void mx_bpe_scratch_free(mx_bpe_scratch *s);

/* Where encoded words go. */
typedef struct {
    const mx_bpe *bpe;
    mx_bpe_scratch *scratch;
    mx_tokens *out;
} mx_bpe_target;

/* Appends the ids of one word, n > 0; a sink of pretok.h, with an mx_bpe_target. `end` is the end
 * of readable memory, at or after word + n. */
void mx_bpe_encode(void *target, const uint8_t *word, size_t n, const uint8_t *end);
/* The same for many words of a byte-level tokenizer; word i ends at stop[i]. */
void mx_bpe_encode_many(void *target, const uint8_t *p, const uint8_t *const *stop, int n,
                        const uint8_t *end);
/* Appends what stands for a character that is no piece: its bytes, or the unknown id (which is left
 * out when it follows another one and they are fused). */
void mx_bpe_add_unknown(const mx_bpe *b, const uint8_t *p, int n, bool after_unk, mx_tokens *out);

#endif
