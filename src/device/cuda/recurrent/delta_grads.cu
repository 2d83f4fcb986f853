/* delta_grads.cu - the gradients of a chunk of the delta rule, all chunks at once, from what the
 * two sweeps left: the memory M at the start, its gradient N at the end, U and dR. The formulas are
 * those of ops/cpu/delta_chunk.inc. The sums that go to c and beta come from the rows of GEMMs
 * that dQ and dK need anyway:
 *     dO_i.(Q M)_i = q_i.(dO M^T)_i    dR_i.(K M)_i = k_i.(dR M^T)_i    u_i.(K N)_i = k_i.(U N^T)_i
 */
#include "device/cuda/recurrent/delta.cuh"

enum { ET = 64, EL = ET + 4 }; /* columns of the memory at a time */

/* Sums of a chunk's tokens, in two halves (the two warps across a GEMM). */
struct sums {
    float own[C], seen[2][C], reach[2][C], read[2][C], row[2][C], beta[2][C], col[4][C];
};

template <int DP> struct grads_pool {
    float k[C * (DP + 4)], q[C * (DP + 4)];
    float dout[C * EL], dr[C * EL], u[C * EL], m[DP * EL], n[DP * EL];
    vectors w;
    sums s;
    float scratch[32];
};

/* x_i *= f_i, and part[i] = sum over the piece's columns of x_i * y_i, for the warp's 16 rows of y
 * (rows, ld). */
template <int NT>
__device__ __forceinline__ void row_dots(float (&x)[NT][4], const float *f, float scale,
                                         const float *y, int ld, float *part)
{
    int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
    float sum[2] = {};
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int row = g + (i & 2) * 4;
            x[n][i] *= scale * f[row];
            sum[i >> 1] += x[n][i] * y[row * ld + n * 8 + 2 * t + (i & 1)];
        }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        sum[i] += __shfl_xor_sync(~0u, sum[i], 1);
        sum[i] += __shfl_xor_sync(~0u, sum[i], 2);
        if (t == 0)
            part[g + 8 * i] = sum[i];
    }
}

/* own_i += dR_i.V_i, and dV = beta dR, of columns [e0, e0 + ET); dr (C, EL) holds dR. */
template <class T>
__device__ __forceinline__ void value_grads(const mx_cuda_delta &d, const delta_back &s,
                                            const place &at, const float *dr, const float *beta,
                                            float *own, int e0)
{
    int64_t row_step = v_step(d), from = v_from(d, at, e0);
    tile_in_registers<T, C, ET> v;
    v.take((const T *)d.v + from, row_step, at.n, d.v_dim - e0);
#pragma unroll
    for (int i = 0; i < v.N; i++) { /* the 16 lanes of a row are neighbours */
        int k = threadIdx.x + i * THREADS, row = k / (ET / 4), col = k % (ET / 4) * 4;
        float f[4], g[4], sum = 0;
        wide4(f, v.r[i]);
        load4(g, dr + row * EL + col);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            sum += f[j] * g[j];
            g[j] *= beta[row];
        }
        if (row < at.n) {
            T *to = (T *)s.g.dv + from + row * row_step;
            put_pair(to, col, d.v_dim - e0, g[0], g[1]);
            put_pair(to, col + 2, d.v_dim - e0, g[2], g[3]);
        }
#pragma unroll
        for (int o = 1; o < ET / 4; o <<= 1)
            sum += __shfl_xor_sync(~0u, sum, o);
        if (col == 0)
            own[row] = e0 ? own[row] + sum : sum;
    }
}

/* From the halves of d, dO U^T and dR U^T, and those of k, K K^T and Q K^T: the (C, C) factors of
 * dQ and dK, scale dP * E and G + G^T, into a and b (C, CL), and what rows and columns pass to c
 * and beta. */
