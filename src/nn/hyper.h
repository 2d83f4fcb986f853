/* hyper.h - manifold-constrained hyper-connections (DeepSeek V4): n residual streams beside each
 * other instead of one.
 *
 *     z = scale * (norm(x) W) + base                  x (B, S, n, d): all streams of a token
 *     pre = sigmoid(z_1) + eps   post = 2 sigmoid(z_2)   mix = sinkhorn(softmax(z_3) + eps)  (n, n)
 *     in = sum_j pre_j x_j                            what a block reads, (B, S, d)
 *     x_k <- post_k out + sum_j mix_jk x_j            out: what it gave
 * mix is doubly stochastic, so that streams do not grow with depth. W, base and scale are NAME_fn
 * (2 n + n n, n d), NAME_base and NAME_scale (3).
 */
#ifndef MX_NN_HYPER_H
#define MX_NN_HYPER_H

#include "nn/nn.h"

enum { MX_MAX_STREAMS = 8 };

typedef struct {
    int64_t streams, steps; /* steps of the Sinkhorn iteration */
    double eps, norm_eps;
} mx_hyper;

/* A block's way in and out of the streams. */
typedef struct {
    mx_node *in;      /* (B, S, d): what the block reads */
    mx_node *streams; /* (B, S, n, d) */
    mx_node *post;    /* (B, S, 1, n) */
    mx_node *mix;     /* (B, S, n, n): from stream j to k */
} mx_hyper_block;

mx_hyper_block mx_hyper_enter(mx_graph *g, const mx_build *b, mx_node *x, const mx_hyper *c,
                              const char *name);
/* (B, S, n, d): the streams after the block. */
mx_node *mx_hyper_leave(mx_graph *g, const mx_hyper_block *h, mx_node *out);

/* x (B, S, d) -> (B, S, n, d): every stream begins with the embedding. */
mx_node *mx_hyper_begin(mx_graph *g, mx_node *x, const mx_hyper *c);
/* After the last layer: sum_j (sigmoid(z_j) + eps) x_j, with NAME_fn (n, n d), NAME_base (n) and
 * NAME_scale (1). */
mx_node *mx_hyper_end(mx_graph *g, const mx_build *b, mx_node *x, const mx_hyper *c,
                      const char *name);

mx_status mx_check_hyper(const mx_hyper *c) MX_MUST_USE;

#endif
