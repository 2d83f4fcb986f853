/* adamw.cu - AdamW over every parameter in one launch, and the global gradient norm before it.
 *
 *     g = grad * grad_mul * clip;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
 *     p -= lr (m / bias1 / (sqrt(v / bias2) + eps) + decay p)
 *
 * Work is cut into chunks of 16,384 elements; a table says which tensor each chunk belongs to, so
 * one launch serves all tensors whatever their sizes. Bytes an element with f32 state and bf16
 * gradient: 8 (master) + 16 (m, v) + 2 (gradient) + 2 (copy) = 28; with bf16 state 14. Nothing else
 * is touched, so the kernel runs at memory speed. Tensors must be 16-byte aligned; tails are done
 * one by one.
 *
 * The norm is summed per chunk in f64, then over chunks by one block in a fixed order. A gradient
 * that is not finite gives clip factor 0 and the update is skipped whole: moments and weights keep
 * their values.
 */
#include "device/cuda/plugin/kernels.h"
#include "device/cuda/plugin/vec.cuh"

/* A block of the update does a piece of a chunk, SPAN vectors a thread: long enough to pay for
 * finding its tensor (three dependent loads), short enough to keep many blocks reading while others
 * write. */
enum {
    THREADS = 256,
    PER = 4,
    SPAN = 4,
    PIECE = THREADS * PER * SPAN,
    PIECES = MX_OPT_CHUNK / PIECE
};

/* Four elements at i, from f32 or bf16. */
template <bool BF16> __device__ __forceinline__ float4 read4(const void *p, int64_t i)
{
    if (!BF16)
        return *(const float4 *)((const float *)p + i);
    uint2 u = *(const uint2 *)((const uint16_t *)p + i);
    return make_float4(__uint_as_float(u.x << 16), __uint_as_float(u.x & 0xffff0000u),
                       __uint_as_float(u.y << 16), __uint_as_float(u.y & 0xffff0000u));
}
__device__ __forceinline__ uint2 pack4(float4 x)
{
    __nv_bfloat162 a = __floats2bfloat162_rn(x.x, x.y), b = __floats2bfloat162_rn(x.z, x.w);
    return make_uint2(*(uint32_t *)&a, *(uint32_t *)&b);
}
__device__ __forceinline__ uint2 pack4_stochastic(float4 x, uint64_t r) /* 16 bits for each */
{
    uint32_t lo = (uint32_t)r, hi = (uint32_t)(r >> 32);
    return make_uint2(bf16_stochastic(x.x, lo) | (uint32_t)bf16_stochastic(x.y, lo >> 16) << 16,
                      bf16_stochastic(x.z, hi) | (uint32_t)bf16_stochastic(x.w, hi >> 16) << 16);
}

/* bf16 state is rounded at random: to nearest, a moment with b2 = 0.999 would never move. */
template <bool BF16>
__device__ __forceinline__ void write4(void *p, int64_t i, float4 x, uint64_t bits)
{
    if (BF16)
        *(uint2 *)((uint16_t *)p + i) = pack4_stochastic(x, bits);
    else
        *(float4 *)((float *)p + i) = x;
}

struct coefficients {
    float g, b1, b2, lr, eps, inv1, inv2, decay;
};
__device__ __forceinline__ float update(float p, float g, float &m, float &v, const coefficients &c)
{
    g *= c.g;
    m = c.b1 * m + (1.f - c.b1) * g;
    v = c.b2 * v + (1.f - c.b2) * g * g;
    return p - c.lr * (m * c.inv1 / (sqrtf(v * c.inv2) + c.eps) + c.decay * p);
}

template <bool MASTER16, bool MOMENT16, bool GRAD16>
__global__ void __launch_bounds__(THREADS)
    adamw_kernel(const mx_opt_tensor *tensors, const int32_t *chunk_tensor,
                 const int32_t *chunk_index, const mx_opt_step *step, const float *norm)
{
    float clip = norm[1];
    if (clip == 0.f)
        return;
    int chunk = blockIdx.x / PIECES, ti = chunk_tensor[chunk];
    mx_opt_tensor t = tensors[ti];
    coefficients c = {step->grad_mul * clip, step->beta1, step->beta2,
                      step->lr * t.lr_scale, step->eps,   1.f / step->bias1,
                      1.f / step->bias2,     t.decay};
    uint64_t seed = step->seed + (uint64_t)ti * 0xd1342543de82ef95ull;
    int64_t base = (int64_t)chunk_index[chunk] * MX_OPT_CHUNK + blockIdx.x % PIECES * PIECE;
    int64_t end = base + PIECE < t.n ? base + PIECE : t.n;
    int64_t end4 = base + (end - base) / 4 * 4, i = base + PER * threadIdx.x;
#pragma unroll(MASTER16 ? 4 : 2)
    for (; i < end4; i += PER * THREADS) {
        float4 g = read4<GRAD16>(t.grad, i), m = read4<MOMENT16>(t.m, i),
               v = read4<MOMENT16>(t.v, i);
        float4 p = read4<MASTER16>(t.master, i);
        p.x = update(p.x, g.x, m.x, v.x, c);
        p.y = update(p.y, g.y, m.y, v.y, c);
        p.z = update(p.z, g.z, m.z, v.z, c);
        p.w = update(p.w, g.w, m.w, v.w, c);
        /* one full mix for the weight; the moments' bits follow from it by one product each */
        uint64_t r = MASTER16 || MOMENT16 ? random_bits64(seed, i) : 0,
                 r1 = r * 0x9e3779b97f4a7c15ull;
        write4<MASTER16>(t.master, i, p, r);
        write4<MOMENT16>(t.m, i, m, r1 ^ (r1 >> 32));
        r1 = r * 0xc2b2ae3d27d4eb4full;
        write4<MOMENT16>(t.v, i, v, r1 ^ (r1 >> 32));
        if (!MASTER16 && t.copy)
            *(uint2 *)(t.copy + i) = pack4(p);
    }
    i = end4 + threadIdx.x; /* the tensor's last one to three */
    if (base < t.n && i < end) {
        float g = GRAD16 ? bf16_to_f32(((const uint16_t *)t.grad)[i]) : ((const float *)t.grad)[i];
        float m = MOMENT16 ? bf16_to_f32(((uint16_t *)t.m)[i]) : ((float *)t.m)[i];
        float v = MOMENT16 ? bf16_to_f32(((uint16_t *)t.v)[i]) : ((float *)t.v)[i];
        float p = MASTER16 ? bf16_to_f32(((uint16_t *)t.master)[i]) : ((float *)t.master)[i];
        p = update(p, g, m, v, c);
        if (MOMENT16) {
            ((uint16_t *)t.m)[i] = bf16_stochastic(m, random_bits(~seed, i));
            ((uint16_t *)t.v)[i] = bf16_stochastic(v, random_bits(seed ^ 0x5555555555555555ull, i));
        } else {
            ((float *)t.m)[i] = m;
            ((float *)t.v)[i] = v;
        }
        if (MASTER16)
            ((uint16_t *)t.master)[i] = bf16_stochastic(p, random_bits(seed, i));
        else
            ((float *)t.master)[i] = p;
        if (!MASTER16 && t.copy)
            t.copy[i] = f32_to_bf16(p);
    }
}

