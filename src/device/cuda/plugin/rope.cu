/* rope.cu - rotary position embedding in place, pairs (i, i + D/2), eight pairs a thread.
 *     (a, b) -> (a cos - b sin, b cos + a sin);   the gradient turns the other way.
 * Reads and writes the rotated heads once. The table is small (position x D/2) and stays in cache. */
#include "device/cuda/plugin/kernels.h"
#include "device/cuda/plugin/vec.cuh"

__global__ void rope_kernel(uint16_t *x, const int32_t *positions, const float2 *table, int64_t work,
                            int64_t seq, int64_t row_stride, int heads, int dim, float sign)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= work)
        return;
    int half = dim / 2, per_head = half / 8;
    int j = (int)(i % per_head) * 8;
    int64_t th = i / per_head;
    int64_t t = th / heads, h = th % heads;
    int64_t pos = positions ? positions[t] : t % seq;
    const float4 *cs = (const float4 *)(table + pos * half + j); /* two {cos, sin} a vector */
    uint16_t *p = x + t * row_stride + h * dim + j;
    float a[8], b[8], ra[8], rb[8];
    unpack8(a, load8(p));
    unpack8(b, load8(p + half));
#pragma unroll
    for (int k = 0; k < 4; k++) {
        float4 c = __ldg(cs + k);
        c.y *= sign;
        c.w *= sign;
        ra[2 * k] = a[2 * k] * c.x - b[2 * k] * c.y;
        rb[2 * k] = b[2 * k] * c.x + a[2 * k] * c.y;
        ra[2 * k + 1] = a[2 * k + 1] * c.z - b[2 * k + 1] * c.w;
        rb[2 * k + 1] = b[2 * k + 1] * c.z + a[2 * k + 1] * c.w;
    }
    store8(p, pack8(ra));
    store8(p + half, pack8(rb));
}

cudaError_t mx_cuda_rope(const mx_rope_shape *s, mx_bf16 *x, const int32_t *positions,
                         const float *table, cudaStream_t stream)
{
    if (s->dim % 16 || s->row_stride % 8)
        return cudaErrorInvalidValue;
    int64_t work = s->rows * s->heads * (s->dim / 16);
    rope_kernel<<<(unsigned)((work + 255) / 256), 256, 0, stream>>>(
        x, positions, (const float2 *)table, work, s->seq, s->row_stride, s->heads, s->dim,
        s->inverse ? -1.f : 1.f);
    return cudaGetLastError();
}
