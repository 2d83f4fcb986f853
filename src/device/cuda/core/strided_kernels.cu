/* strided_kernels.cu - strided rows to strided rows: see layout.h.
 *
 * Memory bound, in the widest words that both sides allow; a thread has MANY under way. The
 * runtime's own two-dimensional copy is far from that, the more so the shorter the rows
 * (docs/log/gpu-experts.md).
 */
#include "device/cuda/core/layout.h"

enum { BLOCK = 256, MANY = 4 };

template <class T>
__global__ void __launch_bounds__(BLOCK)
    copy_rows_kernel(T *dst, int64_t dst_step, const T *src, int64_t src_step, uint32_t across,
                     uint32_t n)
{
    uint32_t first = blockIdx.x * (BLOCK * MANY) + threadIdx.x;
    T v[MANY];
#pragma unroll
    for (int j = 0; j < MANY; j++) {
        uint32_t i = first + j * BLOCK;
        if (i < n)
            v[j] = src[i / across * src_step + i % across];
    }
#pragma unroll
    for (int j = 0; j < MANY; j++) {
        uint32_t i = first + j * BLOCK;
        if (i < n)
            dst[i / across * dst_step + i % across] = v[j];
    }
}

template <class T> static cudaError_t copy_rows(const mx_cuda_rows *r, cudaStream_t stream)
{
    int64_t w = sizeof(T);
    uint32_t n = (uint32_t)(r->width / w * r->rows);
    copy_rows_kernel<T><<<(n + BLOCK * MANY - 1) / (BLOCK * MANY), BLOCK, 0, stream>>>(
        (T *)r->dst, r->dst_pitch / w, (const T *)r->src, r->src_pitch / w,
        (uint32_t)(r->width / w), n);
    return cudaGetLastError();
}

cudaError_t mx_cuda_copy_rows(const mx_cuda_rows *r, cudaStream_t stream)
{
    uint64_t all = (uintptr_t)r->dst | (uintptr_t)r->src | (uint64_t)r->width;
    if (r->rows > 1)
        all |= (uint64_t)r->dst_pitch | (uint64_t)r->src_pitch;
    int64_t word = all % 16 == 0 ? 16 : all % 8 == 0 ? 8 : all % 4 == 0 ? 4 : all % 2 == 0 ? 2 : 1;
    if (!r->width || !r->rows)
        return cudaSuccess;
    if (r->width / word * r->rows > INT32_MAX)
        return cudaMemcpy2DAsync(r->dst, (size_t)r->dst_pitch, r->src, (size_t)r->src_pitch,
                                 (size_t)r->width, (size_t)r->rows, cudaMemcpyDeviceToDevice,
                                 stream);
    return word == 16  ? copy_rows<uint4>(r, stream)
           : word == 8 ? copy_rows<uint2>(r, stream)
           : word == 4 ? copy_rows<uint32_t>(r, stream)
           : word == 2 ? copy_rows<uint16_t>(r, stream)
                       : copy_rows<uint8_t>(r, stream);
}
