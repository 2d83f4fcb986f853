/* conv_kernels.cu - the short causal convolution. By age a = 0, 1, ... of an input, with w_a the
 * filter's tap K-1-a:
 *
 *     y[t] = sum over a of w_a x[t - a]
 *     dx[s] = sum over a of w_a dy[s + a]    dw_a = sum over s of x[s] dy[s + a]
 *
 * Memory bound. A thread takes W neighbouring channels and a run of tokens: it loads all of them
 * before it computes and slides over them in registers, filter and all. The warps of a block take
 * runs one after the other in time, so what two runs share is read from memory once. Where a run
 * lies in one segment, found by the warp while the inputs are under way, nothing is compared.
 * 8 bf16 a thread, 16 bytes, are no faster: they take too many registers (docs/log/gpu-experts.md).
 * What dx needs dw needs too: one pass over x and dy. dw is summed by a thread over its tokens,
 * then over the warps of its block, then over the blocks by a second kernel, always in one order.
 *
 * Filters of 4 taps have a kernel of that length; all others one of 16, a channel a thread.
 */
#include "device/cuda/recurrent/recurrent.cuh"
#include "ops/gpu_work.h"

enum { WARPS = 4, RUN = 16, PART = 64, STEP = 8 }; /* warps of a block; tokens */
enum { WIDE = 4, USUAL_TAPS = 4, MOST_TAPS = 16, MOST_PARTS = 256, GROUPS = 8 };

/* W neighbours as they lie in memory. */
template <class T, int W> struct few {
    T r;
    __device__ __forceinline__ void get(float f[W]) const { f[0] = as_float(r); }
    __device__ __forceinline__ void set(const float f[W]) { put(&r, f[0]); }
};
template <> struct few<float, 4> {
    float4 r;
    __device__ __forceinline__ void get(float f[4]) const { load4(f, &r.x); }
    __device__ __forceinline__ void set(const float f[4]) { store4(&r.x, f); }
};
template <> struct few<uint16_t, 4> {
    uint2 r;
    __device__ __forceinline__ void get(float f[4]) const
    {
        f[0] = __uint_as_float(r.x << 16), f[1] = __uint_as_float(r.x & 0xffff0000u);
        f[2] = __uint_as_float(r.y << 16), f[3] = __uint_as_float(r.y & 0xffff0000u);
    }
    __device__ __forceinline__ void set(const float f[4])
    {
        r.x = f32_to_bf16(f[0]) | (uint32_t)f32_to_bf16(f[1]) << 16;
        r.y = f32_to_bf16(f[2]) | (uint32_t)f32_to_bf16(f[3]) << 16;
    }
};
template <class T, int W> __device__ __forceinline__ few<T, W> load_few(const T *p)
{
    return *(const few<T, W> *)p;
}
template <class T, int W> __device__ __forceinline__ void store_few(T *p, const float f[W])
{
    few<T, W> v;
    v.set(f);
    *(few<T, W> *)p = v;
}

/* Taps of the filter: known to the compiler where there are the usual 4. */
template <int TAPS> __device__ __forceinline__ int taps_of(const mx_cuda_conv &c)
{
    return TAPS == MOST_TAPS ? c.taps : TAPS;
}

/* The filter of a thread's channels, by age. */
template <class T, int W, int TAPS>
__device__ __forceinline__ void load_filter(float w[TAPS][W], const mx_cuda_conv &c, int at)
{
    const T *from = (const T *)c.w + (int64_t)at * taps_of<TAPS>(c);
    if constexpr (TAPS == MOST_TAPS) {
        static_assert(W == 1, "long filters take a channel a thread");
#pragma unroll
        for (int a = 0; a < TAPS; a++)
            w[a][0] = a < c.taps ? as_float(from[c.taps - 1 - a]) : 0.f;
    } else {
#pragma unroll
        for (int q = 0; q < TAPS; q++) {
            float f[W];
            load_few<T, W>(from + q * W).get(f);
#pragma unroll
            for (int i = 0; i < W; i++)
                w[TAPS - 1 - (q * W + i) % TAPS][(q * W + i) / TAPS] = f[i];
        }
    }
}

