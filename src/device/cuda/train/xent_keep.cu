/* xent_keep.cu - see xent_keep.h. What stands between the GEMMs: rows. */
#include "device/cuda/train/xent_keep.h"
#include "device/cuda/train/xent_rows.cuh"

enum { PLAIN_THREADS = 256 };
enum { NO_LABEL = -(1 << 30) }; /* in no tile of the GEMM */
#define MOST_SUM 5e21f        /* e^50: see mx_xent_kept */
#define LEAST_SUM 2e-22f

struct keep_args {
    mx_xent_exp s;
    mx_xent_exp_args a;
    mx_xent_keep_rows r;
    int32_t *local;
};

__device__ __forceinline__ int64_t word_of(int64_t label, int64_t n)
{
    int64_t w = label % n;
    return w < 0 ? w + n : w;
}

/* A warp a row: the logit that its others are counted from, and its label as a column. */
__global__ __launch_bounds__(OWN_THREADS) void own_kernel(keep_args p)
{
    int64_t row = (int64_t)blockIdx.x * (OWN_THREADS / 32) + threadIdx.x / 32;
    int64_t bands = (p.s.rows + BAND - 1) / BAND + 1;
    for (int64_t i = (int64_t)blockIdx.x * OWN_THREADS + threadIdx.x; i < bands;
         i += (int64_t)gridDim.x * OWN_THREADS)
        p.a.bands[i] = 0;
    if (row >= p.s.rows)
        return;
    int64_t label = p.r.labels[row], here = label - p.r.first;
    float l = FAR_AWAY, z = FAR_AWAY;
    if (label >= 0) {
        const uint16_t *x = p.a.x + row * p.s.d, *w = p.a.w + word_of(here, p.s.vocab) * p.s.d;
        l = p.s.scale * warp_dot(x, w, p.s.d);
        z = through_cap(l, p.s.softcap);
    }
    if (threadIdx.x % 32 == 0) {
        ((float2 *)p.a.about)[row] = make_float2(l, z);
        p.a.own[row] = z;
        p.local[row] = label >= 0 && here >= 0 && here < p.s.vocab ? (int32_t)here : NO_LABEL;
    }
}

template <mx_xent_pass PASS>
__global__ __launch_bounds__(ROW_BLOCK *SLICES) void rows_kernel(keep_args p)
{
    int lane = threadIdx.x % ROW_BLOCK, slice = threadIdx.x / ROW_BLOCK;
    int64_t row = (int64_t)blockIdx.x * ROW_BLOCK + lane;
    bool mine = row < p.s.rows && (PASS == MX_XENT_FIRST || p.a.marked[row]);
    if (PASS != MX_XENT_FIRST && !__syncthreads_or(mine))
        return;
    float sum = over_tiles(p, row, PASS == MX_XENT_MOST, slice, lane);
    if (slice || !mine)
        return;
    if (PASS == MX_XENT_MOST) {
        float l = sum / LOG2E;
        ((float2 *)p.a.about)[row] = make_float2(l, through_cap(l, p.s.softcap));
        return;
    }
    bool counts = p.r.labels[row] >= 0, here = p.local[row] != NO_LABEL;
    float about = p.a.about[2 * row + 1], own = p.a.own[row];
    float all = sum + (here ? (own == about ? 1.f : expf(own - about)) : 0.f);
    bool marked = PASS == MX_XENT_FIRST && counts && !(all < MOST_SUM && all > LEAST_SUM);
    p.r.lse[row] = counts ? about + logf(all) : 0.f;
    p.r.picked[row] = here ? own : 0.f;
    p.r.about[row] = counts ? about : 0.f;
    if (PASS == MX_XENT_FIRST)
        p.a.marked[row] = marked;
    if (marked)
        p.a.bands[row / BAND] = p.a.bands[(p.s.rows + BAND - 1) / BAND] = 1;
}

cudaError_t mx_cuda_xent_keep(const mx_xent_exp *s, const mx_xent_exp_args *a, int32_t *labels,
                              const mx_xent_keep_rows *r, cudaStream_t stream)
{
    keep_args p = {*s, *a, *r, labels};
    mx_xent_exp_args with_labels = *a;
    with_labels.labels = labels;
    unsigned blocks = (unsigned)((s->rows + ROW_BLOCK - 1) / ROW_BLOCK);
    unsigned per = OWN_THREADS / 32;
    own_kernel<<<((unsigned)s->rows + per - 1) / per, OWN_THREADS, 0, stream>>>(p);
    cudaError_t e = cudaGetLastError();
    static const mx_xent_pass passes[] = {MX_XENT_FIRST, MX_XENT_MOST, MX_XENT_AGAIN};
    for (mx_xent_pass pass : passes) {
        auto *rows = pass == MX_XENT_FIRST  ? rows_kernel<MX_XENT_FIRST>
                     : pass == MX_XENT_MOST ? rows_kernel<MX_XENT_MOST>
                                            : rows_kernel<MX_XENT_AGAIN>;
        if (e == cudaSuccess)
            e = mx_cuda_xent_gemm(s, &with_labels, pass, stream);
        if (e != cudaSuccess)
            return e;
        rows<<<blocks, ROW_BLOCK * SLICES, 0, stream>>>(p);
        e = cudaGetLastError();
    }
    return e;
}

/* --- from logits --- */

