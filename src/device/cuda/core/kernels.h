/* kernels.h - maxc's own CUDA kernels as plain functions over device pointers.
 *
 * Every function enqueues on `stream`, allocates nothing, and may be captured in a CUDA graph. The
 * result is cudaSuccess or the launch error. All are deterministic: same inputs, same bits.
 * Legend: T tokens (rows), d width, F hidden width of the MLP, V vocabulary, H heads, D head size.
 * `bf16` pointers are raw 16-bit words (uint16_t) so that C code can include this file. Rows must
 * be 16-byte aligned: widths are multiples of 8 unless a comment says otherwise.
 */
#ifndef MX_DEVICE_CUDA_KERNELS_H
#define MX_DEVICE_CUDA_KERNELS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef uint16_t mx_bf16;

/* --- casts (cast.cu), n elements; no alignment rule --- */
cudaError_t mx_cuda_cast_f32_bf16(mx_bf16 *y, const float *x, int64_t n, cudaStream_t stream);
cudaError_t mx_cuda_cast_bf16_f32(float *y, const mx_bf16 *x, int64_t n, cudaStream_t stream);
/* --- embedding (embed.cu) --- */
/* dtable[token] += sum of dy over the token's rows, in row order: tokens are sorted first. dy float
 * or bf16, any width. scratch: mx_cuda_embed_scratch_bytes. Untouched rows are left alone. */
size_t mx_cuda_embed_scratch_bytes(int64_t rows);
cudaError_t mx_cuda_embed_grad(float *dtable, const void *dy, bool dy_f32, const int32_t *tokens,
                               int64_t rows, int64_t d, int64_t vocab, void *scratch,
                               cudaStream_t stream);

/* --- softmax cross-entropy over a tile of logits (xent.cu) --- */
/* logits (T, V) bf16, row stride ld, become their gradient in place: (softmax (1 + 2 z_loss lse) -
 * onehot) * weight * grad_scale, through the soft-cap. loss[t] = weight (lse - logit[target] +
 * z_loss lse^2) f32; lse[t]; targets < 0 are ignored (loss, lse and gradient 0). grad_scale is read
 * from the device (1 / token count); weight NULL: one. */
typedef struct {
    int64_t rows, vocab, ld;
    float softcap, z_loss;
    bool gradient;   /* false: logits stay as they are */
    bool plain_loss; /* the weight counts in the gradient alone */
} mx_xent_shape;
cudaError_t mx_cuda_xent(const mx_xent_shape *s, mx_bf16 *logits, const int32_t *targets,
                         const float *weight, const float *grad_scale, float *loss, float *lse,
                         cudaStream_t stream);
/* --- first values (fill.cu) --- */
typedef enum {
    MX_CUDA_FILL_SAME,
    MX_CUDA_FILL_NORMAL,
    MX_CUDA_FILL_LOG_UNIFORM,
    MX_CUDA_FILL_BYTES, /* whole numbers below scale, each a byte */
} mx_cuda_fill_kind;
typedef struct {
    mx_cuda_fill_kind kind;
    double scale;
    int64_t n;
    uint64_t seed, stream;
    bool f32; /* else bf16, or bytes */
} mx_cuda_fill;
cudaError_t mx_cuda_fill_with(void *x, const mx_cuda_fill *f, cudaStream_t stream);
/* The GPU's clock in seconds, to pinned host memory. */
cudaError_t mx_cuda_clock(double *pinned, cudaStream_t stream);
/* The stream does nothing for so long. */
cudaError_t mx_cuda_stay_busy(int microseconds, cudaStream_t stream);

/* --- decoding (gemv.cu, decode_attention.cu) --- */
/* y (M, N) = x (M, K) W (N, K)^T for M <= 8, at memory speed; y bf16 or (y32) f32. K % 8 == 0. */
/* Several weights times the same vector x (K), in one launch. */
typedef struct {
    const mx_bf16 *w; /* (n, K) */
    mx_bf16 *y;       /* (n), or NULL and y32 */
    float *y32;
    int64_t n;
} mx_gemv_one;
enum { MX_GEMV_MOST = 4 };
cudaError_t mx_cuda_gemv_many(const mx_gemv_one *one, int n, const mx_bf16 *x, int64_t k,
                              cudaStream_t stream);
cudaError_t mx_cuda_gemv(mx_bf16 *y, float *y32, const mx_bf16 *x, const mx_bf16 *w, int m,
                         int64_t n, int64_t k, cudaStream_t stream);
/* Which keys a query sees: the first lengths[b], of which it is the last; or, where k_pos is given,
 * those whose position is not negative and not after q_pos[b]. */
typedef struct {
    const int32_t *lengths;
    const int32_t *q_pos, *k_pos; /* (B), (B, capacity) */
} mx_decode_keys;
/* One query per sequence against a cache. q (B, Hq, D), k (B, cap, Hkv, D), v (B, cap, Hkv, Dv),
 * o (B, Hq, Dv). */
typedef struct {
    int batch, heads_q, heads_kv, dim_qk, dim_v;
    int64_t capacity;               /* keys per sequence in the cache */
    int64_t k_batch, k_seq, k_head; /* strides in elements */
    int64_t v_batch, v_seq, v_head;
    int64_t window; /* 0: none */
    float scale, softcap;
} mx_decode_shape;
size_t mx_cuda_decode_scratch_bytes(const mx_decode_shape *s);
cudaError_t mx_cuda_decode_attention(const mx_decode_shape *s, mx_bf16 *o, const mx_bf16 *q,
                                     const mx_bf16 *k, const mx_bf16 *v, mx_decode_keys keys,
                                     const float *sinks, void *scratch, cudaStream_t stream);

/* --- sampling (sample.cu): one token per row of logits (rows, stride), of the first `vocab` --- */
typedef struct {
    int32_t *token;        /* -1: no logit is a number */
    const float *logits;
    const float *settings; /* see ops/sample_token.c */
    int64_t rows, stride, vocab;
} mx_sample_rows;
cudaError_t mx_cuda_sample(const mx_sample_rows *s, cudaStream_t stream);
/* Tokens of the next batch (ops/feed_sampled.c). */
typedef struct {
    int32_t *out;
    const int32_t *tokens, *from, *sampled;
    int64_t n, rows;
} mx_feed_args;
cudaError_t mx_cuda_feed_sampled(const mx_feed_args *f, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
