/* attention_kernel.c - shares the tiles of attention_tile.inc out to threads. One query per
 * sequence goes another way: attention_decode.c. */
#include "ops/cpu/attention_kernel.h"

#include "base/simd.h"
#include "base/status.h"
#include "base/vmath.h"
#include "ops/cpu/attention_decode.h"
#include "ops/cpu/attention_mask.h"
#include <math.h>
#include <omp.h>
#include <string.h>

enum { BACK_KEYS = 128 }; /* keys of a tile in the backward pass; at most MX_ATTN_KEYS */

/* Row i of a tile is query s0 + i % n_queries of head h0 + i / n_queries. */
typedef struct {
    int64_t b, h0, s0;
    int n_heads, n_queries;
} rows_at;

static size_t round_up(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* The next `bytes` of the workspace, 64-byte aligned. */
static void *take(char **work, size_t bytes)
{
    void *p = *work;
    *work += round_up(bytes);
    return p;
}

static size_t row_bytes(const mx_attn *a, int64_t elements)
{
    return (size_t)(elements * MX_NUM_BYTES(a->type));
}

static size_t q_offset_bytes(const mx_attn *a, int64_t dim, const rows_at *r, int i)
{
    int64_t s = r->s0 + i % r->n_queries, h = r->h0 + i / r->n_queries;
    return row_bytes(a, ((r->b * a->q_len + s) * a->q_heads + h) * dim);
}

static const void *q_row(const mx_attn *a, const void *q, int64_t dim, const rows_at *r, int i)
{
    return (const char *)q + q_offset_bytes(a, dim, r, i);
}

static size_t k_offset_bytes(const mx_attn *a, int64_t dim, int64_t b, int64_t k, int64_t h)
{
    int64_t rows = a->k_alloc > 0 ? a->k_alloc : a->k_len;
    return row_bytes(a, ((b * rows + k) * a->k_heads + h) * dim);
}

static const void *k_row(const mx_attn *a, const void *k, int64_t dim, int64_t b, int64_t row,
                         int64_t h)
{
    return (const char *)k + k_offset_bytes(a, dim, b, row, h);
}

static void *k_row_out(const mx_attn *a, void *k, int64_t dim, int64_t b, int64_t row, int64_t h)
{
    return (char *)k + k_offset_bytes(a, dim, b, row, h);
}

static int64_t lse_index(const mx_attn *a, const rows_at *r, int i)
{
    int64_t s = r->s0 + i % r->n_queries, h = r->h0 + i / r->n_queries;
    return (r->b * a->q_heads + h) * a->q_len + s;
}

static void multiply(mx_gemm_args g)
{
    g.threads = 1;
    mx_gemm(&g);
}

/* s (n, nk) = scale q k^T; q is packed (n, qk_dim), k has the stride of its tensor. */
static void scores(const mx_attn *a, const void *q, const void *k, int n, int nk, void *s, mx_num t)
{
    multiply((mx_gemm_args){.m = n, .n = nk, .k = a->qk_dim, .a = q, .lda = a->qk_dim, .b = k,
                            .ldb = a->k_heads * a->qk_dim, .trans_b = true, .c = s,
                            .ldc = MX_ATTN_KEYS, .a_type = a->type, .b_type = a->type, .c_type = t,
                            .alpha = a->mask.scale});
}

/* Elements between rows of weights: MX_ATTN_KEYS floats, also where bf16 lies in them. */
static int64_t weights_stride(const mx_attn *a)
{
    return a->type == MX_NUM_BF16 ? 2 * MX_ATTN_KEYS : MX_ATTN_KEYS;
}

/* o (n, v_dim) += p v. */
static void product(const mx_attn *a, const void *p, const void *v, int n, int nk, void *o,
                    mx_num t)
{
    multiply((mx_gemm_args){.m = n, .n = a->v_dim, .k = nk, .a = p, .lda = weights_stride(a),
                            .b = v, .ldb = a->k_heads * a->v_dim, .c = o, .ldc = a->v_dim,
                            .a_type = a->type, .b_type = a->type, .c_type = t, .alpha = 1,
                            .accumulate = true});
}

static size_t backward_thread_bytes(const mx_attn *a)
{
    size_t t = a->type == MX_NUM_F64 ? sizeof(double) : sizeof(float);
    size_t heads = (size_t)(a->q_heads / a->k_heads * a->q_len * a->qk_dim);
    size_t rows = (size_t)(MX_ATTN_ROWS * a->qk_dim);
    size_t dq = a->type == MX_NUM_BF16 && heads > rows ? heads : rows;
    return 2 * round_up(t * MX_ATTN_ROWS * MX_ATTN_KEYS)
           + round_up(t * (size_t)(BACK_KEYS * a->qk_dim))
           + round_up(t * (size_t)(BACK_KEYS * a->v_dim)) + round_up(t * dq);
}

#define NAME(x) x##_f32
#define T float
#define NUM MX_NUM_F32
#define EXP(x) mx_vexpf_nonpositive(x)
#define TANH(x) mx_vtanhf(x)
#define LOG(x) mx_vlogf(x)
#include "ops/cpu/attention_tile.inc"

#define NAME(x) x##_f64
#define T double
#define NUM MX_NUM_F64
#define EXP(x) exp(x)
#define TANH(x) tanh(x)
#define LOG(x) log(x)
#include "ops/cpu/attention_tile.inc"

static size_t forward_thread_bytes(const mx_attn *a)
{
    size_t t = a->type == MX_NUM_F64 ? sizeof(double) : sizeof(float);
    return round_up((size_t)(MX_ATTN_ROWS * a->qk_dim * MX_NUM_BYTES(a->type)))
           + round_up(t * MX_ATTN_ROWS * MX_ATTN_KEYS)
           + round_up(t * (size_t)(MX_ATTN_ROWS * a->v_dim));
}

size_t mx_attn_forward_work_bytes(const mx_attn *a)
{
    if (mx_attn_decode_can(a))
        return mx_attn_decode_work_bytes(a);
    return forward_thread_bytes(a) * (size_t)mx_kernel_threads(a->threads);
}

void mx_attn_forward(const mx_attn *a, const mx_attn_forward_args *p, void *work)
{
    MX_ASSERT(a->k_heads > 0 && a->q_heads % a->k_heads == 0, "%ld query heads, %ld key heads",
              (long)a->q_heads, (long)a->k_heads);
    if (mx_attn_decode_can(a)) {
        mx_attn_decode(a, p, work);
        return;
    }
    int threads = mx_kernel_threads(a->threads);
    int64_t group = a->q_heads / a->k_heads;
    /* few queries: the heads that share keys go together, so that keys are read once */
    int64_t queries = a->q_len < MX_ATTN_ROWS ? a->q_len : MX_ATTN_ROWS;
    if (queries <= 0)
        return;
    int64_t heads = MX_ATTN_ROWS / queries < group ? MX_ATTN_ROWS / queries : group;
    int64_t parts = (group + heads - 1) / heads, tiles = (a->q_len + queries - 1) / queries;
    size_t each = forward_thread_bytes(a);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t i = 0; i < a->batch * a->k_heads * parts * tiles; i++) {
        /* the last tiles have the most keys under a causal mask: they go first */
        int64_t tile = tiles - 1 - i / (a->batch * a->k_heads * parts);
        int64_t head = i % (a->batch * a->k_heads * parts), part = head % parts;
        int64_t hk = head / parts % a->k_heads;
        rows_at r = {.b = head / parts / a->k_heads, .h0 = hk * group + part * heads,
                     .s0 = tile * queries};
        r.n_heads = (int)(group - part * heads < heads ? group - part * heads : heads);
        r.n_queries = (int)(a->q_len - r.s0 < queries ? a->q_len - r.s0 : queries);
        char *w = (char *)work + each * (size_t)omp_get_thread_num();
        if (a->type == MX_NUM_F64)
            forward_tile_f64(a, p, &r, w);
        else
            forward_tile_f32(a, p, &r, w);
    }
}

size_t mx_attn_backward_work_bytes(const mx_attn *a)
{
    size_t t = a->type == MX_NUM_F64 ? sizeof(double) : sizeof(float);
    return round_up(t * (size_t)(a->batch * a->q_heads * a->q_len))
           + backward_thread_bytes(a) * (size_t)mx_kernel_threads(a->threads);
}

void mx_attn_backward(const mx_attn *a, const mx_attn_backward_args *p, void *work)
{
    MX_ASSERT(a->k_heads > 0 && a->q_heads % a->k_heads == 0, "%ld query heads, %ld key heads",
              (long)a->q_heads, (long)a->k_heads);
    if (a->type == MX_NUM_F64)
        backward_f64(a, p, work);
    else
        backward_f32(a, p, work);
}
