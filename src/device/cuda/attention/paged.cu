/* paged.cu - see paged.h: any dtype and size of heads. A block takes a head of a query. Its warps
 * take the keys in turn, a key at a time: lanes hold the query and the sum of values, and the
 * softmax is kept up to date as keys come (max m, sum l, values o). The warps' parts are put
 * together at the end, in order, so that the bits of a query depend on nothing but its own keys. */
#include "device/cuda/attention/paged.cuh"

#include <cuda_bf16.h>

enum { WARPS = 4, LANES = 32, PER_LANE = MX_CUDA_PAGED_DIM / LANES };

__device__ __forceinline__ float load(const float *p)
{
    return *p;
}
__device__ __forceinline__ float load(const __nv_bfloat16 *p)
{
    return __bfloat162float(*p);
}
__device__ __forceinline__ void store(float *p, float x)
{
    *p = x;
}
__device__ __forceinline__ void store(__nv_bfloat16 *p, float x)
{
    *p = __float2bfloat16(x);
}

template <typename T, int N>
__global__ void __launch_bounds__(WARPS *LANES)
    paged_kernel(const __grid_constant__ mx_cuda_paged p)
{
    extern __shared__ float shared[]; /* o (WARPS, v_dim), m (WARPS), l (WARPS) */
    const int n = blockIdx.x, h = blockIdx.y, lane = threadIdx.x % LANES,
              warp = threadIdx.x / LANES, kh = h / (p.q_heads / p.k_heads);
    const int64_t at = p.positions[n], row = p.row[n];
    const bool sees = at >= 0 && row >= 0 && row < p.rows;
    const int32_t *table = p.table + (sees ? row : 0) * p.columns;
    const T *q = (const T *)p.q + ((int64_t)n * p.q_heads + h) * p.qk_dim;
    float query[N], o[N], m = -INFINITY, l = 0;
#pragma unroll
    for (int i = 0; i < N; i++) {
        int d = lane + i * LANES;
        query[i] = d < p.qk_dim ? load(q + d) : 0;
        o[i] = 0;
    }
    const int32_t *list = p.selected ? p.selected + (int64_t)n * p.n_selected : NULL;
    const int64_t last = p.until ? last_seen(p, at, p.until[n]) : at;
    const int64_t end = list ? p.n_selected : last + 1, least = end - (int64_t)p.page * p.columns;
    int64_t begin = list || !sees ? 0 : first_seen(p, at);
    begin = !list && least > begin ? least : begin;
    for (int64_t x = begin + warp; sees && x < end; x += WARPS) {
        const int64_t position = list ? list[x] : x;
        const int64_t slot = position < 0 ? -1 : slot_of(p, table, position);
        if (slot < 0)
            continue;
        const T *k = (const T *)p.k + slot * p.k_row + kh * p.qk_dim;
        const T *v = (const T *)p.v + slot * p.v_row + kh * p.v_dim;
        float s = 0;
#pragma unroll
        for (int i = 0; i < N; i++)
            if (lane + i * LANES < p.qk_dim)
                s += query[i] * load(k + lane + i * LANES);
        for (int step = LANES / 2; step > 0; step /= 2)
            s += __shfl_xor_sync(~0u, s, step);
        s *= p.scale;
        if (p.softcap > 0)
            s = p.softcap * tanhf(s / p.softcap);
        const float top = fmaxf(m, s), old = __expf(m - top), w = __expf(s - top);
        l = l * old + w;
        m = top;
#pragma unroll
        for (int i = 0; i < N; i++)
            if (lane + i * LANES < p.v_dim)
                o[i] = o[i] * old + w * load(v + lane + i * LANES);
    }
    float *ms = shared + WARPS * p.v_dim, *ls = ms + WARPS;
#pragma unroll
    for (int i = 0; i < N; i++)
        if (lane + i * LANES < p.v_dim)
            shared[warp * p.v_dim + lane + i * LANES] = o[i];
    if (lane == 0) {
        ms[warp] = m;
        ls[warp] = l;
    }
    __syncthreads();
    float all = p.sinks ? p.sinks[h] : -INFINITY, sum = 0;
    for (int w = 0; w < WARPS; w++)
        all = fmaxf(all, ms[w]);
    if (p.sinks)
        sum = __expf(p.sinks[h] - all);
    for (int w = 0; w < WARPS; w++)
        sum += ms[w] > -INFINITY ? __expf(ms[w] - all) * ls[w] : 0;
    T *out = (T *)p.out + ((int64_t)n * p.q_heads + h) * p.v_dim;
    for (int d = threadIdx.x; d < p.v_dim; d += WARPS * LANES) {
        float y = 0;
        for (int w = 0; w < WARPS; w++)
            y += ms[w] > -INFINITY ? __expf(ms[w] - all) * shared[w * p.v_dim + d] : 0;
        store(out + d, sum > 0 ? y / sum : 0);
    }
}

template <typename T> static cudaError_t launch(const mx_cuda_paged &p, cudaStream_t stream)
{
    const dim3 grid((unsigned)p.queries, (unsigned)p.q_heads);
    const size_t bytes = sizeof(float) * WARPS * (size_t)(p.v_dim + 2);
    const int most = p.qk_dim > p.v_dim ? p.qk_dim : p.v_dim;
    if (most <= 128)
        paged_kernel<T, 4><<<grid, WARPS * LANES, bytes, stream>>>(p);
    else if (most <= 256)
        paged_kernel<T, 8><<<grid, WARPS * LANES, bytes, stream>>>(p);
    else
        paged_kernel<T, PER_LANE><<<grid, WARPS * LANES, bytes, stream>>>(p);
    return cudaGetLastError();
}

extern "C" cudaError_t mx_cuda_paged_attention(const mx_cuda_paged *p, cudaStream_t stream)
{
    return p->bf16 ? launch<__nv_bfloat16>(*p, stream) : launch<float>(*p, stream);
}
