/* gpt2.c - GPT-2 (and GPT-3's form): learned positions, LayerNorm, fused q-k-v projection, GELU
 * MLP.
 *
 * Its projections are stored (in, out), unlike every later family's. x (B, S, d).
 */
#include "models/model.h"

#include "ops.h"
#include <math.h>
#include <string.h>

typedef struct {
    int64_t vocab, d, d_ff, layers, heads, max_positions;
    mx_act act;
    double eps, init_scale;
    bool tied, scale_attention, scale_by_layer;
} config;

/* x (*, in) -> (*, out) with weight (in, out) and bias. `axes` are the weight's. */
static mx_node *conv1d(mx_graph *g, const mx_build *b, mx_node *x, const char *name, int64_t out,
                       const char *axes)
{
    mx_scope(g, "%s", name);
    mx_node *w = mx_param(g, "weight", MX_SHAPE(x->type.dim[x->type.ndim - 1], out), axes,
                          MX_NORMAL(b->init_scale));
    mx_var_attr *attr = mx_var_edit(w);
    if (attr)
        attr->in_out = true;
    const char *own = strchr(axes, ',') + 1;
    mx_node *y = mx_axes(mx_result_axes(g, own), mx_matmul(g, "*d,df->*f", x, w));
    return mx_scope_end(g, mx_add(g, y, mx_param(g, "bias", MX_SHAPE(out), own, MX_ZEROS)));
}

static mx_node *attention(mx_graph *g, const config *c, mx_build *b, mx_node *x, int64_t l)
{
    mx_scope(g, "attn");
    int64_t D = c->d / c->heads;
    mx_shape heads = MX_SHAPE(b->batch, b->seq, c->heads, D);
    long long d = c->d, each = D;
    const char *axes = mx_axes_text(g, "embed,q_heads(%lld*%lld+%lld*%lld+%lld*%lld)", d, each, d,
                                    each, d, each);
    mx_node *qkv = conv1d(g, b, x, "c_attn", 3 * c->d, axes);
    mx_node *part = mx_split(g, qkv, 3, (int64_t[]){c->d, c->d, c->d});
    mx_node *q = mx_name(g, "query_proj", mx_reshape(g, part, heads));
    mx_node *k = mx_name(g, "key_proj", mx_reshape(g, mx_output(g, part, 1), heads));
    mx_node *v = mx_name(g, "value_proj", mx_reshape(g, mx_output(g, part, 2), heads));
    mx_attention_attr a = {.causal = true, .scale = c->scale_attention ? 1 / sqrt((double)D) : 1};
    if (c->scale_by_layer)
        a.scale /= (double)(l + 1);
    mx_node *o = mx_attend(g, b, q, k, v, a, NULL);
    o = conv1d(g, b, o, "c_proj", c->d, mx_axes_text(g, "heads*%lld,embed", each));
    return mx_scope_end(g, mx_name(g, "out_proj", o));
}

static mx_node *mlp(mx_graph *g, const config *c, mx_build *b, mx_node *x)
{
    mx_scope(g, "mlp");
    mx_node *h = mx_name(g, "mlpwi_0", conv1d(g, b, x, "c_fc", c->d_ff, "embed,mlp"));
    h = conv1d(g, b, mx_activation(g, h, c->act), "c_proj", c->d, "mlp,embed");
    return mx_scope_end(g, mx_name(g, "mlpwo", h));
}

static mx_node *positions(mx_graph *g, const config *c, mx_build *b)
{
    mx_node *table = mx_param(g, "transformer.wpe.weight", MX_SHAPE(c->max_positions, c->d),
                              ",embed_vocab", MX_NORMAL(b->init_scale));
    if (b->positions)
        return mx_embed(g, table, b->positions);
    return mx_slice(g, table, 0, 0, b->seq); /* (S, d), the same in every row */
}

