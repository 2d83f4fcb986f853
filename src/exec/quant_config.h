/* quant_config.h - quantization=, quantization_pattern= and quant_cfg_path= as rules of the
 * quantize pass. */
#ifndef MX_EXEC_QUANT_CONFIG_H
#define MX_EXEC_QUANT_CONFIG_H

#include "base/config.h"
#include "compile/quantize.h"
#include "compile/quantize_weights.h"
#include <jansson.h>

/* NULL where nothing is quantized. Rules and texts live in the arena. */
mx_status mx_quant_configure(const mx_quantization **out, const mx_config *cfg,
                             mx_arena *a) MX_MUST_USE;

/* What a model's config.json asks of activations (compressed-tensors' input_activations, a scale
 * for each token): an inference program rounds them to 8 bits, but for the modules of its `ignore`.
 * NULL: nothing. Rules and texts live in the arena. */
mx_status mx_quant_activations(const mx_quantization **out, const json_t *config,
                               mx_arena *a) MX_MUST_USE;

/* For inference programs: how quantization= stores weights. config: the model's config.json, whose
 * groups of 4 bits are kept, or NULL. */
mx_status mx_weight_quant_configure(mx_weight_quant *out, const mx_config *cfg,
                                    const json_t *config) MX_MUST_USE;

#endif
