/* gpu.cuh - what the GPU programs share: device memory, random fills, timing, comparing. A program
 * that finds no device says so in one line and succeeds, so it can run anywhere. */
#ifndef MX_BENCH_GPU_CUH
#define MX_BENCH_GPU_CUH

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn_graph.h>
#include <nvrtc.h>
extern "C" {
#include "base/status.h"
#include "device/cuda/gemm/gemm_lt.h"
#include "device/cuda/attention/sdpa_cudnn.h"
}
#include "device/cuda/core/kernels.h"
#include "device/cuda/core/vec.cuh"
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#define CU(expr)                                                                                   \
    do {                                                                                           \
        cudaError_t cu_e_ = (expr);                                                                \
        if (cu_e_ != cudaSuccess) {                                                                \
            printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #expr, cudaGetErrorString(cu_e_));       \
            fflush(stdout);                                                                        \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
#define OK(expr)                                                                                   \
    do {                                                                                           \
        mx_status ok_s_ = (expr);                                                                  \
        if (ok_s_) {                                                                               \
            printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #expr, mx_status_text(ok_s_));           \
            fflush(stdout);                                                                        \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static inline bool device_present()
{
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) {
        printf("skipped: no CUDA device\n");
        return false;
    }
    cudaDeviceProp p;
    CU(cudaGetDeviceProperties(&p, 0));
    printf("device: %s, sm_%d%d, %d multiprocessors, %.0f GiB, L2 %d MiB\n", p.name, p.major,
           p.minor, p.multiProcessorCount, p.totalGlobalMem / 1073741824.0, p.l2CacheSize >> 20);
    return true;
}

/* Uniform in [-1, 1) * scale + shift, from (seed, index). */
template <class T>
__global__ void fill_kernel(T *p, int64_t n, uint64_t seed, float scale, float shift)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    float x = ((int32_t)random_bits(seed, i)) * (1.f / 2147483648.f) * scale + shift;
    if (sizeof(T) == 2)
        ((uint16_t *)p)[i] = f32_to_bf16(x);
    else
        ((float *)p)[i] = x;
}
template <class T> static void fill(T *p, int64_t n, uint64_t seed, float scale, float shift = 0)
{
    fill_kernel<T><<<(unsigned)((n + 255) / 256), 256>>>(p, n, seed, scale, shift);
    CU(cudaGetLastError());
}
template <class T> static T *device_alloc(int64_t n)
{
    void *p;
    CU(cudaMalloc(&p, (size_t)(n > 0 ? n : 1) * sizeof(T)));
    return (T *)p;
}
template <class T> static T *device_random(int64_t n, uint64_t seed, float scale, float shift = 0)
{
    T *p = device_alloc<T>(n);
    fill(p, n, seed, scale, shift);
    return p;
}
template <class T> static T *device_copy(const std::vector<T> &v)
{
    T *p = device_alloc<T>((int64_t)v.size());
    CU(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
    return p;
}
static inline double to_double(uint16_t x)
{
    uint32_t u = (uint32_t)x << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static inline double to_double(float x)
{
    return x;
}
template <class T> static std::vector<double> host(const T *p, int64_t n)
{
    std::vector<T> v(n);
    CU(cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
    std::vector<double> r(n);
    for (int64_t i = 0; i < n; i++)
        r[i] = to_double(v[i]);
    return r;
}

/* |a - ref| / |ref|; NaN counts as infinite. */
static inline double rel_error(const std::vector<double> &a, const std::vector<double> &ref)
{
    double d = 0, r = 0;
    for (size_t i = 0; i < ref.size(); i++) {
        if (!(a[i] - a[i] == 0))
            return INFINITY;
        d += (a[i] - ref[i]) * (a[i] - ref[i]);
        r += ref[i] * ref[i];
    }
    return r > 0 ? sqrt(d / r) : sqrt(d);
}

/* Median milliseconds of `reps` runs after two warm-ups. */
template <class F> static double time_ms(F f, int reps = 10)
{
    cudaEvent_t a, b;
    CU(cudaEventCreate(&a));
    CU(cudaEventCreate(&b));
    std::vector<float> t;
    for (int i = 0; i < reps + 2; i++) {
        CU(cudaEventRecord(a, 0));
        f();
        CU(cudaEventRecord(b, 0));
        CU(cudaEventSynchronize(b));
        float ms;
        CU(cudaEventElapsedTime(&ms, a, b));
        if (i >= 2)
            t.push_back(ms);
    }
    CU(cudaEventDestroy(a));
    CU(cudaEventDestroy(b));
    std::sort(t.begin(), t.end());
    return t[t.size() / 2];
}

#endif
