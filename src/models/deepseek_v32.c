/* deepseek_v32.c - DeepSeek V3.2: V3 with sparse attention, see deepseek.c.
 *
 * A small indexer beside each attention chooses the index_topk keys that a query sees:
 *     q = wq_b q_latent (Hi heads of Di)     k = layer_norm(wk x), one head     w = weights_proj x
 *     score(s, t) = sum_h w_h / sqrt(Hi) max(0, q_h . k_t / sqrt(Di))
 * The first dims of q and k are rotated, in halves, unlike those of the attention itself. A choice
 * has no gradient, so the indexer is frozen unless indexer_loss_scaling_factor is above 0. Then, as
 * MaxText has it, a loss draws it to what the attention itself looks at:
 *     p(s, .) = the softmaxes of all heads, added and divided by their sum       no gradient
 *     loss = factor mean over layers, queries of  sum_t p (log p - log softmax(score)(s, t))
 * Two stages. Warm-up (indexer_sparse_training=false): queries see all keys in training, everything
 * but the indexers is frozen. Then (true): queries see the chosen keys, the loss looks at these
 * alone, and what the indexer reads is detached, so that the loss of the model and that of its
 * indexers train each their own. The loss needs all scores at once, H S numbers for each query.
 */
#include "models/deepseek.h"

#include "ops.h"
#include <math.h>
#include <string.h>

typedef struct {
    mx_deepseek base; /* first: the shared rows of the field table address it */
    int64_t index_heads, index_dim, index_topk;
    double loss_weight; /* 0: the indexer is frozen */
    bool sparse;        /* the second stage */
} config;

/* The rotated dims come first in an indexer's head: x (B, S, H, Di). */
static mx_node *rotate(mx_graph *g, const mx_deepseek *c, mx_node *x, const mx_rope_table *t)
{
    int64_t rest = x->type.dim[3] - c->mla.rope;
    if (!rest)
        return mx_rope_apply(g, x, t);
    mx_node *p = mx_split(g, x, 2, (int64_t[]){c->mla.rope, rest});
    return mx_concat(g, 2, (mx_node *[]){mx_rope_apply(g, p, t), mx_output(g, p, 1)}, 3);
}

/* Every score, (B, S, S): what select_keys has one row at a time, as graph. */
static mx_node *all_scores(mx_graph *g, mx_node *q, mx_node *w, mx_node *k, mx_dtype t)
{
    double scale = 1 / sqrt((double)(q->type.dim[2] * q->type.dim[3]));
    mx_node *each = mx_affine(g, mx_matmul_as(g, "bshd,btd->bsht", q, k, t), scale, 0);
    each = mx_maximum(g, each, mx_constant(g, MX_SCALAR, t, 0));
    return mx_matmul_as(g, "bsh,bsht->bst", w, each, t);
}

static mx_deepseek_choice indexer(mx_graph *g, const mx_deepseek *base, mx_build *b, mx_node *x,
                                  mx_node *q_latent)
{
    const config *c = (const config *)base;
    int64_t B = b->batch, S = b->seq, H = c->index_heads, D = c->index_dim, T = S;
    bool learns = c->loss_weight > 0 && b->training;
    int before = g->n_nodes;
    if (learns && c->sparse) {
        x = mx_detach(g, x);
        q_latent = mx_detach(g, q_latent);
    }
    mx_scope(g, "indexer");
    mx_rope_table t = mx_rope_tables(g, b, &base->base.rope, base->mla.rope, false);
    mx_node *q = mx_linear(g, b, q_latent, "wq_b", H * D, "q_lora_up_proj,q_lora", false);
    mx_node *k = mx_linear(g, b, x, "wk", D, "kv_lora_up_proj,embed", false);
    mx_node *w = mx_linear(g, b, x, "weights_proj", H, "q_lora_up_proj,embed", false);
    k = mx_reshape(g, mx_layer_norm(g, k, "k_norm", 1e-6), MX_SHAPE(B, S, 1, D));
    k = rotate(g, base, k, &t);
    q = rotate(g, base, mx_reshape(g, q, MX_SHAPE(B, S, H, D)), &t);
    mx_select_extra e = {.q_seg = b->segments, .k_seg = b->segments};
    if (b->cache_len) {
        T = b->cache_len;
        k = mx_cache_enter(g, b, "key", k, T);
        e = mx_select_cached(g, b);
    }
    k = mx_reshape(g, k, MX_SHAPE(k->type.dim[0], k->type.dim[1], D));
    int64_t n = c->index_topk < T ? c->index_topk : T;
    mx_deepseek_choice choice = {0};
    if (!learns || c->sparse)
        choice.selected =
            mx_select_keys(g, (mx_node *[]){q, w, k}, n, 1 / sqrt((double)D), &e);
    if (learns)
        choice.scores = all_scores(g, q, w, k, g->param_dtype == MX_F64 ? MX_F64 : MX_F32);
    else
        mx_freeze_since(g, before);
    mx_scope_end(g, k);
    return choice;
}

/* 1 where query s may see key t: (S, S), or (B, S, S) with segments. */
static mx_node *visible(mx_graph *g, const mx_build *b, mx_dtype t)
{
    int64_t B = b->batch, S = b->seq;
    mx_node *one = mx_constant(g, MX_SHAPE(S), t, 1), *at = mx_cumsum(g, one, false);
    mx_node *row = mx_affine(g, mx_reshape(g, at, MX_SHAPE(S, 1)), 1, 0.5);
    mx_node *seen = mx_greater(g, row, at);
    if (!b->segments)
        return seen;
    mx_node *same = mx_equal(g, mx_reshape(g, b->segments, MX_SHAPE(B, S, 1)),
                             mx_reshape(g, b->segments, MX_SHAPE(B, 1, S)));
    return mx_mul(g, seen, mx_cast(g, same, t));
}