template <bool GRAD16>
__global__ void __launch_bounds__(THREADS)
    norm_chunk_kernel(const mx_opt_tensor *tensors, const int32_t *chunk_tensor,
                      const int32_t *chunk_index, double *partial)
{
    __shared__ double warp_part[THREADS / 32];
    mx_opt_tensor t = tensors[chunk_tensor[blockIdx.x]];
    int64_t base = (int64_t)chunk_index[blockIdx.x] * MX_OPT_CHUNK;
    int64_t end = base + MX_OPT_CHUNK < t.n ? base + MX_OPT_CHUNK : t.n;
    int64_t end4 = base + (end - base) / 4 * 4;
    float s = 0; /* at most 64 squares a thread */
#pragma unroll 4
    for (int64_t i = base + PER * threadIdx.x; i < end4; i += PER * THREADS) {
        float4 g = read4<GRAD16>(t.grad, i);
        s += g.x * g.x + g.y * g.y + g.z * g.z + g.w * g.w;
    }
    for (int64_t i = end4 + threadIdx.x; i < end; i += THREADS) {
        float g = GRAD16 ? bf16_to_f32(((const uint16_t *)t.grad)[i]) : ((const float *)t.grad)[i];
        s += g * g;
    }
    double x = s;
#pragma unroll
    for (int o = 16; o; o >>= 1)
        x += __shfl_xor_sync(~0u, x, o);
    if ((threadIdx.x & 31) == 0)
        warp_part[threadIdx.x >> 5] = x;
    __syncthreads();
    if (threadIdx.x == 0) {
        x = 0;
        for (int i = 0; i < THREADS / 32; i++)
            x += warp_part[i];
        partial[blockIdx.x] = x;
    }
}

__global__ void norm_final_kernel(const double *partial, int64_t n, const mx_opt_step *step,
                                  float *norm)
{
    __shared__ double part[1024];
    double s = 0;
    for (int64_t i = threadIdx.x; i < n; i += 1024)
        s += partial[i];
    part[threadIdx.x] = s;
    for (int o = 512; o; o >>= 1) {
        __syncthreads();
        if (threadIdx.x < o)
            part[threadIdx.x] += part[threadIdx.x + o];
    }
    if (threadIdx.x)
        return;
    double total = sqrt(part[0]) * fabs((double)step->grad_mul);
    float clip = 1.f;
    if (!isfinite(total))
        clip = 0.f;
    else if (step->max_norm > 0 && total > step->max_norm)
        clip = (float)(step->max_norm / (total + 1e-6));
    norm[0] = (float)total;
    norm[1] = clip;
}

cudaError_t mx_cuda_global_norm(const mx_opt_table *t, const mx_opt_step *step, double *partial,
                                float *norm, cudaStream_t stream)
{
    auto *k = t->grad == MX_OPT_BF16 ? norm_chunk_kernel<true> : norm_chunk_kernel<false>;
    k<<<(unsigned)t->n_chunks, THREADS, 0, stream>>>(t->tensors, t->chunk_tensor, t->chunk_index,
                                                     partial);
    norm_final_kernel<<<1, 1024, 0, stream>>>(partial, t->n_chunks, step, norm);
    return cudaGetLastError();
}

cudaError_t mx_cuda_adamw(const mx_opt_table *t, const mx_opt_step *step, const float *norm,
                          cudaStream_t stream)
{
    typedef void (*kernel)(const mx_opt_tensor *, const int32_t *, const int32_t *,
                           const mx_opt_step *, const float *);
    static const kernel table[2][2][2] = {
        {{adamw_kernel<false, false, false>, adamw_kernel<false, false, true>},
         {adamw_kernel<false, true, false>, adamw_kernel<false, true, true>}},
        {{adamw_kernel<true, false, false>, adamw_kernel<true, false, true>},
         {adamw_kernel<true, true, false>, adamw_kernel<true, true, true>}}};
    kernel k = table[t->master][t->moments][t->grad];
    k<<<(unsigned)(t->n_chunks * PIECES), THREADS, 0, stream>>>(t->tensors, t->chunk_tensor,
                                                                t->chunk_index, step, norm);
    return cudaGetLastError();
}
