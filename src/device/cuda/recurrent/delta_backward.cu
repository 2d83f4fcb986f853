/* delta_backward.cu - the delta rule's backward pass. The forward sweep once more leaves the memory
 * at each chunk's start and U; then the memory's gradient N goes back over the chunks,
 *
 *     dU = P^T dO + f (K N)    dR = T^T dU    N = keep N + scale Q^T (e dO) - K^T (beta e dR)
 * and all else follows chunk by chunk (delta_grads.cu). As in the forward pass a block takes EC
 * columns of one head. What value heads add to the key head they share is summed at the end, in
 * their order.
 */
#include "device/cuda/recurrent/delta.cuh"

template <int DP, int EC> struct back_pool {
    float n[DP * (EC + 8)], k[C * (DP + 4)], q[C * (DP + 4)];
    float t[C * CL], p[C * CL], dout[C * (EC + 8)], r[C * (EC + 8)];
    vectors w;
};

/* What a chunk brings: asked for while the chunk after it is worked on. */
template <class T, int DP, int EC> struct back_load {
    tile_in_registers<T, C, DP> k, q;
    tile_in_registers<T, C, EC> dout;
    tile_in_registers<float, C, C> t, p;
    float4 w;
    __device__ __forceinline__ void take(const mx_cuda_delta &d, const delta_back &s,
                                         const place &at, int e0)
    {
        int64_t number = number_of(d, at);
        k.take((const T *)d.k + k_from(d, at), k_step(d), at.n, d.k_dim);
        q.take((const T *)d.q + k_from(d, at), k_step(d), at.n, d.k_dim);
        dout.take((const T *)s.g.dout + v_from(d, at, e0), v_step(d), at.n, d.v_dim - e0);
        t.take(s.x.t + number * SQUARE, C, C, C);
        p.take(s.x.p + number * SQUARE, C, C, C);
        if (threadIdx.x < VECTOR_PARTS)
            w = ((const float4 *)(s.x.w + number))[threadIdx.x];
    }
    template <bool FAST> __device__ __forceinline__ void put(back_pool<DP, EC> *x) const
    {
        k.template put<FAST>(x->k, DP + 4);
        q.template put<FAST>(x->q, DP + 4);
        dout.template put<FAST>(x->dout, EC + 8);
        t.template put<FAST>(x->t, CL);
        p.template put<FAST>(x->p, CL);
        if (threadIdx.x < VECTOR_PARTS)
            ((float4 *)&x->w)[threadIdx.x] = w;
    }
};

template <class T, bool FAST, int DP, int EC>
__global__ void __launch_bounds__(THREADS, 1)
    delta_back_kernel(const __grid_constant__ mx_cuda_delta d, const __grid_constant__ delta_back s)
{
    extern __shared__ __align__(16) float pool[];
    enum { L = DP + 4, EL = EC + 8, MT = DP / 64, NT = EC / 16 };
    auto *x = (back_pool<DP, EC> *)pool;
    int warp = threadIdx.x >> 5, r0 = warp / 2 * 16, c0 = warp % 2 * (EC / 2);
    int m0 = warp / 2 * (DP / 4), e0 = blockIdx.x * EC, h = blockIdx.y, b = blockIdx.z;
    int D = d.k_dim, E = d.v_dim, last = (d.len - 1) / C;
    piece<MT, NT> dm;
    back_load<T, DP, EC> next;
    next.take(d, s, place_of(d, b, h, last, d.len), e0);
    dm.clear();
    for (int chunk = last; chunk >= 0; chunk--) {
        int64_t number = number_of(d, place_of(d, b, h, chunk, d.len));
        dm.pairs([&](int i, int j, float &y, float &z) {
            put_pair(x->n + (m0 + i) * EL, c0 + j, EL, kept<FAST>(y), kept<FAST>(z));
            if (m0 + i < D)
                put_pair(s.ends + (number * D + m0 + i) * E, e0 + c0 + j, E, y, z);
        });
        next.template put<FAST>(x);
        __syncthreads();
        if (chunk)
            next.take(d, s, place_of(d, b, h, chunk - 1, d.len), e0);
        const vectors *w = &x->w;
        piece<1, NT> du, dr;
        du.clear();
        dr.clear();
        mul<FAST, false, false>(du, x->k + r0 * L, L, x->n + c0, EL, DP);
        du.each([&](int i, int j, float &y) { y *= w->out[r0 + i]; });
        mul<FAST, true, false>(du, x->p + r0, CL, x->dout + c0, EL, C);
        du.pairs([&](int i, int j, float &y, float &z) {
            put_pair(x->r + (r0 + i) * EL, c0 + j, EL, kept<FAST>(y), kept<FAST>(z));
        });
        __syncthreads();
        mul<FAST, true, false>(dr, x->t + r0, CL, x->r + c0, EL, C);
        __syncthreads();
        dr.pairs([&](int i, int j, float &y, float &z) {
            i += r0, j += c0;
            float f = -w->beta[i] * w->in[i], e = d.scale * w->in[i];
            float *o = x->dout + i * EL + j;
            put_pair(s.dr + (number * C + i) * E, e0 + j, E, y, z);
            put_pair(x->r + i * EL, j, EL, kept<FAST>(f * y), kept<FAST>(f * z));
            put_pair(o, 0, EL, kept<FAST>(e * o[0]), kept<FAST>(e * o[1]));
        });
        __syncthreads();
        dm.scale(w->keep);
        mul<FAST, true, false>(dm, x->q + m0, L, x->dout + c0, EL, C);
        mul<FAST, true, false>(dm, x->k + m0, L, x->r + c0, EL, C);
        __syncthreads();
    }
}

