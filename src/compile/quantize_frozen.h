/* quantize_frozen.h - QLoRA: frozen matrices are stored in 8 or 4 bits; adapters are trained beside
 * them.
 *
 *     kind    W                          what scales it
 *     int8    int8, of W's shape         W.code_scales (rows, 1)
 *     fp8     E4M3, of W's shape         W.code_scales (rows, 1)
 *     nf4     uint8 (..., cols / 2)      W.absmax (blocks) float32; nested: uint8, with
 *                                        W.nested_absmax (blocks / 256) and W.nested_offset ()
 * Each use reads what a `dequantize` node makes of it in the compute dtype; that is not kept from
 * the forward to the backward pass. On a mesh the pass runs before the graph is cut: W is whole on
 * every rank of its stage, with the codes of one device.
 */
#ifndef MX_COMPILE_QUANTIZE_FROZEN_H
#define MX_COMPILE_QUANTIZE_FROZEN_H

#include "ir/graph.h"

#define MX_NF4_ABSMAX ".absmax"
#define MX_NF4_NESTED ".nested_absmax"
#define MX_NF4_OFFSET ".nested_offset"

typedef struct mx_frozen_quant {
    mx_dtype dtype;   /* MX_I8, MX_F8_E4M3, or MX_U8: NF4 */
    bool nested;      /* NF4: double quantization */
    const char *keep; /* modules that are trained whole, as mx_lora's `save` */
} mx_frozen_quant;

/* After the precision pass; NULL: nothing. The matrices of layers but routers, by name alone, so
 * that all programs of a session agree on them; embeddings and heads stay. */
void mx_pass_quantize_frozen(mx_graph *g, const mx_frozen_quant *quant);

#endif
