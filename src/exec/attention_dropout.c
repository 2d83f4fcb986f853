/* attention_dropout.c - see dropout.h: dropout of attention's probabilities.
 *
 *     out = dropout(softmax(scale q k^T + mask)) v       P (B, H, Sq, Sk) is a tensor of the graph
 *
 * The attention op never stores P, and its kernels draw no random numbers. So where probabilities
 * are dropped, the op is replaced by smaller ones that every device has: two batched matmuls, a
 * softmax and the counter-based numbers of mx_dropout. That takes S x S memory a head, and time to
 * match, and gives the same numbers on every device and mesh.
 *
 * Letters: b batch, s queries, t keys, k key heads, g query heads a key head, d and e their widths.
 */
#include "exec/dropout.h"

#include "base/rng.h"
#include "ops.h"
#include "ops/attention.h"
#include <stdio.h>

/* Positions, segments or spans (B, S) of queries as (B, 1, Sq, 1), of keys as (B, 1, 1, Sk); NULL:
 * the index. */
static mx_node *along(mx_graph *g, mx_node *x, int64_t length, bool keys)
{
    if (x) {
        int64_t B = x->type.dim[0], S = x->type.dim[1];
        return mx_cast(g, mx_reshape(g, x, keys ? MX_SHAPE(B, 1, 1, S) : MX_SHAPE(B, 1, S, 1)),
                       MX_F32);
    }
    double *index = MX_NEW_N(&g->arena, double, length);
    for (int64_t i = 0; i < length; i++)
        index[i] = (double)i;
    return mx_table(g, keys ? MX_SHAPE(1, 1, 1, length) : MX_SHAPE(1, 1, length, 1), MX_F32, index);
}

static mx_node *both(mx_graph *g, mx_node *a, mx_node *b)
{
    return !a ? b : !b ? a : mx_mul(g, a, b);
}

static mx_node *number(mx_graph *g, double x)
{
    return mx_constant(g, MX_SCALAR, MX_F32, x);
}

/* 1 where a query may see a key, (B or 1, 1, Sq, Sk); NULL: everywhere (ir/attention.h). */
static mx_node *allowed(mx_graph *g, const mx_node *n)
{
    const mx_attention_attr *a = n->attr;
    int64_t Sq = n->in[MX_ATTN_Q]->type.dim[1], Sk = n->in[MX_ATTN_K]->type.dim[1];
    mx_node *qp = along(g, n->in[MX_ATTN_Q_POS], Sq, false);
    mx_node *kp = along(g, n->in[MX_ATTN_K_POS], Sk, true);
    mx_node *order = NULL, *near = NULL, *same = NULL, *back = mx_sub(g, qp, kp);
    if (a->causal)
        order = mx_greater(g, back, number(g, -0.5));
    if (a->chunk) {
        double by = 1 / (double)a->chunk;
        order = both(g, order, mx_equal(g, mx_floor(g, mx_affine(g, qp, by, by / 2)),
                                        mx_floor(g, mx_affine(g, kp, by, by / 2))));
    }
    if (a->window) {
        near = mx_greater(g, number(g, (double)a->window - 0.5), back);
        if (!a->causal)
            near = both(g, near, mx_greater(g, back, number(g, 0.5 - (double)a->window)));
    }
    if (n->in[MX_ATTN_Q_SEG])
        same = mx_equal(g, along(g, n->in[MX_ATTN_Q_SEG], Sq, false),
                        along(g, n->in[MX_ATTN_K_SEG], Sk, true));
    if (n->in[MX_ATTN_Q_SPAN] && order) {
        mx_node *qs = along(g, n->in[MX_ATTN_Q_SPAN], Sq, false);
        mx_node *span = mx_equal(g, qs, along(g, n->in[MX_ATTN_K_SPAN], Sk, true));
        order = mx_maximum(g, order, both(g, span, mx_greater(g, qs, number(g, 0.5))));
    }
    return both(g, both(g, order, near), same);
}

