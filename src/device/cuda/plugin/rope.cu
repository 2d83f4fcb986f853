/* rope.cu - rotary position embedding in place, pairs (i, i + D/2), eight pairs a thread.
 *     (a, b) -> (a cos - b sin, b cos + a sin);   the gradient turns the other way.
 * Reads and writes the rotated heads once. The table is small (position x D/2) and stays in cache.
 */
#include "device/cuda/plugin/kernels.h"
#include "device/cuda/plugin/vec.cuh"

/* One block a token; a thread turns eight pairs of one head, then the same pairs of the next heads
 * (the table's values stay in registers). */
__global__ void rope_kernel(uint16_t *x, const int32_t *positions, const float2 *table, int64_t seq,
                            int64_t row_stride, int heads, int dim, float sign)
{
    int64_t t = blockIdx.x;
    int half = dim / 2, per_head = half / 8;
    int j = (int)(threadIdx.x % per_head) * 8, h0 = threadIdx.x / per_head,
        step = blockDim.x / per_head;
    int64_t pos = positions ? positions[t] : (uint32_t)t % (uint32_t)seq;
    const float4 *cs = (const float4 *)(table + pos * half + j); /* two {cos, sin} a vector */
    float4 c[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        c[k] = __ldg(cs + k);
        c[k].y *= sign;
        c[k].w *= sign;
    }
    uint16_t *row = x + t * row_stride + j;
#pragma unroll 2
    for (int h = h0; h < heads; h += step) {
        uint16_t *p = row + h * dim;
        float a[8], b[8], ra[8], rb[8];
        unpack8(a, load8(p));
        unpack8(b, load8(p + half));
#pragma unroll
        for (int k = 0; k < 4; k++) {
            ra[2 * k] = a[2 * k] * c[k].x - b[2 * k] * c[k].y;
            rb[2 * k] = b[2 * k] * c[k].x + a[2 * k] * c[k].y;
            ra[2 * k + 1] = a[2 * k + 1] * c[k].z - b[2 * k + 1] * c[k].w;
            rb[2 * k + 1] = b[2 * k + 1] * c[k].z + a[2 * k + 1] * c[k].w;
        }
        store8(p, pack8(ra));
        store8(p + half, pack8(rb));
    }
}

cudaError_t mx_cuda_rope(const mx_rope_shape *s, mx_bf16 *x, const int32_t *positions,
                         const float *table, cudaStream_t stream)
{
    if (s->dim % 16 || s->dim > 2048 || s->row_stride % 8)
        return cudaErrorInvalidValue;
    int per_head = s->dim / 16, at_once = (s->heads + 1) / 2; /* two heads a thread */
    if (at_once * per_head > 512)
        at_once = 512 / per_head;
    rope_kernel<<<(unsigned)s->rows, at_once * per_head, 0, stream>>>(
        x, positions, (const float2 *)table, s->seq, s->row_stride, s->heads, s->dim,
        s->inverse ? -1.f : 1.f);
    return cudaGetLastError();
}
