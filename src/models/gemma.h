/* gemma.h - what Gemma 1, 2 and 3 share, and what the vision model builds on. */
#ifndef MX_MODELS_GEMMA_H
#define MX_MODELS_GEMMA_H

#include "models/model.h"

typedef struct {
    int generation; /* 1, 2, 3 */
    int64_t vocab, d, d_ff, layers, heads, kv_heads, head_dim, max_positions;
    mx_act act;
    double eps, init_scale;
    bool tied, attention_bias, bidirectional;
    double query_scalar;               /* attention scale is its inverse square root; 0: head_dim */
    double attention_cap, logit_cap;   /* 0: none */
    int64_t window;
    int64_t pattern;                   /* every pattern-th layer is full, unless layer_types says */
    mx_layer_types layer_types;        /* sliding_attention, full_attention */
    mx_rope rope;                      /* of the full layers */
    double local_theta;                /* rotary base of the sliding layers (Gemma 3) */
} mx_gemma;

/* Under the current scope ("model", or a vision model's language part). */
mx_node *mx_gemma_embed(mx_graph *g, const mx_gemma *c, mx_build *b);
mx_node *mx_gemma_layers(mx_graph *g, const mx_gemma *c, mx_build *b, mx_node *x);

mx_head mx_gemma_build(mx_graph *g, const void *config, mx_build *b);
mx_status mx_gemma_finish(void *config, const json_t *json) MX_MUST_USE;
void mx_gemma_summary(const void *config, mx_model_summary *s);

extern const mx_model mx_model_gemma3;

#define MX_CFG_GEMMA(T, theta_)                                                                    \
    MX_CFG_SIZES(T),                                                                               \
        MX_CFG(T, kv_heads, "num_key_value_heads", MX_IS_HEADS_OR_0,                               \
               .maxtext = "base_num_kv_heads"),                                                    \
        MX_CFG_GEMMA_SHARED(T, theta_)

#define MX_CFG_GEMMA_SHARED(T, theta_)                                                             \
    MX_CFG(T, head_dim, "head_dim", MX_IS_HEAD_DIM_OR_0, .fallback = 256, .maxtext = "head_dim"),  \
        MX_CFG(T, max_positions, "max_position_embeddings", MX_IS_POSITIONS, .fallback = 8192,     \
               .maxtext = "max_position_embeddings"),                                              \
        MX_CFG(T, eps, "rms_norm_eps", MX_IS_EPSILON, .fallback = 1e-6,                            \
               .maxtext = "normalization_layer_epsilon"),                                          \
        MX_CFG(T, init_scale, "initializer_range", MX_IS_DEVIATION, .fallback = 0.02),             \
        MX_CFG(T, tied, "tie_word_embeddings", MX_CFG_BOOL, .fallback = 1),                        \
        MX_CFG(T, attention_bias, "attention_bias", MX_CFG_BOOL),                                  \
        MX_CFG(T, bidirectional, "use_bidirectional_attention", MX_CFG_BOOL),                      \
        MX_CFG(T, rope.theta, "rope_parameters.rope_theta|rope_theta", MX_IS_THETA,                \
               .fallback = theta_, .maxtext = "rope_max_timescale"),                               \
        MX_CFG(T, rope.type, "rope_parameters.rope_type", MX_CFG_TEXT, .text = "default"),         \
        MX_CFG(T, rope.factor, "rope_parameters.factor", MX_IS_FACTOR, .fallback = 1)

/* Gemma 3 has two rotary bases, in either spelling. */
#define MX_CFG_GEMMA3(T)                                                                           \
    MX_CFG_SIZES_OR(T, 262208, 2304, 9216, 26, 8),                                                 \
        MX_CFG(T, kv_heads, "num_key_value_heads", MX_IS_HEADS_OR_0, .fallback = 4,                \
               .maxtext = "base_num_kv_heads"),                                                    \
        MX_CFG_GEMMA_SHARED(T, 1000000),                                                           \
        MX_CFG(T, max_positions, "max_position_embeddings", MX_IS_POSITIONS, .fallback = 131072,   \
               .maxtext = "max_position_embeddings"),                                              \
        MX_CFG(T, rope.theta, "rope_parameters.full_attention.rope_theta|rope_theta", MX_IS_THETA, \
               .fallback = 1000000, .maxtext = "global_rope_max_timescale"),                       \
        MX_CFG(T, rope.type,                                                                       \
               "rope_parameters.full_attention.rope_type|rope_scaling.rope_type", MX_CFG_TEXT,     \
               .text = "default"),                                                                 \
        MX_CFG(T, rope.factor,                                                                     \
               "rope_parameters.full_attention.factor|rope_scaling.factor", MX_IS_FACTOR,          \
               .fallback = 1),                                                                     \
        MX_CFG(T, local_theta,                                                                     \
               "rope_parameters.sliding_attention.rope_theta|rope_local_base_freq", MX_IS_THETA,   \
               .fallback = 10000, .maxtext = "local_rope_max_timescale"),                          \
        MX_CFG(T, act, "hidden_activation", MX_CFG_ACT, .fallback = MX_ACT_GELU_TANH),             \
        MX_CFG(T, query_scalar, "query_pre_attn_scalar", MX_IS_FACTOR_OR_0, .fallback = 256),      \
        MX_CFG(T, logit_cap, "final_logit_softcapping", MX_IS_FACTOR_OR_0),                        \
        MX_CFG(T, window, "sliding_window", MX_IS_LENGTH_OR_0, .fallback = 4096,                   \
               .maxtext = "sliding_window_size"),                                                  \
        MX_CFG(T, pattern, "sliding_window_pattern|_sliding_window_pattern", MX_IS_COUNT_OR_0,     \
               .fallback = 6),                                                                     \
        MX_CFG(T, layer_types, "layer_types", MX_CFG_LAYER_TYPES,                                  \
               .text = "sliding_attention,full_attention")

#define MX_GEMMA_FAMILY(finish_)                                                                   \
    .config_size = sizeof(mx_gemma), .finish = finish_, .summary = mx_gemma_summary,               \
    .build = mx_gemma_build, .no_decay = "*norm*"

#endif