/* Whether segments end among the N + TAPS - 1 tokens from `first` on. If so, bit i of same[a]:
 * token first + i is of one segment with the one a later. Outside of the row, where all values are
 * zero, anything will do. Asked by whole warps. */
template <int N, int TAPS>
__device__ __forceinline__ bool find_cuts(uint32_t same[TAPS], const mx_cuda_conv &c, int64_t row,
                                          int first)
{
    enum { ALL = N + TAPS - 1 };
    static_assert(ALL <= 32, "a lane for every token");
    int lane = threadIdx.x & 31;
    if (!c.segments)
        return false;
    int v = c.segments[row + min(max(first + lane, 0), c.len - 1)];
#pragma unroll
    for (int a = 1; a < TAPS; a++) {
        int later = __shfl_sync(~0u, v, min(lane + a, 31));
        same[a] = __ballot_sync(~0u, lane + a >= ALL || later == v);
        if (a == 1 && same[a] == ~0u)
            return false;
    }
    return true;
}

/* Tokens t, ..., t + N - 1 of a row that has `end`; zero outside of it. Where all are there, no
 * question stands between the loads: all are under way at once. */
template <int N, class T, int W>
__device__ __forceinline__ void take(few<T, W> *to, const T *from, const mx_cuda_conv &c,
                                     int64_t row, int t, int end, int at)
{
    from += (row + t) * c.channels + at;
    if (t >= 0 && t + N <= end) {
#pragma unroll
        for (int j = 0; j < N; j++)
            to[j] = load_few<T, W>(from + (int64_t)j * c.channels);
        return;
    }
#pragma unroll
    for (int j = 0; j < N; j++) {
        to[j] = {};
        if (t + j >= 0 && t + j < end)
            to[j] = load_few<T, W>(from + (int64_t)j * c.channels);
    }
}

/* --- decoding --- */

/* The input of row b at time t < n; before the row begins that is the state, or zero. */
template <class T, int W>
__device__ __forceinline__ few<T, W> input_at(const mx_cuda_conv &c, int b, int t, int at,
                                              bool anew)
{
    if (t >= 0)
        return load_few<T, W>((const T *)c.x + ((int64_t)b * c.len + t) * c.channels + at);
    few<T, W> r = {};
    int keep = c.taps - 1;
    float f[W];
    if (!c.state || anew || t < -keep)
        return r;
#pragma unroll
    for (int i = 0; i < W; i++)
        f[i] = get_any(c.state, ((int64_t)b * keep + keep + t) * c.channels + at + i, c.state_f32);
    r.set(f);
    return r;
}

/* The last K-1 inputs of these channels; all are read before the first is written. */
template <class T, int W, int TAPS>
__device__ __forceinline__ void next_state(const mx_cuda_conv &c, int b, int n, int at, bool anew)
{
    int keep = taps_of<TAPS>(c) - 1;
    few<T, W> x[TAPS - 1];
    if (!n)
        return;
#pragma unroll
    for (int r = 0; r < TAPS - 1; r++)
        if (r < keep)
            x[r] = input_at<T, W>(c, b, n - keep + r, at, anew);
#pragma unroll
    for (int r = 0; r < TAPS - 1; r++)
        if (r < keep) {
            float f[W];
            x[r].get(f);
#pragma unroll
            for (int i = 0; i < W; i++)
                put_any(c.state, ((int64_t)b * keep + r) * c.channels + at + i, f[i], c.state_f32);
        }
}

/* --- forward --- */

/* Where a warp is: its number among all runs, those of a row of channels first, and the first
 * channel of its lane; a lane after the last channels goes along with them and writes nothing. */
struct spot {
    int run, at;
    bool mine;
};
template <int W> __device__ __forceinline__ spot spot_of(const mx_cuda_conv &c)
{
    int across = (c.channels + 32 * W - 1) / (32 * W), i = blockIdx.x;
    int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    int at = (i % across * 32 + lane) * W;
    return {i / across * warps + warp, min(at, c.channels - W), at < c.channels};
}
static unsigned blocks_of(const mx_cuda_conv *c, int w, int64_t runs, int warps)
{
    int across = (c->channels + 32 * w - 1) / (32 * w);
    return (unsigned)((runs + warps - 1) / warps * across);
}

