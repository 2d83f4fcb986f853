/* reduce.h - sums and maxima of vectors that lie in this process, in the order of ranks. */
#ifndef MX_DIST_REDUCE_H
#define MX_DIST_REDUCE_H

#include "ir/process_group.h"

/* a->out[i] = in[0][at + i] + in[1][at + i] + ..., in float64 for float64 and in float32 for every
 * other float type, rounded once. */
void mx_reduce_from(const mx_reduce_args *a, const void *const *in, int size, int64_t at);

#endif