static void learn(mx_graph *g, const mx_deepseek *base, mx_build *b,
                  const mx_deepseek_choice *choice, const mx_mla_seen *seen)
{
    const config *c = (const config *)base;
    static const double tiny = 1e-8;
    mx_node *score = choice->scores;
    int64_t B = b->batch, S = b->seq;
    mx_dtype t = score->type.dtype;
    mx_node *open = visible(g, b, t), *closed = mx_constant(g, MX_SCALAR, t, -1e30);
    if (choice->selected) {
        mx_node *ones = mx_constant(g, MX_SHAPE(B, S, choice->selected->type.dim[2]), t, 1);
        open = mx_mul(g, open, mx_scatter_last(g, choice->selected, ones, S));
    }
    mx_node *own = mx_matmul_as(g, "bshd,bthd->bhst", mx_detach(g, seen->q),
                                mx_detach(g, seen->k), t);
    if (open->type.ndim == 3)
        own = mx_where(g, mx_reshape(g, open, MX_SHAPE(B, 1, S, S)),
                       mx_affine(g, own, base->mla.scale, 0), closed);
    else
        own = mx_where(g, open, mx_affine(g, own, base->mla.scale, 0), closed);
    mx_node *p = mx_sum_to(g, mx_softmax(g, own), MX_SHAPE(B, 1, S, S));
    p = mx_reshape(g, p, MX_SHAPE(B, S, S));
    p = mx_div(g, p, mx_affine(g, mx_row_sum(g, p), 1, tiny));
    mx_node *q = mx_softmax(g, mx_where(g, open, score, closed));
    mx_node *apart = mx_sub(g, mx_log(g, mx_affine(g, p, 1, tiny)),
                            mx_log(g, mx_affine(g, q, 1, tiny)));
    mx_node *loss = mx_sum_all(g, mx_mul(g, p, apart));
    loss = mx_affine(g, loss, c->loss_weight / (double)(B * S * base->base.layers), 0);
    b->index_loss = b->index_loss ? mx_add(g, b->index_loss, loss) : loss;
}

static mx_head build(mx_graph *g, const void *config_, mx_build *b)
{
    const config *c = config_;
    static const mx_deepseek_parts parts = {mx_deepseek_route_sigmoid, indexer, learn};
    mx_head head = mx_deepseek_build(g, &c->base, b, &parts);
    if (!b->index_loss)
        return head;
    mx_add_aux_loss(g, b, MX_METRIC_ROOT "indexer_loss", b->index_loss);
    for (int i = 0; !c->sparse && i < g->n_nodes; i++)
        if (g->node[i]->op == &mx_op_variable && !strstr(g->node[i]->name, ".indexer."))
            mx_freeze(g->node[i]);
    return head;
}

static mx_status finish(void *config_, const json_t *json)
{
    config *c = config_;
    c->base.interleaved = true;
    MX_TRY(mx_deepseek_finish(&c->base, json));
    if (!c->base.mla.q_rank)
        return mx_fail(MX_INPUT, "\"q_lora_rank\" is 0, but the indexer reads the query's latent");
    if (c->index_dim < c->base.mla.rope)
        return mx_fail(MX_INPUT, "\"index_head_dim\" is %lld, expected at least the %lld rotated "
                       "dims", (long long)c->index_dim, (long long)c->base.mla.rope);
    return MX_OK;
}

static const mx_cfg_field fields[] = {
    MX_CFG_DEEPSEEK(8, 3, 1),
    MX_CFG_DEEPSEEK_SIGMOID,
    MX_CFG(mx_deepseek, mlp_types, "mlp_layer_types", MX_CFG_LAYER_TYPES, .text = "dense,sparse"),
    MX_CFG(config, index_heads, "index_n_heads", MX_IS_HEADS, .fallback = 64,
           .maxtext = "indexer_n_heads"),
    MX_CFG(config, index_dim, "index_head_dim", MX_IS_HEAD_DIM, .fallback = 128,
           .maxtext = "indexer_head_dim"),
    MX_CFG(config, index_topk, "index_topk", MX_IS_LENGTH, .fallback = 2048,
           .maxtext = "indexer_topk"),
    MX_CFG(config, loss_weight, "indexer_loss_scaling_factor", MX_IS_FACTOR_OR_0,
           .maxtext = "indexer_loss_scaling_factor", .run = "indexer_loss_scaling_factor"),
    MX_CFG(config, sparse, "indexer_sparse_training", MX_CFG_BOOL,
           .maxtext = "indexer_sparse_training", .run = "indexer_sparse_training"),
    {0},
};

const mx_model mx_model_deepseek_v32 = {
    .name = "deepseek_v32",
    .doc = "DeepSeek V3.2",
    .model_types = "deepseek_v32",
    .architecture = "DeepseekV32ForCausalLM",
    .fields = fields,
    MX_EXPERTS_FAMILY(config, finish, build),
    .layer_prefix = "model.layers.",
    .decoder_block = "deepseek",
    .decoder_keys = "routed_score_func=sigmoid,use_indexer=true",
    .fixed_keys = "attention_type=mla,routed_bias=true",
};