/* x[j], x[j+1], ... are what token t0 + j reads. WHOLE: all tokens are there, of one segment. */
template <bool WHOLE, class T, int W, int TAPS>
__device__ __forceinline__ void filter_run(const few<T, W> *x, const float w[TAPS][W], T *y,
                                           const mx_cuda_conv &c, int64_t row, int t0, int n,
                                           const uint32_t *same)
{
    enum { BEFORE = TAPS - 1 };
#pragma unroll
    for (int j = 0; j < RUN; j++) {
        int t = t0 + j;
        float sum[W] = {}, f[W];
#pragma unroll
        for (int a = TAPS - 1; a >= 0; a--)
            if (a < taps_of<TAPS>(c) && (WHOLE || t < n) &&
                (WHOLE || !a || !same || same[a] >> (BEFORE + j - a) & 1)) {
                x[BEFORE + j - a].get(f);
#pragma unroll
                for (int i = 0; i < W; i++)
                    sum[i] += f[i] * w[a][i];
            }
        if (WHOLE || t < c.len)
            store_few<T, W>(y + (row + t) * c.channels, sum);
    }
}

template <class T, int W, int TAPS>
__global__ void __launch_bounds__(32 * WARPS)
    conv_forward_kernel(const __grid_constant__ mx_cuda_conv c, T *y)
{
    enum { BEFORE = TAPS - 1 };
    spot p = spot_of<W>(c);
    int runs = (c.len + RUN - 1) / RUN, b = p.run / runs, t0 = p.run % runs * RUN;
    if (b >= c.batch)
        return;
    int64_t row = (int64_t)b * c.len;
    int n = c.state ? row_tokens(c.positions, b, c.len) : c.len;
    bool anew = c.state && n && c.positions[row] == 0;
    few<T, W> x[BEFORE + RUN];
    float w[TAPS][W];
    uint32_t same[TAPS];
    take<BEFORE + RUN, T, W>(x, (const T *)c.x, c, row, t0 - BEFORE, n, p.at);
    load_filter<T, W, TAPS>(w, c, p.at);
    if (c.state && t0 < BEFORE)
#pragma unroll
        for (int j = 0; j < BEFORE; j++)
            if (t0 - BEFORE + j < 0)
                x[j] = input_at<T, W>(c, b, t0 - BEFORE + j, p.at, anew);
    bool cut = find_cuts<RUN, TAPS>(same, c, row, t0 - BEFORE);
    if (!p.mine)
        return;
    y += p.at;
    if (cut)
        filter_run<false, T, W, TAPS>(x, w, y, c, row, t0, n, same);
    else if (t0 + RUN <= n)
        filter_run<true, T, W, TAPS>(x, w, y, c, row, t0, n, NULL);
    else
        filter_run<false, T, W, TAPS>(x, w, y, c, row, t0, n, NULL);
    if (c.state && c.len <= RUN)
        next_state<T, W, TAPS>(c, b, n, p.at, anew);
}

/* Of rows that several warps have read. */
template <class T, int W, int TAPS>
__global__ void __launch_bounds__(32) conv_state_kernel(const __grid_constant__ mx_cuda_conv c)
{
    spot p = spot_of<W>(c);
    int b = p.run, n = row_tokens(c.positions, b, c.len);
    if (p.mine)
        next_state<T, W, TAPS>(c, b, n, p.at, n && c.positions[(int64_t)b * c.len] == 0);
}

