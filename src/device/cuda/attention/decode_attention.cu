/* decode_attention.cu - one query against the cache, bound by its bytes, each read once. A group of
 * lanes takes one key (16 bytes a lane), four keys at a time, for all query heads that share it;
 * every group keeps its own running softmax; groups, warps and splits of the sequence are merged at
 * the end, in a fixed order. A short cache has too little to read for its time to be that of bytes:
 * its splits are the blocks of a cluster, which read each other's results out of shared memory.
 */
#include "device/cuda/core/pdl.cuh"
#include "device/cuda/attention/flash.cuh"
#include "device/cuda/core/kernels.h"
#include "device/cuda/core/tma.cuh"
#include "ops/gpu_work.h"

enum { DECODE_THREADS = 128, KEYS_AT_ONCE = 4, TARGET_BLOCKS = MX_GPU_DECODE_BLOCKS };
enum { CLUSTER_MOST = 8 };

struct decode_params {
    mx_decode_shape s;
    score_rule score;
    int splits;
    bool cluster; /* the splits of a sequence are one */
    uint16_t *o;
    const uint16_t *q, *k, *v;
    mx_decode_keys keys;
    const float *sinks;
    float *partial; /* (B, Hq, splits, 2 + Dv): max, sum, weighted values */
};

static int decode_splits(const mx_decode_shape *s)
{
    return (int)mx_gpu_decode_splits(s->batch, s->heads_kv, s->capacity);
}

/* Blocks of a cluster for a short cache, 16 keys each at least; 0: it is long, or the chip has no
 * clusters. It depends on the capacity alone, and with it a sequence's bits. */
static int cluster_blocks(const mx_decode_shape *s)
{
    enum { SHORT = 1024, KEYS = 16 };
    int device = 0, major = 0, n = 1;
    if (s->capacity > SHORT || cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
        major < 9)
        return 0;
    while (n < CLUSTER_MOST && 2 * n * KEYS <= s->capacity)
        n *= 2;
    return n;
}

/* LANES lanes share a key; H query heads (of the group, from head h0) are done together.
 * Straight-line code: all partial scores first, then their sums over the lanes side by side, so
 * that the shuffles' latency is paid once for all of them; keys past the end weigh 0 through a
 * score of -inf. */
template <int LANES, int H, bool CAP> struct decode_state {
    float q[H][8], o[H][8], m[H], l[H];
    const int32_t *k_pos; /* of this sequence; NULL: all keys in range are seen */
    int32_t lo_pos, hi_pos;

    __device__ __forceinline__ bool sees(int64_t j, int64_t end) const
    {
        return j < end && (!k_pos || (k_pos[j] >= lo_pos && k_pos[j] <= hi_pos));
    }

    __device__ __forceinline__ void keys(const decode_params &p, const uint16_t *k,
                                         const uint16_t *v, int64_t j0, int64_t end, int64_t step,
                                         int part)
    {
        vec8 kv[KEYS_AT_ONCE] = {}, vv[KEYS_AT_ONCE] = {};
        bool in_k = part * 8 < p.s.dim_qk, in_v = part * 8 < p.s.dim_v, seen[KEYS_AT_ONCE];
#pragma unroll
        for (int u = 0; u < KEYS_AT_ONCE; u++)
            seen[u] = sees(j0 + u * step, end);
#pragma unroll
        for (int u = 0; u < KEYS_AT_ONCE; u++) {
            int64_t j = j0 + u * step;
            bool load = p.cluster ? j < end : seen[u]; /* of few keys: before it is known */
            if (load && in_k)
                kv[u] = load8_stream(k + j * p.s.k_seq + part * 8);
            if (load && in_v)
                vv[u] = load8_stream(v + j * p.s.v_seq + part * 8);
        }
        float x[H][KEYS_AT_ONCE];
#pragma unroll
        for (int u = 0; u < KEYS_AT_ONCE; u++) {
            float f[8];
            unpack8(f, kv[u]);
#pragma unroll
            for (int h = 0; h < H; h++) {
                x[h][u] = f[0] * q[h][0];
#pragma unroll
                for (int c = 1; c < 8; c++)
                    x[h][u] += f[c] * q[h][c];
            }
        }
#pragma unroll
        for (int w = LANES / 2; w; w >>= 1)
#pragma unroll
            for (int h = 0; h < H; h++)
#pragma unroll
                for (int u = 0; u < KEYS_AT_ONCE; u++)
                    x[h][u] += __shfl_xor_sync(~0u, x[h][u], w);
#pragma unroll
        for (int h = 0; h < H; h++) {
            float up = m[h];
#pragma unroll
            for (int u = 0; u < KEYS_AT_ONCE; u++) {
                x[h][u] *= p.score.scale;
                if (CAP)
                    x[h][u] = p.score.cap * tanh_fast(x[h][u] * p.score.inv_cap);
                x[h][u] = seen[u] ? x[h][u] * LOG2E : -INFINITY;
                up = fmaxf(up, x[h][u]);
            }
            float base = up == -INFINITY ? 0.f : up, shrink = exp2_fast(m[h] - base);
            m[h] = up;
            l[h] *= shrink;
#pragma unroll
            for (int c = 0; c < 8; c++)
                o[h][c] *= shrink;
#pragma unroll
            for (int u = 0; u < KEYS_AT_ONCE; u++)
                l[h] += x[h][u] = exp2_fast(x[h][u] - base);
        }
#pragma unroll
        for (int u = 0; u < KEYS_AT_ONCE; u++) {
            float f[8];
            unpack8(f, seen[u] ? vv[u] : vec8{});
#pragma unroll
            for (int h = 0; h < H; h++)
#pragma unroll
                for (int c = 0; c < 8; c++)
                    o[h][c] += x[h][u] * f[c];
        }
    }
};

