/* cast.cu - f32 <-> bf16. Eight elements a thread where both ends are aligned, a scalar tail after.
 */
#include "device/cuda/plugin/kernels.h"
#include "device/cuda/plugin/vec.cuh"

template <int MODE> /* 0: to bf16, 1: to bf16 stochastically, 2: to f32 */
__global__ void cast_kernel(void *yv, const void *xv, int64_t n, int64_t n8, uint64_t seed)
{
    int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n8; i += stride) {
        float f[8];
        if (MODE == 2) {
            unpack8(f, load8_stream((const uint16_t *)xv + 8 * i));
            float4 *y = (float4 *)yv + 2 * i;
            y[0] = make_float4(f[0], f[1], f[2], f[3]);
            y[1] = make_float4(f[4], f[5], f[6], f[7]);
            continue;
        }
        const float4 *x = (const float4 *)xv + 2 * i;
        float4 a = __ldcs(x), b = __ldcs(x + 1);
        f[0] = a.x, f[1] = a.y, f[2] = a.z, f[3] = a.w;
        f[4] = b.x, f[5] = b.y, f[6] = b.z, f[7] = b.w;
        if (MODE == 0) {
            store8((uint16_t *)yv + 8 * i, pack8(f));
        } else {
            for (int j = 0; j < 8; j++)
                ((uint16_t *)yv)[8 * i + j] = bf16_stochastic(f[j], random_bits(seed, 8 * i + j));
        }
    }
    for (int64_t i = 8 * n8 + (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        if (MODE == 2)
            ((float *)yv)[i] = bf16_to_f32(((const uint16_t *)xv)[i]);
        else if (MODE == 0)
            ((uint16_t *)yv)[i] = f32_to_bf16(((const float *)xv)[i]);
        else
            ((uint16_t *)yv)[i] = bf16_stochastic(((const float *)xv)[i], random_bits(seed, i));
    }
}

template <int MODE>
static cudaError_t cast_launch(void *y, const void *x, int64_t n, uint64_t seed,
                               cudaStream_t stream)
{
    if (n <= 0)
        return cudaSuccess;
    int64_t n8 = ((uintptr_t)x | (uintptr_t)y) % 16 == 0 ? n / 8 : 0;
    cast_kernel<MODE><<<grid_for(n8 ? n8 : n, 256, 1 << 16), 256, 0, stream>>>(y, x, n, n8, seed);
    return cudaGetLastError();
}

cudaError_t mx_cuda_cast_f32_bf16(mx_bf16 *y, const float *x, int64_t n, cudaStream_t stream)
{
    return cast_launch<0>(y, x, n, 0, stream);
}
cudaError_t mx_cuda_cast_bf16_f32(float *y, const mx_bf16 *x, int64_t n, cudaStream_t stream)
{
    return cast_launch<2>(y, x, n, 0, stream);
}
cudaError_t mx_cuda_cast_stochastic(mx_bf16 *y, const float *x, int64_t n, uint64_t seed,
                                    cudaStream_t stream)
{
    return cast_launch<1>(y, x, n, seed, stream);
}