/* Tokens that share states: a thread takes a channel of a state, and its tokens in order. */
template <class T, int TAPS>
__global__ void __launch_bounds__(32 * WARPS)
    conv_rows_kernel(const __grid_constant__ mx_cuda_conv c, T *y)
{
    int at = blockIdx.x * 32 * WARPS + threadIdx.x, r = blockIdx.y, keep = taps_of<TAPS>(c) - 1;
    int first = token_of(c.rows, r, 0, c.batch), here = min(at, c.channels - 1);
    if (first >= c.batch)
        return;
    float w[TAPS][1], x[TAPS] = {}; /* inputs by age */
    load_filter<T, 1, TAPS>(w, c, here);
    int64_t last = ((int64_t)r * keep + keep) * c.channels + here;
#pragma unroll
    for (int a = 1; a < TAPS; a++)
        if (a <= keep)
            x[a] = get_any(c.state, last - (int64_t)a * c.channels, c.state_f32);
    for (int t = first; t < c.batch; t = token_of(c.rows, r, t + 1, c.batch)) {
        int64_t to = (int64_t)t * c.channels + here;
        float sum = 0;
        bool there = c.positions[t] >= 0, reset = c.positions[t] == 0;
        x[0] = as_float(((const T *)c.x)[to]);
#pragma unroll
        for (int a = TAPS - 1; a >= 0; a--) {
            x[a] = a && reset ? 0.f : x[a];
            sum += a <= keep ? x[a] * w[a][0] : 0.f;
        }
        if (at < c.channels)
            put(y + to, there ? sum : 0.f);
#pragma unroll
        for (int a = TAPS - 1; a > 0; a--)
            x[a] = there ? x[a - 1] : x[a];
    }
#pragma unroll
    for (int a = 1; a < TAPS; a++)
        if (a <= keep && at < c.channels)
            put_any(c.state, last - (int64_t)a * c.channels, x[a], c.state_f32);
}

template <class T, int TAPS>
static cudaError_t forward_rows(const mx_cuda_conv *c, void *y, cudaStream_t stream)
{
    dim3 grid((unsigned)((c->channels + 32 * WARPS - 1) / (32 * WARPS)), (unsigned)c->states);
    conv_rows_kernel<T, TAPS><<<grid, 32 * WARPS, 0, stream>>>(*c, (T *)y);
    return cudaGetLastError();
}

template <class T, int W, int TAPS>
static cudaError_t forward(const mx_cuda_conv *c, void *y, cudaStream_t stream)
{
    if (c->rows)
        return forward_rows<T, TAPS>(c, y, stream);
    int runs = (c->len + RUN - 1) / RUN, warps = runs < WARPS ? 1 : WARPS;
    unsigned blocks = blocks_of(c, W, (int64_t)c->batch * runs, warps);
    if (!blocks)
        return cudaSuccess;
    conv_forward_kernel<T, W, TAPS><<<blocks, 32 * warps, 0, stream>>>(*c, (T *)y);
    if (c->state && c->len > RUN)
        conv_state_kernel<T, W, TAPS><<<blocks_of(c, W, c->batch, 1), 32, 0, stream>>>(*c);
    return cudaGetLastError();
}

/* WIDE channels a thread: those of a token are whole vectors, and all begins at one. */
static bool is_wide(const mx_cuda_conv *c, const void *y, const void *dy)
{
    uintptr_t all = (uintptr_t)c->x | (uintptr_t)c->w | (uintptr_t)y | (uintptr_t)dy;
    return c->channels % WIDE == 0 && all % (c->f32 ? 16 : 8) == 0;
}

template <class T>
static cudaError_t forward_any(const mx_cuda_conv *c, void *y, cudaStream_t stream)
{
    if (c->taps != USUAL_TAPS)
        return forward<T, 1, MOST_TAPS>(c, y, stream);
    return is_wide(c, y, NULL) ? forward<T, WIDE, USUAL_TAPS>(c, y, stream)
                               : forward<T, 1, USUAL_TAPS>(c, y, stream);
}

cudaError_t mx_cuda_conv_forward(const mx_cuda_conv *c, void *y, cudaStream_t stream)
{
    return c->f32 ? forward_any<float>(c, y, stream) : forward_any<uint16_t>(c, y, stream);
}

/* --- backward --- */