template <bool FAST>
__device__ __forceinline__ void pair_grads(const piece<2, 4> &d, const piece<2, 4> &k,
                                           const vectors *w, sums *s, float scale, float *a,
                                           float *b)
{
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    int r0 = warp / 2 * 16, half = warp % 2, c0 = half * 32;
    float row[2] = {}, beta[2] = {};
#pragma unroll
    for (int n = 0; n < 4; n++) {
        float col[2] = {};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int r = r0 + g + (i & 2) * 4, c = c0 + n * 8 + 2 * t + (i & 1);
            float e = c <= r ? decay(w, r, c) : 0.f, ke = c < r ? k.c[0][n][i] * e : 0.f;
            float dpe = scale * e * d.c[0][n][i], bt = w->beta[r], dav = d.c[1][n][i];
            float via = dpe * k.c[1][n][i] - dav * bt * ke;
            row[i >> 1] += via;
            col[i & 1] += via;
            beta[i >> 1] -= dav * ke;
            a[r * CL + c] = kept<FAST>(dpe);
            if (c < r)
                b[r * CL + c] = b[c * CL + r] = kept<FAST>(-bt * e * dav);
            else if (c == r)
                b[r * CL + c] = 0;
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            for (int o = 4; o < 32; o <<= 1)
                col[i] += __shfl_xor_sync(~0u, col[i], o);
            if (g == 0)
                s->col[warp / 2][c0 + n * 8 + 2 * t + i] = col[i];
        }
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        for (int o = 1; o < 4; o <<= 1) {
            row[i] += __shfl_xor_sync(~0u, row[i], o);
            beta[i] += __shfl_xor_sync(~0u, beta[i], o);
        }
        if (t == 0) {
            s->row[half][r0 + g + 8 * i] = row[i];
            s->beta[half][r0 + g + 8 * i] = beta[i];
        }
    }
}

/* dg and dbeta of the chunk's tokens, by the first warp, two tokens a lane. */
__device__ __forceinline__ void gate_grads(const mx_cuda_delta &d, const delta_back &s,
                                           const place &at, const vectors *w, const sums *x,
                                           float kept_dot)
{
    if (threadIdx.x >= 32)
        return;
    int lane = threadIdx.x;
    float dc[2], all = 0;
    for (int j = 0; j < 2; j++) {
        int i = 2 * lane + j;
        float seen = x->seen[0][i] + x->seen[1][i], reach = x->reach[0][i] + x->reach[1][i];
        float col = x->col[0][i] + x->col[1][i] + x->col[2][i] + x->col[3][i];
        dc[j] = x->read[0][i] + x->read[1][i] - w->beta[i] * seen - reach + x->row[0][i] +
                x->row[1][i] - col;
        all += reach;
        if (i < at.n)
            put_any(s.g.dbeta, (at.t0 + i) * d.v_heads + at.h,
                    x->own[i] - seen + x->beta[0][i] + x->beta[1][i], d.gates_f32[1]);
    }
    all = warp_sum(all);
    if (lane == 31)
        dc[1] += all + w->keep * kept_dot;
    float run = dc[0] + dc[1]; /* and of all lanes after */
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
        float other = __shfl_down_sync(~0u, run, o);
        run += lane + o < 32 ? other : 0.f;
    }
    for (int j = 0; j < 2; j++)
        if (2 * lane + j < at.n)
            put_any(s.g.dg, (at.t0 + 2 * lane + j) * d.v_heads + at.h, j ? run - dc[0] : run,
                    d.gates_f32[0]);
}

/* (C, DP) of a piece to a head's rows: to its own scratch, or to the gradient itself. */
template <class T, int NT>
__device__ __forceinline__ void store_rows(piece<1, NT> &x, const mx_cuda_delta &d, const place &at,
                                           float *scratch, void *grad, int r0, int c0)
{
    x.pairs([&](int i, int j, float &y, float &z) {
        i += r0;
        if (i >= at.n)
            return;
        int64_t row = ((at.t0 + i) * d.v_heads + at.h) * d.k_dim;
        if (scratch)
            put_pair(scratch + row, c0 + j, d.k_dim, y, z);
        else
            put_pair((T *)grad + row, c0 + j, d.k_dim, y, z);
    });
}

