/* mixture.h - what the families with experts share: configuration rows and spellings of weights. */
#ifndef MX_MODELS_MIXTURE_H
#define MX_MODELS_MIXTURE_H

#include "models/model.h"
#include "nn/moe.h"

/* 1 to all of the experts for a token, a hidden size. */
mx_status mx_check_moe(const mx_moe *m) MX_MUST_USE;

/* Qwen's way to say which layers have experts: every step-th that the list does not name. */
typedef struct {
    int64_t step;
    mx_int_list dense;
} mx_sparse_layers;
bool mx_is_dense(const mx_moe *m, const mx_sparse_layers *s, int64_t l);
/* Qwen's mixture under the current scope: softmax over all experts, the best k, their shares if
 * asked. x (B, S, d) -> the same. */
mx_node *mx_qwen_experts(mx_graph *g, mx_build *b, const mx_moe *m, mx_node *x, mx_act act);

/* Groups of experts, of which some are open to a token; 0 and 1: none. */
mx_status mx_check_groups(const mx_moe *m, int64_t groups, int64_t open) MX_MUST_USE;

/* Rows for an mx_moe member called `moe`. balance_ is the weight of the balance loss that
 * transformers has where config.json has none; 0 for families without. capacity_factor and
 * router_z_loss_coef are not keys of transformers' configurations; it ignores them. */
#define MX_CFG_MOE(T, experts_key, k_, balance_)                                                   \
    MX_CFG(T, moe.experts, experts_key, MX_IS_COUNT_OR_0, .required = true,                        \
           .maxtext = "num_experts"),                                                              \
        MX_CFG(T, moe.k, "num_experts_per_tok", MX_IS_COUNT_OR_0, .fallback = k_,                  \
               .maxtext = "num_experts_per_tok"),                                                  \
        MX_CFG_MOE_LOSSES(T, balance_)
/* Rows of Qwen's mixtures, for members `moe` and `sparse`. */
#define MX_CFG_QWEN_MOE(T, k_, d_ff_, renormalise_)                                                \
    MX_CFG_MOE(T, "num_experts|num_local_experts", k_, 0.001),                                     \
        MX_CFG(T, moe.d_ff, "moe_intermediate_size", MX_IS_WIDTH, .fallback = d_ff_,               \
               .maxtext = "base_moe_mlp_dim"),                                                     \
        MX_CFG(T, moe.renormalise, "norm_topk_prob", MX_CFG_BOOL, .fallback = renormalise_,        \
               .maxtext = "norm_topk_prob"),                                                       \
        MX_CFG(T, sparse.step, "decoder_sparse_step", MX_IS_COUNT, .fallback = 1,                  \
               .maxtext = "interleave_moe_layer_step"),                                            \
        MX_CFG(T, sparse.dense, "mlp_only_layers", MX_IS_LAYER_LIST)
#define MX_CFG_MOE_LOSSES(T, balance_)                                                             \
    MX_CFG(T, moe.balance, "output_router_logits", MX_CFG_BOOL,                                    \
           .run = "load_balance_loss_weight"),                                                     \
        MX_CFG(T, moe.balance_weight, "router_aux_loss_coef", MX_IS_FACTOR_OR_0,                   \
               .fallback = balance_,                                                               \
               .maxtext = "load_balance_loss_weight", .run = "load_balance_loss_weight"),          \
        MX_CFG(T, moe.z_weight, "router_z_loss_coef", MX_IS_FACTOR_OR_0),                          \
        MX_CFG(T, moe.capacity, "capacity_factor", MX_CFG_F64(-1, 1e6),                            \
               .maxtext = "capacity_factor", .run = "capacity_factor")

/* For mx_model.other_parts. A checkpoint has either a tensor per expert and projection,
 *     X.experts.N.gate_proj.weight (f, d)   ...up_proj... (f, d)   ...down_proj... (d, f)
 * or all experts stacked, gate above up:
 *     X.experts.gate_up_proj (E, 2 f, d)    X.experts.down_proj (E, d, f)
 * The first is for families that use the former, the second for those that use the latter, as it is
 * or with the last two dims exchanged. */
int mx_fused_experts(const char *name, const mx_type *type, mx_weight_part *out);
int mx_separate_experts(const char *name, const mx_type *type, mx_weight_part *out);
int mx_separate_experts_transposed(const char *name, const mx_type *type, mx_weight_part *out);

/* Of an mx_model with a tensor per expert, whose configuration T begins with an mx_decoder. */
#define MX_EXPERTS_FAMILY(T, finish_, build_)                                                      \
    .config_size = sizeof(T), .finish = finish_, .summary = mx_decoder_summary, .build = build_,   \
    .other_parts = mx_fused_experts, .no_decay = "*norm*,*.bias"

#endif
