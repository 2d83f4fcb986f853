/* silu_grad.c - the gradient of silu: with s = sigmoid(a), b s (1 + a (1 - s)).
 * An op of its own so that the backward pass needs a alone and makes one pass over it. */
#include "ops/tile.h"

MX_TILE2(silu_grad, b *MX_T_SIGMOID(a) * (1 + a * (1 - MX_T_SIGMOID(a))))

/* silu itself, and its derivative times b. */
static MX_CLONES void both_f32(const mx_tile *t)
{
    const float *pa = t->in[0], *pb = t->in[1];
    float *out = t->out, *silu = t->sibling_out;
#pragma omp simd
    for (int64_t i = 0; i < t->n; i++) {
        float a = pa[i], b = pb[i], s = MX_T_SIGMOID(a);
        silu[i] = a * s;
        out[i] = b * s * (1 + a * (1 - s));
    }
}

static const mx_sibling sibling = {&mx_op_silu, both_f32};

mx_node *mx_silu_grad(mx_graph *g, mx_node *a, mx_node *b)
{
    return MX_APPLY(g, &mx_op_silu_grad, NULL, a, b);
}

const mx_op mx_op_silu_grad = {
    MX_ELEMENTWISE_FIELDS(silu_grad),
    .doc = "b d silu(a) / da",
    .sibling = &sibling,
    .cases =
        (const mx_case[]){{2, {{2, {3, 8}, .no_grad = true}, {2, {3, 8}, .no_grad = true}}}, {0}},
};
