/* adamw8.cu - see adamw8.h. A warp has a block of 256 moments, eight neighbours a lane, and takes
 * blocks in turn. The nearest code of a number follows from its exponent and first seven bits, but
 * for one comparison: of the middles between codes no two begin with the same of these. */
#include "device/cuda/train/adamw8.h"
#include "device/cuda/core/vec.cuh"

enum { BLOCK = 256, CODES = 256, WARPS = 8, THREADS = 32 * WARPS, EACH = BLOCK / 32 };
enum { BLOCKS_PER_SM = 4 };
/* Edges: 0; 2^-24 to 1, 128 for each power of two; one more. */
enum { BITS = 7, FIRST_EXPONENT = 127 - 24, EDGES = (24 << BITS) + 3 };

struct step_numbers {
    float lr, scale, fix1, fix2;
    uint64_t turn;
};

__device__ __forceinline__ float edge(int k)
{
    return k ? __uint_as_float((FIRST_EXPONENT << 23) + ((uint32_t)(k - 1) << (23 - BITS))) : 0.f;
}
/* Of the last edge that |x| reaches. */
__device__ __forceinline__ int edge_below(float x)
{
    int k = (int)(__float_as_uint(fabsf(x)) >> (23 - BITS)) - (FIRST_EXPONENT << BITS) + 1;
    return min(max(k, 0), EDGES - 2);
}

/* In shared memory: the numbers of m's and v's codes, the middles between them, and how many
 * middles lie below each edge, and below its negative. */
struct shared_maps {
    float m[CODES], v[CODES], m_middle[CODES], v_middle[CODES];
    uint8_t m_up[EDGES], m_down[EDGES], v_up[EDGES];

    __device__ __forceinline__ void fill(const float *map)
    {
        constexpr int RUN = (EDGES + THREADS - 1) / THREADS;
        for (int i = threadIdx.x; i < CODES; i += THREADS)
            m[i] = map[i], v[i] = map[CODES + i];
        __syncthreads();
        for (int i = threadIdx.x; i < CODES; i += THREADS) {
            m_middle[i] = i + 1 < CODES ? (m[i] + m[i + 1]) / 2 : INFINITY;
            v_middle[i] = i + 1 < CODES ? (v[i] + v[i + 1]) / 2 : INFINITY;
        }
        __syncthreads();
        int up = 0, down = CODES - 1, v_below = 0; /* edges of a thread are neighbours */
        for (int k = threadIdx.x * RUN; k < min(EDGES, ((int)threadIdx.x + 1) * RUN); k++) {
            while (m_middle[up] < edge(k))
                up++;
            while (down > 0 && !(m_middle[down - 1] < -edge(k)))
                down--;
            while (v_middle[v_below] < edge(k))
                v_below++;
            m_up[k] = (uint8_t)up, m_down[k] = (uint8_t)down, v_up[k] = (uint8_t)v_below;
        }
        __syncthreads();
    }
    /* The nearest code of x in [-1, 1]. */
    __device__ __forceinline__ int m_code(float x) const
    {
        const int k = edge_below(x), code = x >= 0 ? m_up[k] : m_down[k + 1];
        return code + (x > m_middle[code]);
    }
    __device__ __forceinline__ int v_code(float x) const
    {
        const int code = v_up[edge_below(x)];
        return code + (x > v_middle[code]);
    }
};

/* x / most, where 1 / most is not beyond the range of float. */
__device__ __forceinline__ float share(float x, float most, float inverse)
{
    return isfinite(inverse) ? x * inverse : most > 0 ? x / most : 0;
}

/* Some of eight neighbours; `n` of them are there. */
__device__ __forceinline__ void load_some(float f[EACH], const float *p, int n)
{
    if (n >= EACH) {
        load4(f, p), load4(f + 4, p + 4);
        return;
    }
#pragma unroll
    for (int j = 0; j < EACH; j++)
        f[j] = j < n ? p[j] : 0.f;
}
__device__ __forceinline__ void load_some(float f[EACH], const uint16_t *p, int n)
{
    if (n >= EACH) {
        unpack8(f, load8(p));
        return;
    }
#pragma unroll
    for (int j = 0; j < EACH; j++)
        f[j] = j < n ? bf16_to_f32(p[j]) : 0.f;
}
__device__ __forceinline__ uint2 load_codes(const uint8_t *p, int n)
{
    if (n >= EACH)
        return *(const uint2 *)p;
    uint32_t word[2] = {};
#pragma unroll
    for (int j = 0; j < EACH; j++)
        word[j / 4] |= (j < n ? (uint32_t)p[j] : 0u) << 8 * (j % 4);
    return make_uint2(word[0], word[1]);
}
__device__ __forceinline__ void store_codes(uint8_t *p, uint2 codes, int n)
{
    if (n >= EACH)
        *(uint2 *)p = codes;
    else
        for (int j = 0; j < n; j++)
            p[j] = (uint8_t)((j < 4 ? codes.x : codes.y) >> 8 * (j % 4));
}
__device__ __forceinline__ void store_halves(uint16_t *p, const uint32_t half[EACH], int n)
{
    if (n >= EACH) {
        *(uint4 *)p = make_uint4(half[0] | half[1] << 16, half[2] | half[3] << 16,
                                 half[4] | half[5] << 16, half[6] | half[7] << 16);
        return;
    }
#pragma unroll
    for (int j = 0; j < EACH; j++)
        if (j < n)
            p[j] = (uint16_t)half[j];
}

