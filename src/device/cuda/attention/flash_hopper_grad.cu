/* flash_hopper_grad.cu - the host side of the gradient of attention on Hopper: which shapes it
 * takes, scratch memory, tensor maps, the order of its work items, launches. Head size 64 finishes
 * dQ in its one kernel; head size 128 rounds it in a pass afterwards.
 */
#include "device/cuda/attention/flash_hopper_backward.h"
#include "device/cuda/attention/flash_hopper_grad.cuh"
#include "ops/gpu_work.h"

/* Of tensors with a row for each query, and for each key. */
static tensor_place by_query(const mx_flash_shape *s, const void *at, mx_flash_stride t)
{
    return {at, {s->dim_qk, s->seq_q, s->heads_q, s->batch}, {t.seq, t.head, t.batch}};
}
static tensor_place by_key(const mx_flash_shape *s, const void *at, mx_flash_stride t)
{
    return {at, {s->dim_qk, s->seq_kv, s->heads_kv, s->batch}, {t.seq, t.head, t.batch}};
}
static bool whole_pieces(const void *at, mx_flash_stride s)
{
    return (uintptr_t)at % 16 == 0 && s.seq % 8 == 0 && s.head % 8 == 0 && s.batch % 8 == 0;
}
/* Masks that leave out tiles of queries in other places than above the diagonal. */
static bool takes_tables(const mx_flash_shape *s, const mx_flash_args *a)
{
    return a->q_seg || a->k_seg || s->window;
}
bool mx_flash_hopper_backward_can(const mx_flash_shape *s, const mx_flash_args *a)
{
    bool made = s->dim_qk == 64 ? flash_narrow_made() : s->dim_qk == 128 && flash_wide_made();
    bool mask = a->q_pos || a->k_pos || a->q_span || a->k_span || a->listed || a->sinks ||
                s->chunk || s->softcap > 0 || (s->window && !s->causal);
    bool fits = !takes_tables(s, a) || mx_flash_segments_bytes(s);
    bool moved = s->q_offset || s->q_jump; /* by whole tiles of queries */
    bool whole = s->q_offset % GRAD_ROWS == 0 && s->q_jump % GRAD_ROWS == 0 && s->q_jump >= 0 &&
                 s->q_offset >= 0 && (!s->q_jump || s->seq_q % (2 * GRAD_ROWS) == 0);
    if (moved && (!whole || !s->causal || s->window))
        return false;
    return made && !mask && fits && s->dim_v == s->dim_qk && tma_can(by_query(s, a->q, s->q)) &&
           tma_can(by_key(s, a->k, s->k)) && tma_can(by_key(s, a->v, s->v)) &&
           tma_can(by_query(s, a->dout, s->dout)) && whole_pieces(a->o, s->o) &&
           whole_pieces(a->dq, s->dq) && whole_pieces(a->dk, s->dk) && whole_pieces(a->dv, s->dv);
}

static size_t all_rows(const mx_flash_shape *s)
{
    return (size_t)mx_gpu_flash_rows((int64_t)s->batch * s->heads_q, s->seq_q);
}
/* dQ, statistics, counts; the tables of segments come after them. */
static size_t own_bytes(const mx_flash_shape *s)
{
    return mx_gpu_flash_grad_bytes((int64_t)s->batch * s->heads_q, s->seq_q, s->dim_qk);
}
size_t mx_flash_hopper_backward_bytes(const mx_flash_shape *s)
{
    return own_bytes(s) + mx_flash_segments_bytes(s);
}

/* A band has two items for every place (an SM, or two), so that the blocks of a head
 * begin two steps or more after each other; fewer where its heads and those under way would leave
 * L2. The end is two bands, or as many items. */
static void order_items(grad_args *p, int places, int cache)
{
    int64_t rows = (int64_t)(p->s.heads_q / p->s.heads_kv) * p->s.seq_q;
    int64_t head = p->s.dim_qk * (rows * (2 + 2 + 4) + (int64_t)p->s.seq_kv * (2 + 2)); /* bytes */
    int beside = (int)(cache / 3 * 2 / head) - places / p->blocks;
    p->band = max(1, min(p->heads, min(beside, 2 * places / p->blocks)));
    p->last = min(p->heads, max(2 * p->band, (2 * places + p->blocks - 1) / p->blocks));
    p->last += (p->heads - p->last) % p->band;
}
cudaError_t mx_flash_hopper_backward(const mx_flash_shape *s, const mx_flash_args *args,
                                     void *scratch, cudaStream_t stream)
{
    mx_flash_args with_tables = *args, *a = &with_tables;
    const int block_tiles = s->dim_qk == 64 ? NARROW_TILES : WIDE_TILES;
    int device = 0, sms = 0, cache = 0;
    cudaError_t e = cudaGetDevice(&device);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, device);
    const bool tables = takes_tables(s, a);
    if (e == cudaSuccess && tables)
        e = mx_flash_segments_find(s, a, block_tiles, (char *)scratch + own_bytes(s), stream);
    if (e != cudaSuccess)
        return e;
    grad_args p = {*s};
    if (tables)
        p.seg = a->segments;
    p.reach = s->window ? (uint32_t)min(s->window, (int64_t)INT32_MAX) : INT32_MAX;
    p.o = (const uint16_t *)a->o, p.dout = (const uint16_t *)a->dout, p.lse = a->stats;
    p.dlse = a->dlse;
    p.dq = (uint16_t *)a->dq, p.dk = (uint16_t *)a->dk, p.dv = (uint16_t *)a->dv;
    p.dq_sums = (float *)scratch, p.stats = p.dq_sums + all_rows(s) * (size_t)s->dim_qk;
    p.taken = (int *)(p.stats + 2 * all_rows(s)), p.added = p.taken + 1;
    p.tiles = (s->seq_q + GRAD_ROWS - 1) / GRAD_ROWS;
    p.blocks = (s->seq_kv + block_tiles * 64 - 1) / (block_tiles * 64);
    p.heads = s->batch * s->heads_kv, p.items = p.heads * p.blocks, p.scale2 = s->scale * LOG2E;
    order_items(&p, s->dim_qk == 64 ? sms : sms / 2, cache);
    grad_maps m;
    struct {
        CUtensorMap *map;
        tensor_place at;
        int rows;
    } maps[] = {{&m.q, by_query(s, a->q, s->q), GRAD_ROWS},
                {&m.dout, by_query(s, a->dout, s->dout), GRAD_ROWS},
                {&m.k, by_key(s, a->k, s->k), GRAD_KEYS},
                {&m.v, by_key(s, a->v, s->v), GRAD_KEYS}};
    for (auto &one : maps)
        if (e == cudaSuccess)
            e = tma_map(one.map, one.at, one.rows);
    if (e == cudaSuccess)
        e = flash_hopper_before(p, stream);
    if (e != cudaSuccess)
        return e;
    if (s->dim_qk == 64)
        return flash_narrow(p, m, sms, stream);
    e = flash_wide(p, m, sms, stream);
    return e != cudaSuccess ? e : flash_hopper_after(p, stream);
}