__device__ __forceinline__ float over_block(float x, bool most)
{
    __shared__ float part[PLAIN_THREADS / 32];
    __syncthreads();
#pragma unroll
    for (int o = 16; o; o >>= 1) {
        float y = __shfl_xor_sync(~0u, x, o);
        x = most ? fmaxf(x, y) : x + y;
    }
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = x;
    __syncthreads();
    x = part[0];
    for (int i = 1; i < PLAIN_THREADS / 32; i++)
        x = most ? fmaxf(x, part[i]) : x + part[i];
    return x;
}
template <class T>
__global__ __launch_bounds__(PLAIN_THREADS) void plain_kernel(mx_xent_plain_keep s,
                                                              mx_xent_keep_rows r)
{
    int64_t row = blockIdx.x, label = r.labels[row], here = label - r.first;
    const float *l = s.logits + row * s.ld_logits;
    T *kept = (T *)s.kept + row * s.ld;
    bool counts = label >= 0, is_here = counts && here >= 0 && here < s.vocab;
    float most = -INFINITY, sum = 0;
    for (int64_t j = threadIdx.x; j < s.vocab; j += PLAIN_THREADS)
        most = fmaxf(most, through_cap(l[j], s.softcap));
    most = over_block(most, true);
    for (int64_t j = threadIdx.x; j < s.vocab; j += PLAIN_THREADS)
        sum += expf(through_cap(l[j], s.softcap) - most);
    sum = over_block(sum, false);
    float lse = s.vocab ? most + logf(sum) : -INFINITY;
    float about = counts && s.vocab ? through_cap(l[word_of(here, s.vocab)], s.softcap) : 0.f;
    if (counts && s.vocab && !(fabsf(lse - about) <= 50.f))
        about = most;
    for (int64_t j = threadIdx.x; j < s.ld; j += PLAIN_THREADS) {
        bool word = counts && j < s.vocab && !(is_here && j == here);
        float z = word ? through_cap(l[j], s.softcap) : 0.f;
        float u = s.softcap > 0 ? z / s.softcap : 0.f;
        put(kept + j, word ? expf(z - about) * (1.f - u * u) : 0.f);
    }
    if (threadIdx.x)
        return;
    r.lse[row] = counts ? lse : 0.f;
    r.picked[row] = is_here ? through_cap(l[here], s.softcap) : 0.f;
    r.about[row] = about;
}

cudaError_t mx_cuda_xent_plain_keep(const mx_xent_plain_keep *s, const mx_xent_keep_rows *r,
                                    cudaStream_t stream)
{
    auto *kernel = s->f32 ? plain_kernel<float> : plain_kernel<uint16_t>;
    kernel<<<(unsigned)s->rows, PLAIN_THREADS, 0, stream>>>(*s, *r);
    return cudaGetLastError();
}

/* --- back --- */

/* A block a row. */
template <class T> __global__ __launch_bounds__(PLAIN_THREADS) void back_kernel(mx_xent_back s)
{
    int64_t row = blockIdx.x, label = s.labels[row], here = label - s.first;
    T *kept = (T *)s.kept + row * s.ld;
    bool is_here = label >= 0 && here >= 0 && here < s.vocab;
    float factor = 0;
    if (label >= 0) {
        float lse = s.lse[row], dlse = s.dlse[row], z = s.picked[row];
        float u = s.softcap > 0 ? z / s.softcap : 0.f;
        float own = is_here ? (dlse * expf(z - lse) + s.dpicked[row]) * (1.f - u * u) : 0.f;
        factor = dlse * expf(s.about[row] - lse);
        if (fabsf(own) > MOST_SUM * fabsf(factor)) {
            float less = factor / own;
            for (int64_t j = threadIdx.x; j < s.vocab; j += PLAIN_THREADS)
                put(kept + j, as_float(kept[j]) * less);
            factor = own;
            __syncthreads();
        }
        if (is_here && threadIdx.x == 0)
            put(kept + here, own == 0.f ? 0.f : own / factor);
    }
    if (threadIdx.x == 0)
        s.factor[row] = factor;
    const T *x = (const T *)s.x + row * s.d;
    T *y = (T *)s.scaled + row * s.d;
    for (int64_t j = threadIdx.x; j < s.d; j += PLAIN_THREADS)
        put(y + j, as_float(x[j]) * factor);
}

cudaError_t mx_cuda_xent_back(const mx_xent_back *s, cudaStream_t stream)
{
    auto *kernel = s->f32 ? back_kernel<float> : back_kernel<uint16_t>;
    kernel<<<(unsigned)s->rows, PLAIN_THREADS, 0, stream>>>(*s);
    return cudaGetLastError();
}

template <class T> __global__ void dx_kernel(mx_xent_back s, T *dx, const float *sums)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < s.rows * s.d)
        put(dx + i, sums[i] * s.factor[i / s.d]);
}

cudaError_t mx_cuda_xent_back_dx(const mx_xent_back *s, void *dx, const float *sums,
                                 cudaStream_t stream)
{
    if (!s->f32 && s->d % 8 == 0)
        return mx_cuda_xent_scale((mx_bf16 *)dx, sums, s->factor, s->rows, s->d, stream);
    unsigned blocks = (unsigned)((s->rows * s->d + 255) / 256);
    if (s->f32)
        dx_kernel<<<blocks, 256, 0, stream>>>(*s, (float *)dx, sums);
    else
        dx_kernel<<<blocks, 256, 0, stream>>>(*s, (uint16_t *)dx, sums);
    return cudaGetLastError();
}
