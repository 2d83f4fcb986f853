/* flash_hopper_wide_passes.cu - the gradient of attention at head size 128 from end to end: what it
 * can take, its scratch memory, and the three passes.
 *
 * The first and the last walk the tiles of queries and are bound by memory: before the gradient, O
 * and dO are read and the float32 dQ is set to 0; after it, dQ is read and rounded (4 x 4096 x 32
 * heads: 0.14 and 0.10 ms of 2.8). The one between them is flash_hopper_wide.cu.
 */
#include "device/cuda/plugin/flash_hopper_wide.h"
#include "device/cuda/plugin/flash_hopper_wide.cuh"

enum { BEFORE = 256 };

/* The products of 8 pairs of bf16, added up. */
__device__ __forceinline__ float dot_8(const vec8 &x, const vec8 &y)
{
    float f[8], g[8], d = 0;
    unpack8(f, x);
    unpack8(g, y);
#pragma unroll
    for (int i = 0; i < 8; i += 2)
        d += f[i] * g[i] + f[i + 1] * g[i + 1];
    return d;
}

__global__ __launch_bounds__(BEFORE) void before_kernel(const __grid_constant__ wide_args p)
{
    enum { LANES = WIDE / 8, AT_ONCE = BEFORE / LANES, TIMES = GRAD_ROWS / AT_ONCE }; /* of a row */
    int tile = blockIdx.x, h = blockIdx.y, b = blockIdx.z, lane = threadIdx.x % LANES;
    int64_t head = (int64_t)b * p.s.heads_q + h, at = head * p.tiles + tile;
    if (at == 0 && threadIdx.x == 0)
        *p.taken = 0;
    const uint16_t *o = p.o + b * p.s.o.batch + h * p.s.o.head + lane * 8;
    const uint16_t *g = p.dout + b * p.s.dout.batch + h * p.s.dout.head + lane * 8;
    vec8 x[TIMES] = {}, y[TIMES] = {};
#pragma unroll
    for (int n = 0; n < TIMES; n++) {
        int64_t s = tile * GRAD_ROWS + n * AT_ONCE + threadIdx.x / LANES;
        if (s < p.s.seq_q) {
            x[n] = load8(o + s * p.s.o.seq);
            y[n] = load8(g + s * p.s.dout.seq);
        }
    }
    float4 *sums = (float4 *)(p.dq_sums + at * (GRAD_ROWS * WIDE));
#pragma unroll
    for (int i = threadIdx.x; i < GRAD_ROWS * WIDE / 4; i += BEFORE)
        sums[i] = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int n = 0; n < TIMES; n++) {
        int r = n * AT_ONCE + threadIdx.x / LANES, s = tile * GRAD_ROWS + r;
        float d = dot_8(x[n], y[n]);
#pragma unroll
        for (int m = LANES / 2; m; m /= 2)
            d += __shfl_xor_sync(~0u, d, m);
        if (lane == 0) {
            float l = s < p.s.seq_q ? p.lse[head * p.s.seq_q + s] : -INFINITY;
            float *both = p.stats + at * (2 * GRAD_ROWS) + r;
            both[0] = l > -INFINITY ? l * LOG2E : INFINITY, both[GRAD_ROWS] = d;
        }
    }
}

__global__ __launch_bounds__(128) void after_kernel(const __grid_constant__ wide_args p)
{
    int tile = blockIdx.x / 2, half = blockIdx.x & 1, h = blockIdx.y, b = blockIdx.z;
    int64_t at = (((int64_t)b * p.s.heads_q + h) * p.tiles + tile) * 2 + half;
    const float4 *sums = (const float4 *)(p.dq_sums + at * WIDE_HALF) +
                         threadIdx.x / 32 * (WIDE_HALF / 16) + (threadIdx.x & 31);
    float d[32];
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float4 x = sums[j * 32];
        d[4 * j] = x.x, d[4 * j + 1] = x.y, d[4 * j + 2] = x.z, d[4 * j + 3] = x.w;
    }
    const mx_flash_stride &s = p.s.dq;
    int64_t row = (int64_t)tile * GRAD_ROWS;
    store_sums(p.dq + b * s.batch + h * s.head + row * s.seq + half * 64, s.seq,
               p.s.seq_q - (int)row, d, p.s.scale);
}

