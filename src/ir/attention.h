/* attention.h - the mask description of the attention op: one op, every kind of attention.
 *
 * Query i may see key j when all of these hold (p: positions, by default the index; of a query that
 * plus q_offset, and q_jump more from the middle of the queries on):
 *   causal     p[j] <= p[i]
 *   window     p[i] - p[j] < window           (and p[j] - p[i] < window when not causal)
 *   chunk      p[i] / chunk == p[j] / chunk
 *   segments   segment[i] == segment[j]       documents packed into one row
 *   selected   j is in the query's list       the sparse indexer's choice
 * or when both lie in the same bidirectional span (images), of the same segment, and the key is not
 * further back than the window: a span lifts causal and chunk. A key position below 0 is an empty
 * cache slot and is never seen. A query that sees nothing gives 0.
 *
 * Score: s = scale q.k, then cap tanh(s / cap) if a cap is given; a sink adds e^sink to the sum.
 */
#ifndef MX_IR_ATTENTION_H
#define MX_IR_ATTENTION_H

#include "ir/op.h"

typedef struct {
    bool causal;
    int64_t window, chunk; /* 0: none */
    double softcap;        /* 0: none */
    double scale;
    int64_t q_offset, q_jump; /* queries that are two pieces of the sequence (attention_mesh.c) */
    bool one_path; /* a query's bits do not depend on how many there are; the graph's (infer) */
} mx_attention_attr;

/* Optional inputs; NULL where absent. */
typedef struct {
    mx_node *q_pos, *k_pos;   /* (B, Sq), (B, Sk) int32 */
    mx_node *q_seg, *k_seg;   /* (B, Sq), (B, Sk) int32 */
    mx_node *q_span, *k_span; /* (B, Sq), (B, Sk) int32; 0: in no span */
    mx_node *sinks;           /* (Hq) */
    mx_node *selected; /* (B, Sq, K) int32: indices of the keys that may be seen; -1 unused */
} mx_attention_extra;

/* paged_attention: attention over a cache in pages (ops/paged_attention.c). */
typedef struct {
    int64_t page;          /* slots of a page */
    int64_t v_dim;         /* values are the first v_dim elements of the keys; 0: v is an input */
    int64_t window, chunk; /* 0: none */
    double softcap, scale; /* softcap 0: none */
} mx_paged_attr;

typedef struct {
    mx_node *positions, *row, *table; /* (N, 1), (N), (R, C) int32 */
    mx_node *sinks;                   /* (H); NULL: none */
    mx_node *selected; /* (N, 1, n) int32: positions to see, -1 unused; NULL: all to its own */
    mx_node *until;    /* (N, 1) int32: the last position to see, where that is beyond its own */
    mx_node *k_scale, *v_scale; /* (1, T, K) float32, of keys and values in codes; NULL: numbers */
} mx_paged_extra;

/* select_keys: where its keys lie (ops/select_keys.c). */
typedef struct {
    mx_node *q_pos, *k_pos, *q_seg, *k_seg; /* each pair or NULL */
    mx_node *row, *table;                   /* of keys in pages of `page` */
    int64_t page;
} mx_select_extra;

/* What ops with a state carry from run to run (ops/recurrent.h); all NULL: nothing. */
typedef struct {
    mx_node *state;
    mx_node *positions; /* (B, S) int32 */
    mx_node *rows;      /* (B) int32: whose state; NULL: that of its place in the batch */
} mx_recurrent;

#endif
