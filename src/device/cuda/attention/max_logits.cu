/* max_logits.cu - see max_logits.h.
 *
 * bf16 with whole tiles: a warp takes 16 queries of a head and multiplies them with 16 keys at a
 * time on the tensor cores. Everything else: a block of 16 x 16 threads, one score each.
 * Floats are compared as integers of the same order, which atomicMax takes.
 */
#include "device/cuda/attention/max_logits.h"
#include "device/cuda/recurrent/recurrent.cuh"

#include <mma.h>

enum { TILE = 16, WARPS = 4, LANES = 32 };

/* The bits of a float as an integer with the floats' order, and back: its own inverse. */
__device__ __forceinline__ int in_order(int bits)
{
    return bits >= 0 ? bits : bits ^ 0x7fffffff;
}

__global__ void max_begin_kernel(int *out, int n)
{
    if (threadIdx.x < n)
        out[threadIdx.x] = in_order(__float_as_int(-INFINITY));
}

__global__ void max_end_kernel(int *out, int n)
{
    if (threadIdx.x < n)
        out[threadIdx.x] = in_order(out[threadIdx.x]);
}

__device__ __forceinline__ bool sees(const mx_cuda_max_logits &s, int b, int i, int t)
{
    const int32_t *seg = s.segments ? s.segments + (int64_t)b * s.seq : nullptr;
    return t <= i && (!s.window || i - t < s.window) && (!seg || seg[i] == seg[t]);
}

/* The first tile of keys that a query from i on sees. */
__device__ __forceinline__ int first_tile(const mx_cuda_max_logits &s, int i)
{
    return s.window && i >= s.window ? (i - s.window + 1) / TILE * TILE : 0;
}

__device__ __forceinline__ void enter(int *out, float most)
{
    for (int d = LANES / 2; d; d /= 2)
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, d));
    if (threadIdx.x % LANES == 0)
        atomicMax(out, in_order(__float_as_int(most)));
}

__global__ void __launch_bounds__(WARPS *LANES)
    max_tiles_kernel(const __grid_constant__ mx_cuda_max_logits s, int *out)
{
    using namespace nvcuda::wmma;
    __shared__ __align__(32) float tile[WARPS][TILE * TILE];
    int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES, h = blockIdx.y, b = blockIdx.z;
    int i0 = (blockIdx.x * WARPS + warp) * TILE, kh = h / (s.heads_q / s.heads_k);
    if (i0 >= s.seq)
        return;
    int64_t q_row = (int64_t)s.heads_q * s.dim, k_row = (int64_t)s.heads_k * s.dim;
    const __nv_bfloat16 *q = (const __nv_bfloat16 *)s.q + ((int64_t)b * s.seq + i0) * q_row +
                             (int64_t)h * s.dim;
    const __nv_bfloat16 *k = (const __nv_bfloat16 *)s.k + (int64_t)b * s.seq * k_row +
                             (int64_t)kh * s.dim;
    float most = -INFINITY;
    for (int t0 = first_tile(s, i0); t0 <= i0; t0 += TILE) {
        fragment<accumulator, TILE, TILE, TILE, float> sum;
        fill_fragment(sum, 0.f);
        for (int d = 0; d < s.dim; d += TILE) {
            fragment<matrix_a, TILE, TILE, TILE, __nv_bfloat16, row_major> fq;
            fragment<matrix_b, TILE, TILE, TILE, __nv_bfloat16, col_major> fk;
            load_matrix_sync(fq, q + d, (unsigned)q_row);
            load_matrix_sync(fk, k + t0 * k_row + d, (unsigned)k_row);
            mma_sync(sum, fq, fk, sum);
        }
        store_matrix_sync(tile[warp], sum, TILE, mem_row_major);
        __syncwarp();
        for (int e = lane; e < TILE * TILE; e += LANES)
            if (sees(s, b, i0 + e / TILE, t0 + e % TILE))
                most = fmaxf(most, s.scale * tile[warp][e]);
        __syncwarp();
    }
    enter(out + h, most);
}

__global__ void __launch_bounds__(TILE *TILE)
    max_plain_kernel(const __grid_constant__ mx_cuda_max_logits s, int *out)
{
    int h = blockIdx.y, b = blockIdx.z, i0 = blockIdx.x * TILE, kh = h / (s.heads_q / s.heads_k);
    int i = i0 + threadIdx.x / TILE;
    int last = i0 + TILE < s.seq ? i0 + TILE : s.seq;
    int64_t q = (((int64_t)b * s.seq + i) * s.heads_q + h) * s.dim;
    float most = -INFINITY;
    for (int t = first_tile(s, i0) + (int)threadIdx.x % TILE; t < last && i < s.seq; t += TILE) {
        int64_t k = (((int64_t)b * s.seq + t) * s.heads_k + kh) * s.dim;
        float sum = 0;
        if (!sees(s, b, i, t))
            continue;
        for (int d = 0; d < s.dim; d++)
            sum += get_any(s.q, q + d, s.f32) * get_any(s.k, k + d, s.f32);
        most = fmaxf(most, s.scale * sum);
    }
    enter(out + h, most);
}

extern "C" cudaError_t mx_cuda_max_logits_of(const mx_cuda_max_logits *s, float *out,
                                             cudaStream_t stream)
{
    int *bits = (int *)out, tiles = (s->seq + TILE - 1) / TILE;
    bool aligned = (uintptr_t)s->q % 32 == 0 && (uintptr_t)s->k % 32 == 0;
    max_begin_kernel<<<1, 1024, 0, stream>>>(bits, s->heads_q);
    if (!s->f32 && aligned && s->dim % TILE == 0 && s->seq % TILE == 0)
        max_tiles_kernel<<<dim3((tiles + WARPS - 1) / WARPS, s->heads_q, s->batch), WARPS * LANES,
                           0, stream>>>(*s, bits);
    else
        max_plain_kernel<<<dim3(tiles, s->heads_q, s->batch), TILE * TILE, 0, stream>>>(*s, bits);
    max_end_kernel<<<1, 1024, 0, stream>>>(bits, s->heads_q);
    return cudaGetLastError();
}
