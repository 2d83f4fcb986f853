/* llama.c - Llama 2, 3, 3.1, 3.2, 3.3 and what shares their form (SmolLM, TinyLlama, Yi, ...).
 *
 * Pre-norm decoder: RMSNorm, grouped-query attention with rotary embeddings (frequency-scaled from 3.1 on),
 * RMSNorm, SwiGLU. x (B, S, d).
 */
#include "models/model.h"

#include "ops.h"
#include <math.h>

typedef struct {
    int64_t vocab, d, d_ff, layers, heads, kv_heads, head_dim, max_positions;
    mx_act act;
    double eps, init_scale;
    bool tied, attention_bias, mlp_bias;
    mx_rope rope;
} config;

static mx_node *attention(mx_graph *g, const config *c, mx_build *b, mx_node *x,
                          const mx_rope_table *t)
{
    mx_scope(g, "self_attn");
    int64_t B = b->batch, S = b->seq, H = c->heads, K = c->kv_heads, D = c->head_dim;
    mx_node *q = mx_linear(g, b, x, "q_proj", H * D, "heads,embed", c->attention_bias);
    mx_node *k = mx_linear(g, b, x, "k_proj", K * D, "kv_heads,embed", c->attention_bias);
    mx_node *v = mx_linear(g, b, x, "v_proj", K * D, "kv_heads,embed", c->attention_bias);
    q = mx_rope_apply(g, mx_reshape(g, q, MX_SHAPE(B, S, H, D)), t);
    k = mx_rope_apply(g, mx_reshape(g, k, MX_SHAPE(B, S, K, D)), t);
    v = mx_reshape(g, v, MX_SHAPE(B, S, K, D));
    mx_attention_attr a = {.causal = true, .scale = 1 / sqrt((double)D)};
    mx_node *o = mx_attend(g, b, q, k, v, a, NULL);
    o = mx_linear(g, b, o, "o_proj", c->d, "embed,heads", c->attention_bias);
    return mx_scope_end(g, mx_name(g, "out_proj", o));
}

static mx_node *layer(mx_graph *g, const config *c, mx_build *b, mx_node *x, int64_t l,
                      const mx_rope_table *t)
{
    mx_scope(g, "model.layers.%lld", (long long)l);
    mx_node *h = mx_rms_norm(g, x, "input_layernorm", c->eps, false);
    x = mx_add(g, x, attention(g, c, b, h, t));
    h = mx_rms_norm(g, x, "post_attention_layernorm", c->eps, false);
    mx_scope(g, "mlp");
    h = mx_scope_end(g, mx_gated_mlp(g, b, h, c->d_ff, c->act, c->mlp_bias));
    return mx_scope_end(g, mx_add(g, x, h));
}

static mx_head build(mx_graph *g, const void *config_, mx_build *b)
{
    const config *c = config_;
    mx_node *x = mx_embedding(g, b, "model.embed_tokens", c->vocab, c->d);
    mx_rope_table t = mx_rope_tables(g, b, &c->rope, c->head_dim, false);
    for (int64_t l = 0; l < c->layers; l++)
        x = layer(g, c, b, x, l, &t);
    x = mx_rms_norm(g, x, "model.norm", c->eps, false);
    return (mx_head){.hidden = x, .weight = mx_head_weight(g, b, c->vocab, c->d, c->tied)};
}

static mx_status finish(void *config_, const json_t *json)
{
    config *c = config_;
    (void)json;
    MX_TRY(mx_check_heads(c->d, c->heads, &c->kv_heads, &c->head_dim));
    return mx_check_rope(&c->rope, c->max_positions);
}

static void summary(const void *config_, mx_model_summary *s)
{
    const config *c = config_;
    *s = (mx_model_summary){c->vocab, c->d, c->layers, c->max_positions, c->init_scale, c->tied};
}

static const mx_cfg_field fields[] = {
    MX_CFG_SIZES(config),
    MX_CFG(config, kv_heads, "num_key_value_heads", MX_CFG_INT, .maxtext = "base_num_kv_heads"),
    MX_CFG(config, head_dim, "head_dim", MX_CFG_INT, .maxtext = "head_dim"),
    MX_CFG(config, max_positions, "max_position_embeddings", MX_CFG_INT, .fallback = 2048,
           .maxtext = "max_position_embeddings"),
    MX_CFG(config, act, "hidden_act", MX_CFG_ACT, .fallback = MX_ACT_SILU),
    MX_CFG(config, eps, "rms_norm_eps", MX_CFG_F64, .fallback = 1e-6,
           .maxtext = "normalization_layer_epsilon"),
    MX_CFG(config, init_scale, "initializer_range", MX_CFG_F64, .fallback = 0.02),
    MX_CFG(config, tied, "tie_word_embeddings", MX_CFG_BOOL, .fallback = 0,
           .maxtext = "logits_via_embedding"),
    MX_CFG(config, attention_bias, "attention_bias", MX_CFG_BOOL),
    MX_CFG(config, mlp_bias, "mlp_bias", MX_CFG_BOOL),
    MX_CFG_ROPE(config, 10000),
    {0},
};

const mx_model mx_model_llama = {
    .name = "llama",
    .doc = "Llama 2, 3, 3.1, 3.2, 3.3; SmolLM",
    .model_types = "llama",
    .architecture = "LlamaForCausalLM",
    .config_size = sizeof(config),
    .fields = fields,
    .finish = finish,
    .summary = summary,
    .build = build,
    .no_decay = "*norm*,*.bias",
    .decoder_block = "llama2,llama3",
};
