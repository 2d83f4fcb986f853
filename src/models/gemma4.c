/* gemma4.c - Gemma 4, text: dense (31B), mixture (26B-A4B), and small ones with per-layer inputs
 * (E2B, E4B).
 *
 * As Gemma 3 (a norm before and after each block, q and k normed, five sliding layers to one full),
 * and: norms store w itself; values are normed without weight; attention is not scaled; each layer
 * ends in a frozen factor. Full layers have heads of another size and number, rotate a share of
 * each head by frequencies of the whole, and may use the keys for values.
 *
 *   26B-A4B  each layer adds to its MLP a mixture that sees the same input through norms of its own
 *   E2B      the last layers have no k and v of their own: they attend to those of the last layer
 *            of their kind before; and every layer takes a small embedding of the token, its own
 *            slice of one wide table, mixed with a projection of the embedded input:
 *                p = (norm(proj(x0) / sqrt(d)) + sqrt(p) table[token]) / sqrt(2)
 *                x = x + norm(up(act(gate(x)) p))
 * x (B, S, d); q (B, S, H, D); k, v (B, S, K, D).
 */
#include "models/gemma4.h"

#include "ops.h"
#include <math.h>
#include <string.h>

/* What layers hand on: tables of both kinds and the last keys and values of each. */
typedef struct {
    mx_rope_table table[MX_GEMMA4_KINDS];
    mx_kv kept[MX_GEMMA4_KINDS];
    mx_node *inputs; /* (B, S, layers p); NULL: none */
} carry;

static bool is_shared(const mx_gemma4 *c, int64_t l)
{
    return c->shared_layers > 0 && l >= c->layers - c->shared_layers;
}

static mx_node *norm(mx_graph *g, const mx_gemma4 *c, mx_node *x, const char *name)
{
    return mx_rms_norm(g, x, name, c->eps, false);
}

static mx_node *attention(mx_graph *g, const mx_gemma4 *c, mx_build *b, mx_node *x, int64_t l,
                          carry *y)
{
    mx_scope(g, "self_attn");
    int kind = c->layer_types.type[l];
    bool full = kind == MX_GEMMA4_FULL;
    int64_t B = b->batch, S = b->seq, H = c->heads;
    int64_t K = full ? c->global_kv_heads : c->kv_heads,
            D = full ? c->global_head_dim : c->head_dim;
    mx_attention_attr a = {.causal = strcmp(c->bidirectional, "all") != 0, .scale = 1,
                           .window = full ? 0 : c->window};
    mx_head_axes axes = mx_attention_axes(g, D);
    mx_node *q = mx_linear(g, b, x, "q_proj", H * D, axes.q, c->attention_bias);
    q = mx_name(g, "query_proj", mx_reshape(g, q, MX_SHAPE(B, S, H, D)));
    q = mx_rope_apply(g, norm(g, c, q, "q_norm"), &y->table[kind]);
    if (!is_shared(c, l)) {
        mx_node *k = mx_linear(g, b, x, "k_proj", K * D, axes.kv, c->attention_bias);
        mx_node *v = k;
        if (!(full && c->k_eq_v))
            v = mx_linear(g, b, x, "v_proj", K * D, axes.kv, c->attention_bias);
        k = mx_name(g, "key_proj", mx_reshape(g, k, MX_SHAPE(B, S, K, D)));
        v = mx_name(g, "value_proj", mx_reshape(g, v, MX_SHAPE(B, S, K, D)));
        k = mx_rope_apply(g, norm(g, c, k, "k_norm"), &y->table[kind]);
        y->kept[kind] = mx_kv_keep(g, b, k, mx_rms_scale(g, v, c->eps), a);
    }
    mx_node *spans = b->spans, *o;
    b->spans = full ? NULL : spans; /* images see themselves both ways in sliding layers alone */
    o = mx_attend_kept(g, b, q, y->kept[kind], a, NULL);
    b->spans = spans;
    o = mx_linear(g, b, o, "o_proj", c->d, axes.out, c->attention_bias);
    return mx_scope_end(g, mx_name(g, "out_proj", o));
}

/* Softmax, the best k, their shares times a learned factor of each expert; x enters normed. */
static mx_routing route(mx_graph *g, const mx_gemma4 *c, const mx_build *b, mx_node *x)
{
    const mx_moe *m = &c->moe;
    int64_t N = b->batch * b->seq;
    mx_scope(g, "router");
    x = mx_mul(g, mx_rms_scale(g, x, c->eps),
               mx_param(g, "scale", MX_SHAPE(c->d), "norm", MX_ONES));
    x = mx_affine(g, x, 1 / sqrt((double)c->d), 0);
    mx_node *logits = mx_router_logits(g, b, x, "proj", m->experts, false);
    mx_gating choice = {.k = m->k, .renormalise = true};
    mx_routing r = mx_route(g, logits, mx_softmax(g, logits), choice);
    mx_node *factor = mx_param(g, "per_expert_scale", MX_SHAPE(m->experts), "", MX_ONES);
    factor = mx_embed(g, mx_reshape(g, factor, MX_SHAPE(m->experts, 1)), r.expert);
    r.weight = mx_mul(g, r.weight, mx_reshape(g, factor, MX_SHAPE(N, m->k)));
    mx_scope_end(g, r.weight);
    return r;
}

