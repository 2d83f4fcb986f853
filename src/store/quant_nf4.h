/* quant_nf4.h - bitsandbytes' 4-bit weights: two numbers of a map of sixteen in a byte, the first
 * in the high nibble, over the weight's elements in order, with one absmax for a block of them.
 *
 *     X                        U8 (n / 2, 1)
 *     X.absmax                 F32, or U8: numbers of X.nested_quant_map (256), times
 *                              X.nested_absmax for a block of them, plus an offset
 *     X.quant_map              F32 (16)
 *     X.quant_state.bitsandbytes__nf4, or __fp4     JSON: shape, blocksize, ... as bytes
 */
#ifndef MX_STORE_QUANT_NF4_H
#define MX_STORE_QUANT_NF4_H

#include "store/quant.h"

struct mx_quant_nf4 {
    const mx_st_tensor *absmax, *map, *nested_absmax, *nested_map; /* borrows; nested: or NULL */
    int64_t block, nested_block;
    float offset;
};

/* The tensor that holds the state of X; NULL: X is no such weight. */
const mx_st_tensor *mx_quant_nf4_state(const mx_hf_dir *d, const char *name);
/* Is this a tensor that belongs to such a weight? */
bool mx_quant_nf4_is_part(const mx_hf_dir *d, const char *name);
/* Fills in w, whose data is X. Errors say what does not fit. */
mx_status mx_quant_nf4_open(const mx_hf_dir *d, mx_arena *a, mx_quant_tensor *w) MX_MUST_USE;
/* Are its maps those of NF4 and of its double quantization? */
bool mx_quant_nf4_is_standard(const mx_quant_tensor *t);
/* Elements [first, first + count) as float32. */
mx_status mx_quant_nf4_read(const mx_quant_tensor *t, int64_t first, int64_t count,
                            float *out) MX_MUST_USE;

#endif
