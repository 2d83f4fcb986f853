/* delta_grads.cu - the gradients of a chunk of the delta rule, all chunks at once, from what the
 * two sweeps left: the memory M at the start, its gradient N at the end, U and dR. The formulas are
 * those of ops/cpu/delta_chunk.inc. The sums that go to c and beta come from the rows of products
 * that dQ and dK need anyway:
 *     dO_i.(Q M)_i = q_i.(dO M^T)_i    dR_i.(K M)_i = k_i.(dR M^T)_i    u_i.(K N)_i = k_i.(U N^T)_i
 */
#include "device/cuda/plugin/delta.cuh"

enum { ET = 64, EL = ET + 4 }; /* columns of the memory at a time */

/* Sums of a chunk's tokens, in two halves (the two warps across a product). */
struct sums {
    float own[C], seen[2][C], reach[2][C], read[2][C], row[2][C], beta[2][C], col[4][C];
};

template <int DP> struct grads_pool {
    float k[C * (DP + 4)], q[C * (DP + 4)];
    float dout[C * EL], u[C * EL], dr[C * EL], m[DP * EL], n[DP * EL];
    vectors w;
    sums s;
    float scratch[32];
};

/* part[i] = sum over the piece's columns of x_i * y_i, for the warp's 16 rows of y (rows, ld). */
template <int NT>
__device__ __forceinline__ void row_dots(piece<1, NT> &x, const float *y, int ld, float *part)
{
    float sum[2] = {};
    x.each([&](int i, int j, float &v) { sum[i >> 3] += v * y[i * ld + j]; });
#pragma unroll
    for (int i = 0; i < 2; i++) {
        sum[i] += __shfl_xor_sync(~0u, sum[i], 1);
        sum[i] += __shfl_xor_sync(~0u, sum[i], 2);
        if ((threadIdx.x & 3) == 0)
            part[((threadIdx.x & 31) >> 2) + 8 * i] = sum[i];
    }
}

/* dR_i.V_i into own, and dV = beta dR, of columns [e0, e0 + ET). */
template <class T>
__device__ void value_grads(const mx_cuda_delta &d, const delta_back &s, const place &at,
                            float *own, const float *beta, int e0, int64_t number)
{
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    for (int i = warp; i < at.n; i += THREADS / 32) {
        int64_t row = ((at.t0 + i) * d.v_heads + at.h) * d.v_dim;
        const float *dr = s.dr + (number * C + i) * d.v_dim;
        float sum = 0;
        for (int e = e0 + lane; e < e0 + ET && e < d.v_dim; e += 32) {
            sum += dr[e] * as_float(((const T *)d.v)[row + e]);
            put((T *)s.g.dv + row + e, beta[i] * dr[e]);
        }
        sum = warp_sum(sum);
        if (lane == 0)
            own[i] = e0 ? own[i] + sum : sum;
    }
}

/* From dP and dA, which go in as dO U^T and dR U^T: the (C, C) factors of dQ and dK, scale dP * E
 * and G + G^T, into a and b (C, CL), and what rows and columns pass to c and beta. */
