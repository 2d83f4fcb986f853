/* moe_kernels.h - mixtures of experts on the GPU: choosing, sorting and moving tokens, and one
 * GEMM per expert.
 *
 * As in kernels.h every function enqueues on `stream`, allocates nothing, waits for nothing and may
 * be captured in a CUDA graph; same inputs, same bits. How many rows each expert has is known on
 * the device only.
 * Legend: N tokens, k choices of each, m = N k entries, E experts.
 */
#ifndef MX_DEVICE_CUDA_MOE_KERNELS_H
#define MX_DEVICE_CUDA_MOE_KERNELS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { MX_MOE_F32, MX_MOE_BF16, MX_MOE_I32 } mx_moe_type;

/* --- choosing (route.cu) --- */
enum { MX_TOP_K_MOST = 4096 };
/* x (rows, d) -> the k largest of each row, largest first, lower index first, NaN above all. */
cudaError_t mx_cuda_top_k(void *values, int32_t *index, const void *x, mx_moe_type type,
                          int64_t rows, int64_t d, int64_t k, cudaStream_t stream);
/* expert (m) -> order (m), start (E + 1), place (m): a stable sort. scratch: of that many bytes. */
enum { MX_EXPERTS_MOST = 8192 };
size_t mx_cuda_sort_experts_bytes(int64_t m, int64_t experts);
cudaError_t mx_cuda_sort_experts(int32_t *order, int32_t *start, int32_t *place,
                                 const int32_t *expert, int64_t m, int64_t experts, void *scratch,
                                 cudaStream_t stream);
/* expert (rows, m) -> the same, but `experts` where an expert already has `capacity` of its row. */
cudaError_t mx_cuda_limit_experts(int32_t *out, const int32_t *expert, int64_t rows, int64_t m,
                                  int64_t experts, int64_t capacity, cudaStream_t stream);

/* --- moving (move_rows.cu) --- */
/* y (n) = x (*, d) at index (*, k), n = all of them; 0 where the index is outside. item: bytes. */
cudaError_t mx_cuda_gather_last(void *y, const void *x, const int32_t *index, int64_t n, int64_t d,
                                int64_t k, int item, cudaStream_t stream);
/* y (rows, d) = zeros, and v (rows, k) added at index (rows, k), in order. */
cudaError_t mx_cuda_scatter_last(void *y, const int32_t *index, const void *v, mx_moe_type type,
                                 int64_t rows, int64_t d, int64_t k, cudaStream_t stream);
cudaError_t mx_cuda_one_hot(float *y, const int32_t *id, int64_t rows, int64_t n,
                            cudaStream_t stream);
/* y (m, row bytes) = x[order[i] / k]; zeros where order is outside [0, m). */
cudaError_t mx_cuda_permute_rows(void *y, const void *x, const int32_t *order, int64_t m, int64_t k,
                                 size_t row_bytes, cudaStream_t stream);
/* y (rows, d) = the sum over j of x (m, d) at place[r k + j], and of `also` unless NULL, in float
 * and in that order. */
cudaError_t mx_cuda_unpermute_rows(void *y, const void *x, const void *also, bool f32,
                                   const int32_t *place, int64_t rows, int64_t m, int64_t d,
                                   cudaStream_t stream);
/* y (n) in [0, 1): word i % 4 of Philox at (*seed, stream_id, i / 4). */
cudaError_t mx_cuda_random_uniform(float *y, const int64_t *seed, uint64_t stream_id, int64_t n,
                                   cudaStream_t stream);

/* --- one GEMM per expert (grouped_*.cu) --- */
/* Expert e has the rows start[e] <= i < start[e + 1]; starts that fall or leave the rows count as
 * far as they make sense. All strides dense.
 *   MX_GROUPED_NT  y (rows, n) = x (rows, k) w_e (n, k)^T
 *   MX_GROUPED_NN  y (rows, n) = x (rows, k) w_e (k, n)      rows of no expert: zeros
 *   MX_GROUPED_TN  y_e (m, n) = sum over the expert's rows of b (rows, m)^T a (rows, n) */
typedef enum { MX_GROUPED_NT, MX_GROUPED_NN, MX_GROUPED_TN } mx_grouped_kind;
typedef struct {
    mx_grouped_kind kind;
    int64_t experts, rows;
    int64_t m; /* TN alone: the width of b */
    int64_t n, k; /* k: NT and NN */
    bool in_f32, out_f32; /* else bf16; float32 in gives float32 out */
    const void *a, *b; /* NT, NN: x and w; TN: b and a of the formula, the left operand first */
    void *y;
    const int32_t *start;
} mx_grouped_call;
cudaError_t mx_cuda_grouped(const mx_grouped_call *g, cudaStream_t stream);
/* The ways mx_cuda_grouped chooses from, for tests and timings. */
bool mx_cuda_grouped_is_tiled(const mx_grouped_call *g); /* bf16, widths of 8, 16-byte aligned */
cudaError_t mx_cuda_grouped_plain(const mx_grouped_call *g, cudaStream_t stream);
cudaError_t mx_cuda_grouped_tiled(const mx_grouped_call *g, bool wgmma, cudaStream_t stream);
bool mx_cuda_grouped_is_hopper(const mx_grouped_call *g); /* many rows for each expert, on Hopper */
cudaError_t mx_cuda_grouped_hopper(const mx_grouped_call *g, cudaStream_t stream); /* NT, NN */
enum { MX_GROUPED_FEW = 16 }; /* rows */
cudaError_t mx_cuda_grouped_few(const mx_grouped_call *g, cudaStream_t stream); /* NT, NN */

#ifdef __cplusplus
}
#endif
#endif
