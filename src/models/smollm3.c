/* smollm3.c - SmolLM3: Llama's form, in which every fourth layer has no positions. Where a window
 * is asked for, these layers have it. */
#include "models/decoder.h"

static mx_status finish(void *config, const json_t *json)
{
    mx_decoder *c = config;
    mx_int_list *r = &c->rope_layers;
    if (r->n && r->n < c->layers)
        return mx_fail(MX_INPUT, "\"no_rope_layers\" names %d layers, but there are %lld", r->n,
                       (long long)c->layers);
    bool given = r->n > 0;
    for (int64_t l = 0; !given && l < c->layers && l < MX_MAX_LAYERS; l++)
        r->v[r->n++] = c->nope_interval < 1 || (l + 1) % c->nope_interval != 0;
    mx_layer_types *t = &c->layer_types;
    bool windows = c->use_window && c->window > 0;
    for (int64_t l = 0; !t->n && windows && l < c->layers && l < MX_MAX_LAYERS; l++)
        t->type[l] = r->v[l] ? 2 : 1;
    if (!t->n && windows)
        t->n = (int)c->layers;
    if (!windows)
        c->window = 0;
    c->out_bias = c->qkv_bias;
    c->use_window = false; /* the types say it */
    return mx_decoder_finish(config, json);
}

static const mx_cfg_field fields[] = {
    MX_CFG_DECODER(mx_decoder, 2000000),
    MX_CFG(mx_decoder, kv_heads, "num_key_value_heads", MX_IS_HEADS_OR_0, .fallback = 4,
           .maxtext = "base_num_kv_heads"),
    MX_CFG(mx_decoder, tied, "tie_word_embeddings", MX_CFG_BOOL, .fallback = 1,
           .maxtext = "logits_via_embedding"),
    MX_CFG(mx_decoder, qkv_bias, "attention_bias", MX_CFG_BOOL),
    MX_CFG(mx_decoder, mlp_bias, "mlp_bias", MX_CFG_BOOL),
    MX_CFG(mx_decoder, window, "sliding_window", MX_IS_LENGTH_OR_0,
           .maxtext = "sliding_window_size"),
    MX_CFG(mx_decoder, use_window, "use_sliding_window", MX_CFG_BOOL),
    MX_CFG(mx_decoder, layer_types, "layer_types", MX_CFG_LAYER_TYPES,
           .text = "sliding_attention,full_attention", .own = true),
    MX_CFG(mx_decoder, rope_layers, "no_rope_layers", MX_CFG_INTS(0, 1)),
    MX_CFG(mx_decoder, nope_interval, "no_rope_layer_interval", MX_IS_COUNT_OR_0, .fallback = 4,
           .maxtext = "nope_layer_interval"),
    {0},
};

const mx_model mx_model_smollm3 = {
    .name = "smollm3",
    .doc = "SmolLM3",
    .model_types = "smollm3",
    .architecture = "SmolLM3ForCausalLM",
    .fields = fields,
    MX_DECODER_FAMILY(finish),
    .decoder_block = "smollm3",
};
