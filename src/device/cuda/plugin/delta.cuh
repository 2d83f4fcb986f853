/* delta.cuh - what the delta-rule kernels share: products of tiles in shared memory, and a chunk.
 *
 * The mathematics is that of ops/cpu/delta_kernel.h, by chunks of 64 tokens whatever chunk the op
 * names (any gives the same result up to rounding). A chunk that ends early is filled with tokens
 * that change nothing: q = k = v = 0, beta = 0, g = 0.
 *
 * Everything in shared memory is float32. Where the tensors are bf16 the products go through the
 * matrix units as tf32: bf16 values are exact in it, what is computed keeps 11 bits, three more
 * than bf16, and sums are float32. Where the tensors are float32 the products are plain arithmetic.
 * A block has 8 warps, 4 down and 2 across a product; lane l holds rows l/4 and l/4 + 8, columns
 * 2 (l%4) + {0, 1} of each 16 x 8 piece, in both ways of multiplying. A fragment's loads fall into
 * different banks where rows are 4 floats longer than a multiple of 32 and k runs along them, or 8
 * longer and k runs down.
 */
#ifndef MX_DEVICE_CUDA_DELTA_CUH
#define MX_DEVICE_CUDA_DELTA_CUH

#include "device/cuda/plugin/recurrent.cuh"

enum { C = 64, CL = C + 4, THREADS = 256 }; /* tokens of a chunk; row length of a (C, C) matrix */
enum { SQUARE = C * C };

/* What the matrix units keep of x. */
template <bool FAST> __device__ __forceinline__ float kept(float x)
{
    if constexpr (FAST) {
        uint32_t u;
        asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(u) : "f"(x));
        return __uint_as_float(u);
    }
    return x;
}

__device__ __forceinline__ void mma_tf32(float c[4], const float a[4], const float b[2])
{
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])),
                   "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
                   "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
}

/* A piece of a product: MT x NT tiles of 16 x 8. */
template <int MT, int NT> struct piece {
    float c[MT][NT][4];
    __device__ __forceinline__ void clear()
    {
        scale(0);
    }
    __device__ __forceinline__ void scale(float f)
    {
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    c[m][n][i] = f == 0 ? 0 : c[m][n][i] * f;
    }
    /* f(row, column, value &) for each element this lane holds. */
    template <class F> __device__ __forceinline__ void each(F f)
    {
        int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    f(m * 16 + g + (i & 2) * 4, n * 8 + 2 * t + (i & 1), c[m][n][i]);
    }
    /* f(row, column, value &, value &) for each pair of neighbours. */
    template <class F> __device__ __forceinline__ void pairs(F f)
    {
        int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int i = 0; i < 4; i += 2)
                    f(m * 16 + g + i * 4, n * 8 + 2 * t, c[m][n][i], c[m][n][i + 1]);
    }
};

/* Two neighbours of a row of `dim` elements from column col on, if they are inside. */
__device__ __forceinline__ void put_pair(float *row, int col, int dim, float x, float y)
{
    if (dim % 2 == 0 && col < dim)
        *(float2 *)(row + col) = make_float2(x, y);
    else if (col < dim) {
        row[col] = x;
        if (col + 1 < dim)
            row[col + 1] = y;
    }
}
__device__ __forceinline__ void put_pair(uint16_t *row, int col, int dim, float x, float y)
{
    if (dim % 2 == 0 && col < dim)
        *(ushort2 *)(row + col) = make_ushort2(f32_to_bf16(x), f32_to_bf16(y));
    else if (col < dim) {
        row[col] = f32_to_bf16(x);
        if (col + 1 < dim)
            row[col + 1] = f32_to_bf16(y);
    }
}

/* p += a b over k, from the piece's own corner of a and b. a is (m, k), or (k, m) where TA; b is
 * (k, n), or (n, k) where TB. The tiles of a piece lie `jump` apart in a: 16 rows, or in another
 * matrix, so that two products share what they read of b. Any order of k will do, if both sides
 * have it; PAIRS: a lane has neighbours, which meets fewer bank conflicts where both sides' rows
 * are 4 longer than a multiple of 32 and b is (k, n). */
