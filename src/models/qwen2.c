/* qwen2.c - Qwen2 and Qwen2.5 dense: Llama's form with biases on q, k, v and, where the
 * configuration asks for it, a sliding window from some layer on. */
#include "models/decoder.h"

static mx_status finish(void *config, const json_t *json)
{
    ((mx_decoder *)config)->qkv_bias = true;
    return mx_decoder_finish(config, json);
}

static const mx_cfg_field fields[] = {
    MX_CFG_DECODER(mx_decoder, 10000),
    MX_CFG_WINDOWED_LAYERS(mx_decoder),
    {0},
};

const mx_model mx_model_qwen2 = {
    .name = "qwen2",
    .doc = "Qwen2, Qwen2.5 dense",
    .model_types = "qwen2",
    .architecture = "Qwen2ForCausalLM",
    .fields = fields,
    MX_DECODER_FAMILY(finish),
    .decoder_block = "qwen2",
    .fixed_keys = "attention_bias=true",
};
