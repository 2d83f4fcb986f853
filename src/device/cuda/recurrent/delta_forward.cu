/* delta_forward.cu - the memory of a head goes over its chunks, one after the other:
 *
 *     R = beta (V - e (K M))    U = T R    O = scale e (Q M) + P U    M = keep M + K^T (f U)
 * The columns of a memory do not know each other: a block takes EC of them, for one head of one
 * sequence, and keeps its part of M in registers, with a copy in shared memory for the GEMMs.
 * The backward pass has the memory at every chunk's start and U written down instead of O.
 */
#include "device/cuda/recurrent/delta.cuh"

template <int DP, int EC, bool OUT> struct sweep_pool {
    float m[DP * (EC + 8)], k[C * (DP + 4)], q[OUT ? C * (DP + 4) : 4];
    float t[C * CL], p[OUT ? C * CL : 4], r[C * (EC + 8)], u[C * (EC + 8)];
    vectors w;
};

/* What a chunk brings: asked for while the chunk before is worked on. */
template <class T, int DP, int EC, bool OUT> struct sweep_load {
    tile_in_registers<T, C, DP> k, q;
    tile_in_registers<T, C, EC> v;
    tile_in_registers<float, C, C> t, p;
    float4 w;
    __device__ __forceinline__ void take(const mx_cuda_delta &d, const delta_sweep &s,
                                         const place &at, int e0)
    {
        int64_t number = number_of(d, at);
        k.take((const T *)d.k + k_from(d, at), k_step(d), at.n, d.k_dim);
        v.take((const T *)d.v + v_from(d, at, e0), v_step(d), at.n, d.v_dim - e0);
        t.take(s.x.t + number * SQUARE, C, C, C);
        if (OUT) {
            q.take((const T *)d.q + k_from(d, at), k_step(d), at.n, d.k_dim);
            p.take(s.x.p + number * SQUARE, C, C, C);
        }
        if (threadIdx.x < VECTOR_PARTS)
            w = ((const float4 *)(s.x.w + number))[threadIdx.x];
    }
    template <bool FAST> __device__ __forceinline__ void put(sweep_pool<DP, EC, OUT> *x) const
    {
        k.template put<FAST>(x->k, DP + 4);
        v.template put<FAST>(x->r, EC + 8);
        t.template put<FAST>(x->t, CL);
        if (OUT) {
            q.template put<FAST>(x->q, DP + 4);
            p.template put<FAST>(x->p, CL);
        }
        if (threadIdx.x < VECTOR_PARTS)
            ((float4 *)&x->w)[threadIdx.x] = w;
    }
};

/* M of the part from column e0 on, from and to the state. */
template <int MT, int NT>
__device__ void state_io(piece<MT, NT> &m, const mx_cuda_delta &d, const place &at, int r0, int e0,
                         bool store)
{
    int64_t base = ((int64_t)at.b * d.v_heads + at.h) * d.k_dim * d.v_dim;
    m.each([&](int row, int col, float &x) {
        row += r0, col += e0;
        if (row >= d.k_dim || col >= d.v_dim)
            return;
        int64_t i = base + (int64_t)row * d.v_dim + col;
        if (store)
            put_any(d.state, i, x, d.state_f32);
        else
            x = get_any(d.state, i, d.state_f32);
    });
}

