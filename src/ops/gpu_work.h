/* gpu_work.h - the workspace of the GPU's kernels, by shape alone: what the plan counts before
 * anything is allocated and what the kernels (src/device/cuda) then lay out.
 *
 * Each function is the one place where its size is known: an op's gpu_work_bytes calls it with the
 * node's types, and the kernel's own code with its shape. Nothing here depends on the device, so a
 * plan holds for every one.
 */
#ifndef MX_OPS_GPU_WORK_H
#define MX_OPS_GPU_WORK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* cuBLASLt's, beside that of the ops: once for all programs of a device. */
enum { MX_GPU_GEMM_WORK = 64 << 20 };

static inline int64_t mx_gpu_parts(int64_t n, int64_t of)
{
    return (n + of - 1) / of;
}
/* n items at a place that every copy and vector load can begin at. */
static inline size_t mx_gpu_aligned_bytes(int64_t n, size_t item)
{
    return ((size_t)n * item + 255) / 256 * 256;
}

/* --- 8-bit matmuls (quantize.cu, op_quantize.c) --- */

static inline size_t mx_gpu_quantize_bytes(int64_t scales)
{
    return mx_gpu_aligned_bytes(scales, sizeof(float));
}
/* Rows of int8 sums at a time: as many as 64 million numbers hold. */
static inline int64_t mx_gpu_int8_band(int64_t m, int64_t n)
{
    int64_t rows = (64 << 20) / (n ? n : 1) / 128 * 128;
    rows = rows < 128 ? 128 : rows;
    return rows < m ? rows : m;
}
static inline size_t mx_gpu_int8_bytes(int64_t m, int64_t n)
{
    return mx_gpu_aligned_bytes(mx_gpu_int8_band(m, n) * n, sizeof(int32_t));
}
/* Scales of blocks by columns: of either factor, or of the left one alone. grid_k: along k. */
static inline size_t mx_gpu_runs_bytes(int64_t rows, int64_t grid_k)
{
    return mx_gpu_aligned_bytes(rows * grid_k, sizeof(float));
}
/* Rows of a factor that lie as bf16 at a time where a device has no such units: as many as 16
 * million numbers hold. */
static inline int64_t mx_gpu_widen_band(int64_t rows, int64_t k)
{
    int64_t band = (16 << 20) / (k ? k : 1) / 128 * 128;
    band = band < 128 ? 128 : band;
    return band < rows ? band : rows;
}
static inline size_t mx_gpu_widen_bytes(int64_t rows, int64_t k)
{
    return mx_gpu_aligned_bytes(mx_gpu_widen_band(rows, k) * k, sizeof(uint16_t));
}
/* Of a scaled_matmul, whichever way it is done. */
static inline size_t mx_gpu_scaled_bytes(int64_t m, int64_t n, int64_t k, int64_t grid_k,
                                         bool int8)
{
    if (int8)
        return mx_gpu_int8_bytes(m, n);
    if (grid_k == 1 && k > 128)
        return 0;
    size_t own = mx_gpu_runs_bytes(m, grid_k) + mx_gpu_runs_bytes(n, grid_k);
    size_t wide = mx_gpu_widen_bytes(m, k) + mx_gpu_widen_bytes(n, k);
    return own > wide ? own : wide;
}

/* --- weights of 8 and 4 bits (dequant.cu, op_dequant.c) --- */

/* Rows of a weight that lie as bf16 at a time: as many as 32 million numbers hold. */
static inline int64_t mx_gpu_dequant_band(int64_t n, int64_t k)
{
    int64_t rows = (32 << 20) / (k ? k : 1) / 128 * 128;
    rows = rows < 128 ? 128 : rows;
    return rows < n ? rows : n;
}
static inline size_t mx_gpu_dequant_bytes(int64_t n, int64_t k)
{
    return mx_gpu_aligned_bytes(mx_gpu_dequant_band(n, k) * k, sizeof(uint16_t));
}

/* --- updates and sums (multi_tensor.cu, train_kernels.cu) --- */

