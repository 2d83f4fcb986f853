/* deepseek_v32.c - DeepSeek V3.2: V3 with sparse attention, see deepseek.c.
 *
 * A small indexer beside each attention chooses the index_topk keys that a query sees:
 *     q = wq_b q_latent (Hi heads of Di)     k = layer_norm(wk x), one head     w = weights_proj x
 *     score(s, t) = sum_h w_h max(0, q_h . k_t / sqrt(Di))
 * The first dims of q and k are rotated, in halves, unlike those of the attention itself. The
 * indexer is frozen: a choice has no gradient, and the loss that trains it is not built.
 */
#include "models/deepseek.h"

#include "ops.h"
#include <math.h>

typedef struct {
    mx_deepseek base; /* first: the shared rows of the field table address it */
    int64_t index_heads, index_dim, index_topk;
} config;

/* Variables declared since there were n nodes get neither gradient nor optimizer state. */
static void freeze_since(mx_graph *g, int n)
{
    for (int i = n; i < g->n_nodes; i++)
        if (g->node[i]->op == &mx_op_variable)
            ((mx_var_attr *)g->node[i]->attr)->frozen = true;
}

/* The rotated dims come first in an indexer's head: x (B, S, H, Di). */
static mx_node *turn(mx_graph *g, const mx_deepseek *c, mx_node *x, const mx_rope_table *t)
{
    int64_t rest = x->type.dim[3] - c->mla.rope;
    if (!rest)
        return mx_rope_apply(g, x, t);
    mx_node *p = mx_split(g, x, 2, (int64_t[]){c->mla.rope, rest});
    return mx_concat(g, 2, (mx_node *[]){mx_rope_apply(g, p, t), mx_output(g, p, 1)}, 3);
}

static mx_node *indexer(mx_graph *g, const mx_deepseek *base, mx_build *b, mx_node *x,
                        mx_node *q_latent)
{
    const config *c = (const config *)base;
    int64_t B = b->batch, S = b->seq, H = c->index_heads, D = c->index_dim, T = S;
    int before = g->n_nodes;
    mx_scope(g, "indexer");
    mx_rope_table t = mx_rope_tables(g, b, &base->base.rope, base->mla.rope, false);
    mx_node *q = mx_linear(g, b, q_latent, "wq_b", H * D, "heads,q_lora", false);
    mx_node *k = mx_linear(g, b, x, "wk", D, "norm,embed", false);
    mx_node *w = mx_linear(g, b, x, "weights_proj", H, "heads,embed", false);
    k = mx_reshape(g, mx_layer_norm(g, k, "k_norm", 1e-6), MX_SHAPE(B, S, 1, D));
    k = turn(g, base, k, &t);
    q = turn(g, base, mx_reshape(g, q, MX_SHAPE(B, S, H, D)), &t);
    mx_node *pos_seg[4] = {NULL, NULL, b->segments, b->segments};
    if (b->cache_len) {
        T = b->cache_len;
        k = mx_cache_enter(g, b, "key", k, T);
        pos_seg[0] = b->positions;
        pos_seg[1] = mx_cache_positions(g, b, T);
    }
    k = mx_reshape(g, k, MX_SHAPE(B, T, D));
    int64_t n = c->index_topk < T ? c->index_topk : T;
    mx_node *selected = mx_select_keys(g, q, w, k, n, 1 / sqrt((double)D), pos_seg);
    freeze_since(g, before);
    return mx_scope_end(g, selected);
}

static mx_head build(mx_graph *g, const void *c, mx_build *b)
{
    return mx_deepseek_build(g, c, b, mx_deepseek_route_sigmoid, indexer);
}

static mx_status finish(void *config_, const json_t *json)
{
    config *c = config_;
    c->base.interleaved = true;
    MX_TRY(mx_deepseek_finish(&c->base, json));
    if (!c->base.mla.q_rank)
        return mx_fail(MX_INPUT, "\"q_lora_rank\" is 0, but the indexer reads the query's latent");
    if (c->index_heads < 1 || c->index_topk < 1 || c->index_dim < c->base.mla.rope)
        return mx_fail(MX_INPUT, "the indexer has %lld heads of %lld and keeps %lld keys; expected "
                       "at least 1, the %lld rotated dims, and 1", (long long)c->index_heads,
                       (long long)c->index_dim, (long long)c->index_topk,
                       (long long)c->base.mla.rope);
    return MX_OK;
}

static const mx_cfg_field fields[] = {
    MX_CFG_DEEPSEEK(8, 3, 1),
    MX_CFG_DEEPSEEK_SIGMOID,
    MX_CFG(mx_deepseek, mlp_types, "mlp_layer_types", MX_CFG_LAYER_TYPES, .text = "dense,sparse"),
    MX_CFG(config, index_heads, "index_n_heads", MX_CFG_INT, .fallback = 64,
           .maxtext = "indexer_n_heads"),
    MX_CFG(config, index_dim, "index_head_dim", MX_CFG_INT, .fallback = 128,
           .maxtext = "indexer_head_dim"),
    MX_CFG(config, index_topk, "index_topk", MX_CFG_INT, .fallback = 2048,
           .maxtext = "indexer_topk"),
    {0},
};

const mx_model mx_model_deepseek_v32 = {
    .name = "deepseek_v32",
    .doc = "DeepSeek V3.2",
    .model_types = "deepseek_v32",
    .architecture = "DeepseekV32ForCausalLM",
    .fields = fields,
    .config_size = sizeof(config),
    .finish = finish,
    .summary = mx_decoder_summary,
    .build = build,
    .other_parts = mx_joined_experts,
    .no_decay = "*norm*,*.bias",
    .unused = "model.layers.61.*",
    .decoder_block = "deepseek",
    .decoder_keys = "routed_score_func=sigmoid,use_indexer=true",
};
