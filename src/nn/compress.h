/* compress.h - compressed attention (DeepSeek V4): far tokens are seen through entries, each of
 * which stands for a window of them; the last few tokens are seen directly.
 *
 * Every `ratio` tokens of a document make an entry of D numbers, once the last of them is there:
 *     a_j = wkv x_j       g_j = wgate x_j + ape_(j mod ratio)        of the window's tokens j
 *     entry = rope(norm(sum_j softmax_j(g) a_j))                     each number by its own softmax
 * rotated by the position of the window's first token. With `overlap` both projections are 2 D
 * wide, and an entry is also made of the window before: of its first halves, and of the second
 * halves of its own.
 *
 * In training the windows lie in the row. Decoding keeps the projections of the last tokens in a
 * ring, makes the entries whose windows end in this run, and keeps those. Where a batch is of
 * single tokens of any sequences, each sequence has a ring, and its entries, after those of the
 * others.
 *
 * B batch, S tokens of a run, n entries that a run can make, T entries that can be seen.
 */
#ifndef MX_NN_COMPRESS_H
#define MX_NN_COMPRESS_H

#include "nn/nn.h"

/* The windows of a run, and the inputs of attention to entries of them; shared by all layers that
 * compress by the same ratio. Keys are the near tokens, in `slots` places, and after them the T
 * entries. */
typedef struct {
    int64_t ratio;
    int64_t n, seen;    /* n, T; at least 1, and none is there where rows are too short for one */
    int64_t rows;       /* of a sequence that `own` and `before` number: S, or of the ring */
    mx_node *own;       /* (B, n ratio) int32: row b rows + i of each token; -1: no such window */
    mx_node *before;    /* the same of the windows before them */
    mx_node *first;     /* (B, n) int32: position of the first token; 0 where there is no window */
    mx_node *last;      /* (B, T) int32: position of the last token of entries to see; -1: none */
    mx_node *segments;  /* (B, T) int32; NULL: one document a row */
    mx_node *entry;     /* with a cache, (B, n) int32: where new entries go; -1: nowhere */
    int64_t slots;
    mx_node *near;         /* (B, S, window) int32: near keys of each query; -1: none */
    mx_node *q_pos, *k_pos; /* (B, S), (B, slots + T) int32 */
    mx_node *k_seg;        /* (B, slots + T) int32, or NULL */
} mx_windows;

/* mask: which near tokens are seen (mask->window). */
mx_windows mx_windows_of(mx_graph *g, const mx_build *b, int64_t ratio,
                         const mx_attention_attr *mask);

typedef struct {
    int64_t dims, rotated; /* D, and how many of its last dims are rotated */
    bool overlap;
    double eps;
    const mx_rope *rope;
} mx_compressor;

/* With a cache: the entries of this run, (B, n, 1, D), into the current scope's; gives all of them,
 * (B, T, D), or (1, R T, D) of the R sequences whose tokens share a batch. */
mx_node *mx_entries_keep(mx_graph *g, const mx_build *b, const char *what, mx_node *entries,
                         const mx_windows *w);
/* Which of them a query may choose. */
mx_select_extra mx_entries_seen(mx_graph *g, const mx_build *b, const mx_windows *w);

/* x (B, S, d) -> (B, n, 1, D): the entries of this run, under the current scope. */
mx_node *mx_compress(mx_graph *g, const mx_build *b, mx_node *x, const mx_windows *w,
                     const mx_compressor *c);

/* x (B, S, H, D) with its last `rotated` dims rotated. */
mx_node *mx_rope_tail(mx_graph *g, mx_node *x, const mx_rope_table *t, int64_t rotated);

/* Attention to near tokens and to entries. */
typedef struct {
    mx_node *q;             /* (B, S, H, D) */
    mx_node *kv;            /* (B, S, 1, D): keys and values, seen within mask.window */
    mx_node *entries;       /* (B, n, 1, D): those of this run */
    mx_node *chosen;        /* (B, S, k) int32, of the T entries; NULL: all of them */
    mx_node *sinks;         /* (H), or NULL */
    mx_attention_attr mask;
} mx_compressed_attention;
/* (B, S, H, D), under the current scope. */
mx_node *mx_attend_compressed(mx_graph *g, const mx_build *b, const mx_compressed_attention *f,
                       const mx_windows *w);

#endif
