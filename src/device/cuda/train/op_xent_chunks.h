/* op_xent_chunks.h - what the cross-entropy ops share, which compute a chunk of rows at a time: the
 * GEMM plans of a chunk, and where its rows lie. */
#ifndef MX_DEVICE_CUDA_OP_XENT_CHUNKS_H
#define MX_DEVICE_CUDA_OP_XENT_CHUNKS_H

#include "device/cuda/core/context.h"

/* Of one size of chunk. What an op does not need is NULL. */
typedef struct {
    mx_gemm_plan *project, *input;
    mx_gemm_plan *dw[2], *dw_rest[2]; /* [0] of the first chunk, [1] added to what is there */
} mx_xent_plans;

/* Both sizes: [0] full chunks, [1] the last one. */
void mx_xent_plans_free(mx_xent_plans plans[2]);

/* What the state of an op begins with that computes `rows` rows, `chunk` at a time. */
typedef struct {
    mx_xent_plans plans[2];
    int64_t rows, chunk;
} mx_xent_chunks;

/* The plans of a chunk of `rows` rows. */
typedef mx_status mx_xent_planner(mx_cuda *c, const mx_xent_chunks *x, mx_xent_plans *p,
                                  int64_t rows);
/* Both sizes by `plan` (NULL: no GEMM is planned); gives x as *state, or frees it when it fails. */
mx_status mx_xent_chunks_plan(mx_cuda *c, mx_xent_chunks *x, mx_xent_planner *plan,
                              void **state) MX_MUST_USE;
void mx_xent_chunks_drop(mx_cuda *c, void *state);
/* dw[0] and dw[1]; `dw` says all but beta. */
mx_status mx_xent_plan_dw(mx_cuda *c, mx_gemm_shape dw, mx_xent_plans *p) MX_MUST_USE;

/* Where row `row` of a tensor with rows of `width` elements lies. */
void *mx_cuda_row(const mx_tensor *t, int64_t row, int64_t width);

/* For a slice of `vocab` words: clears dx where there are none, and the rows of dw after them. */
mx_status mx_xent_clear(mx_cuda *c, const mx_tensor *dx, const mx_tensor *dw,
                        int64_t vocab) MX_MUST_USE;

#endif
