/* quantize.h - what quantize, scaled_matmul and the quantize pass share.
 *
 * A tensor is seen as a matrix: its last dim are the columns, all dims before it together the rows.
 * (A stack of matrices, as experts' weights are, has a grid of scales for each.) It is cut into
 * blocks of block_rows x block_cols, the last ones cut short, and each block has one scale:
 *
 *     value = q * scale           scale (grid rows, grid cols) float32
 *
 *     granularity   block            of what
 *     tensor        all x all
 *     row           1 x all          rows of the left factor; rows of the right one, its outputs
 *     block         1 x 128          activations and gradients
 *                   128 x 128        weights
 * Both factors of a scaled_matmul have the summed dim last. A factor whose sum runs over rows is
 * quantized by columns (all x 1, 128 x 1) and transposed.
 */
#ifndef MX_OPS_QUANTIZE_H
#define MX_OPS_QUANTIZE_H

#include "ir/graph.h"
#include "ops/cpu/encode.h"

enum { MX_QUANT_BLOCK = 128, MX_AMAX_SLOTS = 1025 };

/* Quantized numbers. */
#define MX_CODES ((mx_dtypes)(1u << MX_I8 | 1u << MX_F8_E4M3 | 1u << MX_F8_E5M2))

typedef struct {
    mx_dtype dtype;                 /* float8_e4m3fn, float8_e5m2 or int8 */
    int64_t block_rows, block_cols; /* 0: all */
    bool power_of_two;              /* scales are rounded to one, downwards: q is exact */
    bool stochastic;                /* int8: stochastic rounding, see quantize.c */
    bool stacked;                   /* dim 0 counts matrices with grids of their own */
    bool both;                      /* output 3 is q transposed, (cols, rows); otherwise empty */
    int64_t salt;                   /* of the random bits */
} mx_quantize_attr;

/* One of the three matmuls of a linear layer. */
typedef enum {
    MX_GRANULARITY_HIGH, /* not quantized */
    MX_GRANULARITY_TENSOR,
    MX_GRANULARITY_ROW,
    MX_GRANULARITY_BLOCK
} mx_granularity;

/* How the matmuls of a linear layer y = x w^T are quantized. */
typedef struct {
    const char *name, *doc;
    mx_dtype value, grad;           /* of x and w, and of dy */
    mx_granularity forward, dgrad, wgrad; /* y = x w^T, dx = dy w, dw = dy^T x */
    bool delayed;                   /* scales from the amax of earlier steps; one for a tensor */
    bool power_of_two;
    bool stochastic;                /* dy: stochastic rounding */
    /* Instead of all that: matmuls stay as they are, and read numbers that were rounded to codes of
     * `value` (MX_U8: int4) and back (ops/fake_quantize.c). */
    bool fake_weights, fake_inputs;
    bool input_zeros; /* int8: inputs have a zero point for each row */
} mx_quant_recipe;

/* The largest number that the dtype holds. */
float mx_quant_most(mx_dtype d);
/* The factor by which a block of this largest magnitude is multiplied. NaN where the magnitude is
 * not finite: whatever is made of the block then is NaN too, and the step is skipped. */
float mx_quant_factor(float amax, mx_dtype d, bool power_of_two);

/* q and its scales, as scaled_matmul takes them: the summed dim last. */
typedef struct {
    mx_node *q, *scale;
} mx_quantized;

/* A factor of a matmul. */
typedef struct {
    const mx_quant_recipe *recipe;
    mx_granularity grain;
    mx_dtype dtype;
    bool weight;       /* in square blocks */
    bool over_rows;    /* the sum runs over the rows: quantized by columns and transposed */
    bool stochastic;
    const mx_node *of; /* the layer's weight, by whose name the history of a delayed recipe goes */
    const char *role;  /* input, weight, grad: its suffix */
    mx_node *made;     /* the tensor as it was quantized before in this granularity; NULL: not */
    bool training;     /* a gradient will need it too; this step's amax goes into the history */
} mx_quant_operand;
mx_quantized mx_quant_operand_make(mx_graph *g, mx_node *x, const mx_quant_operand *o);

#endif
