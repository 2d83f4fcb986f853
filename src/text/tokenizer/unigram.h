/* unigram.h - the unigram model: of all ways to write a word as pieces, the one with the highest
 * sum of scores, found by one pass over the word (Viterbi).
 *
 * A character that no piece covers costs `unk_score`. Neighbouring unknown characters become one
 * unknown id, or their bytes. SentencePiece adds up in float32 and the tokenizers library in
 * float64; ties and long texts depend on it, so both are kept (`float_sums`).
 */
#ifndef MX_TEXT_UNIGRAM_H
#define MX_TEXT_UNIGRAM_H

#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/vocab.h"

typedef struct {
    uint64_t key; /* (node << 8 | byte) + 1; 0 is empty */
    uint32_t node;
    int32_t id; /* of the piece that ends here, or -1 */
} mx_trie_edge;

typedef struct {
    mx_vocab vocab;
    double *score;      /* owns; per id */
    bool *user_defined; /* owns; per id: always wins over what it covers */
    mx_trie_edge *edge; /* owns; open addressing */
    uint64_t edge_mask;
    uint32_t n_nodes;
    uint64_t n_edges;
    double unk_score, max_score;
    bool float_sums, byte_fallback;
    int32_t unk; /* or -1: unknown characters are left out */
    int32_t byte_id[256];
} mx_unigram;

typedef struct {
    double score;
    int32_t id; /* of the piece that ends here */
    uint32_t start;
    bool reached;
} mx_unigram_node;

typedef struct {
    mx_unigram_node *node; /* owns */
    size_t cap;
    mx_tokens reversed; /* pairs: id, start */
} mx_unigram_scratch;

/* The vocabulary is already initialised for n_ids. Allocates the rest. */
void mx_unigram_init(mx_unigram *m);
/* Makes a piece usable in encoding. */
void mx_unigram_add(mx_unigram *m, int32_t id, double score, bool user_defined);
void mx_unigram_fini(mx_unigram *m);
void mx_unigram_scratch_fini(mx_unigram_scratch *s);
/* Appends the ids of valid UTF-8. */
void mx_unigram_encode(const mx_unigram *m, mx_unigram_scratch *s, const uint8_t *p, size_t n,
                       mx_tokens *out);

#endif
