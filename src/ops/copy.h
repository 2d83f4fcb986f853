/* copy.h - moving runs of bytes between tensors: what split, concat, slice and pad are made of.
 *
 * A tensor seen around one of its dims is `rows` runs of contiguous bytes: everything before the
 * dim counts rows, the dim and everything after it is the run.
 */
#ifndef MX_OPS_COPY_H
#define MX_OPS_COPY_H

#include "ir/graph.h"

/* `rows` runs of run_bytes from src to dst, each at its own stride. Threads share long runs. */
void mx_copy_runs(void *dst, size_t dst_stride, const void *src, size_t src_stride,
                  size_t run_bytes, int64_t rows);
/* The same with zeros instead of a source. */
void mx_zero_runs(void *dst, size_t dst_stride, size_t run_bytes, int64_t rows);
/* A kernel: input 0, dense or in runs (a part of another tensor), to output 0, dense. */
void mx_copy_cpu(const mx_call *c);

int64_t mx_dims_before(const mx_type *t, int dim);      /* product of the dims before dim */
size_t mx_dims_after_bytes(const mx_type *t, int dim);  /* bytes of one index of dim */

/* Counts a dim from the right when it is negative; fails the graph when there is no such dim. */
int64_t mx_dim_index(mx_graph *g, const char *op, const mx_node *x, int64_t dim);
/* The notation of an op that changes the size of one dim and keeps the others: "a!xc->a!yc". */
const char *mx_dims_resized(int ndim, int64_t dim);

/* A cost of moving bytes only. */
mx_cost mx_cost_move(const mx_node *n);

#endif
