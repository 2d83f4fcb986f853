/* gemm_search.c - plans for GEMMs, by the library's first suggestion or by a timed search.
 *
 * gemm_search=true times cuBLASLt's suggestions for every shape that it has not met on this machine
 * and keeps the choices in a file. The operands are random numbers in memory of their own: at its
 * power limit the chip is as fast as its operands let it be, and zeros would flatter every
 * algorithm. Choices that were kept are used only where the search is asked for, so that without it
 * equal runs give equal bits whatever ran before on the machine.
 */
#include "device/cuda/core/context.h"
#include "device/cuda/core/kernels.h"

#include <stdio.h>
#include <string.h>

static size_t extent(int64_t rows, int64_t cols, int64_t ld, int64_t batch, int64_t stride)
{
    int64_t one = (rows - 1) * (ld ? ld : cols) + cols;
    return (size_t)(one + (batch > 1 ? (batch - 1) * stride : 0));
}

static size_t bytes_of(mx_gemm_type t)
{
    return t == MX_GEMM_F32 || t == MX_GEMM_I32 ? 4 : t > MX_GEMM_F16 ? 1 : 2;
}

/* Device memory of n normal numbers; of 8-bit ones, halves of bf16. */
static mx_status random_operand(void **out, size_t n, mx_gemm_type type, uint64_t seed,
                                cudaStream_t stream)
{
    *out = NULL;
    MX_TRY(mx_cuda_check(cudaMalloc(out, n * bytes_of(type) + 256), "operands to time"));
    int64_t words = (int64_t)(bytes_of(type) == 1 ? (n + 1) / 2 : n);
    mx_cuda_fill f = {.kind = MX_CUDA_FILL_NORMAL, .scale = 1, .n = words, .seed = seed,
                      .f32 = bytes_of(type) == 4};
    return mx_cuda_check(mx_cuda_fill_with(*out, &f, stream), "operands to time");
}

static mx_status search(mx_cuda *c, mx_gemm_plan *p, const mx_gemm_shape *s)
{
    void *a = NULL, *b = NULL, *y = NULL, *bias = NULL, *aux = NULL, *sa = NULL, *sb = NULL;
    size_t na = s->trans_a ? extent(s->k, s->m, s->lda, s->batch, s->stride_a)
                           : extent(s->m, s->k, s->lda, s->batch, s->stride_a);
    size_t nb = s->trans_b ? extent(s->n, s->k, s->ldb, s->batch, s->stride_b)
                           : extent(s->k, s->n, s->ldb, s->batch, s->stride_b);
    mx_status st;
    MX_TRY_OUT(st, random_operand(&a, na, s->in, 1, c->stream));
    MX_TRY_OUT(st, random_operand(&b, nb, s->scale_b ? s->in_b : s->in, 2, c->stream));
    size_t ny = extent(s->m, s->n, s->ldc, s->batch, s->stride_c);
    MX_TRY_OUT(st, random_operand(&y, ny, s->out, 3, c->stream));
    MX_TRY_OUT(st, random_operand(&bias, (size_t)s->n, s->out, 4, c->stream));
    if (s->epilogue == MX_GEMM_GELU)
        MX_TRY_OUT(st, random_operand(&aux, ny, s->out, 5, c->stream));
    MX_TRY_OUT(st, mx_gemm_plan_epilogue(p, bias, aux));
    if (s->scale_a) {
        size_t along = (size_t)s->k / 128 + 4;
        MX_TRY_OUT(st, random_operand(&sa, (size_t)s->m * along, MX_GEMM_F32, 6, c->stream));
        MX_TRY_OUT(st, random_operand(&sb, (size_t)s->n * along, MX_GEMM_F32, 7, c->stream));
        MX_TRY_OUT(st, mx_gemm_plan_scales(p, sa, sb));
    }
    MX_TRY_OUT(st, mx_gemm_plan_search(p, a, b, y, c->gemm_work, c->stream));
out:
    cudaFree(a);
    cudaFree(b);
    cudaFree(y);
    cudaFree(bias);
    cudaFree(aux);
    cudaFree(sa);
    cudaFree(sb);
    return st;
}

mx_status mx_cuda_plan_gemm(mx_cuda *c, const mx_gemm_shape *s, mx_gemm_plan **out)
{
    MX_TRY(mx_gemm_plan_new(out, c->lt, s));
    if (!c->search || strcmp(mx_gemm_plan_choice(*out), "cached") == 0)
        return MX_OK;
    mx_status st = search(c, *out, s);
    if (st) { /* no memory for a second set of operands: the first suggestion is good too */
        fprintf(stderr, "note: a GEMM was not timed: %s\n", mx_status_text(st));
        mx_status_free(st);
        cudaGetLastError();
    }
    return MX_OK;
}
