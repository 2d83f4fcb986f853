/* gptq.h - rounds a weight so that what it makes of its inputs changes least (GPTQ).
 *
 *     W (rows, n)    H = sum of x x^T over inputs x of a calibration text, (n, n)
 * Columns are rounded one after the other, and the error of one is compensated in those still to
 * come: with H^-1 = U^T U, U upper, column j with the error e leaves W[:, k] -= e U[j, k] / U[j, j]
 * for k > j. Rows do not depend on each other.
 *
 * U is R^-1, where H = R R^T with R upper: one factorization and one inverse of a triangle, both by
 * GEMMs of blocks, in place of an inverse of H and a factorization of that. The mean of H's
 * diagonal, times `damp`, is added to the diagonal first.
 *
 * act_order: columns of the largest H[j, j] go first. Scales are then those of the weight as it
 * was, so that groups are columns that lie side by side whatever the order (compressed-tensors'
 * actorder "weight"), and no loader needs to know of it. Otherwise a group's scale is chosen when
 * its first column is reached.
 *
 * Coordinate descent then goes on from there: a code is set anew, the others given, and so is a
 * scale, wherever that makes tr(E H E^T) less, E the error of the weight. It can only be less, and
 * what GPTQ could not make good in its last columns mostly is.
 *
 * References: Frantar et al., GPTQ: Accurate Post-Training Quantization for Generative Pre-trained
 * Transformers, 2022; Behdin et al., QuantEase, 2023 (coordinate descent).
 */
#ifndef MX_STORE_GPTQ_H
#define MX_STORE_GPTQ_H

#include "base/status.h"
#include "ops/cpu/encode.h"
#include <stdbool.h>

typedef struct {
    int64_t n;
    float *u;       /* (n, n); what is below the diagonal is 0 */
    float *h;       /* (n, n): H with its diagonal raised, columns in their own order; owns it */
    float *diagonal; /* (n): of h; owns it */
    int32_t *order; /* (n): the column that is rounded j-th */
    bool act_order;
} mx_gptq_factor;

#define MX_GPTQ_DAMP 0.01

/* Takes the numbers of h, which are overwritten: f->u is h's memory until the factor is closed,
 * which does not release it. `what` appears in errors. */
mx_status mx_gptq_factor_make(mx_gptq_factor *f, float *h, int64_t n, bool act_order,
                              const char *what) MX_MUST_USE;
void mx_gptq_factor_close(mx_gptq_factor *f); /* a zero object is a no-op */

/* w (rows, n) becomes what its codes stand for. codes (rows, n), scale (rows, n / group). */
typedef struct {
    mx_code_kind kind;
    int64_t rows, group;
    float *w;
    uint8_t *codes;
    float *scale;
    int8_t *zero; /* of int4, beside scale; NULL: no zero points */
} mx_gptq_weight;
/* Squares of the outputs on the text, W x, and of what is lost of them, E x: sums over all rows. */
typedef struct {
    double whole, lost;
} mx_gptq_outputs;
/* Adds to *out. */
mx_status mx_gptq_round(const mx_gptq_factor *f, const mx_gptq_weight *w,
                        mx_gptq_outputs *out) MX_MUST_USE;

#endif