/* What STEP tokens from t on give: x[j] and d[j] are of token t + j. WHOLE: as above. */
template <bool WHOLE, class T, int W, int TAPS>
__device__ __forceinline__ void turn_back(const few<T, W> *x, const few<T, W> *d,
                                          const float w[TAPS][W], float dw[TAPS][W], T *dx,
                                          const mx_cuda_conv &c, int64_t row, int t, bool mine,
                                          const uint32_t *same)
{
#pragma unroll
    for (int j = 0; j < STEP; j++) {
        float sum[W] = {}, f[W], g[W];
        x[j].get(g);
#pragma unroll
        for (int a = TAPS - 1; a >= 0; a--)
            if (a < taps_of<TAPS>(c) && (WHOLE || !a || !same || same[a] >> j & 1)) {
                d[j + a].get(f);
#pragma unroll
                for (int i = 0; i < W; i++) {
                    sum[i] += f[i] * w[a][i];
                    dw[a][i] += f[i] * g[i];
                }
            }
        if (mine && (WHOLE || t + j < c.len))
            store_few<T, W>(dx + (row + t + j) * c.channels, sum);
    }
}

/* dx of PART tokens from t0 on, and their sums for dw. */
template <class T, int W, int TAPS>
__device__ __forceinline__ void back_part(const float w[TAPS][W], float dw[TAPS][W], const T *dy,
                                          T *dx, const mx_cuda_conv &c, int64_t row, int t0,
                                          const spot &p)
{
    enum { AFTER = TAPS - 1 };
    few<T, W> x[STEP], d[STEP + AFTER];
    uint32_t same[TAPS];
    dx += p.at;
    take<AFTER, T, W>(d, dy, c, row, t0, c.len, p.at);
    for (int t = t0; t < t0 + PART && t < c.len; t += STEP) {
        take<STEP, T, W>(x, (const T *)c.x, c, row, t, c.len, p.at);
        take<STEP, T, W>(d + AFTER, dy, c, row, t + AFTER, c.len, p.at);
        if (find_cuts<STEP, TAPS>(same, c, row, t))
            turn_back<false, T, W, TAPS>(x, d, w, dw, dx, c, row, t, p.mine, same);
        else if (t + STEP <= c.len)
            turn_back<true, T, W, TAPS>(x, d, w, dw, dx, c, row, t, p.mine, NULL);
        else
            turn_back<false, T, W, TAPS>(x, d, w, dw, dx, c, row, t, p.mine, NULL);
#pragma unroll
        for (int j = 0; j < AFTER; j++)
            d[j] = d[STEP + j];
    }
}

/* The sums of a block's warps, in their order, into partial (K by age, C). */
template <int W, int TAPS>
__device__ __forceinline__ void sum_warps(const float dw[TAPS][W], const mx_cuda_conv &c,
                                          float *partial, int first)
{
    __shared__ float sums[WARPS][TAPS][32 * W];
    int lane = threadIdx.x & 31, warp = threadIdx.x / 32, taps = taps_of<TAPS>(c);
#pragma unroll
    for (int a = 0; a < TAPS; a++)
#pragma unroll
        for (int i = 0; i < W; i++)
            sums[warp][a][i * 32 + lane] = dw[a][i];
    __syncthreads();
    for (int k = threadIdx.x; k < taps * 32 * W; k += 32 * WARPS) {
        int a = k / (32 * W), e = k % (32 * W), from = e % W * 32 + e / W;
        float sum = 0;
#pragma unroll
        for (int i = 0; i < WARPS; i++)
            sum += sums[i][a][from];
        if (first + e < c.channels)
            partial[(int64_t)a * c.channels + first + e] = sum;
    }
}

