/* conv_kernels.cu - the short causal convolution: y[t] = sum_k w[:, k] x[t - (K-1) + k].
 *
 * Memory bound: a thread takes W neighbouring channels and RUN tokens in a row; what it reads again
 * for the next token lies in the cache. The filter's gradient is summed by parts of the tokens,
 * each by one warp in order, and the parts in order by a second kernel.
 */
#include "device/cuda/plugin/recurrent.cuh"

enum { RUN = 8, MOST_TAPS = 16, PARTS = 256 };

template <class T> __device__ __forceinline__ float rounded(float x)
{
    T y;
    put(&y, x);
    return as_float(y);
}
template <class T, int W>
__device__ __forceinline__ void load_some(float f[W], const T *p)
{
    if constexpr (W == 4)
        load4(f, p);
    else
        f[0] = as_float(*p);
}
template <class T, int W>
__device__ __forceinline__ void store_some(T *p, const float f[W])
{
    if constexpr (W == 4)
        store4(p, f);
    else
        put(p, f[0]);
}

/* What token t of row b reads at time s <= t. */
template <class T, int W>
__device__ __forceinline__ void input_at(float f[W], const mx_cuda_conv &c, int b, int t, int s,
                                         int at, bool anew)
{
    int64_t row = (int64_t)b * c.len;
#pragma unroll
    for (int i = 0; i < W; i++)
        f[i] = 0;
    if (c.segments && c.segments[row + (s > 0 ? s : 0)] != c.segments[row + t])
        return;
    if (s >= 0)
        load_some<T, W>(f, (const T *)c.x + (row + s) * c.channels + at);
    else if (c.state && !anew)
        for (int i = 0; i < W; i++)
            f[i] = rounded<T>(get_any(c.state, ((int64_t)b * (c.taps - 1) + c.taps - 1 + s) *
                                                   c.channels + at + i, c.state_f32));
}

/* The last K-1 inputs of these channels; all are read before the first is written. */
template <class T, int W>
__device__ void next_state(const mx_cuda_conv &c, int b, int n, int at, bool anew)
{
    int keep = c.taps - 1;
    float f[MOST_TAPS][W];
    if (!n)
        return;
#pragma unroll
    for (int r = 0; r < MOST_TAPS; r++)
        if (r < keep)
            input_at<T, W>(f[r], c, b, n - 1, n - keep + r, at, anew);
#pragma unroll
    for (int r = 0; r < MOST_TAPS; r++)
        for (int i = 0; i < W && r < keep; i++)
            put_any(c.state, ((int64_t)b * keep + r) * c.channels + at + i, f[r][i], c.state_f32);
}

template <class T, int W>
__global__ void conv_forward_kernel(const __grid_constant__ mx_cuda_conv c, T *y, int run)
{
    int at = (blockIdx.x * blockDim.x + threadIdx.x) * W, b = blockIdx.z, t0 = blockIdx.y * run;
    int n = c.state ? row_tokens(c.positions, b, c.len) : c.len;
    if (at >= c.channels)
        return;
    bool anew = c.state && n && c.positions[(int64_t)b * c.len] == 0;
    for (int t = t0; t < t0 + run && t < c.len; t++) {
        float sum[W] = {}, x[W];
        for (int k = 0; k < c.taps && t < n; k++) {
            input_at<T, W>(x, c, b, t, t - (c.taps - 1) + k, at, anew);
#pragma unroll
            for (int i = 0; i < W; i++)
                sum[i] += x[i] * as_float(((const T *)c.w)[(int64_t)(at + i) * c.taps + k]);
        }
        store_some<T, W>(y + ((int64_t)b * c.len + t) * c.channels + at, sum);
    }
    if (c.state && run >= c.len)
        next_state<T, W>(c, b, n, at, anew);
}

template <class T, int W>
__global__ void conv_state_kernel(const __grid_constant__ mx_cuda_conv c)
{
    int at = (blockIdx.x * blockDim.x + threadIdx.x) * W, b = blockIdx.z;
    int n = row_tokens(c.positions, b, c.len);
    if (at >= c.channels)
        return;
    next_state<T, W>(c, b, n, at, n && c.positions[(int64_t)b * c.len] == 0);
}

template <class T, int W>
__global__ void conv_dx_kernel(const __grid_constant__ mx_cuda_conv c, const T *dy, T *dx)
{
    int at = (blockIdx.x * blockDim.x + threadIdx.x) * W, b = blockIdx.z, t0 = blockIdx.y * RUN;
    int64_t row = (int64_t)b * c.len;
    if (at >= c.channels)
        return;
    for (int s = t0; s < t0 + RUN && s < c.len; s++) {
        float sum[W] = {}, d[W];
        for (int k = 0; k < c.taps; k++) {
            int t = s + (c.taps - 1) - k;
            if (t >= c.len || (c.segments && c.segments[row + s] != c.segments[row + t]))
                continue;
            load_some<T, W>(d, dy + (row + t) * c.channels + at);
#pragma unroll
            for (int i = 0; i < W; i++)
                sum[i] += d[i] * as_float(((const T *)c.w)[(int64_t)(at + i) * c.taps + k]);
        }
        store_some<T, W>(dx + (row + s) * c.channels + at, sum);
    }
}