/* The state of two groups of lanes becomes one, over all groups of a warp. */
template <int LANES, int H, bool CAP>
__device__ __forceinline__ void merge_in_warp(decode_state<LANES, H, CAP> &t)
{
#pragma unroll
    for (int w = LANES; w < 32; w <<= 1)
#pragma unroll
        for (int h = 0; h < H; h++) {
            float m = __shfl_xor_sync(~0u, t.m[h], w), l = __shfl_xor_sync(~0u, t.l[h], w);
            float top = fmaxf(m, t.m[h]), base = top == -INFINITY ? 0.f : top;
            float mine = exp2_fast(t.m[h] - base), other = exp2_fast(m - base);
            t.m[h] = top;
            t.l[h] = t.l[h] * mine + l * other;
#pragma unroll
            for (int c = 0; c < 8; c++)
                t.o[h][c] = t.o[h][c] * mine + __shfl_xor_sync(~0u, t.o[h][c], w) * other;
        }
}

/* Some keys of a head: the greatest score, the sum of weights, an element of weighted values. */
struct head_part {
    float m, l, x;
};

/* Element c of head h's result from all its keys, and its sink. */
__device__ __forceinline__ void write_result(const decode_params &p, int b, int h, int c,
                                             head_part all)
{
    float sink = p.sinks ? p.sinks[h] * LOG2E : -INFINITY, top = fmaxf(all.m, sink);
    float shift = top == -INFINITY ? 0.f : top;
    float share = all.m == -INFINITY ? 0.f : exp2_fast(all.m - shift);
    float sum = all.l * share + (p.sinks ? exp2_fast(sink - shift) : 0.f);
    p.o[((int64_t)b * p.s.heads_q + h) * p.s.dim_v + c] =
        f32_to_bf16(sum > 0 ? all.x * share / sum : 0.f);
}

/* What a block of a cluster has for the others. */
template <int LANES, int H> struct split_result {
    float m[H], l[H], x[H][LANES * 8];
};

/* The float at the same place in block `rank`. */
__device__ __forceinline__ float load_from(const float *mine, int rank)
{
    float x = 0;
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n.reg .b32 r;\nmapa.shared::cluster.u32 r, %1, %2;\n"
                 "ld.shared::cluster.f32 %0, [r];\n}"
                 : "=f"(x)
                 : "r"((unsigned)__cvta_generic_to_shared(mine)), "r"(rank)
                 : "memory");
#endif
    return x;
}

/* Each block of a cluster merges some of the elements of all. */
template <int LANES, int H>
__device__ __forceinline__ void merge_in_cluster(const decode_params &p,
                                                 const split_result<LANES, H> &r, int b, int h0,
                                                 int heads)
{
#if __CUDA_ARCH__ >= 900
    cluster_sync();
    for (int i = blockIdx.x * DECODE_THREADS + threadIdx.x; i < heads * p.s.dim_v;
         i += p.splits * DECODE_THREADS) {
        int h = i / p.s.dim_v, c = i % p.s.dim_v;
        head_part part[CLUSTER_MOST], all = {-INFINITY, 0, 0};
#pragma unroll
        for (int k = 0; k < CLUSTER_MOST; k++) {
            part[k] = {-INFINITY, 0, 0};
            if (k < p.splits)
                part[k] = {load_from(&r.m[h], k), load_from(&r.l[h], k), load_from(&r.x[h][c], k)};
            all.m = fmaxf(all.m, part[k].m);
        }
        float base = all.m == -INFINITY ? 0.f : all.m;
#pragma unroll
        for (int k = 0; k < CLUSTER_MOST; k++) {
            float share = exp2_fast(part[k].m - base);
            all.l += part[k].l * share;
            all.x += part[k].x * share;
        }
        write_result(p, b, h0 + h, c, all);
    }
    cluster_sync(); /* no block exits while others read from it */
#endif
}

