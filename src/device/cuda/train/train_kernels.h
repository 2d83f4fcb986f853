/* train_kernels.h - small kernels behind the graph's ops: updates, norms, sums, lookups. All
 * deterministic. `*_f32` flags say that a pointer is float, not bf16. */
#ifndef MX_DEVICE_CUDA_TRAIN_KERNELS_H
#define MX_DEVICE_CUDA_TRAIN_KERNELS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Updates of several weights, which share what a step says. */
typedef struct {
    void *w; /* float, or bf16: stochastic rounding */
    const void *g;
    void *m, *v;
    uint16_t *copy; /* NULL: none */
    void *squares;  /* the sum of the squares of the new weight: a float, or a double */
    int64_t n;
    uint64_t salt;
    float decay;
    bool w_f32, g_f32, moments_f32;
    bool wide; /* squares: a double */
} mx_adamw_one;
typedef struct {
    const float *hyper; /* lr, clip scale, step, - */
    float b1, b2, eps, eps_root;
} mx_adamw_rule;
size_t mx_cuda_adamw_bytes(int64_t n); /* scratch, for one weight of n elements */
cudaError_t mx_cuda_adamw_many(const mx_adamw_one *a, int n, const mx_adamw_rule *rule,
                               double *partial, cudaStream_t stream);
typedef struct {
    void *w;       /* float32, or bfloat16, which is rounded to nearest */
    const void *g; /* the same */
    bool w_f32, g_f32;
    uint16_t *copy;     /* NULL: none */
    const float *hyper; /* lr, clip scale, -, - */
    float decay;
    int64_t n;
} mx_cuda_sgd;
cudaError_t mx_cuda_sgd_one(const mx_cuda_sgd *s, cudaStream_t stream);
/* sum = x, or += x when *first is 0. */
cudaError_t mx_cuda_accumulate(float *sum, const void *x, bool x_f32, const float *first, int64_t n,
                               cudaStream_t stream);

/* *out = the sum of the squares of x, for several x. */
typedef struct {
    const void *x;
    void *out; /* a float, or a double */
    int64_t n;
    bool x_f32, wide;
} mx_squares_one;
size_t mx_cuda_squares_bytes(int64_t n); /* scratch, for one of n elements */
cudaError_t mx_cuda_sum_squares(const mx_squares_one *a, int n, double *partial,
                                cudaStream_t stream);

/* How many blocks of a kernel run at once on this device. */
cudaError_t mx_cuda_blocks_at_once(int64_t *n, const void *kernel, int threads);

/* x (rows, d) -> out (d) float; partial: mx_gpu_sum_rows_bytes. d = 1 sums everything. */
cudaError_t mx_cuda_sum_rows(float *out, const void *x, bool x_f32, int64_t rows, int64_t d,
                             void *partial, cudaStream_t stream);

/* Sums over any dims (sum_dims.cu). n is at least 1. */
enum { MX_SUM_DIMS = 8 };
typedef struct {
    int n;
    int64_t size[MX_SUM_DIMS], stride[MX_SUM_DIMS]; /* of x, in elements */
} mx_dims;
typedef struct {
    void *out; /* dense, in the order of `keep` */
    const void *x;
    mx_dims keep, sum;
    int64_t outputs, terms; /* the products of their sizes */
    bool x_f32, out_f32;
} mx_sum_dims;
cudaError_t mx_cuda_sum_dims(const mx_sum_dims *s, cudaStream_t stream);

/* out[k][c] = the sum over r of part[k][r][c]. */
typedef struct {
    float *out[8];
    const float *part;
    int n;
    int64_t rows, cols;
} mx_column_sums;
cudaError_t mx_cuda_column_sums(const mx_column_sums *s, cudaStream_t stream);

/* Rows of a table of `item` bytes per element; ids outside give zero rows. */
cudaError_t mx_cuda_gather(void *y, const void *table, const int32_t *ids, int64_t rows, int64_t d,
                           int64_t vocab, int item, cudaStream_t stream);

/* Float logits (rows, vocab) to loss and lse; with dloss also to their gradient, in place. */
typedef struct {
    int64_t rows, vocab, ld;
    float softcap, z_loss, scale; /* the gradient is multiplied by scale: logits were scale x w^T */
} mx_xent_plain;
cudaError_t mx_cuda_xent_plain(const mx_xent_plain *s, float *logits, const int32_t *labels,
                               const float *dloss, float *loss, float *lse, cudaStream_t stream);

/* cache (B, S, entry) <- fresh (B, T, entry) at slots (B, T), of 4 or 2 bytes, converted; several
 * at once where types and B are the same. */
typedef struct {
    void *cache;
    const void *fresh;
    const int32_t *slots;
    int cache_type, fresh_type;
    int64_t batch, s, t, entry;
} mx_cache_one;
cudaError_t mx_cuda_cache_write(const mx_cache_one *one, int n, cudaStream_t stream);
enum { MX_CACHE_MOST = 4 };
enum { MX_CACHE_F32, MX_CACHE_BF16, MX_CACHE_I32 };

#ifdef __cplusplus
}
#endif
#endif
