/* flash_hopper_passes.cu - the passes around the gradient of attention on Hopper: D = rowsum(dO O)
 * before it and, at head size 128, where no block has a sum of dQ in registers, rounding after it.
 *
 * Both walk the tiles of queries, 64 of one head a block, and are bound by memory: O and dO are
 * read; the float32 dQ is read and rounded.
 */
#include "device/cuda/attention/flash_hopper_grad.cuh"

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

template <int DIM>
__global__ __launch_bounds__(BEFORE) void before_kernel(const __grid_constant__ grad_args p)
{
    enum { LANES = DIM / 8, AT_ONCE = BEFORE / LANES, TIMES = GRAD_ROWS / AT_ONCE }; /* of a row */
    int tile = blockIdx.x, h = blockIdx.y, b = blockIdx.z, lane = threadIdx.x % LANES;
    int64_t head = (int64_t)b * p.s.heads_q + h, at = head * p.tiles + tile;
    if (threadIdx.x < DIM / 64)
        p.added[at * (DIM / 64) + threadIdx.x] = 0;
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
#pragma unroll
    for (int n = 0; n < TIMES; n++) {
        int r = n * AT_ONCE + threadIdx.x / LANES, s = tile * GRAD_ROWS + r;
        float d = dot_8(x[n], y[n]);
#pragma unroll
        for (int m = LANES / 2; m; m /= 2)
            d += __shfl_xor_sync(~0u, d, m);
        if (lane == 0) {
            float l = s < p.s.seq_q ? p.lse[head * p.s.seq_q + s] : -INFINITY;
            if (p.dlse && s < p.s.seq_q)
                d -= p.dlse[head * p.s.seq_q + s];
            float *both = p.stats + at * (2 * GRAD_ROWS) + r;
            both[0] = l > -INFINITY ? l * LOG2E : INFINITY, both[GRAD_ROWS] = d;
        }
    }
}

/* 64 columns of a tile. */
__global__ __launch_bounds__(128) void after_kernel(const __grid_constant__ grad_args p)
{
    int tile = blockIdx.x / 2, half = blockIdx.x & 1, h = blockIdx.y, b = blockIdx.z;
    int64_t at = (((int64_t)b * p.s.heads_q + h) * p.tiles + tile) * 2 + half;
    const float4 *sums = (const float4 *)(p.dq_sums + at * GRAD_TILE) +
                         threadIdx.x / 32 * (GRAD_TILE / 16) + (threadIdx.x & 31);
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

cudaError_t flash_hopper_before(const grad_args &p, cudaStream_t stream)
{
    dim3 tiles((unsigned)p.tiles, (unsigned)p.s.heads_q, (unsigned)p.s.batch);
    auto *kernel = p.s.dim_qk == 64 ? before_kernel<64> : before_kernel<128>;
    kernel<<<tiles, BEFORE, 0, stream>>>(p);
    return cudaGetLastError();
}
cudaError_t flash_hopper_after(const grad_args &p, cudaStream_t stream)
{
    dim3 halves((unsigned)(2 * p.tiles), (unsigned)p.s.heads_q, (unsigned)p.s.batch);
    after_kernel<<<halves, 128, 0, stream>>>(p);
    return cudaGetLastError();
}
