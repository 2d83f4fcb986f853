/* train_kernels.cu - sums, lookups and small updates of a training step; AdamW and norms over many
 * tensors are in multi_tensor.cu.
 *
 * Sums go in two stages over a fixed cut of the data, so the result does not depend on scheduling.
 * Everything here is memory-bound and streams its operands once.
 */
#include "device/cuda/train/train_kernels.h"
#include "device/cuda/core/pdl.cuh"
#include "device/cuda/core/vec.cuh"
#include "ops/gpu_work.h"

enum { THREADS = 256, PARTS = MX_GPU_SUM_PARTS };

static unsigned blocks_for(int64_t n, int64_t per_block)
{
    int64_t b = (n + per_block - 1) / per_block;
    return (unsigned)(b < 1 ? 1 : b > 1 << 20 ? 1 << 20 : b);
}

/* --- updates --- */

template <typename W, typename G>
__global__ void sgd_kernel(W *w, const G *g, uint16_t *copy, const float *hyper, float decay,
                           int64_t n)
{
    if (!isfinite(hyper[1]))
        return;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * THREADS) {
        float old = as_float(w[i]), x = old - hyper[0] * (hyper[1] * as_float(g[i]) + decay * old);
        put(&w[i], x);
        if (copy)
            copy[i] = f32_to_bf16(x);
    }
}

template <typename W>
static void sgd_of(W *w, const mx_cuda_sgd *s, cudaStream_t stream)
{
    unsigned blocks = blocks_for(s->n, 4 * THREADS);
    if (s->g_f32)
        sgd_kernel<<<blocks, THREADS, 0, stream>>>(w, (const float *)s->g, s->copy, s->hyper,
                                                   s->decay, s->n);
    else
        sgd_kernel<<<blocks, THREADS, 0, stream>>>(w, (const uint16_t *)s->g, s->copy, s->hyper,
                                                   s->decay, s->n);
}

cudaError_t mx_cuda_sgd_one(const mx_cuda_sgd *s, cudaStream_t stream)
{
    if (s->w_f32)
        sgd_of((float *)s->w, s, stream);
    else
        sgd_of((uint16_t *)s->w, s, stream);
    return cudaGetLastError();
}

template <typename X>
__global__ void accumulate_kernel(float *sum, const X *x, const float *first, int64_t n)
{
    bool fresh = *first != 0;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * THREADS)
        sum[i] = as_float(x[i]) + (fresh ? 0.f : sum[i]);
}

cudaError_t mx_cuda_accumulate(float *sum, const void *x, bool x_f32, const float *first, int64_t n,
                               cudaStream_t stream)
{
    unsigned blocks = blocks_for(n, 4 * THREADS);
    if (x_f32)
        accumulate_kernel<<<blocks, THREADS, 0, stream>>>(sum, (const float *)x, first, n);
    else
        accumulate_kernel<<<blocks, THREADS, 0, stream>>>(sum, (const uint16_t *)x, first, n);
    return cudaGetLastError();
}

/* --- sums --- */

__device__ double block_sum(double x)
{
    __shared__ double part[THREADS];
    part[threadIdx.x] = x;
    for (int o = THREADS / 2; o; o >>= 1) {
        __syncthreads();
        if (threadIdx.x < o)
            part[threadIdx.x] += part[threadIdx.x + o];
    }
    __syncthreads();
    return part[0];
}

__global__ void finish_kernel(float *out, const double *partial)
{
    double total = 0;
    for (int i = threadIdx.x; i < PARTS; i += THREADS)
        total += partial[i];
    total = block_sum(total);
    if (threadIdx.x == 0)
        *out = (float)total;
}

enum { ROW_PARTS = MX_GPU_ROW_PARTS, MANY_ROWS = 512, MANY_COLUMNS = 1 << 16 };

/* 16 bytes of a row. */
__device__ __forceinline__ void load_piece(float f[8], const uint16_t *x)
{
    unpack8(f, load8(x));
}
__device__ __forceinline__ void load_piece(float f[4], const float *x)
{
    load4(f, x);
}