enum { MX_GPU_ADAMW_PIECE = 4096, MX_GPU_ADAMW_NUMBERS = 3, MX_GPU_SQUARES_PIECE = 16384 };
static inline size_t mx_gpu_adamw_bytes(int64_t n)
{
    return sizeof(double) *
           (size_t)(MX_GPU_ADAMW_NUMBERS + mx_gpu_parts(n, MX_GPU_ADAMW_PIECE));
}
static inline size_t mx_gpu_squares_bytes(int64_t n)
{
    return sizeof(double) * (size_t)mx_gpu_parts(n, MX_GPU_SQUARES_PIECE);
}
enum { MX_GPU_SUM_PARTS = 1024, MX_GPU_ROW_PARTS = 128 };
/* The sum of rows of d elements; `rounded`: to a dtype other than float32. */
static inline size_t mx_gpu_sum_rows_bytes(int64_t d, bool rounded)
{
    size_t columns = sizeof(float) * MX_GPU_ROW_PARTS * (size_t)d;
    size_t all = sizeof(double) * MX_GPU_SUM_PARTS, sums = mx_gpu_aligned_bytes(rounded ? d : 0, 4);
    return (columns > all ? columns : all) + sums;
}
/* Column sums of a fused group: a row for each block, or each slice of one. */
enum { MX_GPU_SUM_BLOCKS = 1184, MX_GPU_SUM_BLOCK = 2048 };
static inline size_t mx_gpu_fused_bytes(int sums, int64_t rows, int64_t cols)
{
    int64_t wide = cols > MX_GPU_SUM_BLOCK ? cols : MX_GPU_SUM_BLOCK;
    int64_t most = MX_GPU_SUM_BLOCKS * wide, all = rows * cols + MX_GPU_SUM_BLOCK;
    return sizeof(float) * (size_t)(sums * (all < most ? all : most));
}
/* Sums of rows of a GEMM's epilogue, or of the kernel after it (gemm_gelu_grad.cu, gelu_grad.cu).
 */
enum { MX_GPU_GELU_GRAD_ROWS = 64 };
static inline size_t mx_gpu_gelu_grad_bytes(int64_t m, int64_t n)
{
    return sizeof(float) * (size_t)(mx_gpu_parts(m, MX_GPU_GELU_GRAD_ROWS) * n);
}

/* --- lookups and experts (embed.cu, route.cu) --- */

/* cub's radix sort: two spare copies of the pairs, and histograms. */
static inline size_t mx_gpu_sort_bytes(int64_t rows)
{
    return (size_t)rows * 24 + (4u << 20);
}
enum { MX_GPU_EMBED_LISTS = 4 };
static inline size_t mx_gpu_embed_bytes(int64_t rows)
{
    return mx_gpu_sort_bytes(rows) + MX_GPU_EMBED_LISTS * mx_gpu_aligned_bytes(rows, 4);
}
enum { MX_GPU_EXPERTS_CHUNK = 1024 };
static inline size_t mx_gpu_experts_bytes(int64_t m, int64_t experts)
{
    int64_t chunks = mx_gpu_parts(m, MX_GPU_EXPERTS_CHUNK);
    return chunks <= 1 ? 0 : sizeof(int32_t) * (size_t)((experts + 1) * chunks);
}

/* --- recurrent ops (conv_kernels.cu, delta_*.cu) --- */

enum { MX_GPU_CONV_PART = 64, MX_GPU_CONV_WARPS = 4, MX_GPU_CONV_SUMS = 256 };
/* Parts of a sequence that a warp takes one after the other. */
static inline int64_t mx_gpu_conv_each(int64_t batch, int64_t len)
{
    int64_t parts = batch * mx_gpu_parts(len, MX_GPU_CONV_PART);
    int64_t each = mx_gpu_parts(parts, MX_GPU_CONV_WARPS * MX_GPU_CONV_SUMS);
    return each > 1 ? each : 1;
}
static inline int64_t mx_gpu_conv_sums(int64_t batch, int64_t len)
{
    int64_t parts = batch * mx_gpu_parts(len, MX_GPU_CONV_PART);
    return mx_gpu_parts(parts, MX_GPU_CONV_WARPS * mx_gpu_conv_each(batch, len));
}
static inline size_t mx_gpu_conv_bytes(int64_t batch, int64_t len, int64_t taps, int64_t channels)
{
    return sizeof(float) * (size_t)(mx_gpu_conv_sums(batch, len) * taps * channels);
}

typedef struct {
    int64_t batch, len, k_heads, v_heads, k_dim, v_dim;
} mx_gpu_delta;
/* Tokens of a chunk; floats kept of each token of it, and of the chunk; the fewest tokens that are
 * not taken one by one. */
enum { MX_GPU_DELTA_CHUNK = 64, MX_GPU_DELTA_VECTORS = 5, MX_GPU_DELTA_MORE = 4,
       MX_GPU_DELTA_FEW = 16 };
