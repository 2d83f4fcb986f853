/* qwen3.c - Qwen3 dense: Llama's form with a norm on each head of q and k. */
#include "models/decoder.h"

mx_status mx_qwen3_finish(void *config, const json_t *json)
{
    mx_decoder *c = config;
    c->qk_norm = true;
    c->out_bias = c->qkv_bias;
    if (!c->head_dim)
        c->head_dim = 128; /* the family's own default, whatever d / heads is */
    return mx_decoder_finish(config, json);
}

static const mx_cfg_field fields[] = {
    MX_CFG_DECODER(mx_decoder, 10000),
    MX_CFG(mx_decoder, qkv_bias, "attention_bias", MX_CFG_BOOL),
    MX_CFG_WINDOWED_LAYERS(mx_decoder),
    {0},
};

const mx_model mx_model_qwen3 = {
    .name = "qwen3",
    .doc = "Qwen3 dense",
    .model_types = "qwen3",
    .architecture = "Qwen3ForCausalLM",
    .fields = fields,
    MX_DECODER_FAMILY(mx_qwen3_finish),
    .decoder_block = "qwen3",
    .fixed_keys = "use_qk_norm=true",
};
