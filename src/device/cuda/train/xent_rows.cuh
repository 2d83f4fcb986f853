/* xent_rows.cuh - what xent_rows.cu and xent_keep.cu share: rows before and after the GEMM of
 * xent_exp.h. */
#ifndef MX_DEVICE_CUDA_XENT_ROWS_CUH
#define MX_DEVICE_CUDA_XENT_ROWS_CUH

#include "device/cuda/attention/flash.cuh"
#include "device/cuda/train/xent_exp.h"

/* OWN_THREADS: a block that computes the labels' logits, one warp per row. After the GEMM a block
 * has ROW_BLOCK rows and SLICES threads for each. */
enum { OWN_THREADS = 256, ROW_BLOCK = 32, SLICES = 8, BAND = MX_XENT_BAND };
#define FAR_AWAY 1e30f /* what rows that do not count are counted from: their e are 0 */

__device__ __forceinline__ float through_cap(float l, float cap)
{
    return cap > 0 ? cap * tanhf(l / cap) : l;
}

/* A row of x times a row of w, by one warp. */
__device__ __forceinline__ float warp_dot(const uint16_t *x, const uint16_t *w, int64_t d)
{
    float sum = 0;
    for (int64_t i = 8 * (threadIdx.x & 31); i < d; i += 256) {
        float a[8], b[8];
        unpack8(a, load8(x + i));
        unpack8(b, load8(w + i));
#pragma unroll
        for (int j = 0; j < 8; j++)
            sum += a[j] * b[j];
    }
    return warp_sum(sum);
}

/* Sum or maximum (`most`) over the tiles, in an order that does not depend on time; slice 0 has the
 * result. ARGS has the shape `s` and the arrays `a`. */
template <class ARGS>
__device__ __forceinline__ float over_tiles(const ARGS &p, int64_t row, bool most, int slice,
                                            int lane)
{
    __shared__ float part[SLICES][ROW_BLOCK];
    int tiles = (int)((p.s.vocab + MX_XENT_WIDE - 1) / MX_XENT_WIDE);
    float sum = most ? -INFINITY : 0.f;
    if (row < p.s.rows)
#pragma unroll 8
        for (int t = slice; t < tiles; t += SLICES) {
            float v = p.a.parts[t * p.s.rows + row];
            sum = most ? fmaxf(sum, v) : sum + v;
        }
    part[slice][lane] = sum;
    __syncthreads();
    for (int t = 1; t < SLICES && slice == 0; t++)
        sum = most ? fmaxf(sum, part[t][lane]) : sum + part[t][lane];
    return sum;
}

#endif
