/* llama4.c - Llama 4 (Scout, Maverick), text.
 *
 * Three layers of four see the chunk their token lies in, with interleaved rotary embeddings and
 * then an RMS norm without weight on q and k (16E); the fourth sees everything, without positions,
 * and scales its queries up with the position.
 *
 * Mixture (every layer of Scout, every second of Maverick): one routed expert and one shared. The
 * router takes the k highest logits; their sigmoids multiply what enters the experts, not what
 * leaves them. Experts are stored stacked and (in, out): gate_up_proj (E, d, 2 f), gate first;
 * down_proj (E, f, d). x (B, S, d); q (B, S, H, D); k, v (B, S, K, D).
 */
#include "models/llama4.h"

#include "ops.h"
#include <math.h>

static bool listed(const mx_int_list *list, int64_t l)
{
    for (int i = 0; i < list->n; i++)
        if (list->v[i] == l)
            return true;
    return false;
}

static bool is_mixture(const mx_llama4 *c, int64_t l)
{
    return c->moe_layers.n ? listed(&c->moe_layers, l) : (l + 1) % c->moe_step == 0;
}

static bool has_rope(const mx_llama4 *c, int64_t l)
{
    if (c->rope_layers.n)
        return c->rope_layers.v[l] != 0;
    return c->no_rope_interval < 1 || (l + 1) % c->no_rope_interval != 0;
}

static int64_t chunk_of(const mx_llama4 *c, int64_t l)
{
    bool chunked = c->layer_types.n ? c->layer_types.type[l] == 1 : has_rope(c, l);
    return chunked ? c->chunk : 0;
}

/* 1 + attn_scale ln(1 + floor((p + 1) / floor_scale)) as (B or 1, S, 1, 1). */
static mx_node *temperatures(mx_graph *g, const mx_llama4 *c, const mx_build *b)
{
    mx_dtype t = g->param_dtype;
    if (!b->positions) {
        double *v = MX_NEW_N(&g->arena, double, b->seq);
        for (int64_t p = 0; p < b->seq; p++)
            v[p] = 1 + c->attn_scale * log1p(floor((double)(p + 1) / c->floor_scale));
        return mx_table(g, MX_SHAPE(1, b->seq, 1, 1), t, v);
    }
    mx_node *p = mx_reshape(g, b->positions, MX_SHAPE(b->batch, b->seq, 1, 1));
    p = mx_affine(g, mx_cast(g, p, t), 1, 1);
    p = mx_div(g, p, mx_constant(g, MX_SCALAR, t, c->floor_scale));
    p = mx_cast(g, mx_cast(g, p, MX_I32), t); /* towards zero, and none is below it */
    return mx_affine(g, mx_log(g, mx_affine(g, p, 1, 1)), c->attn_scale, 1);
}

static mx_node *attention(mx_graph *g, const mx_llama4 *c, mx_build *b, mx_node *x, int64_t l,
                          const mx_rope_table *t, mx_node *temperature)
{
    mx_scope(g, "self_attn");
    int64_t B = b->batch, S = b->seq, H = c->heads, K = c->kv_heads, D = c->head_dim;
    mx_head_axes axes = mx_attention_axes(g, D);
    mx_node *q = mx_linear(g, b, x, "q_proj", H * D, axes.q, c->bias);
    mx_node *k = mx_linear(g, b, x, "k_proj", K * D, axes.kv, c->bias);
    mx_node *v = mx_linear(g, b, x, "v_proj", K * D, axes.kv, c->bias);
    q = mx_name(g, "query_proj", mx_reshape(g, q, MX_SHAPE(B, S, H, D)));
    k = mx_name(g, "key_proj", mx_reshape(g, k, MX_SHAPE(B, S, K, D)));
    v = mx_name(g, "value_proj", mx_reshape(g, v, MX_SHAPE(B, S, K, D)));
    if (has_rope(c, l)) {
        q = mx_rope_apply(g, q, t);
        k = mx_rope_apply(g, k, t);
        if (c->qk_norm) {
            q = mx_rms_scale(g, q, c->eps);
            k = mx_rms_scale(g, k, c->eps);
        }
    } else if (c->tune) {
        q = mx_mul(g, q, temperature);
    }
    mx_attention_attr a = {.causal = true, .scale = 1 / sqrt((double)D), .chunk = chunk_of(c, l)};
    mx_node *o = mx_attend(g, b, q, k, v, a, NULL);
    o = mx_linear(g, b, o, "o_proj", c->d, axes.out, c->bias);
    return mx_scope_end(g, mx_name(g, "out_proj", o));
}

