/* delta.cuh - what the delta-rule kernels share: a chunk, and what is written down between them.
 *
 * The mathematics is that of ops/cpu/delta_kernel.h, by chunks of 64 tokens whatever chunk the op
 * names (any gives the same result up to rounding). A chunk that ends early is filled with tokens
 * that change nothing: q = k = v = 0, beta = 0, g = 0. GEMMs are those of tiles.cuh.
 */
#ifndef MX_DEVICE_CUDA_DELTA_CUH
#define MX_DEVICE_CUDA_DELTA_CUH

#include "device/cuda/recurrent/recurrent.cuh"
#include "device/cuda/core/tiles.cuh"
#include "ops/gpu_work.h"

enum { CL = C + 4, SQUARE = C * C }; /* row length of a (C, C) matrix in shared memory; its size */

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
/* From a token to the next, and where the chunk begins: in q and k; in v, from column e0 on. */
__device__ __forceinline__ int64_t k_step(const mx_cuda_delta &d)
{
    return (int64_t)d.k_heads * d.k_dim;
}
__device__ __forceinline__ int64_t v_step(const mx_cuda_delta &d)
{
    return (int64_t)d.v_heads * d.v_dim;
}
__device__ __forceinline__ int64_t k_from(const mx_cuda_delta &d, const place &at)
{
    return at.t0 * k_step(d) + at.h / (d.v_heads / d.k_heads) * d.k_dim;
}
__device__ __forceinline__ int64_t v_from(const mx_cuda_delta &d, const place &at, int e0)
{
    return at.t0 * v_step(d) + at.h * d.v_dim + e0;
}
/* The number of a chunk of a head: where its matrices lie in scratch. */
__device__ __forceinline__ int64_t number_of(const mx_cuda_delta &d, const place &at)
{
    int chunks = (d.len + C - 1) / C;
    return ((int64_t)at.b * d.v_heads + at.h) * chunks + at.chunk;
}

/* Numbers of each token of a chunk; found once, with T and P. */
struct alignas(16) vectors {
    float c[C], in[C], out[C], beta[C]; /* running sum of g; e_i and f_i of delta_chunk.inc */
    int32_t seg[C];
    float keep, unused[3];
};
enum { VECTOR_PARTS = sizeof(vectors) / 16 };
static_assert((int)VECTOR_PARTS <= (int)THREADS, "each thread carries a part");
__device__ __forceinline__ void copy_vectors(vectors *to, const vectors *from)
{
    if (threadIdx.x < VECTOR_PARTS)
        ((float4 *)to)[threadIdx.x] = ((const float4 *)from)[threadIdx.x];
}

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
};
cudaError_t mx_cuda_delta_sweep_back(const mx_cuda_delta *d, const delta_back *s,
                                     cudaStream_t stream);
/* The gradients of every chunk, all at once (delta_grads.cu). */
cudaError_t mx_cuda_delta_chunk_grads(const mx_cuda_delta *d, const delta_back *s,
                                      cudaStream_t stream);
/* Rows of one to a few tokens, token by token (delta_step.cu). */
cudaError_t mx_cuda_delta_step(const mx_cuda_delta *d, void *out, cudaStream_t stream);

static_assert((int)C == (int)MX_GPU_DELTA_CHUNK &&
                  sizeof(vectors) == 4 * (MX_GPU_DELTA_VECTORS * C + MX_GPU_DELTA_MORE),
              "as planned");
static inline mx_gpu_delta delta_shape(const mx_cuda_delta *d)
{
    return {d->batch, d->len, d->k_heads, d->v_heads, d->k_dim, d->v_dim};
}
static inline int64_t delta_chunks(const mx_cuda_delta *d)
{
    mx_gpu_delta shape = delta_shape(d);
    return mx_gpu_delta_chunks(&shape);
}

/* Whether sweeps by blocks of 64 columns fill the device; blocks of 32 are slower, and more. */
static inline bool delta_wide(const mx_cuda_delta *d)
{
    return (int64_t)d->batch * d->v_heads * ((d->v_dim + 63) / 64) >= 128;
}

#endif