/* Block (c, p): 32 pieces of W columns by 8 rows at a time, rows of part p. W = 1: any width. */
template <typename X, int W>
__global__ void rows_kernel(float *partial, const X *x, int64_t rows, int64_t d)
{
    __shared__ float sum[8][32][W + 1];
    int64_t c = W * ((int64_t)blockIdx.x * 32 + threadIdx.x);
    int64_t from = rows * blockIdx.y / gridDim.y, to = rows * (blockIdx.y + 1) / gridDim.y;
    float s[W] = {};
#pragma unroll 4
    for (int64_t r = from + threadIdx.y; r < to && c < d; r += 8) {
        float f[W];
        if constexpr (W == 1)
            f[0] = as_float(x[r * d + c]);
        else
            load_piece(f, x + r * d + c);
#pragma unroll
        for (int j = 0; j < W; j++)
            s[j] += f[j];
    }
#pragma unroll
    for (int j = 0; j < W; j++)
        sum[threadIdx.y][threadIdx.x][j] = s[j];
    __syncthreads();
    /* The eight rows of threads share the columns out among them. */
    for (int i = threadIdx.y * 32 + threadIdx.x; i < 32 * W; i += 256) {
        int64_t column = W * (int64_t)blockIdx.x * 32 + i;
        float total = 0;
        for (int k = 0; k < 8; k++)
            total += sum[k][i / W][i % W];
        if (column < d)
            partial[(int64_t)blockIdx.y * d + column] = total;
    }
}

cudaError_t mx_cuda_blocks_at_once(int64_t *n, const void *kernel, int threads)
{
    int device = 0, units = 0, blocks = 0;
    cudaError_t e = cudaGetDevice(&device);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, device);
    if (e == cudaSuccess)
        e = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, 0);
    *n = (int64_t)units * blocks;
    return e;
}
/* Gives the number of parts: no more than run at once, since a few blocks that come after all the
 * others would take as long as they did. */
template <typename X>
static int64_t sum_parts(float *partial, const X *x, int64_t rows, int64_t d, cudaStream_t stream)
{
    constexpr int W = 16 / sizeof(X);
    bool wide = d % W == 0 && (uintptr_t)x % 16 == 0;
    int64_t columns = 32 * (wide ? W : 1), across = (d + columns - 1) / columns;
    auto kernel = wide ? rows_kernel<X, W> : rows_kernel<X, 1>;
    int64_t fit = 0;
    mx_cuda_blocks_at_once(&fit, (const void *)kernel, 256);
    int64_t parts = fit / across < ROW_PARTS && fit >= across ? fit / across : ROW_PARTS;
    dim3 grid((unsigned)across, (unsigned)parts), block(32, 8);
    kernel<<<grid, block, 0, stream>>>(partial, x, rows, d);
    return parts;
}

/* Block (c, k): 32 columns of sum k, 32 rows at a time. Few blocks have all the work, so each
 * thread asks for many rows before it adds the first. */
__global__ void column_sums_kernel(mx_column_sums s)
{
    __shared__ float sum[32][33];
    int64_t c = (int64_t)blockIdx.x * 32 + threadIdx.x;
    const float *part = s.part + (int64_t)blockIdx.y * s.rows * s.cols;
    float x = 0;
    if (c < s.cols) {
#pragma unroll 16
        for (int r = threadIdx.y; r < (int)s.rows; r += 32)
            x += part[r * s.cols + c];
    }
    sum[threadIdx.y][threadIdx.x] = x;
    __syncthreads();
    x = sum[threadIdx.x][threadIdx.y]; /* warp y adds up column y */
    for (int o = 16; o; o >>= 1)
        x += __shfl_xor_sync(~0u, x, o);
    c = (int64_t)blockIdx.x * 32 + threadIdx.y;
    if (threadIdx.x == 0 && c < s.cols)
        s.out[blockIdx.y][c] = x;
}

cudaError_t mx_cuda_column_sums(const mx_column_sums *s, cudaStream_t stream)
{
    dim3 grid((unsigned)((s->cols + 31) / 32), (unsigned)s->n), block(32, 32);
    column_sums_kernel<<<grid, block, 0, stream>>>(*s);
    return cudaGetLastError();
}

