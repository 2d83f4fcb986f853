/* delta_net.h - gated delta networks (Qwen3-Next, Qwen3.5): the past of a head is one matrix.
 *
 *     q, k, v, z = in_proj_qkvz x      b, a = in_proj_ba x      stored key head by key head, or
 *     q, k, v = in_proj_qkv x    z = in_proj_z x    b = in_proj_b x    a = in_proj_a x
 *     q, k, v = silu(causal_conv [q, k, v])
 *     g = -exp(A_log) softplus(a + dt_bias)     beta = sigmoid(b)
 *     o = delta_rule(q / |q|, k / |k|, v, g, beta)
 *     out_proj (norm(o) silu(z))
 * Decoding carries the last inputs of the convolution and the matrices: their size does not grow
 * with the sequence.
 */
#ifndef MX_NN_DELTA_NET_H
#define MX_NN_DELTA_NET_H

#include "nn/nn.h"

typedef struct {
    int64_t k_heads, v_heads; /* the second a multiple of the first */
    int64_t k_dim, v_dim;
    int64_t taps;             /* of the convolution */
    int64_t chunk;            /* tokens of the delta rule computed together */
    bool separate;            /* the second form of the projections */
} mx_delta_net;

/* x (B, S, d) -> (B, S, d), under the current scope. */
mx_node *mx_delta_net_layer(mx_graph *g, const mx_build *b, mx_node *x, const mx_delta_net *c,
                            double eps);

#endif
