/* grouped_kernel.h - one GEMM per expert over rows sorted by expert.
 *
 *     x (N, d_in)   y, dy (N, d_out)   w (E, d_out, d_in), or (E, d_in, d_out) with w_in_out
 *     offsets (E+1) int32: rows offsets[e] .. offsets[e+1] belong to expert e; groups may be empty
 *     y_e = x_e w_e^T        dx_e = dy_e w_e        dw_e = dy_e^T x_e
 *
 * Work is cut into (expert, strip of the output) pieces, so a few large experts and many small
 * ones both fill the threads. Bits are those of gemm.h: independent of threads and of the other
 * experts. An expert without rows has dw = 0 (or keeps it, when adding).
 */
#ifndef MX_OPS_CPU_GROUPED_KERNEL_H
#define MX_OPS_CPU_GROUPED_KERNEL_H

#include "ops/cpu/gemm.h"

typedef struct {
    int64_t groups, d_in, d_out;
    const int32_t *offsets;
    bool w_in_out;
    bool one_path;   /* as in gemm.h */
    mx_num type;     /* of x, w, dy */
    mx_num out_type; /* of the result */
    int threads;     /* 0: all of OpenMP's */
} mx_grouped;

void mx_grouped_forward(const mx_grouped *g, const void *x, const void *w, void *y);
void mx_grouped_dx(const mx_grouped *g, const void *dy, const void *w, void *dx);
void mx_grouped_dw(const mx_grouped *g, const void *dy, const void *x, void *dw, bool add);

#endif
