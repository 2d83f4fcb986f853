/* gemm.h - dense GEMM on the CPU.
 *
 *     C (m, n)  =  alpha op(A) (m, k) op(B) (k, n)  [+ C]          row-major, batched
 *
 * op(X) is X, or its transpose when the flag is set: with trans_a, A is stored (k, m); with
 * trans_b, B is stored (n, k), the layout of weights. Leading dimensions and batch steps count
 * elements.
 *
 *     A, B                    C             arithmetic
 *     f32 / bf16, any mix     f32 or bf16   f32 sums; both bf16 on AMX: TDPBF16PS, on AVX512_BF16:
 *                                           VDPBF16PS, f32 sums
 *     f64                     f64           f64 (gradient checks)
 *
 * Promises. No allocation: packing buffers are on the stack (at most 5.1 MB per thread, for which
 * base/stack.h sets the limit). No global state. The bits of every element of C depend on its row
 * of op(A), its column of op(B), k, the path (below) and the CPU level; never on the thread count,
 * on m or n, or on what else the machine does. Paths: m <= MX_GEMV_MAX_M with trans_b streams B
 * once (decoding); everything else is packed, and so is what asks for one path.
 */
#ifndef MX_OPS_CPU_GEMM_H
#define MX_OPS_CPU_GEMM_H

#include <omp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum { MX_NUM_F32, MX_NUM_BF16, MX_NUM_F64 } mx_num;
#define MX_NUM_BYTES(t) ((t) == MX_NUM_F64 ? 8 : (t) == MX_NUM_F32 ? 4 : 2)

#define MX_GEMV_MAX_M 8

/* What of a GEMM need not be computed. An element lies beyond the diagonal when column > row +
 * diagonal (lower) or column < row - diagonal (upper). */
typedef enum {
    MX_GEMM_WHOLE,
    MX_GEMM_LOWER_C, /* what is beyond in C may hold anything afterwards */
    MX_GEMM_LOWER_A, /* what is beyond in op(A) is zero; only with `accumulate` and a k that */
    MX_GEMM_UPPER_A, /* mx_gemm_pack_bytes takes */
} mx_gemm_sizes;

/* What `threads` of every kernel means: 0 is all of OpenMP's, inside a parallel region one. */
static inline int mx_kernel_threads(int asked)
{
    return asked > 0 ? asked : omp_in_parallel() ? 1 : omp_get_max_threads();
}

typedef struct {
    int64_t m, n, k;
    const void *a, *b;
    void *c;
    int64_t lda, ldb, ldc;
    bool trans_a, trans_b;
    mx_num a_type, b_type, c_type;
    double alpha;
    bool accumulate;                /* C += instead of C = */
    bool one_path;                  /* never gemv: bits do not depend on m */
    bool b_packed;                  /* b is from mx_gemm_pack, ldb the k that it was packed with */
    mx_gemm_sizes shape;
    int64_t diagonal;
    int64_t batch;                  /* 0 and 1: one GEMM */
    int64_t a_step, b_step, c_step; /* from one GEMM of the batch to the next; 0 shares it */
    int threads;                    /* 0: all of OpenMP's; 1: in the calling thread, no fork */
} mx_gemm_args;

void mx_gemm(const mx_gemm_args *g);

/* A B that many GEMMs share, packed once: bytes it takes (0: more than one block of k) and the
 * packing of op(B), all of k and n. A GEMM may use fewer columns of it and, where k is one block,
 * less of k. The bits are the same with and without, except that gemv is not used. */
size_t mx_gemm_pack_bytes(const mx_gemm_args *g);
void mx_gemm_pack(const mx_gemm_args *g, void *packed);

/* Columns of this machine's register tile. */
int mx_gemm_tile_cols(mx_num type);

#endif