/* Weights from element i on, a multiple of eight. */
__device__ __forceinline__ void put_weights(float *w, int64_t i, const float x[EACH], int n,
                                            uint64_t)
{
    if (n >= EACH) {
        store4(w + i, x), store4(w + i + 4, x + 4);
        return;
    }
#pragma unroll
    for (int j = 0; j < EACH; j++)
        if (j < n)
            w[i + j] = x[j];
}
__device__ __forceinline__ void put_weights(uint16_t *w, int64_t i, const float x[EACH], int n,
                                            uint64_t key)
{
    const uint64_t bits[2] = {random_bits64(key, i / 4), random_bits64(key, i / 4 + 1)};
    uint32_t half[EACH];
#pragma unroll
    for (int j = 0; j < EACH; j++)
        half[j] = bf16_stochastic(x[j], (uint32_t)(bits[j / 4] >> (16 * (j % 4))));
    store_halves(w + i, half, n);
}

template <typename W, typename G>
__global__ __launch_bounds__(THREADS) void adamw8_kernel(mx_cuda_adamw8_args a)
{
    __shared__ shared_maps map;
    __shared__ step_numbers r;
    if (threadIdx.x == 0) {
        double t = a.hyper[2];
        r = {a.hyper[0], a.hyper[1], (float)(1 / (1 - pow(a.b1, t))),
             (float)(1 / (1 - pow(a.b2, t))), (uint64_t)t * 0xd1342543de82ef95ull};
    }
    map.fill(a.map);
    if (!isfinite(r.scale))
        return;
    const int64_t blocks = (a.n + BLOCK - 1) / BLOCK;
    const float b1 = (float)a.b1, b2 = (float)a.b2;
    for (int64_t b = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; b < blocks;
         b += (int64_t)gridDim.x * WARPS) {
        const int64_t i = b * BLOCK + threadIdx.x % 32 * EACH;
        const int n = i < a.n ? (int)min(a.n - i, (int64_t)EACH) : 0;
        const float m_old = a.m_most[b], v_old = a.v_most[b];
        const uint2 mc = load_codes(a.m + i, n), vc = load_codes(a.v + i, n);
        float w[EACH], g[EACH], m[EACH], v[EACH], m_most = 0, v_most = 0;
        load_some(w, (W *)a.w + i, n);
        load_some(g, (const G *)a.g + i, n);
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const float gj = g[j] * r.scale;
            const int m_code = (j < 4 ? mc.x : mc.y) >> 8 * (j % 4) & 255,
                      v_code = (j < 4 ? vc.x : vc.y) >> 8 * (j % 4) & 255;
            m[j] = b1 * (map.m[m_code] * m_old) + (1 - b1) * gj;
            v[j] = b2 * (map.v[v_code] * v_old) + (1 - b2) * gj * gj;
            if (j >= n)
                m[j] = v[j] = 0;
            const float step = m[j] * r.fix1 / (sqrtf(v[j] * r.fix2 + a.eps_root) + a.eps);
            w[j] -= r.lr * (step + a.decay * w[j]);
            m_most = fmaxf(m_most, fabsf(m[j]));
            v_most = fmaxf(v_most, v[j]);
        }
        put_weights((W *)a.w, i, w, n, a.salt + r.turn);
        if (a.copy) {
            uint32_t half[EACH];
#pragma unroll
            for (int j = 0; j < EACH; j++)
                half[j] = f32_to_bf16(w[j]);
            store_halves(a.copy + i, half, n);
        }
        m_most = warp_max(m_most), v_most = warp_max(v_most); /* all lanes have read the old ones */
        const float m_inverse = 1 / m_most, v_inverse = 1 / v_most;
        uint32_t m_codes[2] = {}, v_codes[2] = {};
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            int code = map.m_code(share(m[j], m_most, m_inverse));
            if (m[j] != 0 && signbit(map.m[code]) != signbit(m[j]))
                code += m[j] > 0 ? 1 : -1;
            m_codes[j / 4] |= (uint32_t)code << 8 * (j % 4);
            code = map.v_code(share(v[j], v_most, v_inverse));
            v_codes[j / 4] |= (v[j] > 0 && code == 0 ? 1u : (uint32_t)code) << 8 * (j % 4);
        }
        store_codes(a.m + i, make_uint2(m_codes[0], m_codes[1]), n);
        store_codes(a.v + i, make_uint2(v_codes[0], v_codes[1]), n);
        if (threadIdx.x % 32 == 0) {
            a.m_most[b] = m_most;
            a.v_most[b] = v_most;
        }
    }
}

template <typename W, typename G>
static cudaError_t launch(const mx_cuda_adamw8_args &a, cudaStream_t stream)
{
    int device = 0, sms = 0;
    cudaError_t e = cudaGetDevice(&device);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    if (e != cudaSuccess)
        return e;
    const int64_t each = (int64_t)BLOCK * WARPS, most = (int64_t)sms * BLOCKS_PER_SM,
                  all = (a.n + each - 1) / each;
    adamw8_kernel<W, G><<<(unsigned)(all < most ? all : most), THREADS, 0, stream>>>(a);
    return cudaGetLastError();
}

extern "C" cudaError_t mx_cuda_adamw8(const mx_cuda_adamw8_args *a, cudaStream_t stream)
{
    if (a->w_f32)
        return a->g_f32 ? launch<float, float>(*a, stream) : launch<float, uint16_t>(*a, stream);
    return a->g_f32 ? launch<uint16_t, float>(*a, stream) : launch<uint16_t, uint16_t>(*a, stream);
}