template <class T, bool FAST, int DP, int EC, bool OUT>
__global__ void __launch_bounds__(THREADS, 1)
    delta_sweep_kernel(const __grid_constant__ mx_cuda_delta d,
                       const __grid_constant__ delta_sweep s)
{
    extern __shared__ __align__(16) float pool[];
    enum { L = DP + 4, EL = EC + 8, MT = DP / 64, NT = EC / 16 };
    auto *x = (sweep_pool<DP, EC, OUT> *)pool;
    int warp = threadIdx.x >> 5, r0 = warp / 2 * 16, c0 = warp % 2 * (EC / 2);
    int m0 = warp / 2 * (DP / 4), e0 = blockIdx.x * EC, h = blockIdx.y, b = blockIdx.z;
    int D = d.k_dim, E = d.v_dim, len = d.state ? row_tokens(d.positions, b, d.len) : d.len;
    piece<MT, NT> m;
    sweep_load<T, DP, EC, OUT> next;
    place at = place_of(d, b, h, 0, len);
    next.take(d, s, at, e0);
    m.clear();
    if (d.state && d.positions[(int64_t)b * d.len] != 0)
        state_io(m, d, at, m0, e0 + c0, false);
    for (int chunk = 0; chunk * C < d.len; chunk++) {
        at = place_of(d, b, h, chunk, len);
        int64_t number = number_of(d, at);
        m.pairs([&](int i, int j, float &y, float &z) {
            put_pair(x->m + (m0 + i) * EL, c0 + j, EL, kept<FAST>(y), kept<FAST>(z));
            if (s.states && m0 + i < D)
                put_pair(s.states + (number * D + m0 + i) * E, e0 + c0 + j, E, y, z);
        });
        next.template put<FAST>(x);
        __syncthreads();
        if ((chunk + 1) * C < d.len)
            next.take(d, s, place_of(d, b, h, chunk + 1, len), e0);
        const vectors *w = &x->w;
        piece<OUT ? 2 : 1, NT> kq; /* K M, and Q M below it */
        piece<1, NT> u;
        kq.clear();
        u.clear();
        mul<FAST, false, false>(kq, x->k + r0 * L, L, x->m + c0, EL, DP, C * L);
        kq.each([&](int i, int j, float &y) {
            if (i >= 16) {
                y *= d.scale * w->in[r0 + i - 16];
                return;
            }
            i += r0;
            float *r = x->r + i * EL + c0 + j;
            *r = kept<FAST>(w->beta[i] * (*r - w->in[i] * y));
        });
        __syncthreads();
        mul<FAST, false, false>(u, x->t + r0 * CL, CL, x->r + c0, EL, C);
        __syncthreads();
        u.pairs([&](int i, int j, float &y, float &z) {
            i += r0, j += c0;
            float f = w->out[i];
            put_pair(x->u + i * EL, j, EL, kept<FAST>(y), kept<FAST>(z));
            put_pair(x->r + i * EL, j, EL, kept<FAST>(f * y), kept<FAST>(f * z));
            if (s.u)
                put_pair(s.u + (number * C + i) * E, e0 + j, E, y, z);
        });
        __syncthreads();
        if constexpr (OUT) {
            piece<1, NT> o;
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    o.c[0][n][i] = kq.c[1][n][i];
            mul<FAST, false, false>(o, x->p + r0 * CL, CL, x->u + c0, EL, C);
            o.pairs([&](int i, int j, float &y, float &z) {
                T *row = (T *)s.out + ((at.t0 + r0 + i) * d.v_heads + h) * E;
                if (chunk * C + r0 + i < d.len)
                    put_pair(row, e0 + c0 + j, E, y, z);
            });
        }
        m.scale(w->keep);
        mul<FAST, true, false>(m, x->k + m0, L, x->r + c0, EL, C);
        __syncthreads();
    }
    if (d.state && len)
        state_io(m, d, at, m0, e0 + c0, true);
}

template <class T, bool FAST, int DP, int EC, bool OUT>
static cudaError_t sweep(const mx_cuda_delta *d, const delta_sweep *s, cudaStream_t stream)
{
    dim3 grid((unsigned)((d->v_dim + EC - 1) / EC), (unsigned)d->v_heads, (unsigned)d->batch);
    return launch_pool(delta_sweep_kernel<T, FAST, DP, EC, OUT>, grid,
                       sizeof(sweep_pool<DP, EC, OUT>), stream, *d, *s);
}

template <class T, bool FAST, int EC>
static cudaError_t sweep_any(const mx_cuda_delta *d, const delta_sweep *s, cudaStream_t stream)
{
    if (d->k_dim > 64)
        return s->out ? sweep<T, FAST, 128, EC, true>(d, s, stream)
                      : sweep<T, FAST, 128, EC, false>(d, s, stream);
    return s->out ? sweep<T, FAST, 64, EC, true>(d, s, stream)
                  : sweep<T, FAST, 64, EC, false>(d, s, stream);
}

cudaError_t mx_cuda_delta_sweep(const mx_cuda_delta *d, const delta_sweep *s, cudaStream_t stream)
{
    if (d->f32)
        return sweep_any<float, false, 32>(d, s, stream);
    return delta_wide(d) ? sweep_any<uint16_t, true, 64>(d, s, stream)
                                  : sweep_any<uint16_t, true, 32>(d, s, stream);
}

enum { FEW = MX_GPU_DELTA_FEW }; /* tokens a row that are taken one by one */

static bool by_steps(const mx_cuda_delta *d)
{
    return d->state && d->len <= FEW;
}

size_t mx_cuda_delta_forward_bytes(const mx_cuda_delta *d)
{
    mx_gpu_delta shape = delta_shape(d);
    return mx_gpu_delta_forward_bytes(&shape, d->state != NULL);
}

cudaError_t mx_cuda_delta_forward(const mx_cuda_delta *d, void *out, void *work,
                                  cudaStream_t stream)
{
    if (by_steps(d))
        return mx_cuda_delta_step(d, out, stream);
    float *t = (float *)work, *p = t + delta_chunks(d) * SQUARE;
    delta_terms x = {t, p, (vectors *)(p + delta_chunks(d) * SQUARE)};
    cudaError_t e = mx_cuda_delta_terms(d, &x, stream);
    if (e != cudaSuccess)
        return e;
    delta_sweep s = {x, out, NULL, NULL};
    return mx_cuda_delta_sweep(d, &s, stream);
}
