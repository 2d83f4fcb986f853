/* deepseek.h - what DeepSeek V2, V3 (R1, V3.1, Kimi K2) and V3.2 share: latent attention, first
 * layers with a dense MLP, then experts beside one that sees every token. They differ in the
 * router, and V3.2 in which keys a query sees.
 */
#ifndef MX_MODELS_DEEPSEEK_H
#define MX_MODELS_DEEPSEEK_H

#include "models/decoder.h"
#include "models/mixture.h"
#include "nn/mla.h"

typedef struct {
    mx_decoder base; /* first: the shared rows of the field table address it */
    mx_mla mla;
    mx_moe moe;
    int64_t dense_layers;        /* the first layers, with an MLP in place of experts */
    mx_layer_types mlp_types;    /* dense, sparse; n = 0: from the number above */
    int64_t shared_experts;      /* the shared expert is as wide as this many */
    int64_t groups, open_groups; /* of experts: a token goes to the best ones only; 0: none */
    char topk_method[24];        /* V2: greedy, or group_limited_greedy */
    double bias_rate;            /* V3: how fast the selection bias follows the loads; 0: fixed */
    bool interleaved;            /* rotary pairs are neighbours */
    int64_t mtp_layers;          /* multi-token prediction; 0: none */
    double mtp_weight;           /* of their loss */
} mx_deepseek;

typedef mx_routing mx_deepseek_router(mx_graph *g, const mx_deepseek *c, mx_build *b, mx_node *x);
/* Sigmoid scores with a selection bias (V3); softmax scores (V2) are deepseek_v2.c's own. */
extern mx_deepseek_router mx_deepseek_route_sigmoid;

/* Sparse attention (V3.2): what its indexer says about the keys of a layer. */
typedef struct {
    mx_node *selected; /* (B, S, n) indices: those a query sees; NULL: all */
    mx_node *scores;   /* (B, S, S): its own scores, where a loss trains it; NULL: none does */
} mx_deepseek_choice;
typedef mx_deepseek_choice mx_deepseek_select(mx_graph *g, const mx_deepseek *c, mx_build *b,
                                              mx_node *x, mx_node *q_latent);
/* Enters the loss of a layer's scores, given what the attention compared. */
typedef void mx_deepseek_learn(mx_graph *g, const mx_deepseek *c, mx_build *b,
                               const mx_deepseek_choice *choice, const mx_mla_seen *seen);

/* The parts in which the families differ. */
typedef struct {
    mx_deepseek_router *route;
    mx_deepseek_select *select; /* NULL: every query sees all keys */
    mx_deepseek_learn *learn;
} mx_deepseek_parts;
mx_head mx_deepseek_build(mx_graph *g, const mx_deepseek *c, mx_build *b,
                          const mx_deepseek_parts *p);
mx_status mx_deepseek_finish(mx_deepseek *c, const json_t *json) MX_MUST_USE;

/* Rows that all of them have; C is the family's struct, whose first member is an mx_deepseek. */
#define MX_CFG_DEEPSEEK(k_, dense_, shared_)                                                       \
    MX_CFG_DECODER(mx_decoder, 10000),                                                             \
        MX_CFG(mx_deepseek, mla.q_rank, "q_lora_rank", MX_IS_WIDTH_OR_0,                           \
               .maxtext = "q_lora_rank"),                                                          \
        MX_CFG(mx_deepseek, mla.kv_rank, "kv_lora_rank", MX_IS_WIDTH, .fallback = 512,             \
               .maxtext = "kv_lora_rank"),                                                         \
        MX_CFG(mx_deepseek, mla.nope, "qk_nope_head_dim", MX_IS_HEAD_DIM, .fallback = 128,         \
               .maxtext = "qk_nope_head_dim"),                                                     \
        MX_CFG(mx_deepseek, mla.rope, "qk_rope_head_dim", MX_IS_HEAD_DIM, .fallback = 64,          \
               .maxtext = "qk_rope_head_dim"),                                                     \
        MX_CFG(mx_deepseek, mla.v, "v_head_dim", MX_IS_HEAD_DIM, .fallback = 128,                  \
               .maxtext = "v_head_dim"),                                                           \
        MX_CFG(mx_deepseek, mla.bias, "attention_bias", MX_CFG_BOOL),                              \
        MX_CFG(mx_deepseek, moe.experts, "n_routed_experts|num_local_experts|num_experts",         \
               MX_IS_COUNT, .required = true, .maxtext = "num_experts"),                           \
        MX_CFG(mx_deepseek, moe.k, "num_experts_per_tok", MX_IS_COUNT, .fallback = k_,             \
               .maxtext = "num_experts_per_tok"),                                                  \
        MX_CFG(mx_deepseek, moe.d_ff, "moe_intermediate_size", MX_IS_WIDTH, .required = true,      \
               .maxtext = "base_moe_mlp_dim"),                                                     \
        MX_CFG(mx_deepseek, moe.scale, "routed_scaling_factor", MX_IS_FACTOR_OR_0, .fallback = 1,  \
               .maxtext = "routed_scaling_factor"),                                                \
        MX_CFG(mx_deepseek, dense_layers, "first_k_dense_replace", MX_IS_COUNT_OR_0,               \
               .fallback = dense_, .maxtext = "first_num_dense_layers"),                           \
        MX_CFG(mx_deepseek, shared_experts, "n_shared_experts", MX_IS_COUNT_OR_0,                  \
               .fallback = shared_, .maxtext = "shared_experts"),                                  \
        MX_CFG_MOE_LOSSES(mx_deepseek, 0)

/* Rows of V3's router and of its MTP layers. */
#define MX_CFG_DEEPSEEK_SIGMOID                                                                    \
    MX_CFG(mx_deepseek, groups, "n_group", MX_IS_COUNT_OR_0, .fallback = 8),                       \
        MX_CFG(mx_deepseek, open_groups, "topk_group", MX_IS_COUNT_OR_0, .fallback = 4),           \
        MX_CFG(mx_deepseek, moe.renormalise, "norm_topk_prob", MX_CFG_BOOL, .fallback = 1),        \
        MX_CFG(mx_deepseek, bias_rate, "routed_bias_update_rate", MX_IS_SHARE,                     \
               .maxtext = "routed_bias_update_rate", .run = "routed_bias_update_rate"),            \
        MX_CFG(mx_deepseek, mtp_layers, "mtp_num_layers", MX_IS_MTP_LAYERS,                      \
               .maxtext = "mtp_num_layers", .run = "mtp_num_layers"),                              \
        MX_CFG(mx_deepseek, mtp_weight, "mtp_loss_scaling_factor", MX_IS_FACTOR_OR_0,              \
               .fallback = 0.1,                                                                    \
               .maxtext = "mtp_loss_scaling_factor", .run = "mtp_loss_scaling_factor")

#endif
