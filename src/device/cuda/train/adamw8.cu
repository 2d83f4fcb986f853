/* adamw8.cu - see adamw8.h. A block of threads has a block of 256 moments, an element a thread; the
 * maps lie in shared memory. */
#include "device/cuda/train/adamw8.h"
#include "device/cuda/core/vec.cuh"

enum { BLOCK = 256, CODES = 256, WARPS = BLOCK / 32 };

struct step_numbers {
    float lr, scale, fix1, fix2;
    uint64_t turn;
};

__device__ __forceinline__ float most_of_block(float x, float *part)
{
#pragma unroll
    for (int o = 16; o; o >>= 1)
        x = fmaxf(x, __shfl_xor_sync(~0u, x, o));
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = x;
    __syncthreads();
    x = part[0];
#pragma unroll
    for (int i = 1; i < WARPS; i++)
        x = fmaxf(x, part[i]);
    return x;
}

/* Of x in [-1, 1]. */
__device__ __forceinline__ int nearest_code(const float *map, float x)
{
    int low = 0, high = CODES - 1;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (map[middle] <= x)
            low = middle;
        else
            high = middle;
    }
    return x > (map[low] + map[high]) / 2 ? high : low;
}

__device__ __forceinline__ void put_weight(float *w, int64_t i, float x, uint64_t)
{
    w[i] = x;
}
__device__ __forceinline__ void put_weight(uint16_t *w, int64_t i, float x, uint64_t key)
{
    w[i] = bf16_stochastic(x, (uint32_t)(random_bits64(key, i / 4) >> (16 * (i % 4))));
}

template <typename W, typename G>
__global__ __launch_bounds__(BLOCK) void adamw8_kernel(mx_cuda_adamw8_args a)
{
    __shared__ float map[2 * CODES], part_m[WARPS], part_v[WARPS];
    __shared__ step_numbers r;
    if (threadIdx.x == 0) {
        double t = a.hyper[2];
        r = {a.hyper[0], a.hyper[1], (float)(1 / (1 - pow(a.b1, t))),
             (float)(1 / (1 - pow(a.b2, t))), (uint64_t)t * 0xd1342543de82ef95ull};
    }
    for (int i = threadIdx.x; i < 2 * CODES; i += BLOCK)
        map[i] = a.map[i];
    __syncthreads();
    if (!isfinite(r.scale))
        return;
    int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x;
    bool mine = i < a.n;
    float m = 0, v = 0;
    if (mine) {
        float b1 = (float)a.b1, b2 = (float)a.b2, w = as_float(((W *)a.w)[i]);
        float g = as_float(((const G *)a.g)[i]) * r.scale;
        m = b1 * (map[a.m[i]] * a.m_most[blockIdx.x]) + (1 - b1) * g;
        v = b2 * (map[CODES + a.v[i]] * a.v_most[blockIdx.x]) + (1 - b2) * g * g;
        float step = m * r.fix1 / (sqrtf(v * r.fix2 + a.eps_root) + a.eps);
        w -= r.lr * (step + a.decay * w);
        put_weight((W *)a.w, i, w, a.salt + r.turn);
        if (a.copy)
            a.copy[i] = f32_to_bf16(w);
    }
    float m_most = most_of_block(fabsf(m), part_m), v_most = most_of_block(v, part_v);
    if (mine) {
        int code = nearest_code(map, m_most > 0 ? m / m_most : 0);
        if (m != 0 && signbit(map[code]) != signbit(m))
            code += m > 0 ? 1 : -1;
        a.m[i] = (uint8_t)code;
        code = nearest_code(map + CODES, v_most > 0 ? v / v_most : 0);
        a.v[i] = (uint8_t)(v > 0 && code == 0 ? 1 : code);
    }
    if (threadIdx.x == 0) { /* all have read the old ones: most_of_block waits for them */
        a.m_most[blockIdx.x] = m_most;
        a.v_most[blockIdx.x] = v_most;
    }
}

extern "C" cudaError_t mx_cuda_adamw8(const mx_cuda_adamw8_args *a, cudaStream_t stream)
{
    unsigned blocks = (unsigned)((a->n + BLOCK - 1) / BLOCK);
    if (a->w_f32 && a->g_f32)
        adamw8_kernel<float, float><<<blocks, BLOCK, 0, stream>>>(*a);
    else if (a->w_f32)
        adamw8_kernel<float, uint16_t><<<blocks, BLOCK, 0, stream>>>(*a);
    else if (a->g_f32)
        adamw8_kernel<uint16_t, float><<<blocks, BLOCK, 0, stream>>>(*a);
    else
        adamw8_kernel<uint16_t, uint16_t><<<blocks, BLOCK, 0, stream>>>(*a);
    return cudaGetLastError();
}
