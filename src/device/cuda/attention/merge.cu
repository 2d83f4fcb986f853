/* merge.cu - see merge.h. Memory is all that it needs. A block takes ROWS queries of one head, so
 * that their sums lie side by side, and LANES threads each; a thread has neighbours of 16 bytes.
 * Heads come fastest: blocks that run together read whole rows of memory. */
#include "device/cuda/attention/merge.h"
#include "device/cuda/core/vec.cuh"

enum { LANES = 8, ROWS = 32, THREADS = LANES * ROWS };

/* WIDE neighbours at a time, or one. */
template <class T, int WIDE> struct piece {
    static __device__ __forceinline__ void load(float *f, const T *p) { f[0] = as_float(*p); }
    static __device__ __forceinline__ void store(T *p, const float *f) { put(p, f[0]); }
};
template <> struct piece<uint16_t, 8> {
    static __device__ __forceinline__ void load(float *f, const uint16_t *p)
    {
        unpack8(f, load8_stream(p));
    }
    static __device__ __forceinline__ void store(uint16_t *p, const float *f)
    {
        store8(p, pack8(f));
    }
};
template <> struct piece<float, 4> {
    static __device__ __forceinline__ void load(float *f, const float *p) { load4(f, p); }
    static __device__ __forceinline__ void store(float *p, const float *f) { store4(p, f); }
};

template <class T, int WIDE>
__global__ __launch_bounds__(THREADS) void merge_kernel(const __grid_constant__ mx_cuda_merge m,
                                                        T *out, float *lse)
{
    int h = blockIdx.x, q = blockIdx.y * ROWS + threadIdx.x / LANES, b = blockIdx.z;
    int lane = threadIdx.x % LANES;
    if (q >= m.length)
        return;
    float weight[MX_MERGE_MOST], top = -INFINITY, sum = 0;
#pragma unroll
    for (int i = 0; i < MX_MERGE_MOST; i++) {
        weight[i] = -INFINITY;
        int from = i < m.n ? m.set[i].skipped : m.length;
        if (q >= from)
            weight[i] = m.set[i].lse[((int64_t)b * m.heads + h) * (m.length - from) + q - from];
        top = fmaxf(top, weight[i]);
    }
#pragma unroll
    for (int i = 0; i < MX_MERGE_MOST; i++) {
        weight[i] = weight[i] > -INFINITY ? __expf(weight[i] - top) : 0.f;
        sum += weight[i];
    }
    float inverse = sum > 0 ? 1.f / sum : 0.f;
    if (lane == 0)
        lse[((int64_t)b * m.heads + h) * m.length + q] = sum > 0 ? top + logf(sum) : -INFINITY;
    for (int e = lane * WIDE; e < m.size; e += LANES * WIDE) {
        float y[WIDE] = {}, x[WIDE];
#pragma unroll
        for (int i = 0; i < MX_MERGE_MOST; i++) {
            if (weight[i] == 0)
                continue;
            int from = m.set[i].skipped;
            int64_t row = ((int64_t)b * (m.length - from) + q - from) * m.heads + h;
            piece<T, WIDE>::load(x, (const T *)m.set[i].out + row * m.size + e);
#pragma unroll
            for (int j = 0; j < WIDE; j++)
                y[j] += weight[i] * x[j];
        }
#pragma unroll
        for (int j = 0; j < WIDE; j++)
            y[j] *= inverse;
        int64_t row = ((int64_t)b * m.length + q) * m.heads + h;
        piece<T, WIDE>::store(out + row * m.size + e, y);
    }
}

template <class T, int WIDE>
static cudaError_t launch(const mx_cuda_merge *m, void *out, float *lse, cudaStream_t stream)
{
    dim3 grid((unsigned)m->heads, (unsigned)((m->length + ROWS - 1) / ROWS), (unsigned)m->batch);
    merge_kernel<T, WIDE><<<grid, THREADS, 0, stream>>>(*m, (T *)out, lse);
    return cudaGetLastError();
}

extern "C" cudaError_t mx_cuda_merge_sets(const mx_cuda_merge *m, void *out, float *lse,
                                          cudaStream_t stream)
{
    int wide = m->f32 ? 4 : 8;
    bool whole = m->size % wide == 0 && (uintptr_t)out % 16 == 0;
    for (int i = 0; i < m->n; i++)
        whole &= (uintptr_t)m->set[i].out % 16 == 0;
    if (m->f32)
        return whole ? launch<float, 4>(m, out, lse, stream)
                     : launch<float, 1>(m, out, lse, stream);
    return whole ? launch<uint16_t, 8>(m, out, lse, stream)
                 : launch<uint16_t, 1>(m, out, lse, stream);
}