static cudaError_t before(const wide_args &p, cudaStream_t stream)
{
    dim3 grid((unsigned)p.tiles, (unsigned)p.s.heads_q, (unsigned)p.s.batch);
    before_kernel<<<grid, BEFORE, 0, stream>>>(p);
    return cudaGetLastError();
}
static cudaError_t after(const wide_args &p, cudaStream_t stream)
{
    dim3 grid((unsigned)(2 * p.tiles), (unsigned)p.s.heads_q, (unsigned)p.s.batch);
    after_kernel<<<grid, 128, 0, stream>>>(p);
    return cudaGetLastError();
}

/* Of tensors with a row for each query, and for each key. */
static tensor_place by_query(const mx_flash_shape *s, const void *at, mx_flash_stride t)
{
    return {at, {WIDE, s->seq_q, s->heads_q, s->batch}, {t.seq, t.head, t.batch}};
}
static tensor_place by_key(const mx_flash_shape *s, const void *at, mx_flash_stride t)
{
    return {at, {WIDE, s->seq_kv, s->heads_kv, s->batch}, {t.seq, t.head, t.batch}};
}
static bool whole_pieces(const void *at, mx_flash_stride s)
{
    return (uintptr_t)at % 16 == 0 && s.seq % 8 == 0 && s.head % 8 == 0 && s.batch % 8 == 0;
}
bool mx_flash_wide_can(const mx_flash_shape *s, const mx_flash_args *a)
{
    bool mask = a->q_pos || a->k_pos || a->q_seg || a->k_seg || a->q_span || a->k_span ||
                a->listed || a->sinks || s->window || s->chunk || s->softcap > 0;
    return flash_wide_made() && !mask && s->dim_qk == WIDE && s->dim_v == WIDE &&
           tma_can(by_query(s, a->q, s->q)) &&
           tma_can(by_key(s, a->k, s->k)) &&
           tma_can(by_key(s, a->v, s->v)) &&
           tma_can(by_query(s, a->dout, s->dout)) &&
           whole_pieces(a->o, s->o) && whole_pieces(a->dq, s->dq) && whole_pieces(a->dk, s->dk) &&
           whole_pieces(a->dv, s->dv);
}

static size_t all_rows(const mx_flash_shape *s)
{
    size_t tiles = ((size_t)s->seq_q + GRAD_ROWS - 1) / GRAD_ROWS;
    return (size_t)s->batch * (size_t)s->heads_q * tiles * GRAD_ROWS;
}
size_t mx_flash_wide_bytes(const mx_flash_shape *s)
{
    return all_rows(s) * (WIDE + 2) * sizeof(float) + 256;
}

cudaError_t mx_flash_wide(const mx_flash_shape *s, const mx_flash_args *a, void *scratch,
                          cudaStream_t stream)
{
    int device = 0, sms = 0;
    cudaError_t e = cudaGetDevice(&device);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    wide_args p = {*s};
    p.o = (const uint16_t *)a->o, p.dout = (const uint16_t *)a->dout, p.lse = a->stats;
    p.dq = (uint16_t *)a->dq, p.dk = (uint16_t *)a->dk, p.dv = (uint16_t *)a->dv;
    p.dq_sums = (float *)scratch, p.stats = p.dq_sums + all_rows(s) * WIDE;
    p.taken = (int *)(p.stats + 2 * all_rows(s));
    p.tiles = (s->seq_q + GRAD_ROWS - 1) / GRAD_ROWS;
    p.blocks = (s->seq_kv + GRAD_KEYS - 1) / GRAD_KEYS, p.heads = s->batch * s->heads_kv;
    p.scale2 = s->scale * LOG2E;
    wide_maps m;
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
        e = before(p, stream);
    if (e == cudaSuccess)
        e = flash_wide_main(p, m, sms, stream);
    return e != cudaSuccess ? e : after(p, stream);
}
