/* multi_tensor.cu - AdamW and sums of squares over many tensors at once (multi-tensor apply).
 *
 * A model has hundreds of weights, most of them small: a launch each would cost more than the work.
 * The descriptions of up to MANY tensors travel as the kernel's argument; every block works on one
 * piece of one tensor, found by a search over where tensors begin. Each block leaves the sum of its
 * squares, in double, and a second kernel adds up a tensor's pieces in order, so the result does
 * not depend on scheduling.
 *
 * AdamW as src/ops/adamw.c has it, the stochastic rounding of bf16 weights included. Bytes an
 * element with float state and a bf16 gradient: 8 (weight) + 16 (moments) + 2 (gradient) + 2
 * (copy).
 */
#include "device/cuda/train/train_kernels.h"
#include "device/cuda/core/vec.cuh"
#include "ops/gpu_work.h"

/* A block's piece is short enough to keep many blocks reading while others write. */
enum { THREADS = 256, PIECE = 4 * 4 * THREADS, SQUARES_PIECE = 16 * 4 * THREADS, MANY = 32 };
static_assert((int)PIECE == (int)MX_GPU_ADAMW_PIECE &&
                  (int)SQUARES_PIECE == (int)MX_GPU_SQUARES_PIECE, "as planned");

static int64_t pieces_of(int64_t n, int64_t piece)
{
    return (n + piece - 1) / piece;
}

/* What a step says to all updates, worked out once: the powers of the betas take longer than a
 * block's first loads. */
struct adamw_numbers {
    float lr, scale, fix1, fix2;
    uint64_t step_bits; /* the step's share in the random bits */
};
enum { NUMBERS = sizeof(adamw_numbers) / sizeof(double) }; /* at the front of the scratch */
static_assert((int)NUMBERS == (int)MX_GPU_ADAMW_NUMBERS, "as planned");

size_t mx_cuda_adamw_bytes(int64_t n)
{
    return mx_gpu_adamw_bytes(n);
}

size_t mx_cuda_squares_bytes(int64_t n)
{
    return mx_gpu_squares_bytes(n);
}

/* Where the pieces of each tensor begin; first[n] is their number. */
struct pieces {
    int n;
    unsigned first[MANY + 1];
};

__device__ int tensor_of(const pieces &p, unsigned block)
{
    int t = 0;
    for (int step = MANY / 2; step; step /= 2)
        if (t + step < p.n && p.first[t + step] <= block)
            t += step;
    return t;
}

/* What the block's threads have, added up; thread 0 gets it. */
__device__ double sum_over_block(double x)
{
    __shared__ double part[THREADS / 32];
#pragma unroll
    for (int o = 16; o; o >>= 1)
        x += __shfl_xor_sync(~0u, x, o);
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0;
    for (int i = 0; i < THREADS / 32; i++)
        x += part[i];
    return x;
}

struct outputs {
    void *out[MANY];
    bool wide[MANY];
};

/* Block t adds up the pieces of tensor t. */
__global__ void finish_kernel(const double *partial, pieces p, outputs o)
{
    double total = 0;
    for (unsigned i = p.first[blockIdx.x] + threadIdx.x; i < p.first[blockIdx.x + 1]; i += THREADS)
        total += partial[i];
    total = sum_over_block(total);
    if (threadIdx.x == 0 && o.wide[blockIdx.x])
        *(double *)o.out[blockIdx.x] = total;
    else if (threadIdx.x == 0)
        *(float *)o.out[blockIdx.x] = (float)total;
}

/* --- squares --- */

struct squares_table {
    pieces p;
    mx_squares_one t[MANY];
};

template <typename X> __device__ double squares_of_piece(const X *x, int64_t from, int64_t to)
{
    float total = 0; /* at most 64 squares */
    int64_t to4 = from + (to - from) / 4 * 4;
#pragma unroll 4
    for (int64_t i = from + 4 * threadIdx.x; i < to4; i += 4 * THREADS) {
        float f[4];
        load4(f, x + i);
        total += (f[0] * f[0] + f[1] * f[1]) + (f[2] * f[2] + f[3] * f[3]);
    }
    int64_t i = to4 + threadIdx.x;
    if (i < to)
        total += as_float(x[i]) * as_float(x[i]);
    return total;
}

__global__ void __launch_bounds__(THREADS)
    squares_kernel(const __grid_constant__ squares_table table, double *partial)
{
    int t = tensor_of(table.p, blockIdx.x);
    const mx_squares_one &a = table.t[t];
    int64_t from = (int64_t)(blockIdx.x - table.p.first[t]) * SQUARES_PIECE;
    int64_t to = from + SQUARES_PIECE < a.n ? from + SQUARES_PIECE : a.n;
    double total = a.x_f32 ? squares_of_piece((const float *)a.x, from, to)
                           : squares_of_piece((const uint16_t *)a.x, from, to);
    total = sum_over_block(total);
    if (threadIdx.x == 0)
        partial[blockIdx.x] = total;
}