template <class T, bool FAST, int DP, int EC>
static cudaError_t sweep(const mx_cuda_delta *d, const delta_back *s, cudaStream_t stream)
{
    dim3 grid((unsigned)((d->v_dim + EC - 1) / EC), (unsigned)d->v_heads, (unsigned)d->batch);
    return launch_pool(delta_back_kernel<T, FAST, DP, EC>, grid, sizeof(back_pool<DP, EC>),
                       stream, *d, *s);
}

cudaError_t mx_cuda_delta_sweep_back(const mx_cuda_delta *d, const delta_back *s,
                                     cudaStream_t stream)
{
    if (d->f32)
        return d->k_dim > 64 ? sweep<float, false, 128, 32>(d, s, stream)
                             : sweep<float, false, 64, 32>(d, s, stream);
    if (delta_wide(d))
        return d->k_dim > 64 ? sweep<uint16_t, true, 128, 64>(d, s, stream)
                             : sweep<uint16_t, true, 64, 64>(d, s, stream);
    return d->k_dim > 64 ? sweep<uint16_t, true, 128, 32>(d, s, stream)
                         : sweep<uint16_t, true, 64, 32>(d, s, stream);
}

/* y (tokens, K, D) = sum over the value heads of a key head of x (tokens, H, D). */
template <class T>
__global__ void delta_join_kernel(T *y, const float *x, int64_t n, int dim, int group)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    const float *from = x + i / dim * group * dim + i % dim;
    float sum = 0;
    for (int r = 0; r < group; r++)
        sum += from[(int64_t)r * dim];
    put(y + i, sum);
}

static cudaError_t join(const mx_cuda_delta *d, void *y, const float *x, cudaStream_t stream)
{
    int64_t n = (int64_t)d->batch * d->len * d->k_heads * d->k_dim;
    int group = d->v_heads / d->k_heads;
    unsigned blocks = (unsigned)((n + THREADS - 1) / THREADS);
    if (d->f32)
        delta_join_kernel<float>
            <<<blocks, THREADS, 0, stream>>>((float *)y, x, n, d->k_dim, group);
    else
        delta_join_kernel<uint16_t>
            <<<blocks, THREADS, 0, stream>>>((uint16_t *)y, x, n, d->k_dim, group);
    return cudaGetLastError();
}

/* The parts of the scratch, as mx_gpu_delta_part counts them. */
enum { TERM_T, TERM_P, TERM_W, STATES, ENDS, OWN_U, OWN_DR, OWN_DQ, OWN_DK, N_PARTS };
static_assert((int)N_PARTS == (int)MX_GPU_DELTA_PARTS, "as planned");

size_t mx_cuda_delta_backward_bytes(const mx_cuda_delta *d)
{
    mx_gpu_delta shape = delta_shape(d);
    return mx_gpu_delta_backward_bytes(&shape);
}

cudaError_t mx_cuda_delta_backward(const mx_cuda_delta *d, const mx_cuda_delta_grads *g, void *work,
                                   cudaStream_t stream)
{
    mx_gpu_delta shape = delta_shape(d);
    float *part[N_PARTS], *at = (float *)work;
    for (int i = 0; i < N_PARTS; i++) {
        part[i] = at;
        at += mx_gpu_delta_part(&shape, i);
    }
    bool shared = d->v_heads != d->k_heads;
    delta_terms x = {part[TERM_T], part[TERM_P], (vectors *)part[TERM_W]};
    delta_sweep s = {x, NULL, part[STATES], part[OWN_U]};
    delta_back k = {x, part[STATES], part[OWN_U], part[ENDS], part[OWN_DR],
                    shared ? part[OWN_DQ] : NULL, shared ? part[OWN_DK] : NULL, *g};
    cudaError_t e = mx_cuda_delta_terms(d, &x, stream);
    if (e == cudaSuccess)
        e = mx_cuda_delta_sweep(d, &s, stream);
    if (e == cudaSuccess)
        e = mx_cuda_delta_sweep_back(d, &k, stream);
    if (e == cudaSuccess)
        e = mx_cuda_delta_chunk_grads(d, &k, stream);
    if (e == cudaSuccess && shared)
        e = join(d, g->dq, k.dq, stream);
    if (e == cudaSuccess && shared)
        e = join(d, g->dk, k.dk, stream);
    return e;
}