static mx_node *mixture(mx_graph *g, const mx_llama4 *c, mx_build *b, mx_node *x)
{
    const mx_moe *m = &c->moe;
    mx_node *logits = mx_router_logits(g, b, x, "router", m->experts, false);
    mx_node *top = mx_top_k(g, logits, m->k);
    mx_routing r = {.logits = logits, .experts = m->experts, .k = m->k,
                    .expert = mx_output(g, top, 1), .weight = mx_sigmoid(g, top)};
    mx_balance(g, b, m, &r);
    mx_dispatch t = mx_dispatch_tokens(g, b, x, &r, m->capacity);
    mx_node *h = mx_weigh(g, &t, t.rows);
    mx_scope(g, "experts");
    h = mx_expert_linear(g, b, &t, h, "gate_up_proj", 2 * m->d_ff,
                         mx_gate_up_axes(g, m->d_ff, true), true);
    mx_node *both = mx_split(g, mx_name(g, "moe_mlpwi_0", h), 2, (int64_t[]){m->d_ff, m->d_ff});
    h = mx_mul(g, mx_activation(g, both, c->act), mx_output(g, both, 1));
    h = mx_expert_linear(g, b, &t, h, "down_proj", c->d, "exp,mlp_moe,embed_moe", true);
    mx_scope_end(g, h);
    h = mx_combine(g, b, &t, mx_name(g, "moe_mlpwo", h));
    return mx_add(g, mx_shared_expert(g, b, x, "shared_expert", m->d_ff, c->act, NULL), h);
}

mx_node *mx_llama4_layers(mx_graph *g, const mx_llama4 *c, mx_build *b, mx_node *x)
{
    mx_rope_table t = mx_rope_tables(g, b, &c->rope, c->head_dim, true);
    mx_node *temperature = c->tune ? temperatures(g, c, b) : NULL;
    for (int64_t l = 0; l < c->layers; l++) {
        mx_scope(g, "layers.%lld", (long long)l);
        mx_node *h = mx_rms_norm(g, x, "input_layernorm", c->eps, false);
        x = mx_add(g, x, attention(g, c, b, h, l, &t, temperature));
        h = mx_rms_norm(g, x, "post_attention_layernorm", c->eps, false);
        mx_scope(g, "feed_forward");
        h = is_mixture(c, l) ? mixture(g, c, b, h)
                             : mx_gated_mlp(g, b, h, c->d_ff, c->act, false);
        mx_scope_end(g, h);
        x = mx_scope_end(g, mx_add(g, x, h));
    }
    return mx_rms_norm(g, x, "norm", c->eps, false);
}

static mx_head build(mx_graph *g, const void *config, mx_build *b)
{
    const mx_llama4 *c = config;
    mx_scope(g, "model");
    mx_node *x = mx_llama4_layers(g, c, b, mx_embedding(g, b, "embed_tokens", c->vocab, c->d));
    mx_scope_end(g, x);
    return (mx_head){.hidden = x, .weight = mx_head_weight(g, b, c->vocab, c->d, c->tied)};
}

static mx_status llama4_finish(void *config, const json_t *json)
{
    mx_llama4 *c = config;
    (void)json;
    if (c->rope_layers.n && c->rope_layers.n < c->layers)
        return mx_fail(MX_INPUT, "\"no_rope_layers\" names %d layers, but there are %lld",
                       c->rope_layers.n, (long long)c->layers);
    MX_TRY(mx_check_moe(&c->moe));
    MX_TRY(mx_check_heads(c->d, c->heads, &c->kv_heads, &c->head_dim));
    MX_TRY(mx_check_layer_types(&c->layer_types, c->layers));
    return mx_check_rope(&c->rope, c->max_positions);
}

static void summary(const void *config, mx_model_summary *s)
{
    const mx_llama4 *c = config;
    *s = (mx_model_summary){c->vocab, c->d, c->layers, c->max_positions, c->init_scale, c->tied};
}

