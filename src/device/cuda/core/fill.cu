/* fill.cu - the first values of variables, made where they will lie.
 *
 * The same formulas as the host's (device/initial.c): Philox, and for a normal distribution the
 * Box-Muller transform in double precision, so that the values differ from the host's by the last
 * bits of the libraries' logarithm and cosine at most.
 */
#include "device/cuda/core/kernels.h"
#include "device/cuda/core/philox.cuh"
#include "device/cuda/core/vec.cuh"

enum { THREADS = 256 };

__device__ double uniform(uint32_t hi, uint32_t lo)
{
    return (double)(((uint64_t)hi << 32 | lo) >> 11) * 0x1p-53;
}

__device__ double value_at(const mx_cuda_fill &f, int64_t i)
{
    if (f.kind == MX_CUDA_FILL_SAME)
        return f.scale;
    mx_random4 r = philox(f.seed, f.stream, (uint64_t)i);
    if (f.kind == MX_CUDA_FILL_LOG_UNIFORM)
        return log(0.01 + (f.scale - 0.01) * uniform(r.v[0], r.v[1]));
    double u = 1.0 - uniform(r.v[0], r.v[1]), w = uniform(r.v[2], r.v[3]);
    return f.scale * (sqrt(-2 * log(u)) * cos(6.283185307179586 * w));
}

__global__ void fill_bytes_kernel(uint8_t *x, mx_cuda_fill f)
{
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < f.n;
         i += (int64_t)gridDim.x * THREADS) {
        mx_random4 r = philox(f.seed, f.stream, (uint64_t)i);
        x[i] = (uint8_t)(f.scale * uniform(r.v[0], r.v[1]));
    }
}

template <typename T> __global__ void fill_kernel(T *x, mx_cuda_fill f)
{
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < f.n;
         i += (int64_t)gridDim.x * THREADS)
        put(&x[i], (float)value_at(f, i));
}

cudaError_t mx_cuda_fill_with(void *x, const mx_cuda_fill *f, cudaStream_t stream)
{
    int blocks = grid_for(f->n, THREADS, 1 << 16);
    if (f->kind == MX_CUDA_FILL_BYTES)
        fill_bytes_kernel<<<blocks, THREADS, 0, stream>>>((uint8_t *)x, *f);
    else if (f->f32)
        fill_kernel<<<blocks, THREADS, 0, stream>>>((float *)x, *f);
    else
        fill_kernel<<<blocks, THREADS, 0, stream>>>((uint16_t *)x, *f);
    return cudaGetLastError();
}