/* Merges the block's warps, and writes the split's partial result, or the result. */
template <int LANES, int H, bool CAP>
__device__ __forceinline__ void decode_merge(const decode_params &p,
                                             decode_state<LANES, H, CAP> &t, int b, int h0,
                                             int heads)
{
    constexpr int WARPS = DECODE_THREADS / 32;
    __shared__ float sm[H][WARPS], sl[H][WARPS], so[WARPS][H][LANES * 8];
    __shared__ split_result<LANES, H> result;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    merge_in_warp(t);
#pragma unroll
    for (int h = 0; h < H; h++) {
        if (lane == 0) {
            sm[h][warp] = t.m[h];
            sl[h][warp] = t.l[h];
        }
        if (lane < LANES)
#pragma unroll
            for (int c = 0; c < 8; c++)
                so[warp][h][lane * 8 + c] = t.o[h][c];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < heads * p.s.dim_v; i += DECODE_THREADS) {
        int h = i / p.s.dim_v, c = i % p.s.dim_v;
        float m = -INFINITY, l = 0, x = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            m = fmaxf(m, sm[h][w]);
        float base = m == -INFINITY ? 0.f : m;
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            float share = exp2_fast(sm[h][w] - base);
            l += sl[h][w] * share;
            x += so[w][h][c] * share;
        }
        int64_t head = (int64_t)b * p.s.heads_q + h0 + h;
        if (p.cluster && p.splits > 1) {
            if (c == 0)
                result.m[h] = m, result.l[h] = l;
            result.x[h][c] = x;
            continue;
        }
        if (p.splits > 1) {
            float *out = p.partial + (head * p.splits + blockIdx.x) * (2 + p.s.dim_v);
            if (c == 0) {
                out[0] = m;
                out[1] = l;
            }
            out[2 + c] = x;
            continue;
        }
        write_result(p, b, h0 + h, c, {m, l, x});
    }
    if (p.cluster && p.splits > 1)
        merge_in_cluster(p, result, b, h0, heads);
}

template <int LANES, int H, bool CAP>
__global__ void __launch_bounds__(DECODE_THREADS)
    decode_kernel(const __grid_constant__ decode_params p)
{
    const mx_decode_shape &s = p.s;
    let_next_start();
    wait_for_previous();
    int b = blockIdx.z, rep = s.heads_q / s.heads_kv, blocks = (rep + H - 1) / H;
    int g = blockIdx.y / blocks, h0 = g * rep + blockIdx.y % blocks * H;
    int heads = min(H, (g + 1) * rep - h0);
    int group = threadIdx.x / LANES, part = threadIdx.x % LANES;
    constexpr int GROUPS = DECODE_THREADS / LANES;
    bool by_position = p.keys.k_pos != NULL;
    int64_t len = by_position ? s.capacity : p.keys.lengths[b];
    int64_t first = s.window && len > s.window && !by_position ? len - s.window : 0;
    int64_t chunk = (len - first + p.splits - 1) / p.splits;
    int64_t lo = first + chunk * blockIdx.x, hi = lo + chunk < len ? lo + chunk : len;
    decode_state<LANES, H, CAP> t;
    t.k_pos = by_position ? p.keys.k_pos + b * s.capacity : NULL;
    t.hi_pos = by_position ? p.keys.q_pos[b] : 0;
    t.lo_pos = s.window && t.hi_pos >= s.window ? (int32_t)(t.hi_pos - s.window + 1) : 0;
#pragma unroll
    for (int h = 0; h < H; h++) {
        t.m[h] = -INFINITY;
        t.l[h] = 0;
        bool in = h < heads && part * 8 < s.dim_qk;
        vec8 x = {};
        if (in)
            x = load8(p.q + ((int64_t)b * s.heads_q + h0 + h) * s.dim_qk + part * 8);
        unpack8(t.q[h], x);
#pragma unroll
        for (int c = 0; c < 8; c++)
            t.o[h][c] = 0;
    }
    const uint16_t *k = p.k + b * s.k_batch + g * s.k_head, *v = p.v + b * s.v_batch + g * s.v_head;
    /* every group runs the same number of rounds: the shuffles inside need whole warps */
    for (int64_t j = lo; j < hi; j += GROUPS * KEYS_AT_ONCE)
        t.keys(p, k, v, j + group, hi, GROUPS, part);
    decode_merge<LANES, H, CAP>(p, t, b, h0, heads);
}

