/* bpe_long.h - merging long words, and the merge lookup that all word lengths share. */
#ifndef MX_TEXT_BPE_LONG_H
#define MX_TEXT_BPE_LONG_H

#include "text/tokenizer/bpe.h"

#define MX_NO_RANK UINT32_MAX

static inline uint64_t mx_merge_key(int32_t left, int32_t right)
{
    return ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) + 1;
}

static inline uint64_t mx_merge_hash(uint64_t key)
{
    key *= 0x9E3779B97F4A7C15u;
    return key ^ key >> 32;
}

/* Rank of the pair and the id it becomes; MX_NO_RANK when it is not merged. */
static inline uint32_t mx_merge_find(const mx_bpe *b, int32_t left, int32_t right, int32_t *id)
{
    uint64_t key = mx_merge_key(left, right), k = mx_merge_hash(key) & b->merge_mask;
    for (; b->merge[k].key; k = (k + 1) & b->merge_mask)
        if (b->merge[k].key == key) {
            *id = b->merge[k].id;
            return b->merge[k].rank;
        }
    return MX_NO_RANK;
}

/* Positions waiting at one rank, given out in increasing order. Almost all arrive in order and are
 * a queue; the rest go to a heap. */
typedef struct {
    uint32_t *run, *heap; /* own */
    size_t n_run, head, cap_run, n_heap, cap_heap;
    uint32_t rank;
    bool active; /* its rank is in the heap of ranks */
} mx_bpe_bucket;

typedef struct {
    uint32_t *prev, *next, *rank; /* own; per symbol */
    int32_t *to;                  /* owns; what the pair at a symbol becomes */
    int64_t cap;
    uint32_t *bucket_of; /* owns; rank -> bucket + 1, 0 = none */
    uint32_t n_ranks;
    mx_bpe_bucket *bucket; /* owns */
    size_t n_buckets, cap_buckets;
    uint32_t *ranks; /* owns; heap of active ranks */
    size_t n_active, cap_active;
} mx_bpe_long;

void mx_bpe_long_fini(mx_bpe_long *w);
/* Merges sym[0..n) in place; returns how many are left. */
int64_t mx_bpe_merge_long(const mx_bpe *b, mx_bpe_long *w, int32_t *sym, int64_t n);

#endif