/* partial (parts, K, C): each warp sums its part of the tokens. */
template <class T, int TAPS>
__global__ void conv_dw_kernel(const __grid_constant__ mx_cuda_conv c, const T *dy, float *partial,
                               int parts)
{
    int at = blockIdx.x * 32 + threadIdx.x, part = blockIdx.y * blockDim.y + threadIdx.y;
    int64_t all = (int64_t)c.batch * c.len, each = (all + parts - 1) / parts;
    if (at >= c.channels || part >= parts)
        return;
    float sum[TAPS] = {}, x[1];
    for (int64_t i = part * each; i < (part + 1) * each && i < all; i++) {
        int b = (int)(i / c.len), t = (int)(i % c.len);
        float d = as_float(dy[i * c.channels + at]);
#pragma unroll
        for (int k = 0; k < TAPS; k++)
            if (k < c.taps) {
                input_at<T, 1>(x, c, b, t, t - (c.taps - 1) + k, at, true);
                sum[k] += d * x[0];
            }
    }
#pragma unroll
    for (int k = 0; k < TAPS; k++)
        if (k < c.taps)
            partial[((int64_t)part * c.taps + k) * c.channels + at] = sum[k];
}

template <class T>
__global__ void conv_dw_sum_kernel(const __grid_constant__ mx_cuda_conv c, const float *partial,
                                   T *dw, int parts)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x, k = i / c.channels, at = i % c.channels;
    if (k >= c.taps)
        return;
    float sum = 0;
    for (int p = 0; p < parts; p++)
        sum += partial[((int64_t)p * c.taps + k) * c.channels + at];
    put(dw + (int64_t)at * c.taps + k, sum);
}

static dim3 grid_of(const mx_cuda_conv *c, int w, int run, unsigned block)
{
    unsigned across = (unsigned)((c->channels + w - 1) / w);
    return dim3((across + block - 1) / block, (unsigned)((c->len + run - 1) / run),
                (unsigned)c->batch);
}

template <class T, int W>
static cudaError_t forward(const mx_cuda_conv *c, void *y, cudaStream_t stream)
{
    const unsigned block = 128;
    int run = c->state && c->len <= 2 * RUN ? 2 * RUN : RUN;
    conv_forward_kernel<T, W><<<grid_of(c, W, run, block), block, 0, stream>>>(*c, (T *)y, run);
    if (c->state && run < c->len)
        conv_state_kernel<T, W><<<grid_of(c, W, c->len, block), block, 0, stream>>>(*c);
    return cudaGetLastError();
}

cudaError_t mx_cuda_conv_forward(const mx_cuda_conv *c, void *y, cudaStream_t stream)
{
    bool wide = c->channels % 4 == 0;
    if (c->f32)
        return wide ? forward<float, 4>(c, y, stream) : forward<float, 1>(c, y, stream);
    return wide ? forward<uint16_t, 4>(c, y, stream) : forward<uint16_t, 1>(c, y, stream);
}

static int parts_of(const mx_cuda_conv *c)
{
    int64_t n = ((int64_t)c->batch * c->len + 31) / 32;
    return (int)(n > PARTS ? PARTS : n < 1 ? 1 : n);
}

size_t mx_cuda_conv_backward_bytes(const mx_cuda_conv *c)
{
    return sizeof(float) * (size_t)parts_of(c) * (size_t)c->taps * (size_t)c->channels;
}

template <class T, int W>
static cudaError_t backward(const mx_cuda_conv *c, const void *dy, void *dx, void *dw, float *work,
                            cudaStream_t stream)
{
    const unsigned block = 128;
    int parts = parts_of(c);
    dim3 grid((unsigned)(c->channels + 31) / 32, (unsigned)(parts + 3) / 4), warps(32, 4);
    unsigned sums = (unsigned)(c->taps * c->channels + 127) / 128;
    conv_dx_kernel<T, W><<<grid_of(c, W, RUN, block), block, 0, stream>>>(*c, (const T *)dy,
                                                                          (T *)dx);
    auto *kernel = c->taps <= 4 ? conv_dw_kernel<T, 4> : conv_dw_kernel<T, MOST_TAPS>;
    kernel<<<grid, warps, 0, stream>>>(*c, (const T *)dy, work, parts);
    conv_dw_sum_kernel<T><<<sums, block, 0, stream>>>(*c, work, (T *)dw, parts);
    return cudaGetLastError();
}

cudaError_t mx_cuda_conv_backward(const mx_cuda_conv *c, const void *dy, void *dx, void *dw,
                                  void *work, cudaStream_t stream)
{
    bool wide = c->channels % 4 == 0;
    float *w = (float *)work;
    if (c->f32)
        return wide ? backward<float, 4>(c, dy, dx, dw, w, stream)
                    : backward<float, 1>(c, dy, dx, dw, w, stream);
    return wide ? backward<uint16_t, 4>(c, dy, dx, dw, w, stream)
                : backward<uint16_t, 1>(c, dy, dx, dw, w, stream);
}