/* Maxima are in units of log2. */
__global__ void decode_combine_kernel(const __grid_constant__ decode_params p)
{
    __shared__ float weight[TARGET_BLOCKS + 1], scratch[32], top[32];
    const mx_decode_shape &s = p.s;
    let_next_start();
    wait_for_previous();
    int h = blockIdx.x, b = blockIdx.y, lane = threadIdx.x & 31, width = 2 + s.dim_v;
    const float *in = p.partial + ((int64_t)b * s.heads_q + h) * p.splits * width;
    float m = p.sinks ? p.sinks[h] * LOG2E : -INFINITY, l = 0, sink = m;
    for (int i = threadIdx.x; i < p.splits; i += blockDim.x)
        m = fmaxf(m, in[(int64_t)i * width]);
    m = warp_max(m);
    if (lane == 0)
        top[threadIdx.x >> 5] = m;
    __syncthreads();
    m = warp_max(lane < blockDim.x / 32 ? top[lane] : -INFINITY);
    float base = m == -INFINITY ? 0.f : m;
    for (int i = threadIdx.x; i < p.splits; i += blockDim.x) {
        weight[i] = exp2_fast(in[(int64_t)i * width] - base);
        l += weight[i] * in[(int64_t)i * width + 1];
    }
    l = block_sum(l, scratch) + (p.sinks ? exp2_fast(sink - base) : 0.f);
    for (int c = threadIdx.x; c < s.dim_v; c += blockDim.x) {
        float x = 0;
#pragma unroll 8
        for (int i = 0; i < p.splits; i++)
            x += in[(int64_t)i * width + 2 + c] * weight[i];
        p.o[((int64_t)b * s.heads_q + h) * s.dim_v + c] = f32_to_bf16(l > 0 ? x / l : 0.f);
    }
}

size_t mx_cuda_decode_scratch_bytes(const mx_decode_shape *s)
{
    return mx_gpu_decode_bytes(s->batch, s->heads_q, decode_splits(s), s->dim_v);
}

template <int LANES, int H> static void decode_go(const decode_params &p, cudaStream_t stream)
{
    auto *k = p.score.cap > 0 ? decode_kernel<LANES, H, true> : decode_kernel<LANES, H, false>;
    int rep = p.s.heads_q / p.s.heads_kv;
    dim3 grid((unsigned)p.splits, (unsigned)(p.s.heads_kv * ((rep + H - 1) / H)),
              (unsigned)p.s.batch);
    launch_config({grid, DECODE_THREADS, 0, stream}, p.cluster ? (unsigned)p.splits : 1, k, p);
}
template <int LANES> static void decode_heads(const decode_params &p, cudaStream_t stream)
{
    int rep = p.s.heads_q / p.s.heads_kv;
    if (rep == 1)
        decode_go<LANES, 1>(p, stream);
    else if (rep == 2)
        decode_go<LANES, 2>(p, stream);
    else if (rep <= 4)
        decode_go<LANES, 4>(p, stream);
    else
        decode_go<LANES, 8>(p, stream);
}

cudaError_t mx_cuda_decode_attention(const mx_decode_shape *s, mx_bf16 *o, const mx_bf16 *q,
                                     const mx_bf16 *k, const mx_bf16 *v, mx_decode_keys keys,
                                     const float *sinks, void *scratch, cudaStream_t stream)
{
    int d = s->dim_qk > s->dim_v ? s->dim_qk : s->dim_v;
    if (s->dim_qk % 8 || s->dim_v % 8 || d > 256 || s->k_seq % 8 || s->v_seq % 8)
        return cudaErrorInvalidValue;
    const int cluster = cluster_blocks(s);
    decode_params p = {*s,
                       {s->scale, s->softcap, s->softcap > 0 ? 1.f / s->softcap : 0.f},
                       cluster ? cluster : decode_splits(s),
                       cluster > 0,
                       o,
                       q,
                       k,
                       v,
                       keys,
                       sinks,
                       (float *)scratch};
    if (d <= 64)
        decode_heads<8>(p, stream);
    else if (d <= 128)
        decode_heads<16>(p, stream);
    else
        decode_heads<32>(p, stream);
    if (p.splits == 1 || p.cluster)
        return cudaGetLastError();
    return launch_pdl(decode_combine_kernel, dim3((unsigned)s->heads_q, (unsigned)s->batch), 128,
                        0, stream, p);
}
