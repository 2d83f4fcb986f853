/* mla.h - multi-head latent attention (DeepSeek, Kimi K2): keys and values out of one latent.
 *
 *     q_latent = norm(q_a_proj x)                       (B, S, Rq); without a rank, x itself
 *     q_nope, q_rope = q_b_proj q_latent                (B, S, H, N), (B, S, H, P)
 *     latent, k_rope = kv_a_proj_with_mqa x             (B, S, R), (B, S, 1, P): one for all heads
 *     k_nope, v = kv_b_proj norm(latent)                (B, S, H, N), (B, S, H, V)
 *     softmax(scale [q_nope, rope q_rope] . [k_nope, rope k_rope]) v
 *
 * Decoding stores norm(latent) and rope k_rope alone, R + P numbers a token whatever H is.
 * kv_b_proj is linear, so it moves over to the query and the result (W_k, W_v: its rows for keys
 * and for values):
 *     q_nope . (W_k latent) = (W_k^T q_nope) . latent
 *     sum_j p_j W_v latent_j = W_v sum_j p_j latent_j
 * and every head attends to the same R + P wide keys, whose first R entries are the values.
 */
#ifndef MX_NN_MLA_H
#define MX_NN_MLA_H

#include "nn/nn.h"

typedef struct {
    int64_t q_rank;              /* 0: queries straight from x (q_proj) */
    int64_t kv_rank;
    int64_t nope, rope, v;       /* dims of a head: without and with rotation, of a value */
    bool bias;                   /* on q_a_proj, kv_a_proj_with_mqa and o_proj */
    double scale;                /* of the scores */
} mx_mla;

/* x (B, S, d) -> (B, S, Rq), or x itself without a rank. */
mx_node *mx_mla_query_latent(mx_graph *g, const mx_build *b, mx_node *x, const mx_mla *m);

/* What an attention compared: queries and keys, (B, S, H, N + P); NULL with a cache. */
typedef struct {
    mx_node *q, *k;
} mx_mla_seen;

/* x and its query latent -> (B, S, d), under the current scope. selected (B, S, n): the keys each
 * query may see, as indices into the sequence or, with a cache, its slots; NULL: all. */
mx_node *mx_mla_attend(mx_graph *g, mx_build *b, mx_node *x, mx_node *q_latent, const mx_mla *m,
                       int64_t heads, const mx_rope_table *t, mx_node *selected, mx_mla_seen *seen);

#endif
