/* llama.c - Llama 2, 3, 3.1, 3.2, 3.3 and what shares their form (SmolLM, TinyLlama, Yi, ...).
 *
 * Pre-norm decoder with grouped-query attention; rotary frequencies are scaled from 3.1 on. The
 * layer itself is in decoder.c. `attention_bias` puts a bias on all four projections.
 */
#include "models/decoder.h"

static mx_status finish(void *config, const json_t *json)
{
    mx_decoder *c = config;
    c->out_bias = c->qkv_bias;
    return mx_decoder_finish(config, json);
}

static const mx_cfg_field fields[] = {
    MX_CFG_DECODER(mx_decoder, 10000),
    MX_CFG(mx_decoder, qkv_bias, "attention_bias", MX_CFG_BOOL),
    MX_CFG(mx_decoder, mlp_bias, "mlp_bias", MX_CFG_BOOL),
    {0},
};

const mx_model mx_model_llama = {
    .name = "llama",
    .doc = "Llama 2, 3, 3.1, 3.2, 3.3; SmolLM",
    .model_types = "llama",
    .architecture = "LlamaForCausalLM",
    .fields = fields,
    MX_DECODER_FAMILY(finish),
    .decoder_block = "llama2,llama3",
};