static mx_node *mixture(mx_graph *g, const mx_gemma4 *c, mx_build *b, mx_node *x)
{
    const mx_moe *m = &c->moe;
    mx_routing r = route(g, c, b, x);
    mx_balance(g, b, m, &r);
    x = norm(g, c, x, "pre_feedforward_layernorm_2");
    mx_dispatch t = mx_dispatch_tokens(g, b, x, &r, m->capacity);
    mx_scope(g, "experts");
    mx_node *h = mx_expert_linear(g, b, &t, t.rows, "gate_up_proj", 2 * m->d_ff,
                                  mx_gate_up_axes(g, m->d_ff, false), false);
    mx_node *both = mx_split(g, mx_name(g, "moe_mlpwi_0", h), 2, (int64_t[]){m->d_ff, m->d_ff});
    h = mx_weigh(g, &t, mx_mul(g, mx_activation(g, both, c->act), mx_output(g, both, 1)));
    h = mx_expert_linear(g, b, &t, h, "down_proj", c->d, "exp,embed_moe,mlp_moe", false);
    mx_scope_end(g, h);
    h = mx_combine(g, b, &t, mx_name(g, "moe_mlpwo", h));
    return norm(g, c, h, "post_feedforward_layernorm_2");
}

static mx_node *feed_forward(mx_graph *g, const mx_gemma4 *c, mx_build *b, mx_node *x, int64_t l)
{
    mx_node *h = norm(g, c, x, "pre_feedforward_layernorm");
    int64_t d_ff = c->d_ff * (c->double_wide && is_shared(c, l) ? 2 : 1);
    mx_scope(g, "mlp");
    h = mx_scope_end(g, mx_gated_mlp(g, b, h, d_ff, c->act, false));
    if (c->mixture) {
        h = norm(g, c, h, "post_feedforward_layernorm_1");
        h = mx_add(g, h, mixture(g, c, b, x));
    }
    return norm(g, c, h, "post_feedforward_layernorm");
}

/* The row of the padding token where a token is an image's. It is not trained by them. */
static mx_node *add_padding(mx_graph *g, const mx_gemma4 *c, mx_build *b, mx_node *own)
{
    mx_node *text = mx_cast(g, b->tokens, own->type.dtype);
    mx_node *image = mx_greater(g, mx_constant(g, MX_SCALAR, own->type.dtype, -0.5), text);
    mx_shape one = MX_SHAPE(1, 1), row = MX_SHAPE(1, 1, own->type.dim[2]);
    mx_build pad = {.tokens = mx_constant(g, one, MX_I32, (double)c->pad)};
    mx_node *e = mx_embedding(g, &pad, "embed_tokens_per_layer", c->vocab_input, row.dim[2]);
    image = mx_reshape(g, image, MX_SHAPE(b->batch, b->seq, 1));
    return mx_add(g, own, mx_mul(g, image, mx_reshape(g, mx_detach(g, e), row)));
}

/* The small embeddings of all layers side by side, (B, S, layers p), from the embedded input x. */
static mx_node *layer_inputs(mx_graph *g, const mx_gemma4 *c, mx_build *b, mx_node *x,
                             bool images)
{
    int64_t p = c->d_input, L = c->layers, B = b->batch, S = b->seq;
    mx_node *own = mx_embedding(g, b, "embed_tokens_per_layer", c->vocab_input, L * p);
    if (images)
        own = add_padding(g, c, b, own);
    const char *by_layer = mx_axes_text(g, "mlp*%lld,embed", (long long)p);
    mx_node *seen = mx_linear(g, b, x, "per_layer_model_projection", L * p, by_layer, false);
    seen = mx_affine(g, seen, 1 / sqrt((double)c->d), 0);
    seen = mx_reshape(g, seen, MX_SHAPE(B, S, L, p));
    seen = norm(g, c, seen, "per_layer_projection_norm");
    seen = mx_reshape(g, seen, MX_SHAPE(B, S, L * p));
    mx_node *sum = mx_add(g, seen, mx_affine(g, own, sqrt((double)p), 0));
    return mx_affine(g, sum, sqrt(0.5), 0);
}