static inline int64_t mx_gpu_delta_chunks(const mx_gpu_delta *d)
{
    return d->batch * d->v_heads * mx_gpu_parts(d->len, MX_GPU_DELTA_CHUNK);
}
static inline int64_t mx_gpu_delta_terms(void) /* floats of a chunk: T, P and its vectors */
{
    return 2 * MX_GPU_DELTA_CHUNK * MX_GPU_DELTA_CHUNK +
           MX_GPU_DELTA_VECTORS * MX_GPU_DELTA_CHUNK + MX_GPU_DELTA_MORE;
}
static inline size_t mx_gpu_delta_forward_bytes(const mx_gpu_delta *d, bool state)
{
    bool steps = state && d->len <= MX_GPU_DELTA_FEW;
    return steps ? 0 : sizeof(float) * (size_t)(mx_gpu_delta_terms() * mx_gpu_delta_chunks(d));
}
/* Floats of each part of the backward pass: T, P, vectors, states, ends, U, dR, dq, dk. */
enum { MX_GPU_DELTA_PARTS = 9 };
static inline int64_t mx_gpu_delta_part(const mx_gpu_delta *d, int part)
{
    int64_t n = mx_gpu_delta_chunks(d), c = MX_GPU_DELTA_CHUNK, count;
    if (part < 2)
        count = n * c * c;
    else if (part == 2)
        count = n * (MX_GPU_DELTA_VECTORS * c + MX_GPU_DELTA_MORE);
    else if (part < 5)
        count = n * d->k_dim * d->v_dim;
    else if (part < 7)
        count = n * c * d->v_dim;
    else
        count = d->v_heads == d->k_heads ? 0 : d->batch * d->len * d->v_heads * d->k_dim;
    return (count + 63) / 64 * 64;
}
static inline size_t mx_gpu_delta_backward_bytes(const mx_gpu_delta *d)
{
    int64_t n = 0;
    for (int i = 0; i < MX_GPU_DELTA_PARTS; i++)
        n += mx_gpu_delta_part(d, i);
    return sizeof(float) * (size_t)n;
}

/* --- sparse attention's choice (select_kernels.cu) --- */

/* Rows whose scores are there at a time. */
static inline int64_t mx_gpu_select_rows(int64_t rows, int64_t keys)
{
    int64_t most = (64 << 20) / (int64_t)sizeof(float) / keys;
    most = most < 256 ? 256 : most > 32768 ? 32768 : most;
    return rows < most ? rows : most;
}
/* A score, and a score with its key. */
static inline size_t mx_gpu_select_bytes(int64_t rows, int64_t keys)
{
    return (4 + 8) * (size_t)(mx_gpu_select_rows(rows, keys) * keys + 64);
}

/* --- collectives (group.h of the CUDA device) --- */

/* What is on its way between ranks goes through no more than this at a time. */
enum { MX_GPU_STAGE = 64 << 20 };
static inline size_t mx_gpu_stage_bytes(size_t bytes)
{
    return mx_gpu_aligned_bytes((int64_t)(bytes < MX_GPU_STAGE ? bytes : MX_GPU_STAGE), 1);
}
static inline size_t mx_gpu_gather_bytes(size_t out, bool packed)
{
    return packed ? 0 : mx_gpu_stage_bytes(out);
}
/* Two halves: what is sent, and what is received to be added up. 4096: the slices of all ranks
 * together may be longer than the piece they are cut from. */
static inline size_t mx_gpu_reduce_bytes(size_t in)
{
    return 2 * (mx_gpu_stage_bytes(in) + 4096);
}
/* A piece for each rank, one after the other, and what comes. */
static inline size_t mx_gpu_all_to_all_bytes(size_t in)
{
    return mx_gpu_aligned_bytes((int64_t)in, 1) + mx_gpu_stage_bytes(in);
}
/* Places of experts' rows, and those rows by the rank they come from or go to. */
static inline size_t mx_gpu_exchange_bytes(int64_t experts, size_t rows)
{
    return mx_gpu_aligned_bytes(experts + 1, sizeof(int32_t)) +
           mx_gpu_aligned_bytes((int64_t)rows, 1);
}

/* --- attention --- */

/* One query against a cache, in pieces of the keys (decode_attention.cu). */
enum { MX_GPU_DECODE_BLOCKS = 396 };
static inline int64_t mx_gpu_decode_splits(int64_t batch, int64_t heads_kv, int64_t capacity)
{
    int64_t want = MX_GPU_DECODE_BLOCKS / (batch * heads_kv), most = mx_gpu_parts(capacity, 128);
    int64_t n = want < most ? want : most;
    return n < 1 ? 1 : n;
}
static inline size_t mx_gpu_decode_bytes(int64_t batch, int64_t heads_q, int64_t splits,
                                         int64_t dim_v)
{
    return sizeof(float) * (size_t)(batch * heads_q * splits * (2 + dim_v));
}

