/* attention_kernel.c - shares the tiles of attention_forward.inc and attention_backward.inc out to
 * threads. One query per sequence goes another way, attention_decode.c, unless one path is asked
 * for. */
#include "ops/cpu/attention_kernel.h"

#include "base/simd.h"
#include "base/status.h"
#include "base/vmath.h"
#include "ops/cpu/attention_decode.h"
#include "ops/cpu/attention_mask.h"
#include "ops/cpu/narrow.h"
#include <math.h>
#include <omp.h>
#include <string.h>

enum {
    BACK_KEYS = 224, /* keys of a tile in the backward pass, at most MX_ATTN_KEYS: whole register
                      * tiles both as rows (14, 32) and as columns (32) */
    BLOCK = 16,      /* row tiles that share packed keys in the forward pass, at most */
    FEW_BLOCK = 8,   /* where there are few heads to share out */
    ROWS_MAX = 64,   /* rows of a tile in whole lanes */
    LANES = 16,      /* row loops run over whole vectors: beyond a row's end they find -inf */
    CLEAR = 64       /* the rows of a register tile and a step of its k (gemm_levels.c): weights
                      * this far beyond the diagonal are not read by the GEMMs, and those before
                      * it are zero when hidden */
};

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

/* The second factor of a GEMM: as it lies in its tensor, or packed. */
typedef struct {
    const void *b;
    int64_t ld;
    bool packed;
} operand;

static mx_gemm_args packing(const mx_attn *a, int64_t k, int64_t n)
{
    return (mx_gemm_args){.k = k, .n = n, .a_type = a->type, .b_type = a->type};
}

static size_t packed_bytes(const mx_attn *a, int64_t k, int64_t n)
{
    mx_gemm_args g = packing(a, k, n);
    return mx_gemm_pack_bytes(&g);
}

/* `from` packed into `buffer`, or itself where k is too large for that. */
static operand packed(const mx_attn *a, operand from, bool trans, int64_t k, int64_t n,
                      void *buffer)
{
    mx_gemm_args g = packing(a, k, n);
    if (!mx_gemm_pack_bytes(&g))
        return from;
    g.b = from.b, g.ldb = from.ld, g.trans_b = trans;
    mx_gemm_pack(&g, buffer);
    return (operand){buffer, k, true};
}

static void multiply(const mx_attn *a, operand b, mx_gemm_args g)
{
    g.b = b.b, g.ldb = b.ld, g.b_packed = b.packed;
    g.a_type = g.b_type = a->type;
    g.threads = 1;
    mx_gemm(&g);
}

/* Columns of scores to compute for nk keys: a packed operand has whole register tiles of them, and
 * a row of scores has room. What is beyond nk is not read. */
static int64_t scored(const mx_attn *a, operand k, int nk)
{
    int64_t cols = mx_gemm_tile_cols(a->type);
    return k.packed ? (nk + cols - 1) / cols * cols : nk;
}

/* Elements between rows of weights: an odd number of cache lines, at which a GEMM reads them in
 * place. And numbers between rows of scores, which are the same rows before bf16 is laid
 * into them. */
static int64_t weights_stride(const mx_attn *a)
{
    return (MX_ATTN_KEYS + 16) * (a->type == MX_NUM_BF16 ? 2 : 1);
}

static int64_t scores_stride(const mx_attn *a)
{
    return weights_stride(a) / (a->type == MX_NUM_BF16 ? 2 : 1);
}

static int whole_lanes(int n)
{
    return (n + LANES - 1) / LANES * LANES;
}

static size_t sums_bytes(const mx_attn *a)
{
    return a->type == MX_NUM_F64 ? sizeof(double) : sizeof(float);
}

static size_t q_tile_bytes(const mx_attn *a)
{
    return round_up(row_bytes(a, MX_ATTN_ROWS * a->qk_dim));
}

static size_t o_tile_bytes(const mx_attn *a)
{
    return round_up(sums_bytes(a) * (size_t)(MX_ATTN_ROWS * a->v_dim));
}

static size_t scores_bytes(const mx_attn *a)
{
    return round_up(sums_bytes(a) * (size_t)(MX_ATTN_ROWS * scores_stride(a)));
}

static size_t backward_thread_bytes(const mx_attn *a)
{
    size_t t = sums_bytes(a);
    size_t heads = (size_t)(a->q_heads / a->k_heads * a->q_len * a->qk_dim);
    size_t rows = (size_t)(MX_ATTN_ROWS * a->qk_dim);
    size_t dq = a->type == MX_NUM_BF16 && heads > rows ? heads : rows;
    return 2 * scores_bytes(a)
           + round_up(packed_bytes(a, a->qk_dim, BACK_KEYS))
           + round_up(packed_bytes(a, a->v_dim, BACK_KEYS))
           + round_up(packed_bytes(a, BACK_KEYS, a->qk_dim))
           + round_up(t * (size_t)(BACK_KEYS * a->qk_dim))
           + round_up(t * (size_t)(BACK_KEYS * a->v_dim)) + round_up(t * dq);
}

#define NAME(x) x##_f32
#define T float
#define NUM MX_NUM_F32
#define EXP(x) mx_vexpf_nonpositive(x)
#define TANH(x) mx_vtanhf(x)
#define LOG(x) mx_vlogf(x)
#include "ops/cpu/attention_rows.inc"
#include "ops/cpu/attention_forward.inc"
#include "ops/cpu/attention_backward.inc"

#define NAME(x) x##_f64
#define T double
#define NUM MX_NUM_F64
#define EXP(x) exp(x)
#define TANH(x) tanh(x)
#define LOG(x) log(x)
#include "ops/cpu/attention_rows.inc"
#include "ops/cpu/attention_forward.inc"
#include "ops/cpu/attention_backward.inc"

static size_t forward_thread_bytes(const mx_attn *a)
{
    return scores_bytes(a)
           + BLOCK * (q_tile_bytes(a) + o_tile_bytes(a))
           + round_up(packed_bytes(a, a->qk_dim, MX_ATTN_KEYS))
           + round_up(packed_bytes(a, MX_ATTN_KEYS, a->v_dim));
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
    int64_t n_heads = a->batch * a->k_heads * parts;
    int64_t most = n_heads >= 8 * threads ? BLOCK : FEW_BLOCK;
    int64_t blocks = (tiles + most - 1) / most, each_block = (tiles + blocks - 1) / blocks;
    size_t each = forward_thread_bytes(a);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t i = 0; i < n_heads * blocks; i++) {
        /* the last tiles have the most keys under a causal mask: they go first */
        int64_t tile = (blocks - 1 - i / n_heads) * each_block, head = i % n_heads;
        int64_t part = head % parts, hk = head / parts % a->k_heads;
        rows_at r = {.b = head / parts / a->k_heads, .h0 = hk * group + part * heads,
                     .s0 = tile * queries};
        int n = (int)(tiles - tile < each_block ? tiles - tile : each_block);
        r.n_heads = (int)(group - part * heads < heads ? group - part * heads : heads);
        char *w = (char *)work + each * (size_t)omp_get_thread_num();
        if (a->type == MX_NUM_F64)
            forward_block_f64(a, p, r, queries, n, w);
        else
            forward_block_f32(a, p, r, queries, n, w);
    }
}

size_t mx_attn_backward_work_bytes(const mx_attn *a)
{
    return round_up(sums_bytes(a) * (size_t)(a->batch * a->q_heads * a->q_len))
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
