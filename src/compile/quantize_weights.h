/* quantize_weights.h - for inference programs: matrices stored in 8 or 4 bits, with
 * scales. */
#ifndef MX_COMPILE_QUANTIZE_WEIGHTS_H
#define MX_COMPILE_QUANTIZE_WEIGHTS_H

#include "ir/graph.h"

/* dtype MX_I8 or MX_F8_E4M3: a scale a row. MX_U8: two 4-bit numbers a byte, a scale for each
 * `group` columns. MX_F32: as they are. */
typedef struct {
    mx_dtype dtype;
    int64_t group; /* 0, or it does not divide a row: the largest of 128, 64 and 32 that does */
    mx_dtype cache;      /* of keys and values in caches: MX_I8, MX_F8_E4M3; MX_F32: as computed */
    bool cache_by_token; /* with one scale for all heads of a token, instead of one for each */
    /* Of MX_U8: is the weight of this name MX_I8 instead? NULL: none is. `config` is its own. */
    bool (*eight)(const void *config, const char *name);
    const void *config;
} mx_weight_quant;

/* After narrow_weights: the matrices of layers, and the head, which is more sensitive and always
 * MX_I8; where it is the embedding too, that is looked up quantized. Routers stay as they are.
 * The scales of weight X are the variable X.code_scales. */
void mx_pass_quantize_weights(mx_graph *g, mx_weight_quant quant);
/* Columns of a row under one scale of 4 bits: `wanted` where that divides it, else as above; 0: 4
 * bits do not go. */
int64_t mx_code_group(int64_t cols, int64_t wanted);
#define MX_CODE_SCALES ".code_scales"

#endif