/* Few rows and many columns: a thread takes four columns from top to bottom. */
template <typename X>
__global__ void tall_kernel(float *out, const X *x, int64_t rows, int64_t d)
{
    int64_t c = 4 * ((int64_t)blockIdx.x * THREADS + threadIdx.x);
    float sum[4] = {0}, f[4];
    for (int64_t r = 0; r < rows && c < d; r++) {
        load4(f, x + r * d + c);
        for (int j = 0; j < 4; j++)
            sum[j] += f[j];
    }
    if (c < d)
        store4(out + c, sum);
}

template <typename X>
__global__ void total_kernel(double *partial, const X *x, int64_t n)
{
    double total = 0;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n;
         i += (int64_t)PARTS * THREADS)
        total += as_float(x[i]);
    total = block_sum(total);
    if (threadIdx.x == 0)
        partial[blockIdx.x] = total;
}

cudaError_t mx_cuda_sum_rows(float *out, const void *x, bool x_f32, int64_t rows, int64_t d,
                             void *partial, cudaStream_t stream)
{
    if (d == 1) {
        if (x_f32)
            total_kernel<<<PARTS, THREADS, 0, stream>>>((double *)partial, (const float *)x, rows);
        else
            total_kernel<<<PARTS, THREADS, 0, stream>>>((double *)partial, (const uint16_t *)x,
                                                        rows);
        finish_kernel<<<1, THREADS, 0, stream>>>(out, (double *)partial);
        return cudaGetLastError();
    }
    if (rows <= MANY_ROWS && d % 4 == 0 && d >= MANY_COLUMNS) {
        unsigned blocks = (unsigned)((d / 4 + THREADS - 1) / THREADS);
        if (x_f32)
            tall_kernel<<<blocks, THREADS, 0, stream>>>(out, (const float *)x, rows, d);
        else
            tall_kernel<<<blocks, THREADS, 0, stream>>>(out, (const uint16_t *)x, rows, d);
        return cudaGetLastError();
    }
    int64_t parts = x_f32 ? sum_parts((float *)partial, (const float *)x, rows, d, stream)
                          : sum_parts((float *)partial, (const uint16_t *)x, rows, d, stream);
    mx_column_sums sums = {{out}, (const float *)partial, 1, parts, d};
    return mx_cuda_column_sums(&sums, stream);
}

/* --- lookups --- */

template <typename T>
__global__ void gather_kernel(T *y, const T *table, const int32_t *ids, int64_t d, int64_t vocab)
{
    let_next_start();
    wait_for_previous();
    int32_t id = ids[blockIdx.x];
    bool known = id >= 0 && id < vocab;
    for (int64_t c = threadIdx.x; c < d; c += THREADS)
        y[(int64_t)blockIdx.x * d + c] = known ? table[(int64_t)id * d + c] : T{};
}

cudaError_t mx_cuda_gather(void *y, const void *table, const int32_t *ids, int64_t rows, int64_t d,
                           int64_t vocab, int item, cudaStream_t stream)
{
    int64_t bytes = d * item;
    if (rows == 0)
        return cudaSuccess;
    if (bytes % 16 == 0)
        return launch_pdl(gather_kernel<uint4>, (unsigned)rows, THREADS, 0, stream, (uint4 *)y,
                            (const uint4 *)table, ids, bytes / 16, vocab);
    return launch_pdl(gather_kernel<uint16_t>, (unsigned)rows, THREADS, 0, stream, (uint16_t *)y,
                        (const uint16_t *)table, ids, bytes / 2, vocab);
}

/* --- cross-entropy of float logits, for checking --- */

__device__ float block_reduce(float x, bool is_max)
{
    __shared__ float part[THREADS];
    part[threadIdx.x] = x;
    for (int o = THREADS / 2; o; o >>= 1) {
        __syncthreads();
        if (threadIdx.x < o) {
            float a = part[threadIdx.x], b = part[threadIdx.x + o];
            part[threadIdx.x] = is_max ? fmaxf(a, b) : a + b;
        }
    }
    __syncthreads();
    float r = part[0];
    __syncthreads();
    return r;
}

