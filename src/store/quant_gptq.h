/* quant_gptq.h - weights as GPTQ and AWQ store them: transposed, several to an int32.
 *
 *     X.weight (out, in) of          GPTQ                          AWQ
 *     X.qweight  I32                 (in / p, out)                 (in, out / p)
 *     X.qzeros   I32                 (groups, out / p)             the same
 *     X.scales   F16, BF16 or F32    (groups, out)                 the same
 *     X.g_idx    I32 (in), may lack  the group of each input       none: input / group size
 * with p = 32 / bits numbers in an int32, from the low bits up; AWQ's nibbles hold the outputs 0,
 * 2, 4, 6, 1, 3, 5, 7 of its eight. A weight is (q - z) * scale. In GPTQ's first format, which is
 * what config.json means unless its checkpoint_format is gptq_v2, zeros are stored less one.
 */
#ifndef MX_STORE_QUANT_GPTQ_H
#define MX_STORE_QUANT_GPTQ_H

#include "store/quant.h"

/* What config.json says. */
typedef struct {
    bool awq, second_format;
    bool by_module; /* "dynamic": bits and groups differ from module to module */
    int bits;
    int64_t group;
} mx_gptq_hints;

struct mx_quant_gptq {
    const mx_st_tensor *zeros, *scales, *group_of; /* borrows; the last may be NULL */
    bool awq;
    int bits, plus; /* plus: what is added to a stored zero */
    int64_t in, out, groups, group;
};

/* false: config.json describes no such weights. Errors: it describes some that are not read. */
mx_status mx_gptq_hints_read(const json_t *config, const char *method, mx_gptq_hints *h,
                             bool *is) MX_MUST_USE;
/* Is this a tensor that belongs to such a weight, other than X.qweight? */
bool mx_quant_gptq_is_part(const mx_hf_dir *d, const char *name);
/* Fills in w, whose data is X.qweight. Errors say what does not fit. */
mx_status mx_quant_gptq_open(const mx_hf_dir *d, const mx_gptq_hints *h, mx_arena *a,
                             mx_quant_tensor *w) MX_MUST_USE;
/* As mx_quant_read; the memory it needs is the stored weight's. */
mx_status mx_quant_gptq_read(const mx_quant_tensor *t, int64_t first, int64_t count, mx_st_dtype to,
                             void *dst, mx_st_scan *scan) MX_MUST_USE;

#endif
