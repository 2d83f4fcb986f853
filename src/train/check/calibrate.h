/* calibrate.h - what a model's matrices read on a text, and weights that are quantized by it.
 *
 *     gptq          rounds each matrix so that its outputs on the text change least
 *                   (store/gptq.h). Matrices are rounded in the order of the model, in `rounds` or
 *                   more, as many at a time as the sums of their inputs fit `most_bytes`; later
 *                   rounds read what the rounded ones give, and make good some of their error.
 *                   Each begins where the one before it stopped (held.h).
 *     smoothquant   moves the range of a matrix's inputs into the matrix: input j is divided by
 *                   s_j = amax(x_j)^a / amax(w_j)^(1 - a), column j multiplied by it. The division
 *                   is a part of the norm, or of the rows of the matrix, that the input comes from.
 *                   (Xiao et al., SmoothQuant, 2022.)
 *
 * Experts are no matrices of their own in the graph: they keep their nearest codes, and n_without
 * counts them.
 */
#ifndef MX_TRAIN_CALIBRATE_H
#define MX_TRAIN_CALIBRATE_H

#include "store/gptq.h"
#include "store/quant_write.h"
#include "train/check/perplexity.h"

typedef enum { MX_CALIBRATE_GPTQ, MX_CALIBRATE_SMOOTH } mx_calibrate_method;

typedef struct {
    mx_calibrate_method method;
    const mx_quant_write_options *write; /* which weights, which codes */
    mx_perplexity_of text;
    bool act_order;      /* gptq */
    double smoothing;    /* smoothquant: a */
    size_t most_bytes;   /* gptq: sums of inputs at a time; as many for what rounds hold */
    int rounds;          /* gptq: at least so many; 0: as many as there are inputs */
} mx_calibrate_of;

typedef struct {
    mx_quant_changes changes; /* owns their numbers */
    mx_arena arena;           /* names */
    int n_calibrated;         /* matrices */
    mx_gptq_outputs outputs;  /* gptq: of all of them */
} mx_calibrated;

mx_status mx_calibrate(const mx_model_ref *m, const mx_calibrate_of *of,
                       mx_calibrated *out) MX_MUST_USE;
void mx_calibrated_fini(mx_calibrated *c); /* a zero object is a no-op */

#endif
