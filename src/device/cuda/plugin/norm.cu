/* norm.cu - RMSNorm forward and backward with the residual stream folded in.
 *
 * One block a row, each thread holding NV vectors of eight elements in registers, so a row is read
 * once. Forward moves 2 (or with the residual 4) row-widths of bf16, backward 3 or 4: both are
 * bound by memory. Backward runs a fixed number of blocks, each walking rows blockIdx, blockIdx +
 * grid, ...; a thread owns the same columns in every row, keeps its part of dw in registers and
 * writes it once to `partial` (blocks, d); a second kernel adds the blocks in order.
 */
#include "device/cuda/plugin/kernels.h"
#include "device/cuda/plugin/vec.cuh"

enum { BWD_BLOCKS = 1024 }; /* most rows of `partial` */

template <int NV>
__global__ void rms_forward_kernel(uint16_t *y, uint16_t *sum, const uint16_t *x,
                                   const uint16_t *delta, const uint16_t *w, int64_t d, float eps,
                                   float w_add)
{
    __shared__ float scratch[32];
    int64_t row = (int64_t)blockIdx.x * d;
    vec8 v[NV];
    float ss = 0;
#pragma unroll
    for (int i = 0; i < NV; i++) {
        int64_t c = 8 * ((int64_t)i * blockDim.x + threadIdx.x);
        if (c >= d)
            continue;
        v[i] = load8(x + row + c);
        float f[8];
        unpack8(f, v[i]);
        if (delta) {
            float g[8];
            unpack8(g, load8(delta + row + c));
#pragma unroll
            for (int j = 0; j < 8; j++)
                f[j] += g[j];
            v[i] = pack8(f);
            store8(sum + row + c, v[i]);
            unpack8(f, v[i]); /* the norm sees what the residual stream keeps */
        }
#pragma unroll
        for (int j = 0; j < 8; j++)
            ss += f[j] * f[j];
    }
    float r = rsqrtf(block_sum(ss, scratch) / (float)d + eps);
#pragma unroll
    for (int i = 0; i < NV; i++) {
        int64_t c = 8 * ((int64_t)i * blockDim.x + threadIdx.x);
        if (c >= d)
            continue;
        float f[8], g[8];
        unpack8(f, v[i]);
        unpack8(g, load8(w + c));
#pragma unroll
        for (int j = 0; j < 8; j++)
            f[j] *= r * (g[j] + w_add);
        store8(y + row + c, pack8(f));
    }
}

/* Rows up to 4,096 wide: one warp a row, no barrier, every load of the row in flight at once. */
template <int NV>
__global__ void __launch_bounds__(256)
    rms_forward_warp_kernel(uint16_t *y, uint16_t *sum, const uint16_t *x, const uint16_t *delta,
                            const uint16_t *w, int64_t rows, int d, float eps, float w_add)
{
    int lane = threadIdx.x & 31;
    int64_t t = (int64_t)blockIdx.x * 8 + (threadIdx.x >> 5), row = t * d;
    if (t >= rows)
        return;
    vec8 v[NV];
#pragma unroll
    for (int i = 0; i < NV; i++)
        if (8 * (32 * i + lane) < d)
            v[i] = load8(x + row + 8 * (32 * i + lane));
    float ss = 0;
#pragma unroll
    for (int i = 0; i < NV; i++) {
        int c = 8 * (32 * i + lane);
        if (c >= d)
            continue;
        float f[8];
        unpack8(f, v[i]);
        if (delta) {
            float g[8];
            unpack8(g, load8(delta + row + c));
#pragma unroll
            for (int j = 0; j < 8; j++)
                f[j] += g[j];
            v[i] = pack8(f);
            store8(sum + row + c, v[i]);
            unpack8(f, v[i]);
        }
#pragma unroll
        for (int j = 0; j < 8; j++)
            ss += f[j] * f[j];
    }
    float r = rsqrtf(warp_sum(ss) / (float)d + eps);
#pragma unroll
    for (int i = 0; i < NV; i++) {
        int c = 8 * (32 * i + lane);
        if (c >= d)
            continue;
        float f[8], g[8];
        unpack8(f, v[i]);
        unpack8(g, load8(w + c));
#pragma unroll
        for (int j = 0; j < 8; j++)
            f[j] *= r * (g[j] + w_add);
        store8(y + row + c, pack8(f));
    }
}