template <class T, bool FAST, int DP>
__global__ void __launch_bounds__(THREADS, 1)
    delta_grads_kernel(const __grid_constant__ mx_cuda_delta d,
                       const __grid_constant__ delta_back s)
{
    extern __shared__ __align__(16) float pool[];
    enum { L = DP + 4, NT = DP / 16 };
    auto *x = (grads_pool<DP> *)pool;
    int warp = threadIdx.x >> 5, r0 = warp / 2 * 16, half = warp % 2, c0 = half * 32;
    int d0 = half * (DP / 2), D = d.k_dim, E = d.v_dim, h = blockIdx.y;
    place at = place_of(d, blockIdx.z, h, blockIdx.x, d.len);
    int64_t number = number_of(d, at);
    load_tile<FAST, C, DP>(x->k, L, (const T *)d.k + k_from(d, at), k_step(d), at.n, D);
    load_tile<FAST, C, DP>(x->q, L, (const T *)d.q + k_from(d, at), k_step(d), at.n, D);
    copy_vectors(&x->w, s.x.w + number);
    piece<2, 4> dd;   /* dO U^T, and dR U^T below it */
    piece<2, NT> via; /* dO M^T, and dR M^T below it */
    piece<1, NT> dk;
    dd.clear(), via.clear(), dk.clear();
    float dot = 0;
    for (int e0 = 0; e0 < E; e0 += ET) {
        int left = E - e0;
        const T *dout = (const T *)s.g.dout + v_from(d, at, e0);
        load_tile<FAST, C, ET>(x->dout, EL, dout, v_step(d), at.n, left);
        load_tile<FAST, C, ET>(x->u, EL, s.u + number * C * E + e0, E, C, left);
        load_tile<FAST, C, ET>(x->dr, EL, s.dr + number * C * E + e0, E, C, left);
        load_tile<FAST, DP, ET>(x->m, EL, s.states + number * D * E + e0, E, D, left);
        load_tile<FAST, DP, ET>(x->n, EL, s.ends + number * D * E + e0, E, D, left);
        __syncthreads();
        for (int i = threadIdx.x; i < D * ET; i += THREADS)
            dot += x->m[i / ET * EL + i % ET] * x->n[i / ET * EL + i % ET];
        value_grads<T>(d, s, at, x->dr, x->w.beta, x->s.own, e0);
        mul<FAST, false, true>(dd, x->dout + r0 * EL, EL, x->u + c0 * EL, EL, ET, C * EL);
        mul<FAST, false, true>(via, x->dout + r0 * EL, EL, x->m + d0 * EL, EL, ET, C * EL);
        mul<FAST, false, true>(dk, x->u + r0 * EL, EL, x->n + d0 * EL, EL, ET);
        __syncthreads();
    }
    const vectors *w = &x->w;
    piece<1, NT> dq;
    row_dots(via.c[0], w->in + r0, d.scale, x->q + r0 * L + d0, L, x->s.read[half] + r0);
    row_dots(via.c[1], w->in + r0, 1.f, x->k + r0 * L + d0, L, x->s.seen[half] + r0);
    row_dots(dk.c[0], w->out + r0, 1.f, x->k + r0 * L + d0, L, x->s.reach[half] + r0);
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float beta = w->beta[r0 + ((threadIdx.x & 31) >> 2) + (i & 2) * 4];
            dk.c[0][n][i] -= beta * via.c[1][n][i];
            dq.c[0][n][i] = via.c[0][n][i];
        }
    piece<2, 4> kq; /* K K^T, and Q K^T below it */
    kq.clear();
    mul<FAST, false, true>(kq, x->k + r0 * L, L, x->k + c0 * L, L, DP, C * L);
    float *pe = x->dout, *gg = x->u; /* both (C, CL): no longer needed as what they were */
    pair_grads<FAST>(dd, kq, w, &x->s, d.scale, pe, gg);
    dot = block_sum(dot, x->scratch); /* waits for all */
    gate_grads(d, s, at, w, &x->s, dot);
    mul<FAST, false, false, true>(dq, pe + r0 * CL, CL, x->k + d0, L, C);
    mul<FAST, true, false, true>(dk, pe + r0, CL, x->q + d0, L, C);
    mul<FAST, false, false, true>(dk, gg + r0 * CL, CL, x->k + d0, L, C);
    store_rows<T>(dq, d, at, s.dq, s.g.dq, r0, d0);
    store_rows<T>(dk, d, at, s.dk, s.g.dk, r0, d0);
}

template <class T, bool FAST, int DP>
static cudaError_t grads(const mx_cuda_delta *d, const delta_back *s, cudaStream_t stream)
{
    static_assert((int)EL == (int)CL, "tiles are used again as (C, C) matrices");
    dim3 grid((unsigned)((d->len + C - 1) / C), (unsigned)d->v_heads, (unsigned)d->batch);
    return launch_pool(delta_grads_kernel<T, FAST, DP>, grid, sizeof(grads_pool<DP>), stream, *d,
                       *s);
}

cudaError_t mx_cuda_delta_chunk_grads(const mx_cuda_delta *d, const delta_back *s,
                                      cudaStream_t stream)
{
    if (d->f32)
        return d->k_dim > 64 ? grads<float, false, 128>(d, s, stream)
                             : grads<float, false, 64>(d, s, stream);
    return d->k_dim > 64 ? grads<uint16_t, true, 128>(d, s, stream)
                         : grads<uint16_t, true, 64>(d, s, stream);
}