__global__ void xent_plain_kernel(mx_xent_plain s, float *logits, const int32_t *labels,
                                  const float *dloss, float *loss, float *lse)
{
    float *z = logits + (int64_t)blockIdx.x * s.ld, top = -INFINITY, sum = 0;
    int64_t label = labels[blockIdx.x];
    bool counts = label >= 0 && label < s.vocab;
    for (int64_t j = threadIdx.x; j < s.vocab; j += THREADS) {
        if (s.softcap > 0)
            z[j] = s.softcap * tanhf(z[j] / s.softcap);
        top = fmaxf(top, z[j]);
    }
    top = block_reduce(top, true);
    for (int64_t j = threadIdx.x; j < s.vocab; j += THREADS)
        sum += expf(z[j] - top);
    float l = top + logf(block_reduce(sum, false));
    if (threadIdx.x == 0) {
        if (loss)
            loss[blockIdx.x] = counts ? l - z[label] + s.z_loss * l * l : 0.f;
        if (lse)
            lse[blockIdx.x] = counts ? l : 0.f;
    }
    __syncthreads();
    float g = dloss && counts ? dloss[blockIdx.x] : 0.f;
    for (int64_t j = threadIdx.x; dloss && j < s.vocab; j += THREADS) {
        float t = z[j] / s.softcap;
        float d = g * (expf(z[j] - l) * (1 + 2 * s.z_loss * l) - (j == label ? 1.f : 0.f));
        z[j] = d * s.scale * (s.softcap > 0 ? 1 - t * t : 1.f);
    }
}

cudaError_t mx_cuda_xent_plain(const mx_xent_plain *s, float *logits, const int32_t *labels,
                               const float *dloss, float *loss, float *lse, cudaStream_t stream)
{
    xent_plain_kernel<<<(unsigned)s->rows, THREADS, 0, stream>>>(*s, logits, labels, dloss, loss,
                                                                 lse);
    return cudaGetLastError();
}

/* --- decode caches --- */

struct cache_table {
    mx_cache_one one[MX_CACHE_MOST];
};

/* Block (b t, i): token t of sequence b of cache i. Of tokens with the same slot the last one is
 * written, as if they were written in order. */
template <typename C, typename F>
__global__ void cache_kernel(const __grid_constant__ cache_table t)
{
    let_next_start();
    wait_for_previous();
    const mx_cache_one &o = t.one[blockIdx.y];
    C *cache = (C *)o.cache;
    const F *fresh = (const F *)o.fresh;
    const int64_t b = blockIdx.x / o.t, i = blockIdx.x % o.t;
    const int32_t *slots = o.slots + b * o.t;
    const int64_t slot = slots[i];
    int later = 0;
    for (int64_t j = i + 1 + threadIdx.x; j < o.t; j += THREADS)
        later |= slots[j] == slot;
    if (__syncthreads_or(later) || slot < 0 || slot >= o.s)
        return;
    for (int64_t c = threadIdx.x; c < o.entry; c += THREADS)
        put(&cache[(b * o.s + slot) * o.entry + c], as_float(fresh[(b * o.t + i) * o.entry + c]));
}

cudaError_t mx_cuda_cache_write(const mx_cache_one *one, int n, cudaStream_t stream)
{
    cache_table t = {};
    if (n < 1 || n > MX_CACHE_MOST)
        return cudaErrorInvalidValue;
    for (int i = 0; i < n; i++)
        t.one[i] = one[i];
    dim3 grid((unsigned)(one->batch * one->t), (unsigned)n);
    int cache = one->cache_type, fresh = one->fresh_type;
    if (cache == fresh && cache != MX_CACHE_BF16) /* bits are copied */
        return launch_pdl(cache_kernel<float, float>, grid, THREADS, 0, stream, t);
    if (cache == MX_CACHE_BF16 && fresh == MX_CACHE_BF16)
        return launch_pdl(cache_kernel<uint16_t, uint16_t>, grid, THREADS, 0, stream, t);
    if (cache == MX_CACHE_BF16)
        return launch_pdl(cache_kernel<uint16_t, float>, grid, THREADS, 0, stream, t);
    return cudaErrorInvalidValue;
}