/* Queries over a cache in pages (paged_mma.cu): `span` positions at most, in leaves; the results of
 * leaves for queries that stand alone, as many as there are sequences. */
static inline int64_t mx_gpu_paged_leaf(int64_t span)
{
    return mx_gpu_parts(span > 0 ? span : 1, 128 * 256) * 256;
}
static inline int64_t mx_gpu_paged_leaves(int64_t span)
{
    return mx_gpu_parts(span, mx_gpu_paged_leaf(span)) + 1;
}
typedef struct {
    int64_t queries, rows, heads, span, dim;
} mx_gpu_paged;
static inline size_t mx_gpu_paged_bytes(const mx_gpu_paged *p)
{
    int64_t places = p->queries < p->rows ? p->queries : p->rows;
    int64_t leaves = places * p->heads * mx_gpu_paged_leaves(p->span);
    return mx_gpu_aligned_bytes(places + 1, sizeof(int32_t)) +
           sizeof(float) * (size_t)(leaves * (p->dim + 2));
}

/* The tables of segments (flash_segments.cu): ids of queries and of keys, ranges of keys, what
 * tiles see and are seen by, items, order. */
enum { MX_GPU_TILE = 64, MX_GPU_TILE_IDS = 68, MX_GPU_SEGMENT_PARTS = 7,
       MX_GPU_MOST_ITEMS = 3072 }; /* of 128 keys; longer sequences have no tables */
static inline int64_t mx_gpu_key_tiles(int64_t sk)
{
    return mx_gpu_parts(mx_gpu_parts(sk, MX_GPU_TILE), 4) * 4;
}
static inline size_t mx_gpu_segments_part(int64_t batch, int64_t sq, int64_t sk, int part)
{
    int64_t q = mx_gpu_parts(sq, MX_GPU_TILE), k = mx_gpu_key_tiles(sk);
    const int64_t count[MX_GPU_SEGMENT_PARTS] = {
        q * MX_GPU_TILE_IDS, k * MX_GPU_TILE, k * 2, q * 4, k * 2, k, q * 2};
    return mx_gpu_aligned_bytes(batch * count[part], sizeof(int32_t));
}
static inline size_t mx_gpu_segments_bytes(int64_t batch, int64_t sq, int64_t sk)
{
    size_t n = 0;
    for (int i = 0; i < MX_GPU_SEGMENT_PARTS; i++)
        n += mx_gpu_segments_part(batch, sq, sk, i);
    return mx_gpu_key_tiles(sk) / 2 > MX_GPU_MOST_ITEMS ? 0 : n;
}
/* Lists of keys as bits (flash_list.cu). */
static inline size_t mx_gpu_list_bytes(int64_t batch, int64_t sq, int64_t sk)
{
    return sizeof(uint32_t) * (size_t)(batch * sq * mx_gpu_parts(sk, 32));
}
/* The backward pass on Hopper without the tables: dQ, two statistics and counts by tile of queries,
 * one count of items. */
static inline int64_t mx_gpu_flash_rows(int64_t heads, int64_t sq) /* heads: of the batch */
{
    return heads * mx_gpu_parts(sq, MX_GPU_TILE) * MX_GPU_TILE;
}
static inline size_t mx_gpu_flash_grad_bytes(int64_t heads, int64_t sq, int64_t dim)
{
    int64_t rows = mx_gpu_flash_rows(heads, sq), counts = rows / MX_GPU_TILE * (dim / 64) + 1;
    return mx_gpu_aligned_bytes(rows * (dim + 2) + counts, sizeof(float));
}

/* --- the vocabulary projection with its loss (op_xent.c) --- */

typedef struct {
    int64_t rows, d, vocab;
    bool f32, grad;
    bool slice; /* of the vocabulary (op_xent_slice.c) */
} mx_gpu_xent;
enum { MX_GPU_XENT_STEP = 8, MX_GPU_XENT_TILE = 256, MX_GPU_XENT_ROWS = 128 };
static inline int64_t mx_gpu_xent_width(const mx_gpu_xent *x)
{
    return mx_gpu_parts(x->vocab, MX_GPU_XENT_STEP) * MX_GPU_XENT_STEP;
}
static inline mx_gpu_xent mx_gpu_slice_of(int64_t rows, int64_t d, int64_t vocab)
{
    mx_gpu_xent x = {rows, d, vocab, false, false, true};
    return x;
}
/* Of `chunk` rows at once: logits, dw's last rows, losses and lse of all rows; for gradients in
 * bf16 also dx's sums, sums by tile of columns, factors, the labels' logits, two shifts and marks
 * of each row, and marks of tiles of rows. Of a slice: logits in float32, their gradient in bf16.
 */
