/* quant_write.h - weights of a Hugging Face directory as 8- and 4-bit numbers, in the forms that
 * transformers and vLLM load.
 *
 *     form            stored for X.weight (R, C)                               read as
 *     fp8             F8_E4M3; weight_scale BF16 (R, 1)                        compressed-tensors
 *     int8            weight_packed I32 (R, C / 4), low byte first, 128 added; compressed-tensors
 *                     weight_scale BF16 (R, 1); weight_shape I64 (2)
 *     int8_w8a8       I8; weight_scale BF16 (R, 1); 8-bit activations as well  compressed-tensors
 *     int4            weight_packed I32 (R, C / 8), low nibble first;          compressed-tensors
 *                     weight_scale BF16 (R, C / group); weight_shape I64 (2)
 *     int4_asymmetric the same; weight_zero_point I32 (R / 8, C / group),      compressed-tensors
 *                     packed over rows
 *     fp8_blockwise   F8_E4M3; weight_scale_inv F32, 128 x 128                 fp8 (DeepSeek V3)
 *     nf4             U8 (R C / 2, 1), high nibble first; weight.absmax F32    bitsandbytes
 *                     for 64 numbers, weight.quant_map F32 (16), and a JSON
 *                     text of the shape, weight.quant_state.bitsandbytes__nf4
 * Scales of rows and groups are rounded up to bfloat16 before numbers are divided by them: a
 * program that loads them in the model's dtype has the same ones. They are stored as F32 where that
 * is float32. A group's scale of int4 is the one of a few below absmax whose squared error is
 * least.
 *
 * Matrices of layers are quantized; embeddings, the head, norms, routers and vision encoders are
 * copied as they are. A directory that is quantized already is read as the numbers it means.
 */
#ifndef MX_STORE_QUANT_WRITE_H
#define MX_STORE_QUANT_WRITE_H

#include "ops/cpu/encode.h"
#include "store/hf_save.h"
#include "store/quant.h"

typedef struct mx_quant_form mx_quant_form;
/* By name; NULL: there is none. */
const mx_quant_form *mx_quant_form_find(const char *name);
/* The codes of fp8, int8 and int4. */
mx_code_kind mx_quant_form_codes(const mx_quant_form *f);
bool mx_quant_form_zeros(const mx_quant_form *f); /* do groups have zero points? */

typedef struct {
    int64_t n_quantized, n_kept; /* weights */
    double numbers, bits; /* of the quantized weights; scales counted in: bits of one, in mean */
    double bytes_before, bytes_after;
    char unfit[2048]; /* lines: weights that the form does not take, by pattern, and why */
    double error; /* of the quantized weights: root of squared error over squares, all together */
} mx_quant_written;

/* What calibration has made of a weight (train/check/calibrate.h). */
typedef struct {
    const char *name;
    float *numbers; /* that are quantized, or copied, instead of the directory's; NULL: those */
    uint8_t *codes; /* of the form, a byte each (ops/cpu/encode.h); NULL: the nearest */
    float *scale;   /* of rows or groups, beside codes; bfloat16 numbers */
    int8_t *zero;   /* of groups, beside scale, where the form has zero points */
} mx_quant_change;

typedef struct {
    mx_quant_change *of;
    int n, cap;
} mx_quant_changes;

/* NULL: there is none of this name. */
const mx_quant_change *mx_quant_change_find(const mx_quant_changes *c, const char *name);

typedef struct {
    const mx_quant_form *form;
    int64_t group;           /* of int4: columns under one scale */
    bool activations;        /* of fp8 and int8: config.json asks for 8-bit activations as well */
    const char *keep;        /* comma-separated patterns of weights that stay as they are */
    const char *eight;       /* of int4: of weights that become int8; NULL: none */
    const mx_quant_changes *changes; /* NULL: none. Borrows */
    const char *actorder;    /* of compressed-tensors: in which order columns were rounded; NULL */
    const mx_hf_extra *more; /* further files */
    int n_more;
} mx_quant_write_options;

/* The form of the weight of this name. */
const mx_quant_form *mx_quant_form_of(const mx_quant_write_options *o, const char *name);

/* Columns under one scale by default: 32 where rounding costs most, in models of less than a
 * billion weights, else the largest of 128, 64 and 32 that divides all rows. */
mx_status mx_quant_group(const mx_hf_dir *dir, const mx_quant_write_options *o,
                         int64_t *group) MX_MUST_USE;

/* Do `keep` and `eight`, where they are set, name weights of the directory? */
mx_status mx_quant_check_patterns(const mx_hf_dir *dir,
                                  const mx_quant_write_options *o) MX_MUST_USE;
/* Is a weight of this name and size quantized? */
bool mx_quant_wanted(const mx_quant_write_options *o, const char *name, int ndim,
                     const int64_t *dim);

/* Writes `dir` into the folder `to`, which must not be there. */
mx_status mx_quant_write(const mx_hf_dir *dir, const char *to, const mx_quant_write_options *o,
                         mx_quant_written *out) MX_MUST_USE;

#endif
