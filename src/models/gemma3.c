/* gemma3.c - Gemma 3, text: see gemma.c. Its attention has no cap: config.json may name one
 * (attn_logit_softcapping), which transformers reads and never applies. */
#include "models/gemma.h"

static mx_status finish(void *config, const json_t *json)
{
    mx_gemma *c = config;
    c->generation = 3;
    return mx_gemma_finish(config, json);
}

static const mx_cfg_field fields[] = {
    MX_CFG_GEMMA3(mx_gemma),
    {0},
};

const mx_model mx_model_gemma3 = {
    .name = "gemma3",
    .doc = "Gemma 3, text",
    .model_types = "gemma3_text",
    .architecture = "Gemma3ForCausalLM",
    .fields = fields,
    MX_GEMMA_FAMILY(finish),
    .decoder_block = "gemma3",
    .fixed_keys = "logits_via_embedding=true,use_post_attn_norm=true,use_post_ffw_norm=true,"
                  "use_qk_norm=true",
};
