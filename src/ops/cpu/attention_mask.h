/* attention_mask.h - which keys a block of queries may see, decided tile by tile.
 *
 * For one query the position rules (causal, window, chunk) are one interval [lo, hi) of key
 * positions. A block of queries therefore needs only key tiles that meet the union of its
 * intervals, and a tile inside all of them needs no mask at all. What remains is one vectorised
 * compare per score.
 */
#ifndef MX_OPS_CPU_ATTENTION_MASK_H
#define MX_OPS_CPU_ATTENTION_MASK_H

#include "ops/cpu/attention_kernel.h"

/* Most queries (four panels of the widest register tile) and keys of a tile. */
enum { MX_ATTN_ROWS = 56, MX_ATTN_KEYS = 256 };

typedef struct {
    int32_t lo, hi;    /* allowed key positions; lo == hi: none */
    int32_t seg, span; /* span INT32_MIN: none */
    int32_t span_lo;   /* keys of the span from here on */
    const int32_t *selected;
} mx_attn_row;

/* Rows of one tile: queries s0.. of one batch entry. */
typedef struct {
    int n;
    mx_attn_row row[MX_ATTN_ROWS];
    int32_t lo_min, lo_max, hi_min, hi_max, seg_min, seg_max;
    bool spans;
    int64_t n_selected;
} mx_attn_rows;

typedef struct {
    int n;
    int64_t k0; /* index of the first key */
    int32_t pos[MX_ATTN_KEYS], seg[MX_ATTN_KEYS], span[MX_ATTN_KEYS];
    int32_t pos_min, pos_max, seg_min, seg_max;
    bool all_used;
} mx_attn_keys;

typedef enum { MX_ATTN_SKIP, MX_ATTN_PARTIAL, MX_ATTN_OPEN } mx_attn_tile_kind;

/* Row r of the tile is query s0 + r % n_queries: several heads may share a tile. */
void mx_attn_rows_init(mx_attn_rows *r, const mx_attn *a, int64_t b, int64_t s0, int n_queries,
                       int n);
/* The range of key indices worth visiting. */
void mx_attn_rows_range(const mx_attn_rows *r, const mx_attn *a, int64_t *k0, int64_t *k1);
/* The least d such that no row i of the tile sees a key beyond k0 + i + d. */
int64_t mx_attn_rows_diagonal(const mx_attn_rows *r, const mx_attn *a, int64_t k0);
/* Of n keys from index k0 on, the number after which row i sees none. */
int mx_attn_row_end(const mx_attn_rows *r, const mx_attn *a, int i, int64_t k0, int n);
void mx_attn_keys_init(mx_attn_keys *t, const mx_attn *a, int64_t b, int64_t k0, int n);
mx_attn_tile_kind mx_attn_classify(const mx_attn_rows *r, const mx_attn_keys *t);
/* Does every row see all keys of the tile before its end? Then there is nothing else to mask. */
bool mx_attn_ends_suffice(const mx_attn_rows *r, const mx_attn *a, const mx_attn_keys *t);
/* ok[j] = 0xffffffff where row i may see key j of the first n of the tile, else 0. */
void mx_attn_allowed(uint32_t *ok, const mx_attn_rows *r, int i, const mx_attn_keys *t, int n);

#endif
