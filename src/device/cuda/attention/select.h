/* select.h - the keys a sparse attention looks at (see src/ops/select_keys.c), on the device.
 *
 *     q (B, S, H, D)   w (B, S, H)   k (B, T, D)   ->   selected (B, S, n)
 * Scores of some rows at a time lie in scratch; the n best are found by their bits. Where equal
 * scores stand at the cut, the choice is that of the CPU's quickselect, step for step. Over pages S
 * is 1, k (slots, D), and keys are the positions of the query's own sequence.
 */
#ifndef MX_DEVICE_CUDA_SELECT_H
#define MX_DEVICE_CUDA_SELECT_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { MX_CUDA_SELECT_DIM = 128 }; /* the largest D */
typedef struct {
    int batch, queries, keys, heads, dim, n;
    float scale;
    bool q_f32, w_f32, k_f32;
    const void *q, *w, *k;
    const int32_t *q_pos, *k_pos, *q_seg, *k_seg; /* each pair or NULL */
    const int32_t *row, *table;                   /* over pages, (B) and (rows, columns); or NULL */
    int page, rows, columns;
    int64_t slots;
} mx_cuda_select;

size_t mx_cuda_select_bytes(const mx_cuda_select *s);
cudaError_t mx_cuda_select_keys(const mx_cuda_select *s, int32_t *selected, void *work,
                                cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
