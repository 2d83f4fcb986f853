/* collective.h - the kernels of collectives (collective.cu), as plain functions over device
 * pointers: sums over the buffers of several ranks, and rows of tokens by expert. */
#ifndef MX_DEVICE_CUDA_COLLECTIVE_H
#define MX_DEVICE_CUDA_COLLECTIVE_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The buffers of the ranks of a group, by rank; they travel as a kernel's argument. */
enum { MX_CUDA_RANKS = 256 };
typedef struct {
    void *at[MX_CUDA_RANKS];
} mx_cuda_buffers;

typedef enum { MX_SUM_F32, MX_SUM_BF16, MX_SUM_F64, MX_SUM_I32 } mx_sum_type;

/* `rows` runs of `run` elements, `pitch` elements apart in the sources and packed in the sum. */
typedef struct {
    int n; /* sources */
    int64_t rows, run, pitch;
    mx_sum_type type;
    bool max; /* the greatest instead of the sum */
} mx_cuda_sum;
/* In the order of the sources, in float32 (double, int32 for those types), rounded once. */
cudaError_t mx_cuda_sum_buffers(void *out, const mx_cuda_buffers *from, const mx_cuda_sum *s,
                                cudaStream_t stream);

/* out (outer, n, run) from n pieces (outer, run), in bytes. */
typedef struct {
    int n;
    int64_t outer, run;
} mx_cuda_join;
cudaError_t mx_cuda_join_buffers(void *out, const mx_cuda_buffers *from, const mx_cuda_join *s,
                                 cudaStream_t stream);

/* x (n) as floats of any of the types, ((x0 + x1) + x2) + ..., every sum rounded to float32. */
cudaError_t mx_cuda_sum_in_order(float *out, const void *x, mx_sum_type type, int64_t n,
                                 cudaStream_t stream);

/* Rows of tokens between the ranks of a group and the experts that this rank has, as
 * src/ops/exchange_rows.c has it. table (ranks, experts + 1): where each rank's rows of an expert
 * begin. */
typedef struct {
    const int32_t *table;
    int ranks, index, experts;
    int64_t room, row_bytes; /* rows of `y` */
} mx_cuda_expert_rows;
/* start (experts / ranks + 1): where the rows of this rank's experts begin; by_rank (experts + 1):
 * where those of each of them begin that came from each rank. */
cudaError_t mx_cuda_expert_starts(const mx_cuda_expert_rows *s, int32_t *start, int32_t *by_rank,
                                  cudaStream_t stream);
/* y, rows by expert and inside an expert by rank: from the ranks' own buffers, in which row t is
 * the t-th of that rank's tokens sorted by expert; the rows of y after the last become 0. `back`:
 * from y to those buffers. scratch: experts + 1 numbers. */
cudaError_t mx_cuda_expert_move(const mx_cuda_expert_rows *s, void *y,
                                const mx_cuda_buffers *ranks, bool back, int32_t *scratch,
                                cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
