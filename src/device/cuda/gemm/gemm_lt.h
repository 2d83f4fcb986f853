/* gemm_lt.h - GEMMs through cuBLASLt, planned once and launched many times.
 *
 *     C (M, N) = alpha * op(A) (M, K) . op(B) (K, N) + beta * C     row-major, batched by strides
 *
 * Epilogues, on sums that are not rounded yet:
 *     BIAS    C + b, a vector (N) of C's type
 *     GELU    gelu_tanh(C + b), and C + b itself to another matrix like C, `aux`
 *
 * The three GEMMs of a linear layer y = x W^T with W stored (out, in):
 *     forward  y  = x  . W^T     trans_b            (T, in) (out, in)^T
 *     input    dx = dy . W                          (T, out) (out, in)
 *     weight   dW = dy^T . x     trans_a            (T, out)^T (T, in)     beta = 1 accumulates
 *
 * A plan owns the descriptors and the chosen algorithm; launching it is one library call, allocates
 * nothing and may be captured in a CUDA graph. The algorithm is cuBLASLt's first suggestion, or the
 * fastest of its suggestions after a timed search; searched choices are kept in a text file keyed
 * by library version, GPU and shape, so the search is paid once per machine. In-place split-K
 * reduction is refused, so a plan gives the same bits on every run.
 */
#ifndef MX_DEVICE_CUDA_GEMM_LT_H
#define MX_DEVICE_CUDA_GEMM_LT_H

#include "device/cuda/core/libs.h"
#include <stdint.h>

typedef enum {
    MX_GEMM_F32,
    MX_GEMM_BF16,
    MX_GEMM_F16,
    MX_GEMM_E4M3, /* 8 bits: A not transposed and B transposed, k and n multiples of 16 */
    MX_GEMM_E5M2,
    MX_GEMM_I8,
    MX_GEMM_I32, /* the sums of I8 */
} mx_gemm_type;

/* What the scales of an 8-bit float operand belong to: all of it, or rows; float32. */
typedef enum { MX_SCALE_NONE, MX_SCALE_ALL, MX_SCALE_ROWS } mx_gemm_scale;

typedef enum { MX_GEMM_PLAIN, MX_GEMM_BIAS, MX_GEMM_GELU } mx_gemm_epilogue;

typedef struct {
    int64_t m, n, k;
    bool trans_a, trans_b;                /* A is stored (K, M); B is stored (N, K) */
    int64_t lda, ldb, ldc;                /* row strides in elements; 0: packed */
    int64_t batch;                        /* 0 and 1: one GEMM */
    int64_t stride_a, stride_b, stride_c; /* between batch entries, in elements */
    mx_gemm_type in, out;
    mx_gemm_type in_b; /* of B where `scale_b` says that it has scales; otherwise as A */
    mx_gemm_scale scale_a, scale_b;
    bool fast; /* 8-bit floats: sums may lose some bits */
    bool tf32; /* f32 only: allow the tensor cores' 10-bit mantissa */
    mx_gemm_epilogue epilogue;
    float alpha, beta;
} mx_gemm_shape;

typedef struct mx_gemm_lt mx_gemm_lt; /* the library handle, workspace size and choice file */
typedef struct mx_gemm_plan mx_gemm_plan;

/* `cache_path` may be NULL (choices are not kept). Borrows libs and the path's text for its life.
 */
mx_status mx_gemm_lt_open(mx_gemm_lt **out, mx_cuda_libs *libs, size_t workspace_bytes,
                          const char *cache_path) MX_MUST_USE;
void mx_gemm_lt_close(mx_gemm_lt *lt);
/* From now on choices are looked up and kept there; borrows the text. */
void mx_gemm_lt_remember(mx_gemm_lt *lt, const char *cache_path);

/* Plans with the library's first choice, or the cached one where a search was made before. */
mx_status mx_gemm_plan_new(mx_gemm_plan **out, mx_gemm_lt *lt,
                           const mx_gemm_shape *shape) MX_MUST_USE;
/* Times the library's suggestions on the caller's buffers (C is overwritten) and keeps the fastest.
 */
mx_status mx_gemm_plan_search(mx_gemm_plan *p, const void *a, const void *b, void *c,
                              void *workspace, cudaStream_t stream) MX_MUST_USE;
mx_status mx_gemm_plan_launch(const mx_gemm_plan *p, const void *a, const void *b, void *c,
                              void *workspace, cudaStream_t stream) MX_MUST_USE;
/* Where the next launch finds what its epilogue needs; to be called before each launch of a plan
 * with one. */
mx_status mx_gemm_plan_epilogue(mx_gemm_plan *p, const void *bias, void *aux) MX_MUST_USE;
/* The same for the scales of its operands. */
mx_status mx_gemm_plan_scales(mx_gemm_plan *p, const float *a, const float *b) MX_MUST_USE;
/* "heuristic", "searched" or "cached"; for reports. */
const char *mx_gemm_plan_choice(const mx_gemm_plan *p);
void mx_gemm_plan_free(mx_gemm_plan *p);

#endif