/* What one row's thread needs from memory; the next row's is fetched while this one is summed. */
template <int NV> struct row_part {
    vec8 x[NV], dy[NV], res[NV];
    __device__ __forceinline__ void fetch(const uint16_t *xp, const uint16_t *dyp,
                                          const uint16_t *resp, int64_t row, int64_t d)
    {
#pragma unroll
        for (int i = 0; i < NV; i++) {
            int64_t c = 8 * ((int64_t)i * blockDim.x + threadIdx.x);
            if (c >= d)
                continue;
            x[i] = load8(xp + row * d + c);
            dy[i] = load8(dyp + row * d + c);
            if (resp)
                res[i] = load8(resp + row * d + c);
        }
    }
};

template <int NV>
__device__ __forceinline__ void row_sums(const row_part<NV> &p, const vec8 *w, float w_add,
                                         int64_t d, float &ss, float &hx)
{
#pragma unroll
    for (int i = 0; i < NV; i++) {
        if (8 * ((int64_t)i * blockDim.x + threadIdx.x) >= d)
            continue;
        float f[8], g[8], k[8];
        unpack8(f, p.x[i]);
        unpack8(g, p.dy[i]);
        unpack8(k, w[i]);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            ss += f[j] * f[j];
            hx += f[j] * g[j] * (k[j] + w_add);
        }
    }
}

template <int NV, int MOST>
__global__ void __launch_bounds__(MOST, 1024 / MOST)
    rms_backward_kernel(uint16_t *dx, float *partial, const uint16_t *dy, const uint16_t *dres,
                        const uint16_t *x, const uint16_t *w, int64_t rows, int64_t d, float eps,
                        float w_add)
{
    __shared__ float scratch[2][2][32]; /* two buffers: one barrier a row is enough */
    float dw[NV][8] = {};
    vec8 wv[NV];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = (blockDim.x + 31) >> 5, turn = 0;
#pragma unroll
    for (int i = 0; i < NV; i++)
        if (8 * ((int64_t)i * blockDim.x + threadIdx.x) < d)
            wv[i] = load8(w + 8 * ((int64_t)i * blockDim.x + threadIdx.x));
    row_part<NV> now, next;
    now.fetch(x, dy, dres, blockIdx.x, d);
    for (int64_t t = blockIdx.x; t < rows; t += gridDim.x, turn ^= 1) {
        if (t + gridDim.x < rows)
            next.fetch(x, dy, dres, t + gridDim.x, d);
        float ss = 0, hx = 0;
        row_sums<NV>(now, wv, w_add, d, ss, hx);
        ss = warp_sum(ss);
        hx = warp_sum(hx);
        if (lane == 0) {
            scratch[turn][0][warp] = ss;
            scratch[turn][1][warp] = hx;
        }
        __syncthreads();
        ss = warp_sum(lane < warps ? scratch[turn][0][lane] : 0.f);
        hx = warp_sum(lane < warps ? scratch[turn][1][lane] : 0.f);
        float r = rsqrtf(ss / (float)d + eps), a = r * r * r * hx / (float)d;
#pragma unroll
        for (int i = 0; i < NV; i++) {
            int64_t c = 8 * ((int64_t)i * blockDim.x + threadIdx.x);
            if (c >= d)
                continue;
            float f[8], g[8], k[8], o[8] = {};
            unpack8(f, now.x[i]);
            unpack8(g, now.dy[i]);
            unpack8(k, wv[i]);
            if (dres)
                unpack8(o, now.res[i]);
#pragma unroll
            for (int j = 0; j < 8; j++) {
                o[j] += r * g[j] * (k[j] + w_add) - a * f[j];
                dw[i][j] += g[j] * f[j] * r;
            }
            store8(dx + t * d + c, pack8(o));
        }
        now = next;
    }
#pragma unroll
    for (int i = 0; i < NV; i++) {
        int64_t c = 8 * ((int64_t)i * blockDim.x + threadIdx.x);
        if (c >= d)
            continue;
        float4 *p = (float4 *)(partial + (int64_t)blockIdx.x * d + c);
        p[0] = make_float4(dw[i][0], dw[i][1], dw[i][2], dw[i][3]);
        p[1] = make_float4(dw[i][4], dw[i][5], dw[i][6], dw[i][7]);
    }
}