static mx_head build(mx_graph *g, const void *config_, mx_build *b)
{
    const config *c = config_;
    if (!b->cache_len && b->seq > c->max_positions)
        mx_graph_fail(g, "a sequence of %lld tokens, but the model has %lld positions",
                      (long long)b->seq, (long long)c->max_positions);
    b->fixed_pad = 0; /* transformers has none here */
    mx_node *x = mx_embedding(g, b, "transformer.wte", c->vocab, c->d);
    x = mx_add(g, x, positions(g, c, b));
    for (int64_t l = 0; l < c->layers; l++) {
        mx_scope(g, "transformer.h.%lld", (long long)l);
        x = mx_add(g, x, attention(g, c, b, mx_layer_norm(g, x, "ln_1", c->eps), l));
        x = mx_add(g, x, mlp(g, c, b, mx_layer_norm(g, x, "ln_2", c->eps)));
        mx_scope_end(g, x);
    }
    x = mx_layer_norm(g, x, "transformer.ln_f", c->eps);
    mx_node *w = mx_param(g, c->tied ? "transformer.wte.weight" : "lm_head.weight",
                          MX_SHAPE(c->vocab, c->d), "vocab,embed_vocab", MX_NORMAL(b->init_scale));
    return (mx_head){.hidden = x, .weight = w};
}

static mx_status finish(void *config_, const json_t *json)
{
    config *c = config_;
    (void)json;
    if (!c->d_ff)
        c->d_ff = 4 * c->d;
    int64_t all = 0, head_dim = 0;
    return mx_check_heads(c->d, c->heads, &all, &head_dim);
}

static void summary(const void *config_, mx_model_summary *s)
{
    const config *c = config_;
    *s = (mx_model_summary){c->vocab, c->d, c->layers, c->max_positions, c->init_scale, c->tied};
}

/* The hub's own gpt2 files lack the "transformer." prefix. */
static const char *other_name(const char *name, char *buf, size_t cap)
{
    static const char prefix[] = "transformer.";
    if (strncmp(name, prefix, sizeof prefix - 1) != 0)
        return NULL;
    snprintf(buf, cap, "%s", name + sizeof prefix - 1);
    return buf;
}

static const mx_cfg_field fields[] = {
    MX_CFG(config, vocab, "vocab_size", MX_IS_VOCAB, .fallback = 50257, .maxtext = "vocab_size"),
    MX_CFG(config, d, "n_embd|hidden_size", MX_IS_WIDTH, .fallback = 768,
           .maxtext = "base_emb_dim"),
    MX_CFG(config, d_ff, "n_inner", MX_IS_WIDTH_OR_0, .maxtext = "base_mlp_dim"),
    MX_CFG(config, layers, "n_layer|num_hidden_layers", MX_IS_LAYERS, .fallback = 12,
           .maxtext = "base_num_decoder_layers"),
    MX_CFG(config, heads, "n_head|num_attention_heads", MX_IS_HEADS, .fallback = 12,
           .maxtext = "base_num_query_heads"),
    MX_CFG(config, max_positions, "n_positions|max_position_embeddings", MX_IS_POSITIONS,
           .fallback = 1024, .maxtext = "trainable_position_size"),
    MX_CFG(config, act, "activation_function", MX_CFG_ACT, .fallback = MX_ACT_GELU_TANH),
    MX_CFG(config, eps, "layer_norm_epsilon", MX_IS_EPSILON, .fallback = 1e-5,
           .maxtext = "normalization_layer_epsilon"),
    MX_CFG(config, init_scale, "initializer_range", MX_IS_DEVIATION, .fallback = 0.02),
    MX_CFG(config, tied, "tie_word_embeddings", MX_CFG_BOOL, .fallback = 1,
           .maxtext = "logits_via_embedding"),
    MX_CFG(config, scale_attention, "scale_attn_weights", MX_CFG_BOOL, .fallback = 1),
    MX_CFG(config, scale_by_layer, "scale_attn_by_inverse_layer_idx", MX_CFG_BOOL),
    {0},
};

const mx_model mx_model_gpt2 = {
    .name = "gpt2",
    .doc = "GPT-2; GPT-3's form",
    .model_types = "gpt2",
    .architecture = "GPT2LMHeadModel",
    .config_size = sizeof(config),
    .fields = fields,
    .finish = finish,
    .summary = summary,
    .build = build,
    .other_name = other_name,
    .no_decay = "*.ln_*,*.bias",
    .decoder_block = "gpt2,gpt3",
    .fixed_keys = "attention_bias=true,base_num_kv_heads=base_num_query_heads,"
                  "head_dim=base_emb_dim/base_num_query_heads,mlp_bias=true",
};