/* Every warp takes `each` parts; a block's sums go to partial (blocks in time, K by age, C). */
template <class T, int W, int TAPS>
__global__ void __launch_bounds__(32 * WARPS)
    conv_backward_kernel(const __grid_constant__ mx_cuda_conv c, const T *dy, T *dx, float *partial,
                         int each)
{
    spot p = spot_of<W>(c);
    int parts = (c.len + PART - 1) / PART;
    int64_t all = (int64_t)c.batch * parts, i0 = (int64_t)p.run * each;
    float w[TAPS][W], dw[TAPS][W] = {};
    load_filter<T, W, TAPS>(w, c, p.at);
    for (int64_t i = i0; i < i0 + each && i < all; i++)
        back_part<T, W, TAPS>(w, dw, dy, dx, c, i / parts * c.len, (int)(i % parts) * PART, p);
    int across = (c.channels + 32 * W - 1) / (32 * W);
    int64_t size = (int64_t)taps_of<TAPS>(c) * c.channels;
    sum_warps<W, TAPS>(dw, c, partial + blockIdx.x / across * size, blockIdx.x % across * 32 * W);
}

/* A warp's lanes have 32 sums, a block's warps every eighth part of each. */
template <class T>
__global__ void __launch_bounds__(32 * GROUPS)
    conv_dw_kernel(const __grid_constant__ mx_cuda_conv c, const float *partial, T *dw, int parts)
{
    __shared__ float sums[GROUPS][32];
    int lane = threadIdx.x & 31, warp = threadIdx.x / 32, size = c.taps * c.channels;
    int i = blockIdx.x * 32 + lane, a = i / c.channels, at = i % c.channels;
    float sum = 0;
    if (i < size)
#pragma unroll 8
        for (int p = warp; p < parts; p += GROUPS)
            sum += partial[(int64_t)p * size + i];
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp || i >= size)
        return;
#pragma unroll
    for (int g = 1; g < GROUPS; g++)
        sum += sums[g][lane];
    put(dw + (int64_t)at * c.taps + c.taps - 1 - a, sum);
}

/* Parts of a warp, so that there are not too many sums to add. */
static_assert((int)PART == (int)MX_GPU_CONV_PART && (int)WARPS == (int)MX_GPU_CONV_WARPS &&
                  (int)MOST_PARTS == (int)MX_GPU_CONV_SUMS, "as planned");
static int each_of(const mx_cuda_conv *c)
{
    return (int)mx_gpu_conv_each(c->batch, c->len);
}
static int64_t sums_of(const mx_cuda_conv *c)
{
    return mx_gpu_conv_sums(c->batch, c->len);
}

size_t mx_cuda_conv_backward_bytes(const mx_cuda_conv *c)
{
    return mx_gpu_conv_bytes(c->batch, c->len, c->taps, c->channels);
}

template <class T, int W, int TAPS>
static cudaError_t backward(const mx_cuda_conv *c, const void *dy, void *dx, void *dw, float *work,
                            cudaStream_t stream)
{
    int64_t sums = sums_of(c);
    unsigned blocks = blocks_of(c, W, sums * WARPS, WARPS);
    unsigned size = (unsigned)(c->taps * c->channels);
    if (blocks)
        conv_backward_kernel<T, W, TAPS>
            <<<blocks, 32 * WARPS, 0, stream>>>(*c, (const T *)dy, (T *)dx, work, each_of(c));
    conv_dw_kernel<T><<<(size + 31) / 32, 32 * GROUPS, 0, stream>>>(*c, work, (T *)dw, (int)sums);
    return cudaGetLastError();
}

template <class T>
static cudaError_t backward_any(const mx_cuda_conv *c, const void *dy, void *dx, void *dw,
                                float *work, cudaStream_t stream)
{
    if (c->taps != USUAL_TAPS)
        return backward<T, 1, MOST_TAPS>(c, dy, dx, dw, work, stream);
    return is_wide(c, dx, dy) ? backward<T, WIDE, USUAL_TAPS>(c, dy, dx, dw, work, stream)
                              : backward<T, 1, USUAL_TAPS>(c, dy, dx, dw, work, stream);
}

cudaError_t mx_cuda_conv_backward(const mx_cuda_conv *c, const void *dy, void *dx, void *dw,
                                  void *work, cudaStream_t stream)
{
    return c->f32 ? backward_any<float>(c, dy, dx, dw, (float *)work, stream)
                  : backward_any<uint16_t>(c, dy, dx, dw, (float *)work, stream);
}