cudaError_t mx_cuda_sum_squares(const mx_squares_one *a, int n, double *partial,
                                cudaStream_t stream)
{
    for (int at = 0; at < n; at += MANY) {
        squares_table table = {};
        outputs o = {};
        for (int i = 0; i < MANY && at + i < n; i++) {
            table.t[i] = a[at + i];
            o.out[i] = a[at + i].out;
            o.wide[i] = a[at + i].wide;
            table.p.first[i + 1] =
                table.p.first[i] + (unsigned)pieces_of(a[at + i].n, SQUARES_PIECE);
            table.p.n = i + 1;
        }
        unsigned blocks = table.p.first[table.p.n];
        if (blocks) /* a stage of a pipeline has empty parts of others' weights */
            squares_kernel<<<blocks, THREADS, 0, stream>>>(table, partial);
        finish_kernel<<<(unsigned)table.p.n, THREADS, 0, stream>>>(partial, table.p, o);
        partial += blocks;
    }
    return cudaGetLastError();
}

/* --- AdamW --- */

struct adamw_table {
    pieces p;
    mx_adamw_rule rule;
    mx_adamw_one t[MANY];
};

/* x / (sqrt(y) + e). Weights of 16 bits take the chip's own instructions, a few units in the last
 * place off: rounded exactly, root and quotient would take longer than the memory. */
template <bool EXACT> __device__ __forceinline__ float over_root(float x, float y, float e)
{
    if (EXACT)
        return x / (sqrtf(y) + e);
    float root;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(root) : "f"(y));
    return __fdividef(x, root + e);
}

template <bool EXACT>
__device__ __forceinline__ float adamw_element(const mx_adamw_rule &a, const adamw_numbers &r,
                                               float decay, float w, float g, float *m, float *v)
{
    g *= r.scale;
    *m = a.b1 * *m + (1 - a.b1) * g;
    *v = a.b2 * *v + (1 - a.b2) * g * g;
    float step = over_root<EXACT>(*m * r.fix1, *v * r.fix2 + a.eps_root, a.eps);
    return w - r.lr * (step + decay * w);
}

__device__ __forceinline__ void put_weight(float *w, int64_t i, float x, uint64_t)
{
    w[i] = x;
}
__device__ __forceinline__ void put_weight(uint16_t *w, int64_t i, float x, uint64_t key)
{
    w[i] = bf16_stochastic(x, (uint32_t)(random_bits64(key, i / 4) >> (16 * (i % 4))));
}
__device__ __forceinline__ void put_weights(float *w, int64_t i, const float x[4], uint64_t)
{
    store4(w + i, x);
}
__device__ __forceinline__ void put_weights(uint16_t *w, int64_t i, const float x[8], uint64_t key)
{
    uint32_t pair[4];
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
        uint32_t bits = (uint32_t)(random_bits64(key, (i + j) / 4) >> (16 * (j % 4)));
        pair[j / 2] = bf16_stochastic(x[j], bits) |
                      (uint32_t)bf16_stochastic(x[j + 1], bits >> 16) << 16;
    }
    *(uint4 *)(w + i) = make_uint4(pair[0], pair[1], pair[2], pair[3]);
}

/* N neighbours, 4 or 8. */
template <int N, typename T> __device__ __forceinline__ void load_some(float *f, const T *p)
{
    if constexpr (N == 8 && sizeof(T) == 2) {
        unpack8(f, load8(p));
    } else {
#pragma unroll
        for (int j = 0; j < N; j += 4)
            load4(f + j, p + j);
    }
}
template <int N, typename T> __device__ __forceinline__ void store_some(T *p, const float *f)
{
    if constexpr (N == 8 && sizeof(T) == 2) {
        store8(p, pack8(f));
    } else {
#pragma unroll
        for (int j = 0; j < N; j += 4)
            store4(p + j, f + j);
    }
}

