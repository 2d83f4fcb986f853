/* quant_hints.h - what config.json says of stored weights: its `quantization_config`.
 *
 * A model's directory comes from elsewhere: a method, a type or a number that is not understood is
 * an error here, before weights are read by it. Members about training (calibration, observers,
 * lists of modules) have no meaning for reading and are ignored.
 */
#ifndef MX_STORE_QUANT_HINTS_H
#define MX_STORE_QUANT_HINTS_H

#include "base/status.h"
#include "store/quant_gptq.h"

enum { MX_WHOLE_DIM = -1 };

/* Zero where it says nothing. */
typedef struct {
    const char *method; /* borrows from config; NULL: weights lie as they are */
    /* Of weights under one scale, where all groups agree; MX_WHOLE_DIM: not cut along this dim. */
    int64_t block_rows, block_cols;
    int bits;      /* of packed weights, where all groups agree */
    int64_t group; /* columns under one scale, of the first group that has them */
    bool has_gptq;
    mx_gptq_hints gptq;
    int input_bits; /* of activations that are to be quantized as they come; 0: none */
    bool input_float, input_zeros; /* the latter: each token has a zero point */
} mx_quant_hints;

/* Of `quantization_config` in the model's own configuration or in its `text_config`. `where` is the
 * file, for errors. */
mx_status mx_quant_hints_read(mx_quant_hints *h, const json_t *config,
                              const char *where) MX_MUST_USE;

#endif