/* 32 columns a block, 32 threads down each column, then their sums in order. */
__global__ void rms_dw_kernel(uint16_t *dw, const float *partial, int64_t d, int blocks)
{
    __shared__ float part[32][33];
    int64_t c = (int64_t)blockIdx.x * 32 + threadIdx.x;
    float s = 0;
    if (c < d)
#pragma unroll 4
        for (int b = threadIdx.y; b < blocks; b += 32)
            s += partial[(int64_t)b * d + c];
    part[threadIdx.y][threadIdx.x] = s;
    __syncthreads();
    s = warp_sum(part[threadIdx.x][threadIdx.y]);
    c = (int64_t)blockIdx.x * 32 + threadIdx.y;
    if (threadIdx.x == 0 && c < d)
        dw[c] = f32_to_bf16(s);
}

/* Threads for a row of d: whole warps, at most 1024; returns the vectors each holds. */
static int row_threads(int64_t d, int *threads)
{
    int64_t vecs = d / 8;
    int nv = 1;
    while ((vecs + nv - 1) / nv > 1024)
        nv *= 2;
    *threads = (int)(((vecs + nv - 1) / nv + 31) / 32 * 32);
    return nv;
}

cudaError_t mx_cuda_rms_forward(const mx_rms_shape *s, mx_bf16 *y, mx_bf16 *sum, const mx_bf16 *x,
                                const mx_bf16 *delta, const mx_bf16 *w, cudaStream_t stream)
{
    int threads, nv = row_threads(s->d, &threads);
    float add = s->w_plus_one ? 1.f : 0.f;
    if (s->d % 8 || nv > 4)
        return cudaErrorInvalidValue;
    if (s->d <= 4096) {
        auto *warp = s->d <= 1024   ? rms_forward_warp_kernel<4>
                     : s->d <= 2048 ? rms_forward_warp_kernel<8>
                                    : rms_forward_warp_kernel<16>;
        warp<<<(unsigned)((s->rows + 7) / 8), 256, 0, stream>>>(y, sum, x, delta, w, s->rows,
                                                                (int)s->d, s->eps, add);
        return cudaGetLastError();
    }
    auto *k = nv == 1   ? rms_forward_kernel<1>
              : nv == 2 ? rms_forward_kernel<2>
                        : rms_forward_kernel<4>;
    k<<<(unsigned)s->rows, threads, 0, stream>>>(y, sum, x, delta, w, s->d, s->eps, add);
    return cudaGetLastError();
}

size_t mx_cuda_rms_partial_bytes(int64_t d)
{
    return (size_t)d * BWD_BLOCKS * sizeof(float);
}

cudaError_t mx_cuda_rms_backward(const mx_rms_shape *s, mx_bf16 *dx, mx_bf16 *dw, const mx_bf16 *dy,
                                 const mx_bf16 *dres, const mx_bf16 *x, const mx_bf16 *w,
                                 float *partial, cudaStream_t stream)
{
    int threads, nv = row_threads(s->d, &threads);
    float add = s->w_plus_one ? 1.f : 0.f;
    if (s->d % 8 || nv > 4)
        return cudaErrorInvalidValue;
    auto *k = nv == 2 ? rms_backward_kernel<2, 1024> : rms_backward_kernel<4, 1024>;
    if (nv == 1)
        k = threads <= 256   ? rms_backward_kernel<1, 256>
            : threads <= 512 ? rms_backward_kernel<1, 512>
                             : rms_backward_kernel<1, 1024>;
    /* exactly as many blocks as run at once: a second wave would find the first one's work done */
    int device, sms, each;
    cudaError_t e = cudaGetDevice(&device);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    if (e == cudaSuccess)
        e = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, k, threads, 0);
    if (e != cudaSuccess)
        return e;
    int64_t blocks = (int64_t)sms * each;
    blocks = blocks > BWD_BLOCKS ? BWD_BLOCKS : blocks;
    blocks = blocks > s->rows ? s->rows : blocks;
    k<<<(unsigned)blocks, threads, 0, stream>>>(dx, partial, dy, dres, x, w, s->rows, s->d, s->eps,
                                                add);
    rms_dw_kernel<<<(unsigned)((s->d + 31) / 32), dim3(32, 32), 0, stream>>>(dw, partial, s->d,
                                                                             (int)blocks);
    return cudaGetLastError();
}