static mx_node *add_input(mx_graph *g, const mx_gemma4 *c, mx_build *b, mx_node *x, mx_node *input)
{
    mx_node *h = mx_linear(g, b, x, "per_layer_input_gate", c->d_input, "mlp,embed", false);
    h = mx_mul(g, mx_activation(g, h, c->act), input);
    h = mx_linear(g, b, h, "per_layer_projection", c->d, "embed,mlp", false);
    return mx_add(g, x, norm(g, c, h, "post_per_layer_input_norm"));
}

static mx_node *layer(mx_graph *g, const mx_gemma4 *c, mx_build *b, mx_node *x, int64_t l, carry *y)
{
    mx_scope(g, "layers.%lld", (long long)l);
    mx_node *h = attention(g, c, b, norm(g, c, x, "input_layernorm"), l, y);
    x = mx_add(g, x, norm(g, c, h, "post_attention_layernorm"));
    x = mx_add(g, x, feed_forward(g, c, b, x, l));
    if (y->inputs)
        x = add_input(g, c, b, x, mx_slice(g, y->inputs, 2, l * c->d_input, c->d_input));
    mx_node *scalar = mx_buffer(g, "layer_scalar", MX_SHAPE(1), MX_ONES);
    return mx_scope_end(g, mx_mul(g, x, scalar));
}

mx_node *mx_gemma4_layers(mx_graph *g, const mx_gemma4 *c, mx_build *b, mx_node *image)
{
    mx_node *x = mx_embedding(g, b, "embed_tokens", c->vocab, c->d);
    x = mx_affine(g, x, sqrt((double)c->d), 0);
    x = image ? mx_add(g, x, image) : x;
    carry y = {.inputs = c->d_input ? layer_inputs(g, c, b, x, image != NULL) : NULL};
    y.table[MX_GEMMA4_SLIDING] = mx_rope_tables(g, b, &c->local, c->head_dim, false);
    y.table[MX_GEMMA4_FULL] = mx_rope_tables(g, b, &c->rope, c->global_head_dim, false);
    for (int64_t l = 0; l < c->layers; l++)
        x = layer(g, c, b, x, l, &y);
    return norm(g, c, x, "norm");
}

static mx_head build(mx_graph *g, const void *config, mx_build *b)
{
    const mx_gemma4 *c = config;
    mx_scope(g, "model");
    mx_node *x = mx_scope_end(g, mx_gemma4_layers(g, c, b, NULL));
    return (mx_head){.hidden = x, .softcap = c->logit_cap,
                     .weight = mx_head_weight(g, b, c->vocab, c->d, c->tied)};
}

static void summary(const void *config, mx_model_summary *s)
{
    const mx_gemma4 *c = config;
    *s = (mx_model_summary){c->vocab, c->d, c->layers, c->max_positions, c->init_scale, c->tied};
}

