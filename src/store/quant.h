/* quant.h - weights as they are meant, over tensors as they lie on the hub.
 *
 * A quantized checkpoint stores one weight in several tensors. This file combines them again under
 * the weight's own name and reads it as plain numbers, a piece at a time:
 *
 *     kind     stored                                        meaning
 *     plain    X                                             X
 *     scaled   X F8_E4M3 / F8_E5M2 / I8 (..., R, C)          X[r, c] * s[r / br, c / bc]
 *              X_scale_inv or X_scale, a grid of scales      (DeepSeek V3, Kimi K2: 128 x 128
 *              Y.weight, Y.scale: the same (DeepSeek V4)     blocks, the last cut short)
 *              X_zero_point I8, like the scales, of I8       (X[r, c] - zero) * s
 *              Y.weight I8, Y.SCB F32 (R): a row's largest   X[r, c] * SCB[r] / 127
 *              magnitude (bitsandbytes' int8)
 *     mxfp4    X_blocks U8 (..., R, G, 16), two E2M1 each,   value[nibble] * 2^(scale - 127)
 *              X_scales U8 (..., R, G)  (GPT-OSS)            (..., 32 G, R) for experts:
 *                                                            transposed, as transformers has them
 *              Y.weight I8 (R, 16 G), Y.scale F8_E8M0        (R, 32 G)
 *              (R, G)  (experts of DeepSeek V4)
 *     packed   X_packed I32 (..., R, C * bits / 32)          (q - 2^(bits-1) - zero) * s[r, c / g]
 *              X_scale, X_shape, perhaps X_zero_point        for groups of g columns, or group
 *              and X_g_idx                                   g_idx[c] for column c
 *              (compressed-tensors, 4 and 8 bits)
 *     nf4      X U8, X.absmax, X.quant_map...                map[nibble] * absmax of 64, in order
 *              (bitsandbytes: quant_nf4.h)
 *     gptq     Y.qweight I32, Y.qzeros, Y.scales...          (q - zero) * s of its group, turned
 *              (GPTQ and AWQ: quant_gptq.h)
 * with X mostly "NAME.weight". Products are formed in float32 and rounded once, to the type asked
 * for. Scales of type U8 are exponents (2^(s - 127)).
 */
#ifndef MX_STORE_QUANT_H
#define MX_STORE_QUANT_H

#include "store/hf_dir.h"

typedef enum {
    MX_QUANT_PLAIN,
    MX_QUANT_SCALED,
    MX_QUANT_MXFP4,
    MX_QUANT_PACKED,
    MX_QUANT_NF4,
    MX_QUANT_GPTQ,
    MX_QUANT_STACK, /* several weights under one, see mx_quant_resolve */
} mx_quant_kind;

typedef struct mx_quant_tensor mx_quant_tensor;
struct mx_quant_tensor {
    const char *name;
    mx_quant_kind kind;
    int ndim;
    int64_t dim[MX_ST_MAX_DIM]; /* of the weight as it is meant */
    int64_t n;
    const mx_st_tensor *data, *scale, *zero; /* borrows; scale and zero may be NULL */
    const mx_st_tensor *group_of;            /* packed: of each column; NULL: side by side */
    float scale_unit;                        /* what scales are multiples of; 0: of 1 */
    int64_t n_matrices, rows, cols;          /* of the stored matrices, unpacked */
    int64_t scale_rows, scale_cols;          /* the grid of scales of one matrix */
    int64_t block_rows, block_cols;          /* of weights under one scale */
    int bits;                                /* packed */
    bool transposed;                         /* dim ends in (cols, rows) */
    const struct mx_quant_nf4 *nf4;          /* quant_nf4.h */
    const struct mx_quant_gptq *gptq;        /* quant_gptq.h */
    const mx_quant_tensor **parts;           /* stack: dim[0] of them, all of one shape */
};

/* All weights of a directory, sorted by name. Every scale without weight, weight without scale and
 * grid that does not fit is reported at once, by name. The directory must stay open. */
typedef struct {
    mx_arena arena;
    mx_quant_tensor *tensors;
    int64_t n_tensors;
    int64_t n_quantized;
} mx_quant_set;

mx_status mx_quant_open(mx_quant_set *q, const mx_hf_dir *dir) MX_MUST_USE;
void mx_quant_close(mx_quant_set *q); /* a zero set is a no-op */
const mx_quant_tensor *mx_quant_find(const mx_quant_set *q, const char *name);
/* A name with a `*` stands for a stack: "experts.*.up_proj.weight" is the weights
 * "experts.0.up...", "experts.1.up...", up to the first that is not there, as one of dims (how
 * many, their dims...). Other names are found as they are. out->name is NULL when there is nothing;
 * parts of one stack that differ in shape are an error. A stack's list of parts lives in the arena.
 */
mx_status mx_quant_resolve(const mx_quant_set *q, const char *name, mx_arena *a,
                           mx_quant_tensor *out) MX_MUST_USE;
/* "BF16 (64, 64)", "F8_E4M3 (512, 512), a scale for each 128 x 128": for reports. */
const char *mx_quant_describe(const mx_quant_tensor *t, char *buf, size_t cap);

/* Elements [first, first + count) in the weight's own order. Thread-safe. The memory it needs
 * beside dst is a few MiB, or one stored matrix for mxfp4. */
mx_status mx_quant_read(const mx_quant_tensor *t, int64_t first, int64_t count, mx_st_dtype to,
                        void *dst, mx_st_scan *scan) MX_MUST_USE;

#endif