static const mx_cfg_field fields[] = {
    MX_CFG_SIZES(mx_llama4), /* intermediate_size is an expert's: the next two rows */
    MX_CFG(mx_llama4, moe.d_ff, "intermediate_size", MX_IS_WIDTH, .required = true,
           .maxtext = "base_moe_mlp_dim"),
    MX_CFG(mx_llama4, d_ff, "intermediate_size_mlp", MX_IS_WIDTH, .fallback = 16384,
           .maxtext = "base_mlp_dim"),
    MX_CFG(mx_llama4, kv_heads, "num_key_value_heads", MX_IS_HEADS_OR_0, .fallback = 8,
           .maxtext = "base_num_kv_heads"),
    MX_CFG(mx_llama4, head_dim, "head_dim", MX_IS_HEAD_DIM_OR_0, .fallback = 128,
           .maxtext = "head_dim"),
    MX_CFG(mx_llama4, max_positions, "max_position_embeddings", MX_IS_POSITIONS, .fallback = 131072,
           .maxtext = "max_position_embeddings"),
    MX_CFG(mx_llama4, act, "hidden_act", MX_CFG_ACT, .fallback = MX_ACT_SILU),
    MX_CFG(mx_llama4, eps, "rms_norm_eps", MX_IS_EPSILON, .fallback = 1e-5,
           .maxtext = "normalization_layer_epsilon"),
    MX_CFG(mx_llama4, init_scale, "initializer_range", MX_IS_DEVIATION, .fallback = 0.02),
    MX_CFG(mx_llama4, tied, "tie_word_embeddings", MX_CFG_BOOL, .maxtext = "logits_via_embedding"),
    MX_CFG(mx_llama4, bias, "attention_bias", MX_CFG_BOOL),
    MX_CFG(mx_llama4, qk_norm, "use_qk_norm", MX_CFG_BOOL, .fallback = 1,
           .maxtext = "use_qk_norm"),
    MX_CFG_ROPE(mx_llama4, 500000),
    MX_CFG(mx_llama4, chunk, "attention_chunk_size", MX_IS_LENGTH_OR_0,
           .maxtext = "chunk_attn_window_size"),
    MX_CFG(mx_llama4, layer_types, "layer_types", MX_CFG_LAYER_TYPES,
           .text = "chunked_attention,full_attention"),
    MX_CFG(mx_llama4, rope_layers, "no_rope_layers", MX_CFG_INTS(0, 1)),
    MX_CFG(mx_llama4, no_rope_interval, "no_rope_layer_interval", MX_IS_COUNT_OR_0, .fallback = 4,
           .maxtext = "nope_layer_interval"),
    MX_CFG(mx_llama4, tune, "attn_temperature_tuning", MX_CFG_BOOL, .fallback = 1,
           .maxtext = "temperature_tuning"),
    MX_CFG(mx_llama4, floor_scale, "floor_scale", MX_CFG_F64(1, INT32_MAX), .fallback = 8192),
    MX_CFG(mx_llama4, attn_scale, "attn_scale", MX_IS_SIGNED_FACTOR, .fallback = 0.1),
    MX_CFG(mx_llama4, moe_layers, "moe_layers", MX_IS_LAYER_LIST),
    MX_CFG(mx_llama4, moe_step, "interleave_moe_layer_step", MX_IS_COUNT, .fallback = 1,
           .maxtext = "interleave_moe_layer_step"),
    MX_CFG_MOE(mx_llama4, "num_local_experts|num_experts", 1, 0.001),
    {0},
};

const mx_model mx_model_llama4 = {
    .name = "llama4",
    .doc = "Llama 4 Scout and Maverick, text",
    .model_types = "llama4_text",
    .architecture = "Llama4ForCausalLM",
    .config_size = sizeof(mx_llama4),
    .fields = fields,
    .finish = llama4_finish,
    .summary = summary,
    .build = build,
    .other_parts = mx_separate_experts_transposed,
    .no_decay = "*norm*,*.bias",
    .decoder_block = "llama4",
    .fixed_keys = "qk_norm_with_scale=false,shared_experts=1",
};