enum { MX_GPU_XENT_PARTS = 8 };
static inline size_t mx_gpu_xent_part(const mx_gpu_xent *x, int64_t chunk, int part)
{
    if (x->slice && part < 2)
        return part && (x->f32 || !x->grad)
                   ? 0
                   : mx_gpu_aligned_bytes(chunk * mx_gpu_xent_width(x), part ? 2 : sizeof(float));
    if (x->slice)
        return 0;
    bool cut = !x->f32 && x->vocab > MX_GPU_XENT_STEP && x->vocab % MX_GPU_XENT_STEP;
    int64_t wide = mx_gpu_xent_width(x), tail = cut ? MX_GPU_XENT_STEP : 0;
    size_t logits = (size_t)(chunk * wide) * (x->f32 ? 4 : 2);
    size_t rows = sizeof(float) * (size_t)(tail * x->d + 2 * x->rows);
    if (part == 0)
        return mx_gpu_aligned_bytes((int64_t)(logits + rows), 1);
    const int64_t count[MX_GPU_XENT_PARTS] = {0,
                                              chunk * x->d,
                                              mx_gpu_parts(x->vocab, MX_GPU_XENT_TILE) * chunk,
                                              chunk,
                                              chunk,
                                              2 * chunk,
                                              chunk,
                                              chunk / MX_GPU_XENT_TILE + 2};
    return x->grad && !x->f32 ? mx_gpu_aligned_bytes(count[part], 4) : 0;
}
static inline size_t mx_gpu_xent_bytes(const mx_gpu_xent *x, int64_t chunk)
{
    size_t n = 0;
    for (int i = 0; i < MX_GPU_XENT_PARTS; i++)
        n += mx_gpu_xent_part(x, chunk, i);
    return n;
}
/* linear_xent_slice_keep: sums by tile of columns; of each row a label, two shifts, its own logit
 * and a mark; marks of tiles of rows. linear_xent_slice_back: dx's sums and each row's factor. */
enum { MX_GPU_KEEP_PARTS = 6 };
static inline size_t mx_gpu_keep_part(int64_t rows, int64_t vocab, int part)
{
    const int64_t count[MX_GPU_KEEP_PARTS] = {mx_gpu_parts(vocab, MX_GPU_XENT_TILE) * rows, rows,
                                              2 * rows, rows, rows, rows / MX_GPU_XENT_TILE + 2};
    return mx_gpu_aligned_bytes(count[part], 4);
}
static inline size_t mx_gpu_keep_bytes(int64_t rows, int64_t vocab)
{
    size_t n = 0;
    for (int i = 0; i < MX_GPU_KEEP_PARTS; i++)
        n += mx_gpu_keep_part(rows, vocab, i);
    return n;
}
static inline size_t mx_gpu_back_bytes(int64_t rows, int64_t d, int64_t chunk)
{
    return mx_gpu_aligned_bytes(rows, 4) + mx_gpu_aligned_bytes(chunk * d, 4);
}
static inline int64_t mx_gpu_back_chunk(int64_t rows, int64_t d, size_t most)
{
    int64_t chunk = rows, chunks = 1;
    while (chunk > MX_GPU_XENT_ROWS && mx_gpu_back_bytes(rows, d, chunk) > most)
        chunk = mx_gpu_parts(mx_gpu_parts(rows, ++chunks), MX_GPU_XENT_ROWS) * MX_GPU_XENT_ROWS;
    return chunk < rows ? chunk : rows;
}
/* As many rows at once as `most` bytes hold, in chunks of about the same size. */
static inline int64_t mx_gpu_xent_chunk(const mx_gpu_xent *x, size_t most)
{
    int64_t chunk = x->rows, chunks = 1;
    while (chunk > MX_GPU_XENT_ROWS && mx_gpu_xent_bytes(x, chunk) > most) {
        chunk = mx_gpu_parts(mx_gpu_parts(x->rows, ++chunks), MX_GPU_XENT_ROWS) * MX_GPU_XENT_ROWS;
        chunk = chunk < x->rows ? chunk : x->rows;
    }
    return chunk;
}

#endif