template <bool FAST, bool TA, bool TB, bool PAIRS = false, int MT, int NT>
__device__ __forceinline__ void mul(piece<MT, NT> &p, const float *a, int lda, const float *b,
                                    int ldb, int k, int jump = 0)
{
    int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
    const int k0 = PAIRS ? 2 * t : t, k1 = PAIRS ? 2 * t + 1 : t + 4;
    jump = jump ? jump : TA ? 16 : 16 * lda;
    if constexpr (FAST) {
        for (int at = 0; at < k; at += 8) {
            float fa[MT][4], fb[NT][2];
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    int row = g + (i & 1) * 8, col = at + (i & 2 ? k1 : k0);
                    fa[m][i] = a[m * jump + (TA ? col * lda + row : row * lda + col)];
                }
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    int row = at + (i ? k1 : k0), col = n * 8 + g;
                    fb[n][i] = TB ? b[col * ldb + row] : b[row * ldb + col];
                }
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int n = 0; n < NT; n++)
                    mma_tf32(p.c[m][n], fa[m], fb[n]);
        }
    } else {
        for (int at = 0; at < k; at++) {
            float fa[MT][2], fb[NT][2];
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    int row = g + i * 8;
                    fa[m][i] = a[m * jump + (TA ? at * lda + row : row * lda + at)];
                }
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    int col = n * 8 + 2 * t + i;
                    fb[n][i] = TB ? b[col * ldb + at] : b[at * ldb + col];
                }
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int n = 0; n < NT; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        p.c[m][n][i] += fa[m][i >> 1] * fb[n][i & 1];
        }
    }
}

/* Where in the call a block is: sequence, value head, chunk; n tokens of the chunk are there. */
struct place {
    int b, h, chunk, n;
    int64_t t0; /* the chunk's first token among all */
};
__device__ __forceinline__ place place_of(const mx_cuda_delta &d, int b, int h, int chunk, int len)
{
    int left = len - chunk * C;
    return {b, h, chunk, left < 0 ? 0 : left < C ? left : C, (int64_t)b * d.len + chunk * C};
}
/* The number of a chunk of a head: where its matrices lie in scratch. */
__device__ __forceinline__ int64_t number_of(const mx_cuda_delta &d, const place &at)
{
    int chunks = (d.len + C - 1) / C;
    return ((int64_t)at.b * d.v_heads + at.h) * chunks + at.chunk;
}

__device__ __forceinline__ void raw4(float4 &r, const float *p)
{
    r = *(const float4 *)p;
}
__device__ __forceinline__ void raw4(uint2 &r, const uint16_t *p)
{
    r = *(const uint2 *)p;
}
__device__ __forceinline__ void wide4(float f[4], const float4 &r)
{
    f[0] = r.x, f[1] = r.y, f[2] = r.z, f[3] = r.w;
}
__device__ __forceinline__ void wide4(float f[4], const uint2 &r)
{
    f[0] = __uint_as_float(r.x << 16), f[1] = __uint_as_float(r.x & 0xffff0000u);
    f[2] = __uint_as_float(r.y << 16), f[3] = __uint_as_float(r.y & 0xffff0000u);
}
template <class T> struct raw_of {
    typedef float4 type;
};
template <> struct raw_of<uint16_t> {
    typedef uint2 type;
};

/* A block's hands full of a tile (ROWS, COLS), on its way from memory to shared memory. What is
 * asked for early arrives while other work goes on. */
template <class T, int ROWS, int COLS> struct handful {
    enum { N = ROWS * COLS / 4 / THREADS };
    static_assert(N * THREADS * 4 == ROWS * COLS, "a tile is whole handfuls");
    typename raw_of<T>::type r[N];
    /* n rows of `dim` elements, `step` apart; zeros for the rest. */
    __device__ __forceinline__ void take(const T *src, int64_t step, int n, int dim)
    {
        const bool whole = dim % 4 == 0 && step % 4 == 0 && ((uintptr_t)src % (4 * sizeof(T))) == 0;
#pragma unroll
        for (int i = 0; i < N; i++) {
            int at = threadIdx.x + i * THREADS, row = at / (COLS / 4), col = at % (COLS / 4) * 4;
            r[i] = {};
            if (row < n && col < dim && whole)
                raw4(r[i], src + row * step + col);
            else if (row < n && col < dim)
                for (int j = 0; j < 4 && col + j < dim; j++)
                    ((T *)&r[i])[j] = src[row * step + col + j];
        }
    }
    template <bool FAST> __device__ __forceinline__ void put(float *dst, int ld) const
    {
#pragma unroll
        for (int i = 0; i < N; i++) {
            int at = threadIdx.x + i * THREADS, row = at / (COLS / 4), col = at % (COLS / 4) * 4;
            float f[4];
            wide4(f, r[i]);
#pragma unroll
            for (int j = 0; j < 4 && sizeof(T) == 4; j++)
                f[j] = kept<FAST>(f[j]);
            store4(dst + row * ld + col, f);
        }
    }
};
template <bool FAST, int ROWS, int COLS, class T>
__device__ __forceinline__ void load_tile(float *dst, int ld, const T *src, int64_t step, int n,
                                          int dim)
{
    handful<T, ROWS, COLS> h;
    h.take(src, step, n, dim);
    h.template put<FAST>(dst, ld);
}