#define FULL_ROPE "rope_parameters.full_attention."
#define LOCAL_ROPE "rope_parameters.sliding_attention."
static const mx_cfg_field fields[] = {
    MX_CFG_SIZES(mx_gemma4),
    MX_CFG(mx_gemma4, kv_heads, "num_key_value_heads", MX_IS_HEADS_OR_0, .fallback = 4,
           .maxtext = "base_num_kv_heads"),
    MX_CFG(mx_gemma4, head_dim, "head_dim", MX_IS_HEAD_DIM_OR_0, .fallback = 256,
           .maxtext = "head_dim"),
    MX_CFG(mx_gemma4, global_kv_heads, "num_global_key_value_heads", MX_IS_HEADS_OR_0,
           .maxtext = "global_num_kv_heads"),
    MX_CFG(mx_gemma4, global_head_dim, "global_head_dim", MX_IS_HEAD_DIM_OR_0, .fallback = 512,
           .maxtext = "global_head_dim"),
    MX_CFG(mx_gemma4, max_positions, "max_position_embeddings", MX_IS_POSITIONS, .fallback = 131072,
           .maxtext = "max_position_embeddings"),
    MX_CFG(mx_gemma4, act, "hidden_activation", MX_CFG_ACT, .fallback = MX_ACT_GELU_TANH),
    MX_CFG(mx_gemma4, eps, "rms_norm_eps", MX_IS_EPSILON, .fallback = 1e-6,
           .maxtext = "normalization_layer_epsilon"),
    MX_CFG(mx_gemma4, init_scale, "initializer_range", MX_IS_DEVIATION, .fallback = 0.02),
    MX_CFG(mx_gemma4, logit_cap, "final_logit_softcapping", MX_IS_FACTOR_OR_0,
           .maxtext = "final_logits_soft_cap"),
    MX_CFG(mx_gemma4, tied, "tie_word_embeddings", MX_CFG_BOOL, .fallback = 1,
           .maxtext = "logits_via_embedding"),
    MX_CFG(mx_gemma4, attention_bias, "attention_bias", MX_CFG_BOOL),
    MX_CFG(mx_gemma4, bidirectional, "use_bidirectional_attention", MX_CFG_TEXT, .text = ""),
    MX_CFG(mx_gemma4, window, "sliding_window", MX_IS_LENGTH_OR_0, .fallback = 512,
           .maxtext = "sliding_window_size"),
    MX_CFG(mx_gemma4, layer_types, "layer_types", MX_CFG_LAYER_TYPES,
           .text = "sliding_attention,full_attention"),
    MX_CFG(mx_gemma4, rope.type, FULL_ROPE "rope_type", MX_CFG_TEXT, .text = "proportional",
           .own = true),
    MX_CFG(mx_gemma4, rope.theta, FULL_ROPE "rope_theta", MX_IS_THETA, .fallback = 1000000,
           .maxtext = "global_rope_max_timescale"),
    MX_CFG(mx_gemma4, rope.factor, FULL_ROPE "factor", MX_IS_FACTOR, .fallback = 1, .own = true),
    MX_CFG(mx_gemma4, rope.partial, FULL_ROPE "partial_rotary_factor", MX_IS_SHARE, .fallback = -1,
           .own = true),
    MX_CFG(mx_gemma4, local.type, LOCAL_ROPE "rope_type", MX_CFG_TEXT, .text = "default",
           .own = true),
    MX_CFG(mx_gemma4, local.theta, LOCAL_ROPE "rope_theta", MX_IS_THETA, .fallback = 10000,
           .maxtext = "local_rope_max_timescale"),
    MX_CFG(mx_gemma4, local.factor, LOCAL_ROPE "factor", MX_IS_FACTOR, .fallback = 1, .own = true),
    MX_CFG(mx_gemma4, k_eq_v, "attention_k_eq_v", MX_CFG_BOOL, .maxtext = "share_kv_projections"),
    MX_CFG(mx_gemma4, shared_layers, "num_kv_shared_layers", MX_IS_COUNT_OR_0,
           .maxtext = "num_kv_shared_layers"),
    MX_CFG(mx_gemma4, double_wide, "use_double_wide_mlp", MX_CFG_BOOL,
           .maxtext = "use_double_wide_mlp"),
    MX_CFG(mx_gemma4, d_input, "hidden_size_per_layer_input", MX_IS_WIDTH_OR_0, .fallback = 256,
           .maxtext = "hidden_size_per_layer_input"),
    MX_CFG(mx_gemma4, vocab_input, "vocab_size_per_layer_input", MX_IS_VOCAB_OR_0,
           .fallback = 262144, .maxtext = "vocab_size_per_layer_input"),
    MX_CFG(mx_gemma4, pad, "pad_token_id", MX_IS_TOKEN, .own = true),
    MX_CFG(mx_gemma4, mixture, "enable_moe_block", MX_CFG_BOOL),
    MX_CFG(mx_gemma4, moe.experts, "num_experts", MX_IS_COUNT_OR_0, .maxtext = "num_experts"),
    MX_CFG(mx_gemma4, moe.k, "top_k_experts", MX_IS_COUNT_OR_0, .maxtext = "num_experts_per_tok"),
    MX_CFG(mx_gemma4, moe.d_ff, "moe_intermediate_size", MX_IS_WIDTH_OR_0,
           .maxtext = "base_moe_mlp_dim"),
    MX_CFG_MOE_LOSSES(mx_gemma4, 0),
    {0},
};

const mx_model mx_model_gemma4 = {
    .name = "gemma4",
    .doc = "Gemma 4, text: dense, 26B-A4B, E2B and E4B",
    .model_types = "gemma4_text",
    .architecture = "Gemma4ForCausalLM",
    .config_size = sizeof(mx_gemma4),
    .fields = fields,
    .finish = mx_gemma4_finish,
    .summary = summary,
    .build = build,
    .other_parts = mx_separate_experts,
    /* Layers that use another's keys may come with projections of their own all the same. */
    .unused = "*.self_attn.k_proj.*,*.self_attn.v_proj.*,*.self_attn.k_norm.*,*.self_attn.v_norm.*",
    .no_decay = "*norm*,*.router.scale,*.per_expert_scale,*.bias",
    .decoder_block = "gemma4,gemma4_small",
    .fixed_keys = "global_rope_proportion=0.25,local_rope_proportion=1,norm_topk_prob=true,"
                  "shared_experts=1,use_post_attn_norm=true,use_post_ffw_norm=true,"
                  "use_qk_norm=true,v_norm_with_scale=false",
};
