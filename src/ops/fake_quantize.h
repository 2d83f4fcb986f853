/* fake_quantize.h - attributes of the op of that name. */
#ifndef MX_OPS_FAKE_QUANTIZE_H
#define MX_OPS_FAKE_QUANTIZE_H

#include "ops/cpu/encode.h"
#include <stdbool.h>

typedef struct {
    int64_t kind;  /* mx_code_kind */
    int64_t group; /* of the last dim under one scale; 0: all of it */
    bool dynamic;  /* as activations are quantized, not as weights are stored */
    bool zeros;    /* dynamic int8: with a zero point */
} mx_fake_quantize_attr;

#endif
