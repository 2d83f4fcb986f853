/* olmo3.c - OLMo 3: norms after attention and MLP, not before; one norm over all heads of q,
 * another over all heads of k; three layers with a sliding window, then one without.
 *
 *     x = x + norm(attention(x))        x = x + norm(mlp(x))
 * The scaling of rotary frequencies is that of the full layers alone; sliding ones have the plain
 * frequencies. x (B, S, d); q (B, S, H, D); k, v (B, S, K, D).
 */
#include "models/decoder.h"

#include "ops.h"
#include <math.h>

typedef struct {
    mx_decoder base; /* first: what the program asks of a decoder lies there */
    mx_rope local;
} config;

enum { SLIDING = 1, FULL };

static mx_node *attention(mx_graph *g, const mx_decoder *c, mx_build *b, mx_node *x, bool full,
                          const mx_rope_table *t)
{
    mx_scope(g, "self_attn");
    int64_t B = b->batch, S = b->seq, H = c->heads, K = c->kv_heads, D = c->head_dim;
    mx_head_axes axes = mx_attention_axes(g, D);
    mx_node *q = mx_linear(g, b, x, "q_proj", H * D, axes.q, c->qkv_bias);
    mx_node *k = mx_linear(g, b, x, "k_proj", K * D, axes.kv, c->qkv_bias);
    mx_node *v = mx_linear(g, b, x, "v_proj", K * D, axes.kv, c->qkv_bias);
    q = mx_rms_norm(g, mx_name(g, "query_proj", q), "q_norm", c->eps, false);
    k = mx_rms_norm(g, mx_name(g, "key_proj", k), "k_norm", c->eps, false);
    q = mx_rope_apply(g, mx_reshape(g, q, MX_SHAPE(B, S, H, D)), t);
    k = mx_rope_apply(g, mx_reshape(g, k, MX_SHAPE(B, S, K, D)), t);
    v = mx_reshape(g, mx_name(g, "value_proj", v), MX_SHAPE(B, S, K, D));
    mx_attention_attr a = {.causal = true, .scale = 1 / sqrt((double)D),
                           .window = full ? 0 : c->window};
    mx_node *o = mx_attend(g, b, q, k, v, a, NULL);
    o = mx_linear(g, b, o, "o_proj", c->d, axes.out, c->qkv_bias);
    return mx_scope_end(g, mx_name(g, "out_proj", o));
}

static mx_head build(mx_graph *g, const void *config_, mx_build *b)
{
    const config *c = config_;
    const mx_decoder *d = &c->base;
    mx_node *x = mx_embedding(g, b, "model.embed_tokens", d->vocab, d->d);
    mx_rope_table wide = mx_rope_tables(g, b, &d->rope, d->head_dim, false);
    mx_rope_table near = mx_rope_tables(g, b, &c->local, d->head_dim, false);
    for (int64_t l = 0; l < d->layers; l++) {
        bool full = d->layer_types.type[l] == FULL;
        mx_scope(g, "model.layers.%lld", (long long)l);
        mx_node *h = attention(g, d, b, x, full, full ? &wide : &near);
        x = mx_add(g, x, mx_rms_norm(g, h, "post_attention_layernorm", d->eps, false));
        h = mx_decoder_mlp(g, d, b, x, l);
        h = mx_rms_norm(g, h, "post_feedforward_layernorm", d->eps, false);
        x = mx_scope_end(g, mx_add(g, x, h));
    }
    x = mx_rms_norm(g, x, "model.norm", d->eps, false);
    return (mx_head){.hidden = x, .weight = mx_head_weight(g, b, d->vocab, d->d, d->tied)};
}

static mx_status finish(void *config_, const json_t *json)
{
    config *c = config_;
    mx_decoder *d = &c->base;
    mx_layer_types *t = &d->layer_types;
    for (int64_t l = 0; !t->n && l < d->layers && l < MX_MAX_LAYERS; l++)
        t->type[l] = (l + 1) % 4 ? SLIDING : FULL;
    if (!t->n)
        t->n = (int)(d->layers < MX_MAX_LAYERS ? d->layers : MX_MAX_LAYERS);
    c->local = (mx_rope){.type = "default", .theta = c->local.theta, .factor = 1};
    MX_TRY(mx_check_rope(&c->local, d->max_positions));
    return mx_decoder_finish(config_, json);
}