/* Probabilities (B, H, Sq, Sk) of scores; with a sink, which takes its share. */
static mx_node *probabilities(mx_graph *g, mx_node *s, mx_node *sinks, mx_node *see)
{
    const double never = -1e30;
    int64_t B = s->type.dim[0], H = s->type.dim[1], Sq = s->type.dim[2], Sk = s->type.dim[3];
    if (see)
        s = mx_where(g, mx_broadcast_to(g, see, MX_SHAPE(B, H, Sq, Sk)), s, number(g, never));
    if (sinks) {
        mx_node *sink = mx_reshape(g, mx_cast(g, sinks, MX_F32), MX_SHAPE(1, H, 1, 1));
        sink = mx_broadcast_to(g, sink, MX_SHAPE(B, H, Sq, 1));
        s = mx_concat(g, 2, (mx_node *[]){s, sink}, 3);
    }
    mx_node *p = mx_softmax(g, s);
    p = sinks ? mx_slice(g, p, 3, 0, Sk) : p;
    return see ? mx_mul(g, p, see) : p; /* a query that sees nothing gives 0 */
}

static mx_node *composed(mx_graph *g, const mx_node *n, mx_node *seed, double rate)
{
    const mx_attention_attr *a = n->attr;
    char name[600];
    mx_node *q = n->in[MX_ATTN_Q], *k = n->in[MX_ATTN_K], *v = n->in[MX_ATTN_V];
    int64_t B = q->type.dim[0], Sq = q->type.dim[1], H = q->type.dim[2], D = q->type.dim[3];
    int64_t Sk = k->type.dim[1], K = k->type.dim[2], G = H / K, E = v->type.dim[3];
    /* Heads first: each matmul is one batched GEMM. */
    q = mx_transpose(g, mx_reshape(g, q, MX_SHAPE(B, Sq, K, G, D)), "bskgd->bkgsd");
    k = mx_transpose(g, k, "btkd->bktd");
    v = mx_transpose(g, v, "btke->bkte");
    mx_node *s = mx_matmul(g, "bkgsd,bktd->bkgst", q, k);
    s = mx_affine(g, mx_cast(g, mx_reshape(g, s, MX_SHAPE(B, H, Sq, Sk)), MX_F32), a->scale, 0);
    if (a->softcap > 0)
        s = mx_affine(g, mx_tanh(g, mx_affine(g, s, 1 / a->softcap, 0)), a->softcap, 0);
    mx_node *p = probabilities(g, s, n->in[MX_ATTN_SINKS], allowed(g, n));
    snprintf(name, sizeof name, "%s.attention_dropout", n->scope);
    p = mx_dropout(g, p, seed, (int64_t)mx_stream_of(name), rate);
    p = mx_cast(g, mx_reshape(g, p, MX_SHAPE(B, K, G, Sq, Sk)), v->type.dtype);
    mx_node *out = mx_transpose(g, mx_matmul(g, "bkgst,bkte->bkgse", p, v), "bkgse->bskge");
    return mx_reshape(g, out, MX_SHAPE(B, Sq, H, E));
}

void mx_pass_attention_dropout(mx_graph *g, double rate)
{
    int n_old = g->n_nodes, n_dropped = 0;
    if (!(rate > 0) || g->error)
        return;
    mx_node *seed = mx_dropout_seed(g);
    for (int i = 0; i < n_old && !g->error; i++) {
        mx_node *n = g->node[i];
        if (n->op != &mx_op_attention || !mx_scope_layer(n->scope))
            continue;
        if (n->in[MX_ATTN_SELECTED])
            mx_graph_fail(g, "attention_dropout: %s attends to keys that an indexer selects, where "
                          "it is not supported; leave it out", n->scope);
        const char *scope = g->scope;
        g->scope = n->scope;
        g->seq = n->seq;
        mx_node *y = composed(g, n, seed, rate);
        y->name = n->name;
        mx_node_forward(n, y);
        g->seq = -1;
        g->scope = scope;
        n_dropped++;
    }
    if (!n_dropped)
        mx_graph_fail(g, "attention_dropout: this model has no attention that it applies to");
    mx_graph_resolve(g);
    mx_graph_renumber(g);
}
