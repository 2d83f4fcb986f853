/* delta_terms.cu - what a chunk of the delta rule has before the memory is known, all chunks at
 * once: A_ij = beta_i k_i.k_j E_ij (j < i), its inverse T = (I + A)^-1, and P = scale (Q K^T) * E.
 *
 * A block takes a chunk of one key head and makes the matrices of all value heads that read it: the
 * GEMMs are shared. The inverse is found by substitution in float32, one thread a column with
 * the column in registers, since errors in it would be multiplied; two heads go at once, with their
 * matrices where K and Q were.
 */
#include "device/cuda/recurrent/delta.cuh"

/* Column j of T into t (C, C), from a (C, CL): x_i = [i == j] - sum of A_im x_m over m < i. Above
 * the diagonal all is zero by itself. */
template <bool FAST> __device__ void invert_column(const float *a, float *t, int j)
{
    float x[C];
#pragma unroll
    for (int i = 0; i < C; i++) {
        float s0 = i == j ? 1.f : 0.f, s1 = 0, s2 = 0, s3 = 0; /* four chains, not one */
#pragma unroll
        for (int m = 0; m < i; m += 4) {
            float f[4];
            load4(f, a + i * CL + m);
            s0 -= f[0] * x[m];
            if (m + 1 < i)
                s1 -= f[1] * x[m + 1];
            if (m + 2 < i)
                s2 -= f[2] * x[m + 2];
            if (m + 3 < i)
                s3 -= f[3] * x[m + 3];
        }
        x[i] = (s0 + s1) + (s2 + s3);
        t[i * C + j] = kept<FAST>(x[i]);
    }
}

enum { TWO = 2 };
template <int DP> union terms_pool {
    struct {
        float k[C * (DP + 4)], q[C * (DP + 4)];
    } rows;
    struct {
        float a[TWO][C * CL];
        vectors w[TWO];
    } heads;
};

/* P to scratch and A to x (C, CL), of one head, from K K^T above Q K^T. */
template <bool FAST>
__device__ __forceinline__ void head_terms(piece<2, 4> &kq, const vectors *w, float scale, float *x,
                                           float *p)
{
    int warp = threadIdx.x >> 5, r0 = warp / 2 * 16, c0 = warp % 2 * 32;
    kq.pairs([&](int i, int j, float &y, float &z) {
        bool keys = i < 16;
        i += keys ? r0 : r0 - 16, j += c0;
        float e = j <= i ? decay(w, i, j) : 0.f, f = j + 1 <= i ? decay(w, i, j + 1) : 0.f;
        if (keys)
            put_pair(x + i * CL, j, C, j < i ? w->beta[i] * y * e : 0.f,
                     j + 1 < i ? w->beta[i] * z * f : 0.f);
        else
            put_pair(p + i * C, j, C, kept<FAST>(scale * y * e), kept<FAST>(scale * z * f));
    });
}

template <class T, bool FAST, int DP>
__global__ void __launch_bounds__(THREADS, 2)
    delta_terms_kernel(const __grid_constant__ mx_cuda_delta d,
                       const __grid_constant__ delta_terms to)
{
    extern __shared__ __align__(16) float pool[];
    enum { L = DP + 4 };
    auto *x = (terms_pool<DP> *)pool;
    int warp = threadIdx.x >> 5, r0 = warp / 2 * 16, c0 = warp % 2 * 32;
    int hk = blockIdx.y, group = d.v_heads / d.k_heads, b = blockIdx.z;
    int len = d.state ? row_tokens(d.positions, b, d.len) : d.len;
    place at = place_of(d, b, hk * group, blockIdx.x, len);
    tile_in_registers<T, C, DP> k, q;
    k.take((const T *)d.k + k_from(d, at), k_step(d), at.n, d.k_dim);
    q.take((const T *)d.q + k_from(d, at), k_step(d), at.n, d.k_dim);
    k.template put<FAST>(x->rows.k, L);
    q.template put<FAST>(x->rows.q, L);
    __syncthreads();
    piece<2, 4> kq; /* K K^T above Q K^T */
    kq.clear();
    mul<FAST, false, true>(kq, x->rows.k + r0 * L, L, x->rows.k + c0 * L, L, DP, C * L);
    for (int r = 0; r < group; r += TWO) {
        int n = group - r < TWO ? group - r : TWO;
        __syncthreads();
        for (int j = 0; j < n; j++) {
            at.h = hk * group + r + j;
            find_vectors(&x->heads.w[j], d, at);
        }
        __syncthreads();
        int64_t number = number_of(d, {b, hk * group + r, (int)blockIdx.x, 0, 0});
        int64_t step = (d.len + C - 1) / C; /* to the next head's number */
        for (int j = 0; j < n; j++) {
            const vectors *w = &x->heads.w[j];
            head_terms<FAST>(kq, w, d.scale, x->heads.a[j], to.p + (number + j * step) * SQUARE);
            copy_vectors(to.w + number + j * step, w);
        }
        __syncthreads();
        int head = threadIdx.x / C;
        if (head < n)
            invert_column<FAST>(x->heads.a[head], to.t + (number + head * step) * SQUARE,
                                threadIdx.x % C);
    }
}

template <class T, bool FAST, int DP>
static cudaError_t terms(const mx_cuda_delta *d, const delta_terms *x, cudaStream_t stream)
{
    dim3 grid((unsigned)((d->len + C - 1) / C), (unsigned)d->k_heads, (unsigned)d->batch);
    return launch_pool(delta_terms_kernel<T, FAST, DP>, grid, sizeof(terms_pool<DP>), stream, *d,
                       *x);
}

cudaError_t mx_cuda_delta_terms(const mx_cuda_delta *d, const delta_terms *x, cudaStream_t stream)
{
    if (d->f32)
        return d->k_dim > 64 ? terms<float, false, 128>(d, x, stream)
                             : terms<float, false, 64>(d, x, stream);
    return d->k_dim > 64 ? terms<uint16_t, true, 128>(d, x, stream)
                         : terms<uint16_t, true, 64>(d, x, stream);
}
