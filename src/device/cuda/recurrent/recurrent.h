/* recurrent.h - the ops with a memory, as plain functions over device pointers: the short causal
 * convolution and the gated delta rule (see src/ops/causal_conv.c, src/ops/delta_rule.c).
 *
 * Every function enqueues on `stream`, allocates nothing, and gives the same bits every time.
 * Tensors are float32, or bf16 where the `f32` of their group is false. Decoding gives a state and
 * positions (B, S): a row's tokens end at the first position below 0, position 0 begins a new
 * sequence, and a row without tokens keeps its state. With rows (B), S is 1 and token b goes on
 * from state rows[b] of `states`. Scratch sizes follow from the shape alone.
 */
#ifndef MX_DEVICE_CUDA_RECURRENT_H
#define MX_DEVICE_CUDA_RECURRENT_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- causal_conv (conv_kernels.cu): x, y (B, S, C), w (C, K), state (B, K-1, C) --- */
typedef struct {
    int batch, len, channels, taps; /* taps <= 16 */
    bool f32;                       /* x, w, y */
    const void *x, *w;
    const int32_t *segments;  /* (B, S), or NULL */
    const int32_t *positions; /* (B, S), with a state */
    void *state;              /* replaced in place, or NULL */
    bool state_f32;
    const int32_t *rows; /* (B), or NULL */
    int states;
} mx_cuda_conv;

cudaError_t mx_cuda_conv_forward(const mx_cuda_conv *c, void *y, cudaStream_t stream);
size_t mx_cuda_conv_backward_bytes(const mx_cuda_conv *c);
/* dx and dw of the dtype of x and w. */
cudaError_t mx_cuda_conv_backward(const mx_cuda_conv *c, const void *dy, void *dx, void *dw,
                                  void *work, cudaStream_t stream);

/* --- delta_rule (delta_*.cu): q, k (B, S, K, D), v, o (B, S, H, E), g, beta (B, S, H) --- */
enum { MX_CUDA_DELTA_DIM = 128 }; /* the largest D */
typedef struct {
    int batch, len, k_heads, v_heads, k_dim, v_dim;
    float scale;
    bool f32;          /* q, k, v, o and their gradients */
    bool gates_f32[2]; /* g and beta, and their gradients */
    const void *q, *k, *v, *g, *beta;
    const int32_t *segments;  /* (B, S), or NULL */
    const int32_t *positions; /* (B, S), with a state */
    void *state;              /* (B, H, D, E), replaced in place, or NULL: zero */
    bool state_f32;
    const int32_t *rows; /* (B), or NULL */
    int states;
} mx_cuda_delta;

typedef struct {
    const void *dout;
    void *dq, *dk, *dv, *dg, *dbeta;
} mx_cuda_delta_grads;

size_t mx_cuda_delta_forward_bytes(const mx_cuda_delta *d);
cudaError_t mx_cuda_delta_forward(const mx_cuda_delta *d, void *out, void *work,
                                  cudaStream_t stream);
size_t mx_cuda_delta_backward_bytes(const mx_cuda_delta *d);
cudaError_t mx_cuda_delta_backward(const mx_cuda_delta *d, const mx_cuda_delta_grads *g, void *work,
                                   cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
