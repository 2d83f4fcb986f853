/* qwen3_next.h - the decoder of Qwen3-Next, which Qwen3.5 has too. */
#ifndef MX_MODELS_QWEN3_NEXT_H
#define MX_MODELS_QWEN3_NEXT_H

#include "models/decoder.h"
#include "models/mixture.h"
#include "nn/delta_net.h"

typedef struct {
    mx_decoder base; /* first: the shared rows of the field table address it */
    mx_moe moe;      /* no experts: an MLP in every layer */
    mx_delta_net net;
    int64_t shared_d_ff, full_interval;
    mx_sparse_layers sparse;
} mx_qwen3_next;

/* Embedding, layers and the last norm, under the current scope ("model", or the language part of a
 * model with images): (B, S, d). */
mx_node *mx_qwen3_next_layers(mx_graph *g, const mx_qwen3_next *c, mx_build *b);
mx_head mx_qwen3_next_build(mx_graph *g, const void *config, mx_build *b);
mx_status mx_qwen3_next_finish(void *config, const json_t *json) MX_MUST_USE;

/* Rows of the delta networks, and of which layers are such. */
#define MX_CFG_DELTA_NET(T)                                                                        \
    MX_CFG(T, base.qkv_bias, "attention_bias", MX_CFG_BOOL),                                       \
        MX_CFG(T, base.layer_types, "layer_types", MX_CFG_LAYER_TYPES,                             \
               .text = "linear_attention,full_attention"),                                         \
        MX_CFG(T, full_interval, "full_attention_interval", MX_IS_COUNT, .fallback = 4,            \
               .maxtext = "inhomogeneous_layer_cycle_interval"),                                   \
        MX_CFG(T, net.k_heads, "linear_num_key_heads", MX_IS_HEADS, .fallback = 16,                \
               .maxtext = "gdn_num_key_heads"),                                                    \
        MX_CFG(T, net.v_heads, "linear_num_value_heads", MX_IS_HEADS, .fallback = 32,              \
               .maxtext = "gdn_num_value_heads"),                                                  \
        MX_CFG(T, net.k_dim, "linear_key_head_dim", MX_IS_HEAD_DIM, .fallback = 128,               \
               .maxtext = "gdn_key_head_dim"),                                                     \
        MX_CFG(T, net.v_dim, "linear_value_head_dim", MX_IS_HEAD_DIM, .fallback = 128,             \
               .maxtext = "gdn_value_head_dim"),                                                   \
        MX_CFG(T, net.taps, "linear_conv_kernel_dim", MX_CFG_INT(2, 16), .fallback = 4,            \
               .maxtext = "gdn_conv_kernel_dim"),                                                  \
        MX_CFG(T, net.chunk, "gdn_chunk_size", MX_CFG_INT(1, 128), .fallback = 64,                 \
               .maxtext = "gdn_chunk_size")

#endif