/* A number of the full layers' rotary scaling, in the three spellings there are. */
#define ROPE(member, name, kind, ...)                                                              \
    MX_CFG(mx_decoder, rope.member,                                                                \
           "rope_parameters.full_attention." name "|rope_parameters." name "|rope_scaling." name,  \
           kind, __VA_ARGS__)

/* Of one kind of layer; of both, as transformers before 5.14 wrote it; of the first files. */
#define THETAS "rope_theta|rope_parameters.rope_theta|rope_theta"

static const mx_cfg_field fields[] = {
    MX_CFG_SIZES_OR(mx_decoder, 50304, 4096, 11008, 32, 32),
    MX_CFG(mx_decoder, kv_heads, "num_key_value_heads", MX_IS_HEADS_OR_0,
           .maxtext = "base_num_kv_heads"),
    MX_CFG(mx_decoder, head_dim, "head_dim", MX_IS_HEAD_DIM_OR_0, .maxtext = "head_dim"),
    MX_CFG(mx_decoder, max_positions, "max_position_embeddings", MX_IS_POSITIONS, .fallback = 2048,
           .maxtext = "max_position_embeddings"),
    MX_CFG(mx_decoder, act, "hidden_act", MX_CFG_ACT, .fallback = MX_ACT_SILU),
    MX_CFG(mx_decoder, eps, "rms_norm_eps", MX_IS_EPSILON, .fallback = 1e-5,
           .maxtext = "normalization_layer_epsilon"),
    MX_CFG(mx_decoder, init_scale, "initializer_range", MX_IS_DEVIATION, .fallback = 0.02),
    MX_CFG(mx_decoder, tied, "tie_word_embeddings", MX_CFG_BOOL, .maxtext = "logits_via_embedding"),
    MX_CFG(mx_decoder, qkv_bias, "attention_bias", MX_CFG_BOOL),
    MX_CFG(mx_decoder, window, "sliding_window", MX_IS_LENGTH_OR_0, .fallback = 4096,
           .maxtext = "sliding_window_size"),
    MX_CFG(mx_decoder, layer_types, "layer_types", MX_CFG_LAYER_TYPES,
           .text = "sliding_attention,full_attention"),
    ROPE(type, "rope_type", MX_CFG_TEXT, .text = "default"),
    ROPE(factor, "factor", MX_IS_FACTOR, .fallback = 1),
    ROPE(beta_fast, "beta_fast", MX_IS_FACTOR, .fallback = 32),
    ROPE(beta_slow, "beta_slow", MX_IS_FACTOR, .fallback = 1),
    ROPE(truncate, "truncate", MX_CFG_BOOL, .fallback = 1),
    ROPE(attention_factor, "attention_factor", MX_IS_FACTOR_OR_0, .fallback = 0),
    ROPE(original_length, "original_max_position_embeddings", MX_IS_REAL_LENGTH_OR_0,
           .fallback = 0),
    MX_CFG(mx_decoder, rope.theta, "rope_parameters.full_attention." THETAS, MX_IS_THETA,
           .fallback = 500000, .maxtext = "rope_max_timescale"),
    MX_CFG(config, local.theta, "rope_parameters.sliding_attention." THETAS, MX_IS_THETA,
           .fallback = 500000, .maxtext = "rope_max_timescale"),
    {0},
};

const mx_model mx_model_olmo3 = {
    .name = "olmo3",
    .doc = "OLMo 3",
    .model_types = "olmo3",
    .architecture = "Olmo3ForCausalLM",
    .fields = fields,
    .config_size = sizeof(config),
    .finish = finish,
    .summary = mx_decoder_summary,
    .build = build,
    .no_decay = "*norm*,*.bias",
    .decoder_block = "olmo3",
    .fixed_keys = "rope_attention_scaling=true,rope_interleave=false,use_qk_norm=true",
};
