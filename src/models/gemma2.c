/* gemma2.c - Gemma 2: see gemma.c. */
#include "models/gemma.h"

static mx_status finish(void *config, const json_t *json)
{
    mx_gemma *c = config;
    c->generation = 2;
    c->pattern = 2;
    return mx_gemma_finish(config, json);
}

static const mx_cfg_field fields[] = {
    MX_CFG_GEMMA(mx_gemma, 10000),
    MX_CFG(mx_gemma, act, "hidden_activation", MX_CFG_ACT, .fallback = MX_ACT_GELU_TANH),
    MX_CFG(mx_gemma, query_scalar, "query_pre_attn_scalar", MX_IS_FACTOR_OR_0, .fallback = 256),
    MX_CFG(mx_gemma, attention_cap, "attn_logit_softcapping", MX_IS_FACTOR_OR_0, .fallback = 50,
           .maxtext = "attn_logits_soft_cap", .none = true),
    MX_CFG(mx_gemma, logit_cap, "final_logit_softcapping", MX_IS_FACTOR_OR_0, .fallback = 30,
           .maxtext = "final_logits_soft_cap", .none = true),
    MX_CFG(mx_gemma, window, "sliding_window", MX_IS_LENGTH_OR_0, .fallback = 4096,
           .maxtext = "sliding_window_size"),
    MX_CFG(mx_gemma, layer_types, "layer_types", MX_CFG_LAYER_TYPES,
           .text = "sliding_attention,full_attention"),
    {0},
};

const mx_model mx_model_gemma2 = {
    .name = "gemma2",
    .doc = "Gemma 2",
    .model_types = "gemma2",
    .architecture = "Gemma2ForCausalLM",
    .fields = fields,
    MX_GEMMA_FAMILY(finish),
    .decoder_block = "gemma2",
    .fixed_keys = "logits_via_embedding=true,use_post_attn_norm=true,use_post_ffw_norm=true",
};
