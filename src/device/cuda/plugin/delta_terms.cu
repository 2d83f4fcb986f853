/* delta_terms.cu - what a chunk of the delta rule has before the memory is known, all chunks at
 * once: A_ij = beta_i k_i.k_j E_ij (j < i), its inverse T = (I + A)^-1, and P = scale (Q K^T) * E.
 *
 * A block takes a chunk of one key head and makes the matrices of all value heads that read it: the
 * products are shared. The inverse is found by substitution in float32, one thread a column with
 * the column in registers, since errors in it would be multiplied.
 */
#include "device/cuda/plugin/delta.cuh"

/* Column j of T into t (C, C), from a (C, CL): x_i = [i == j] - sum of A_im x_m over m < i. Above
 * the diagonal all is zero by itself. */
template <bool FAST> __device__ void invert_column(const float *a, float *t, int j)
{
    float x[C];
#pragma unroll
    for (int i = 0; i < C; i++) {
        float s0 = i == j ? 1.f : 0.f, s1 = 0;
#pragma unroll
        for (int m = 0; m < i; m += 4) {
            float f[4];
            load4(f, a + i * CL + m);
            s0 -= f[0] * x[m];
            if (m + 1 < i)
                s1 -= f[1] * x[m + 1];
            if (m + 2 < i)
                s0 -= f[2] * x[m + 2];
            if (m + 3 < i)
                s1 -= f[3] * x[m + 3];
        }
        x[i] = s0 + s1;
        t[i * C + j] = kept<FAST>(x[i]);
    }
}

template <class T, bool FAST, int DP>
__global__ void __launch_bounds__(THREADS)
    delta_terms_kernel(const __grid_constant__ mx_cuda_delta d, float *t, float *p)
{
    extern __shared__ float pool[];
    const int L = DP + 4;
    float *k = pool, *q = k + C * L, *a = q + C * L;
    vectors *w = (vectors *)(a + C * CL);
    int warp = threadIdx.x >> 5, r0 = warp / 2 * 16, c0 = warp % 2 * 32;
    int hk = blockIdx.y, group = d.v_heads / d.k_heads, b = blockIdx.z;
    int len = d.state ? row_tokens(d.positions, b, d.len) : d.len;
    place at = place_of(d, b, hk * group, blockIdx.x, len);
    int64_t row = (int64_t)d.k_heads * d.k_dim, from = at.t0 * row + hk * d.k_dim;
    load_rows(k, L, DP, (const T *)d.k + from, row, at.n, d.k_dim);
    load_rows(q, L, DP, (const T *)d.q + from, row, at.n, d.k_dim);
    __syncthreads();
    piece<1, 4> kk, qk;
    kk.clear();
    qk.clear();
    mul<FAST, false, true>(kk, k + r0 * L, L, k + c0 * L, L, DP);
    mul<FAST, false, true>(qk, q + r0 * L, L, k + c0 * L, L, DP);
    for (int r = 0; r < group; r++) {
        at.h = hk * group + r;
        int64_t number = number_of(d, at);
        load_vectors(w, d, at);
        __syncthreads();
        float *pt = p + number * SQUARE;
        kk.each([&](int i, int j, float &x) {
            i += r0, j += c0;
            a[i * CL + j] = j < i ? w->beta[i] * x * decay(w, i, j) : 0.f;
        });
        qk.each([&](int i, int j, float &x) {
            i += r0, j += c0;
            pt[i * C + j] = j <= i ? kept<FAST>(d.scale * x * decay(w, i, j)) : 0.f;
        });
        __syncthreads();
        if (threadIdx.x < C)
            invert_column<FAST>(a, t + number * SQUARE, threadIdx.x);
        __syncthreads();
    }
}

template <class T, bool FAST, int DP>
static cudaError_t terms(const mx_cuda_delta *d, float *t, float *p, cudaStream_t stream)
{
    size_t bytes = sizeof(float) * (2 * C * (DP + 4) + C * CL) + sizeof(vectors);
    dim3 grid((unsigned)((d->len + C - 1) / C), (unsigned)d->k_heads, (unsigned)d->batch);
    auto *kernel = delta_terms_kernel<T, FAST, DP>;
    cudaError_t e = cudaFuncSetAttribute((const void *)kernel,
                                         cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (e != cudaSuccess)
        return e;
    kernel<<<grid, THREADS, bytes, stream>>>(*d, t, p);
    return cudaGetLastError();
}

cudaError_t mx_cuda_delta_terms(const mx_cuda_delta *d, float *t, float *p, cudaStream_t stream)
{
    if (d->f32)
        return d->k_dim > 64 ? terms<float, false, 128>(d, t, p, stream)
                             : terms<float, false, 64>(d, t, p, stream);
    return d->k_dim > 64 ? terms<uint16_t, true, 128>(d, t, p, stream)
                         : terms<uint16_t, true, 64>(d, t, p, stream);
}
