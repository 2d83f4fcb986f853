/* decoder.h - the decoder that Llama, Mistral, Mixtral, Qwen2, Qwen3, Qwen3-MoE, GPT-OSS, SmolLM3
 * and GLM-4.5 share.
 *
 * They differ in five details, each a field here: biases on q, k, v; a norm on each head of q and
 * k; a sliding window on some layers; layers without positions; sinks. The mixtures have another
 * block in place of the MLP. A family with a form of its own (Gemma, GPT-2, Llama 4) does not use
 * this: it writes its own layer.
 */
#ifndef MX_MODELS_DECODER_H
#define MX_MODELS_DECODER_H

#include "models/model.h"

typedef struct {
    int64_t vocab, d, d_ff, layers, heads, kv_heads, head_dim, max_positions;
    mx_act act;
    double eps, init_scale;
    bool tied, qkv_bias, out_bias, mlp_bias;
    bool qk_norm;                /* RMSNorm on each head of q and k (Qwen3) */
    bool sinks;                  /* a logit of each head that takes part in the softmax (GPT-OSS) */
    int64_t window;              /* 0: none */
    int64_t first_window_layer;  /* with use_window: layers below it attend to everything */
    bool use_window;
    mx_int_list rope_layers;     /* 1 where a layer has positions; n = 0: all have (SmolLM3) */
    int64_t nope_interval;
    mx_layer_types layer_types;  /* sliding_attention, full_attention; n = 0: from the two above */
    mx_rope rope;
} mx_decoder;

mx_head mx_decoder_build(mx_graph *g, const void *config, mx_build *b);
/* The same with another second half of a layer: the mixtures. A family whose configuration begins
 * with an mx_decoder gets it back as `c`. */
typedef mx_node *mx_decoder_block(mx_graph *g, const mx_decoder *c, mx_build *b, mx_node *x,
                                  int64_t l);
extern mx_decoder_block mx_decoder_mlp;
mx_head mx_decoder_build_with(mx_graph *g, const mx_decoder *c, mx_build *b, mx_decoder_block *mlp);

/* What images bring into a decoder, (B, S, d) each and 0 where a token is none of theirs. */
typedef struct {
    mx_node *embedded;    /* in place of embeddings: b->tokens are -1 there */
    mx_node *const *deep; /* added after the first n_deep layers */
    int n_deep;
} mx_decoder_images;
/* Embedding, layers and final norm under the current scope; images NULL: none. */
mx_node *mx_decoder_layers(mx_graph *g, const mx_decoder *c, mx_build *b, mx_decoder_block *mlp,
                           const mx_decoder_images *images);
mx_status mx_decoder_finish(void *config, const json_t *json) MX_MUST_USE;
/* Qwen3's: with a norm on each head of q and k (qwen3.c). */
mx_status mx_qwen3_finish(void *config, const json_t *json) MX_MUST_USE;
void mx_decoder_summary(const void *config, mx_model_summary *s);

#define MX_CFG_DECODER(T, theta_) MX_CFG_SIZES(T), MX_CFG_DECODER_REST(T, theta_)
#define MX_CFG_DECODER_REST(T, theta_)                                                             \
    MX_CFG(T, kv_heads, "num_key_value_heads", MX_IS_HEADS_OR_0, .maxtext = "base_num_kv_heads"),  \
        MX_CFG(T, head_dim, "head_dim", MX_IS_HEAD_DIM_OR_0, .maxtext = "head_dim"),               \
        MX_CFG(T, max_positions, "max_position_embeddings", MX_IS_POSITIONS, .fallback = 32768,    \
               .maxtext = "max_position_embeddings"),                                              \
        MX_CFG(T, act, "hidden_act", MX_CFG_ACT, .fallback = MX_ACT_SILU),                         \
        MX_CFG(T, eps, "rms_norm_eps", MX_IS_EPSILON, .fallback = 1e-6,                            \
               .maxtext = "normalization_layer_epsilon"),                                          \
        MX_CFG(T, init_scale, "initializer_range", MX_IS_DEVIATION, .fallback = 0.02),             \
        MX_CFG(T, tied, "tie_word_embeddings", MX_CFG_BOOL, .maxtext = "logits_via_embedding"),    \
        MX_CFG_ROPE(T, theta_)

/* Qwen's way to say which layers slide. */
#define MX_CFG_WINDOWED_LAYERS(T)                                                                  \
    MX_CFG(T, window, "sliding_window", MX_IS_LENGTH_OR_0, .maxtext = "sliding_window_size"),      \
        MX_CFG(T, use_window, "use_sliding_window", MX_CFG_BOOL),                                  \
        MX_CFG(T, first_window_layer, "max_window_layers", MX_IS_COUNT_OR_0, .fallback = 28),      \
        MX_CFG(T, layer_types, "layer_types", MX_CFG_LAYER_TYPES,                                  \
               .text = "sliding_attention,full_attention")

#define MX_DECODER_FAMILY(finish_)                                                                 \
    .config_size = sizeof(mx_decoder), .finish = finish_,                                          \
    .summary = mx_decoder_summary, .build = mx_decoder_build, .no_decay = "*norm*,*.bias"

#endif
