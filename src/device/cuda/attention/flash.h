/* flash.h - maxc's own attention kernels, for every mask the attention op can describe.
 *
 * Used where cuDNN is missing or lacks the mask. Query i may see key j when all of these hold
 * (p: positions, by default the index, moved by q_offset and q_jump; see ir/attention.h):
 *   causal  p[j] <= p[i]      window  p[i] - p[j] < window (and the other way when not causal)
 *   chunk   p[i] / chunk == p[j] / chunk      segments  segment[i] == segment[j]
 * or when both lie in the same span (above 0) of the same segment, j no further back than the
 * window; and, where queries have lists of keys, only when j is in the list of i. A position below
 * 0 marks an unused slot: such a key is never seen, such a query sees nothing.
 * A query that sees nothing gives 0 and no gradient; its statistic is -inf, or its sink.
 * Score: s = scale q.k, then cap tanh(s / cap); a sink adds e^sink to the sum.
 *
 * bf16: tensor-core kernels, any head size up to 256 (rows of multiples of 8 elements load
 * fastest). f32 and bf16 `plain`: one warp a row, for checking and for odd machines; sizes up to
 * 512. Backward adds no numbers with atomics: two kernels, one by keys and one by queries, each
 * recomputing the scores (7 GEMMs instead of 5), so every run gives the same bits.
 */
#ifndef MX_DEVICE_CUDA_FLASH_H
#define MX_DEVICE_CUDA_FLASH_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int64_t batch, seq, head; /* in elements; the last dim is packed */
} mx_flash_stride;

typedef struct {
    int batch, seq_q, seq_kv, heads_q, heads_kv, dim_qk, dim_v;
    mx_flash_stride q, k, v, o, dout, dq, dk, dv;
    bool causal;
    int64_t window, chunk; /* 0: none */
    float scale, softcap;  /* softcap 0: none */
    int q_offset, q_jump;
} mx_flash_shape;

/* What segments mean for tiles of 64 queries and 64 keys, for kernels that skip what no query sees;
 * flash_segments.cu fills it on the device. Ids beyond the end of a sequence repeat its last. */
typedef struct {
    int32_t *q_ids;   /* (B, q_tiles, MX_FLASH_IDS): 64 ids, the least, the greatest; NULL: none */
    int32_t *k_ids;   /* (B, k_tiles, 64) */
    int32_t *k_range; /* (B, k_tiles, 2): the least id, the greatest */
    int32_t *q_sees;  /* (B, q_tiles, 4): keys [lo, hi) some see, keys [lo, hi) all see */
    int32_t *k_seen;  /* (B, k_tiles, 2): queries [lo, hi) that some are seen by */
    int32_t *items;   /* (B, items, 2): tiles of queries [first, end) for each block of keys */
    int32_t *order;   /* (B, q_tiles, 2): the first block of keys whose dQ a tile gets; how many */
    int q_tiles, k_tiles, n_items; /* k_tiles: a multiple of 4 */
} mx_flash_segments;
enum { MX_FLASH_IDS = 68 }; /* of a multiple of 16 bytes */

typedef struct {
    const void *q, *k, *v;
    void *o;
    float *stats;                   /* (B, Hq, Sq) log sum exp; written forward, read backward */
    const int32_t *q_pos, *k_pos;   /* (B, Sq), (B, Skv); NULL: the index */
    const int32_t *q_seg, *k_seg;   /* NULL: one segment */
    const int32_t *q_span, *k_span; /* NULL: no spans */
    mx_flash_segments segments; /* of q_seg and k_seg; not filled: every tile is looked at */
    const uint32_t *listed; /* (B, Sq, ceil(Skv / 32)) bits: keys each query may see; NULL: all */
    const float *sinks;             /* (Hq) or NULL */
    const void *dout;
    const float *dlse; /* (B, Hq, Sq) gradient of `stats`; NULL: nothing was made of them */
    void *dq, *dk, *dv;
    float *dsinks;  /* (Hq) or NULL */
    float *row_dot; /* (B, Hq, Sq) scratch of the backward pass */
} mx_flash_args;

/* Scratch for `segments`; 0: a sequence too long for them. */
size_t mx_flash_segments_bytes(const mx_flash_shape *s);
/* Fills a->segments, in `scratch`. With block_tiles, the causal mask and the window are looked at
 * too, for blocks of that many tiles of keys: `items` and `order`. */
cudaError_t mx_flash_segments_find(const mx_flash_shape *s, mx_flash_args *a, int block_tiles,
                                   void *scratch, cudaStream_t stream);
/* Lists of n keys (B, Sq, n), -1 where unused, as bits: `listed` above (flash_list.cu). */
size_t mx_flash_list_bytes(const mx_flash_shape *s);
cudaError_t mx_flash_list(const mx_flash_shape *s, const int32_t *selected, int n, uint32_t *listed,
                          cudaStream_t stream);
cudaError_t mx_flash_forward(const mx_flash_shape *s, const mx_flash_args *a, cudaStream_t stream);
/* The forward pass without the instructions of flash_hopper.h, which it takes where it can. */
cudaError_t mx_flash_mma_forward(const mx_flash_shape *s, const mx_flash_args *a,
                                 cudaStream_t stream);
cudaError_t mx_flash_backward(const mx_flash_shape *s, const mx_flash_args *a, cudaStream_t stream);
/* f32: tensors are float; else bf16. */
cudaError_t mx_flash_plain_forward(const mx_flash_shape *s, const mx_flash_args *a, bool f32,
                                   cudaStream_t stream);
cudaError_t mx_flash_plain_backward(const mx_flash_shape *s, const mx_flash_args *a, bool f32,
                                    cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