template <typename W, typename G, typename M>
__device__ __forceinline__ double adamw_piece(const mx_adamw_rule &rule, const adamw_numbers &r,
                                              const mx_adamw_one &a, int64_t from, int64_t to)
{
    W *w = (W *)a.w;
    M *m = (M *)a.m, *v = (M *)a.v;
    const G *g = (const G *)a.g;
    constexpr bool EXACT = sizeof(W) == 4;
    constexpr int N = EXACT ? 4 : 8; /* 16 bytes of weights */
    uint64_t key = a.salt + r.step_bits;
    float squares = 0; /* at most 16 */
    int64_t whole = from + (to - from) / N * N;
#pragma unroll 2
    for (int64_t i = from + N * threadIdx.x; i < whole; i += N * THREADS) {
        float fw[N], fg[N], fm[N], fv[N];
        load_some<N>(fw, w + i);
        load_some<N>(fg, g + i);
        load_some<N>(fm, m + i);
        load_some<N>(fv, v + i);
#pragma unroll
        for (int j = 0; j < N; j++) {
            fw[j] = adamw_element<EXACT>(rule, r, a.decay, fw[j], fg[j], &fm[j], &fv[j]);
            squares += fw[j] * fw[j];
        }
        put_weights(w, i, fw, key);
        store_some<N>(m + i, fm);
        store_some<N>(v + i, fv);
        if (a.copy)
            store_some<N>(a.copy + i, fw);
    }
    int64_t i = whole + threadIdx.x;
    if (i < to) {
        float mi = as_float(m[i]), vi = as_float(v[i]);
        float x = adamw_element<EXACT>(rule, r, a.decay, as_float(w[i]), as_float(g[i]), &mi, &vi);
        put(&m[i], mi);
        put(&v[i], vi);
        put_weight(w, i, x, key);
        squares += x * x;
        if (a.copy)
            a.copy[i] = f32_to_bf16(x);
    }
    return squares;
}

/* Nothing is updated: the gradient was not finite. The norm is that of the weights as they are. */
__device__ double adamw_nothing(const mx_adamw_one &a, int64_t from, int64_t to)
{
    return a.w_f32 ? squares_of_piece((const float *)a.w, from, to)
                   : squares_of_piece((const uint16_t *)a.w, from, to);
}

template <typename W, typename M>
__device__ __forceinline__ double adamw_gradient(const mx_adamw_rule &rule, const adamw_numbers &r,
                                                 const mx_adamw_one &a, int64_t from, int64_t to)
{
    return a.g_f32 ? adamw_piece<W, float, M>(rule, r, a, from, to)
                   : adamw_piece<W, uint16_t, M>(rule, r, a, from, to);
}

__global__ void numbers_kernel(mx_adamw_rule rule, adamw_numbers *out)
{
    double t = rule.hyper[2];
    *out = {rule.hyper[0], rule.hyper[1], (float)(1 / (1 - pow((double)rule.b1, t))),
            (float)(1 / (1 - pow((double)rule.b2, t))), (uint64_t)t * 0xd1342543de82ef95ull};
}

__global__ void __launch_bounds__(THREADS)
    adamw_kernel(const __grid_constant__ adamw_table table, const adamw_numbers *numbers,
                 double *partial)
{
    adamw_numbers r = *numbers;
    int k = tensor_of(table.p, blockIdx.x);
    const mx_adamw_one &a = table.t[k];
    int64_t from = (int64_t)(blockIdx.x - table.p.first[k]) * PIECE;
    int64_t to = from + PIECE < a.n ? from + PIECE : a.n;
    double squares;
    if (!isfinite(r.scale))
        squares = adamw_nothing(a, from, to);
    else if (a.w_f32)
        squares = a.moments_f32 ? adamw_gradient<float, float>(table.rule, r, a, from, to)
                                : adamw_gradient<float, uint16_t>(table.rule, r, a, from, to);
    else
        squares = a.moments_f32 ? adamw_gradient<uint16_t, float>(table.rule, r, a, from, to)
                                : adamw_gradient<uint16_t, uint16_t>(table.rule, r, a, from, to);
    squares = sum_over_block(squares);
    if (threadIdx.x == 0)
        partial[blockIdx.x] = squares;
}

cudaError_t mx_cuda_adamw_many(const mx_adamw_one *a, int n, const mx_adamw_rule *rule,
                               double *partial, cudaStream_t stream)
{
    adamw_numbers *numbers = (adamw_numbers *)partial;
    numbers_kernel<<<1, 1, 0, stream>>>(*rule, numbers);
    partial += NUMBERS;
    for (int at = 0; at < n; at += MANY) {
        adamw_table table = {};
        outputs o = {};
        table.rule = *rule;
        for (int i = 0; i < MANY && at + i < n; i++) {
            table.t[i] = a[at + i];
            o.out[i] = a[at + i].squares;
            o.wide[i] = a[at + i].wide;
            table.p.first[i + 1] = table.p.first[i] + (unsigned)pieces_of(a[at + i].n, PIECE);
            table.p.n = i + 1;
        }
        unsigned blocks = table.p.first[table.p.n];
        if (blocks)
            adamw_kernel<<<blocks, THREADS, 0, stream>>>(table, numbers, partial);
        finish_kernel<<<(unsigned)table.p.n, THREADS, 0, stream>>>(partial, table.p, o);
        partial += blocks;
    }
    return cudaGetLastError();
}