/* Numbers of each token of a chunk; found once, with T and P. */
struct alignas(16) vectors {
    float c[C], in[C], out[C], beta[C]; /* running sum of g; e_i and f_i of delta_chunk.inc */
    int32_t seg[C];
    float keep, unused[3];
};
enum { VECTOR_PARTS = sizeof(vectors) / 16 };
static_assert(VECTOR_PARTS <= THREADS, "each thread carries a part");

/* By the first warp; the block waits before it reads them. */
__device__ __forceinline__ void find_vectors(vectors *w, const mx_cuda_delta &d, const place &at)
{
    if (threadIdx.x >= 32)
        return;
    int lane = threadIdx.x, last = at.n > 0 ? at.n - 1 : 0;
    float g[2], sum = 0;
    int32_t seg[2] = {}, before = 0, end = 0;
    if (d.segments) {
        before = d.segments[at.chunk > 0 ? at.t0 - 1 : at.t0];
        end = d.segments[at.t0 + last];
    }
    for (int j = 0; j < 2; j++) {
        int i = 2 * lane + j;
        int64_t e = (at.t0 + i) * d.v_heads + at.h;
        sum += i < at.n ? get_any(d.g, e, d.gates_f32[0]) : 0.f;
        g[j] = sum;
        seg[j] = !d.segments ? 0 : i < at.n ? d.segments[at.t0 + i] : end;
        w->beta[i] = i < at.n ? get_any(d.beta, e, d.gates_f32[1]) : 0.f;
        w->seg[i] = seg[j];
    }
    float run = sum;
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
        float other = __shfl_up_sync(~0u, run, o);
        run += lane >= o ? other : 0.f;
    }
    float total = __shfl_sync(~0u, run, 31);
    for (int j = 0; j < 2; j++) {
        int i = 2 * lane + j;
        float x = run - sum + g[j];
        w->c[i] = x;
        w->in[i] = seg[j] == before ? expf(x) : 0.f;
        w->out[i] = seg[j] == end ? expf(total - x) : 0.f;
    }
    if (lane == 0)
        w->keep = end == before ? expf(total) : 0.f;
}

/* E_ij: the decay from token j to token i, j <= i, of one segment. */
__device__ __forceinline__ float decay(const vectors *w, int i, int j)
{
    return w->seg[i] == w->seg[j] ? expf(w->c[i] - w->c[j]) : 0.f;
}

/* What is known of every chunk of every head before the memory is (delta_terms.cu): T = (I + A)^-1
 * and P, both (C, C), and the vectors. */
struct delta_terms {
    float *t, *p;
    vectors *w;
};
cudaError_t mx_cuda_delta_terms(const mx_cuda_delta *d, const delta_terms *x, cudaStream_t stream);
/* Sweeps the memory over the chunks (delta_forward.cu). out: or NULL; states (chunks of all heads,
 * D, E) and u (chunks of all heads, C, E) receive the memory at each start and U: or NULL. */
struct delta_sweep {
    delta_terms x;
    void *out;
    float *states, *u;
    int cols; /* of the memory, for a block: 32 or 64; 0: whatever fills the device */
};
cudaError_t mx_cuda_delta_sweep(const mx_cuda_delta *d, const delta_sweep *s, cudaStream_t stream);
/* Sweeps the memory's gradient back (delta_backward.cu): ends (chunks of all heads, D, E) and dr
 * (chunks of all heads, C, E) receive the gradient at each end and dR. */
struct delta_back {
    delta_terms x;
    const float *states, *u;
    float *ends, *dr;
    float *dq, *dk; /* (B, S, H, D): what each value head adds, where several share a key head */
    mx_cuda_delta_grads g;
    int cols; /* as above */
};
cudaError_t mx_cuda_delta_sweep_back(const mx_cuda_delta *d, const delta_back *s,
                                     cudaStream_t stream);
/* The gradients of every chunk, all at once (delta_grads.cu). */
cudaError_t mx_cuda_delta_chunk_grads(const mx_cuda_delta *d, const delta_back *s,
                                      cudaStream_t stream);

static inline int64_t delta_chunks(const mx_cuda_delta *d)
{
    return (int64_t)d->batch * d->v_heads * ((d->len + C - 1) / C);
}

/* Whether blocks of 64 columns are enough to fill the device. */
static inline bool delta_wide(const mx_cuda_delta *d, int cols)
{
    int64_t blocks = (int64_t)d->batch * d->v_heads * ((d->v_dim + 63) / 64);
    return cols ? cols == 64 : blocks >= 128;
}

#endif
