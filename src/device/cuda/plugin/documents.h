/* documents.h - packed rows as a list of documents, which is how cuDNN wants them.
 *
 * A row of tokens holds several documents, told apart by their ids (B, S), and attention stays
 * within a document. cuDNN does that when it is given a fixed number of slots, each with a start
 * and a length, empty ones included; empty slots cost a little. How many documents a batch has is
 * known to whoever writes the ids and says so (mx_exec_documents), so there are plans for few slots
 * and for many, and a batch that fits neither takes our own kernel: three graph variants of a
 * program (device.c).
 */
#ifndef MX_DEVICE_CUDA_DOCUMENTS_H
#define MX_DEVICE_CUDA_DOCUMENTS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { MX_FEW_DOCUMENTS, MX_MANY_DOCUMENTS, MX_ANY_DOCUMENTS, MX_WAYS };

typedef struct {
    const int32_t *ids; /* (rows, cols) on the device: an input of the program */
    int64_t rows, cols;
    int slots_of[2]; /* for few documents, for many */
    int slots;       /* of the plan at hand */
    int32_t *start, *length; /* (slots + 1), (slots) on the device; start counts tokens */
    int users;
} mx_cuda_documents;

/* Fills start and length from the ids. */
cudaError_t mx_cuda_documents_find(const mx_cuda_documents *d, cudaStream_t stream);
/* out[k][slot] = start[slot] * step[k], for slots + 1 entries. */
enum { MX_CUDA_OFFSETS = 7 }; /* of q, k, v, o, dq, dk, dv */
cudaError_t mx_cuda_documents_offsets(const mx_cuda_documents *d,
                                      int32_t *const out[MX_CUDA_OFFSETS],
                                      const int64_t step[MX_CUDA_OFFSETS], cudaStream_t stream);
/* Row statistics (rows, heads, cols) from and to cuDNN's (slots, heads, cols). */
cudaError_t mx_cuda_documents_stats(const mx_cuda_documents *d, float *by_row, float *by_slot,
                                    int heads, bool to_slots, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
