/* fused_source.h - a fused group as the source of one CUDA kernel. Needs no GPU. */
#ifndef MX_DEVICE_CUDA_FUSED_SOURCE_H
#define MX_DEVICE_CUDA_FUSED_SOURCE_H

#include "base/str.h"
#include "ops/group.h"

typedef struct {
    unsigned grid, block;
    int n_sums, sum_out[MX_MAX_OUT]; /* column sums, and which outputs they are */
    int rows_per_block;
    int64_t cols;
} mx_fused_launch;

/* Kernel `fused(const void *in0, ..., void *out0, ...)`. A status when a dtype has no CUDA form.
 * in, out: the tensors it will be given, of which some may be strided views; NULL: none is.
 * With column sums there is one more argument, float sums[n_sums][grid * rows_per_block][cols]; any
 * grid up to the one given will do, and the rows of each sum still have to be added up. */
mx_status mx_fused_source(const mx_group *g, const mx_tensor *in, const mx_tensor *out,
                          mx_str *text, mx_fused_launch *launch) MX_MUST_USE;

#endif
