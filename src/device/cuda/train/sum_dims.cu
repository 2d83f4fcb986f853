/* sum_dims.cu - sums over any dims of a tensor: what sum_to needs beside whole rows, such as the
 * gradient of a key that all heads share, (B, S, H, D) -> (B, S, 1, D).
 *
 * Adjacent dims that are kept, or summed, alike count as one. Many outputs: a thread each, terms in
 * their order. Few outputs of many terms: a warp each, lanes in steps of 32, then the lanes' sums.
 */
#include "device/cuda/train/train_kernels.h"
#include "device/cuda/core/vec.cuh"

enum { THREADS = 256, ENOUGH = 1 << 15, LONG = 64 };

/* Where item i of the given dims begins. */
__device__ __forceinline__ int64_t offset_of(const mx_dims &d, int64_t i)
{
    int64_t at = 0;
    for (int k = d.n - 1; k > 0; k--) {
        at += i % d.size[k] * d.stride[k];
        i /= d.size[k];
    }
    return at + i * d.stride[0];
}

template <typename X, typename O>
__global__ void each_kernel(O *out, const X *x, mx_dims keep, mx_dims sum, int64_t outputs,
                            int64_t terms)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= outputs)
        return;
    x += offset_of(keep, i);
    float total = 0;
    for (int64_t t = 0; t < terms; t++)
        total += as_float(x[sum.n == 1 ? t * sum.stride[0] : offset_of(sum, t)]);
    put(&out[i], total);
}

template <typename X, typename O>
__global__ void warp_kernel(O *out, const X *x, mx_dims keep, mx_dims sum, int64_t outputs,
                            int64_t terms)
{
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / 32;
    if (i >= outputs)
        return;
    x += offset_of(keep, i);
    float total = 0;
    for (int64_t t = threadIdx.x % 32; t < terms; t += 32)
        total += as_float(x[offset_of(sum, t)]);
    total = warp_sum(total);
    if (threadIdx.x % 32 == 0)
        put(&out[i], total);
}

template <typename X, typename O> static void launch(const mx_sum_dims *s, cudaStream_t stream)
{
    bool few = s->outputs < ENOUGH && s->terms >= LONG;
    int64_t threads = s->outputs * (few ? 32 : 1);
    auto kernel = few ? warp_kernel<X, O> : each_kernel<X, O>;
    kernel<<<(unsigned)((threads + THREADS - 1) / THREADS), THREADS, 0, stream>>>(
        (O *)s->out, (const X *)s->x, s->keep, s->sum, s->outputs, s->terms);
}

cudaError_t mx_cuda_sum_dims(const mx_sum_dims *s, cudaStream_t stream)
{
    if (!s->outputs)
        return cudaSuccess;
    if (s->x_f32)
        s->out_f32 ? launch<float, float>(s, stream) : launch<float, uint16_t>(s, stream);
    else
        s->out_f32 ? launch<uint16_t, float>(s, stream) : launch<uint16_t, uint16_t>(s, stream);
    return cudaGetLastError();
}
