/* cast.cu - f32 <-> bf16. Eight elements a thread where both ends are aligned, a scalar tail after.
 */
#include "device/cuda/core/kernels.h"
#include "device/cuda/core/vec.cuh"

__global__ void narrow_kernel(uint16_t *y, const float *x, int64_t n, int64_t n8)
{
    int64_t stride = (int64_t)gridDim.x * blockDim.x;
    int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (int64_t i = first; i < n8; i += stride) {
        const float4 *v = (const float4 *)x + 2 * i;
        float4 a = __ldcs(v), b = __ldcs(v + 1);
        float f[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        store8(y + 8 * i, pack8(f));
    }
    for (int64_t i = 8 * n8 + first; i < n; i += stride)
        y[i] = f32_to_bf16(x[i]);
}

__global__ void widen_kernel(float *y, const uint16_t *x, int64_t n, int64_t n8)
{
    int64_t stride = (int64_t)gridDim.x * blockDim.x;
    int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (int64_t i = first; i < n8; i += stride) {
        float f[8];
        unpack8(f, load8_stream(x + 8 * i));
        float4 *v = (float4 *)y + 2 * i;
        v[0] = make_float4(f[0], f[1], f[2], f[3]);
        v[1] = make_float4(f[4], f[5], f[6], f[7]);
    }
    for (int64_t i = 8 * n8 + first; i < n; i += stride)
        y[i] = bf16_to_f32(x[i]);
}

/* Groups of eight, where both ends are aligned. */
static int64_t eights(const void *y, const void *x, int64_t n)
{
    return ((uintptr_t)x | (uintptr_t)y) % 16 == 0 ? n / 8 : 0;
}

cudaError_t mx_cuda_cast_f32_bf16(mx_bf16 *y, const float *x, int64_t n, cudaStream_t stream)
{
    int64_t n8 = eights(y, x, n);
    if (n > 0)
        narrow_kernel<<<grid_for(n8 ? n8 : n, 256, 1 << 16), 256, 0, stream>>>(y, x, n, n8);
    return cudaGetLastError();
}

cudaError_t mx_cuda_cast_bf16_f32(float *y, const mx_bf16 *x, int64_t n, cudaStream_t stream)
{
    int64_t n8 = eights(y, x, n);
    if (n > 0)
        widen_kernel<<<grid_for(n8 ? n8 : n, 256, 1 << 16), 256, 0, stream>>>(y, x, n, n8);
    return cudaGetLastError();
}
