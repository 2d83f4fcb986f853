/* panels.h - a weight as the GEMM's register tile reads it.
 *
 * A weight (n, k) is cut into panels of `cols` rows. A panel lies where its rows do, word of k
 * after word of k, each for all of its rows; a word is `pair` successive elements of k. A weight
 * that lies so need not be packed again in every step. cols divides n, and pair divides k.
 * Codes of int8 and int4 (two a byte) lie so for kernels of their own (ops/cpu/dequant_panels.h),
 * words of 4 bytes, and their scales (n, groups).
 */
#ifndef MX_OPS_PANELS_H
#define MX_OPS_PANELS_H

#include "ir/type.h"

typedef struct {
    int32_t cols, pair;
} mx_panels;

/* What this machine's GEMM takes where both factors have this dtype. */
mx_panels mx_panels_of(mx_dtype t);
/* Can a weight of this type lie so? Its last two dims are n and k. */
bool mx_panels_fit(mx_panels p, const mx_type *w);
/* Lays out in place a weight that lies in rows, in this machine's panels. */
mx_status mx_panels_lay(void *w, const mx_type *t) MX_MUST_USE;

/* The same of codes and of their scales; no columns: they stay in rows. */
mx_panels mx_code_panels_of(const mx_type *codes, const mx_type *scale);
mx_status mx_code_panels_lay(void *w, const mx_type *t) MX_MUST_USE;

/* Where element (row, col) of a weight with k columns lies. */
static inline int64_t mx_panel_at(mx_panels p, int64_t k, int64_t row, int64_t col)
{
    return row / p.cols * p.cols * k + (col / p.pair * p.cols + row % p.cols) * p.pair +
           col % p.pair;
}

#endif
