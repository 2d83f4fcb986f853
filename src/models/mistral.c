/* mistral.c - Mistral 7B and its successors: Llama's form with an optional sliding window.
 * x (B, S, d). */
#include "models/decoder.h"

static mx_status finish(void *config, const json_t *json)
{
    mx_decoder *c = config;
    c->use_window = c->window > 0;
    return mx_decoder_finish(config, json);
}

static const mx_cfg_field fields[] = {
    MX_CFG_DECODER(mx_decoder, 10000),
    MX_CFG(mx_decoder, window, "sliding_window", MX_IS_LENGTH_OR_0,
           .maxtext = "sliding_window_size"),
    {0},
};

const mx_model mx_model_mistral = {
    .name = "mistral",
    .doc = "Mistral 7B and later dense Mistral models",
    .model_types = "mistral",
    .architecture = "MistralForCausalLM",
    .fields = fields,
    MX_DECODER_FAMILY(finish),
    .decoder_block = "mistral",
};