template <bool FAST>
__device__ __forceinline__ void pair_grads(piece<1, 4> &dp, piece<1, 4> &da, piece<1, 4> &qk,
                                           piece<1, 4> &kk, const vectors *w, sums *s, float scale,
                                           float *a, float *b)
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
            float e = c <= r ? decay(w, r, c) : 0.f, ke = c < r ? kk.c[0][n][i] * e : 0.f;
            float dpe = scale * e * dp.c[0][n][i], bt = w->beta[r], dav = da.c[0][n][i];
            float via = dpe * qk.c[0][n][i] - dav * bt * ke;
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
    float run = dc[0] + dc[1]; /* and of all lanes behind */
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
    extern __shared__ float pool[];
    enum { L = DP + 4, NT = DP / 16 };
    auto *x = (grads_pool<DP> *)pool;
    int warp = threadIdx.x >> 5, r0 = warp / 2 * 16, half = warp % 2, c0 = half * 32;
    int d0 = half * (DP / 2), D = d.k_dim, E = d.v_dim, h = blockIdx.y;
    int hk = h / (d.v_heads / d.k_heads);
    place at = place_of(d, blockIdx.z, h, blockIdx.x, d.len);
    int64_t number = number_of(d, at);
    int64_t k_row = (int64_t)d.k_heads * D, v_row = (int64_t)d.v_heads * E;
    load_vectors(&x->w, d, at);
    load_rows(x->k, L, DP, (const T *)d.k + at.t0 * k_row + hk * D, k_row, at.n, D);
    load_rows(x->q, L, DP, (const T *)d.q + at.t0 * k_row + hk * D, k_row, at.n, D);
    piece<1, 4> dp, da;
    piece<1, NT> dq, dk, rm;
    dp.clear(), da.clear(), dq.clear(), dk.clear(), rm.clear();
    float dot = 0;
    for (int e0 = 0; e0 < E; e0 += ET) {
        load_rows(x->dout, EL, ET, (const T *)s.g.dout + at.t0 * v_row + h * E + e0, v_row, at.n,
                  E - e0);
        load_matrix<FAST>(x->u, EL, ET, s.u + number * C * E + e0, E, C, E - e0);
        load_matrix<FAST>(x->dr, EL, ET, s.dr + number * C * E + e0, E, C, E - e0);
        load_matrix<FAST>(x->m, EL, ET, s.states + number * D * E + e0, E, D, E - e0);
        load_matrix<FAST>(x->n, EL, ET, s.ends + number * D * E + e0, E, D, E - e0);
        for (int i = D * EL + threadIdx.x; i < DP * EL; i += THREADS)
            x->m[i] = x->n[i] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < D * ET; i += THREADS)
            dot += x->m[i / ET * EL + i % ET] * x->n[i / ET * EL + i % ET];
        value_grads<T>(d, s, at, x->s.own, x->w.beta, e0, number);
        mul<FAST, false, true>(dp, x->dout + r0 * EL, EL, x->u + c0 * EL, EL, ET);
        mul<FAST, false, true>(da, x->dr + r0 * EL, EL, x->u + c0 * EL, EL, ET);
        mul<FAST, false, true>(dq, x->dout + r0 * EL, EL, x->m + d0 * EL, EL, ET);
        mul<FAST, false, true>(rm, x->dr + r0 * EL, EL, x->m + d0 * EL, EL, ET);
        mul<FAST, false, true>(dk, x->u + r0 * EL, EL, x->n + d0 * EL, EL, ET);
        __syncthreads();
    }
    const vectors *w = &x->w;
    dq.each([&](int i, int j, float &y) { y *= d.scale * w->in[r0 + i]; });
    dk.each([&](int i, int j, float &y) { y *= w->out[r0 + i]; });
    rm.each([&](int i, int j, float &y) { y *= w->in[r0 + i]; });
    row_dots(dq, x->q + r0 * L + d0, L, x->s.read[half] + r0);
    row_dots(dk, x->k + r0 * L + d0, L, x->s.reach[half] + r0);
    row_dots(rm, x->k + r0 * L + d0, L, x->s.seen[half] + r0);
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            dk.c[0][n][i] -= w->beta[r0 + ((threadIdx.x & 31) >> 2) + (i & 2) * 4] * rm.c[0][n][i];
    piece<1, 4> qk, kk;
    qk.clear(), kk.clear();
    mul<FAST, false, true>(qk, x->q + r0 * L, L, x->k + c0 * L, L, DP);
    mul<FAST, false, true>(kk, x->k + r0 * L, L, x->k + c0 * L, L, DP);
    float *pe = x->dout, *gg = x->u; /* both (C, CL): no longer needed as what they were */
    pair_grads<FAST>(dp, da, qk, kk, w, &x->s, d.scale, pe, gg);
    dot = block_sum(dot, x->scratch); /* waits for all */
    gate_grads(d, s, at, w, &x->s, dot);
    mul<FAST, false, false>(dq, pe + r0 * CL, CL, x->k + d0, L, C);
    mul<FAST, true, false>(dk, pe + r0, CL, x->q + d0, L, C);
    mul<FAST, false, false>(dk, gg + r0 * CL, CL, x->k + d0, L, C);
    store_rows<T>(dq, d, at, s.dq, s.g.dq, r0, d0);
    store_rows<T>(dk, d, at, s.dk, s.g.dk, r0, d0);
}

template <class T, bool FAST, int DP>
static cudaError_t grads(const mx_cuda_delta *d, const delta_back *s, cudaStream_t stream)
{
    static_assert((int)EL == (int)CL, "tiles are used again as (C, C) matrices");
    size_t bytes = sizeof(grads_pool<DP>);
    dim3 grid((unsigned)((d->len + C - 1) / C), (unsigned)d->v_heads, (unsigned)d->batch);
    auto *kernel = delta_grads_kernel<T, FAST, DP>;
    cudaError_t e = cudaFuncSetAttribute((const void *)kernel,
                                         cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (e != cudaSuccess)
        return e;
    kernel<<<grid, THREADS, bytes, stream>>>(*d, *s);
    return cudaGetLastError();
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
