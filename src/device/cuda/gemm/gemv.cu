/* gemv.cu - one token at a time: matrix times few vectors, bound by the bytes of the weights, each
 * read once; the work is to keep enough loads in flight. One vector: a warp takes a row of W or a
 * slice of it, each lane 16 bytes at a time, x comes from L1.
 */
#include "device/cuda/core/pdl.cuh"
#include "device/cuda/attention/flash.cuh"
#include "device/cuda/gemm/gemv_swiglu.h"
#include "device/cuda/gemm/silu.cuh"

/* --- y (M, N) = x (M, K) W (N, K)^T --- */

template <int M, int R>
__global__ void __launch_bounds__(256)
    gemv_kernel(uint16_t *y, float *y32, const uint16_t *x, const uint16_t *w, int64_t n, int64_t k)
{
    int64_t row = ((int64_t)blockIdx.x * 8 + (threadIdx.x >> 5)) * R;
    int lane = threadIdx.x & 31;
    if (row >= n)
        return;
    const uint16_t *wr[R];
#pragma unroll
    for (int r = 0; r < R; r++)
        wr[r] = w + min(row + r, n - 1) * k; /* a row past the end is read again, not written */
    float acc[R][M] = {};
#pragma unroll 4
    for (int64_t c = 8 * lane; c < k; c += 256) {
        vec8 wv[R];
#pragma unroll
        for (int r = 0; r < R; r++)
            wv[r] = load8_stream(wr[r] + c);
#pragma unroll
        for (int m = 0; m < M; m++) {
            float f[8];
            unpack8(f, load8(x + m * k + c));
#pragma unroll
            for (int r = 0; r < R; r++) {
                float g[8];
                unpack8(g, wv[r]);
#pragma unroll
                for (int j = 0; j < 8; j++)
                    acc[r][m] += f[j] * g[j];
            }
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int m = 0; m < M; m++) {
            float s = warp_sum(acc[r][m]);
            if (lane == 0 && row + r < n) {
                if (y32)
                    y32[m * n + row + r] = s;
                else
                    y[m * n + row + r] = f32_to_bf16(s);
            }
        }
}

__device__ __forceinline__ float dot8(vec8 a, vec8 b)
{
    float f[8], g[8], s = 0;
    unpack8(f, a);
    unpack8(g, b);
#pragma unroll
    for (int j = 0; j < 8; j++)
        s += f[j] * g[j];
    return s;
}

enum { AHEAD = 4 }; /* vectors of eight of a row that a lane asks for before x is there */

/* SLICES warps share a row, so that a weight of few rows has enough loads in flight: slice s has
 * vectors s, s + SLICES, ... of 256 elements, and the slices' sums are added in order. SLICES
 * depends on the rows of a weight alone, so that a row's bits are the same whatever is launched
 * with it. */
template <int SLICES> struct row_slice {
    static constexpr int STEP = 256 * SLICES;
    int row, begin; /* of the block's rows; its first element */
    __device__ __forceinline__ row_slice()
        : row((int)threadIdx.x / (32 * SLICES)),
          begin(8 * ((int)threadIdx.x & 31) + 256 * ((int)threadIdx.x / 32 % SLICES))
    {
    }
    /* To the row's first warp; every thread of the block comes here. */
    __device__ __forceinline__ float sum(float x, float *part) const
    {
        x = warp_sum(x);
        if (SLICES == 1)
            return x;
        if ((threadIdx.x & 31) == 0)
            part[threadIdx.x / 32] = x;
        __syncthreads();
        x = part[row * SLICES];
#pragma unroll
        for (int s = 1; s < SLICES; s++)
            x += part[row * SLICES + s];
        return x;
    }
    __device__ __forceinline__ bool writes() const
    {
        return threadIdx.x % (32 * SLICES) == 0;
    }
};

enum { MANY_ROWS = 65536, MANY_SLICES = 1, FEW_SLICES = 4 };

static bool has_many_rows(int64_t n)
{
    return n >= MANY_ROWS;
}

/* Blocks of a few rows, counted through all the weights. */
struct gemv_table {
    mx_gemv_one one[MX_GEMV_MOST];
    unsigned first[MX_GEMV_MOST + 1];
    int n;
};

template <int SLICES, int ROWS>
__global__ void __launch_bounds__(32 * SLICES * ROWS)
    gemv_many_kernel(const __grid_constant__ gemv_table t, const uint16_t *x, int64_t k)
{
    __shared__ float part[SLICES * ROWS];
    const row_slice<SLICES> mine;
    let_next_start();
    int i = 0;
    while (i + 1 < t.n && blockIdx.x >= t.first[i + 1])
        i++;
    const mx_gemv_one &o = t.one[i];
    const int64_t row = (int64_t)(blockIdx.x - t.first[i]) * ROWS + mine.row;
    /* a row past the end is read again, not written */
    const uint16_t *w = o.w + (row < o.n ? row : o.n - 1) * k;
    /* No kernel of a decoding step writes weights: their first loads go out before x is there. */
    vec8 ahead[AHEAD];
#pragma unroll
    for (int u = 0; u < AHEAD; u++)
        if (mine.begin + mine.STEP * u < k)
            ahead[u] = load8_stream(w + mine.begin + mine.STEP * u);
    wait_for_previous();
    float acc = 0;
#pragma unroll
    for (int u = 0; u < AHEAD; u++)
        if (mine.begin + mine.STEP * u < k)
            acc += dot8(ahead[u], load8(x + mine.begin + mine.STEP * u));
#pragma unroll 4
    for (int64_t c = mine.begin + mine.STEP * AHEAD; c < k; c += mine.STEP)
        acc += dot8(load8_stream(w + c), load8(x + c));
    acc = mine.sum(acc, part);
    if (!mine.writes() || row >= o.n)
        return;
    if (o.y32)
        o.y32[row] = acc;
    else
        o.y[row] = f32_to_bf16(acc);
}

template <int SLICES, int ROWS>
static cudaError_t gemv_many(const mx_gemv_one *one, int n, const mx_bf16 *x, int64_t k,
                             cudaStream_t stream)
{
    gemv_table t = {};
    t.n = n;
    for (int i = 0; i < n; i++) {
        t.one[i] = one[i];
        t.first[i + 1] = t.first[i] + (unsigned)((one[i].n + ROWS - 1) / ROWS);
    }
    return launch_pdl(gemv_many_kernel<SLICES, ROWS>, t.first[n], 32 * SLICES * ROWS, 0, stream, t,
                      x, k);
}

cudaError_t mx_cuda_gemv_many(const mx_gemv_one *one, int n, const mx_bf16 *x, int64_t k,
                              cudaStream_t stream)
{
    if (n > MX_GEMV_MOST || k % 8)
        return cudaErrorInvalidValue;
    cudaError_t e = cudaSuccess;
    for (int i = 0, m; i < n && e == cudaSuccess; i += m) {
        bool many = has_many_rows(one[i].n);
        for (m = 1; i + m < n && has_many_rows(one[i + m].n) == many;)
            m++;
        e = many ? gemv_many<MANY_SLICES, 8>(one + i, m, x, k, stream)
                 : gemv_many<FEW_SLICES, 1>(one + i, m, x, k, stream);
    }
    return e;
}

/* A warp has its slice of a row of both weights, so that a row's first thread ends with both
 * factors of an element of h. Sums have the order of gemv_many_kernel, and its bits. */
template <int SLICES, int ROWS>
__global__ void __launch_bounds__(32 * SLICES * ROWS)
    gemv_swiglu_kernel(const __grid_constant__ mx_gemv_swiglu p)
{
    __shared__ float part[2][SLICES * ROWS];
    const row_slice<SLICES> mine;
    let_next_start();
    const int64_t row = (int64_t)blockIdx.x * ROWS + mine.row, at = row < p.n ? row : p.n - 1;
    const uint16_t *w[2] = {p.gate + at * p.k, p.up + at * p.k};
    vec8 ahead[AHEAD][2];
#pragma unroll
    for (int u = 0; u < AHEAD; u++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (mine.begin + mine.STEP * u < p.k)
                ahead[u][i] = load8_stream(w[i] + mine.begin + mine.STEP * u);
    wait_for_previous();
    float sum[2] = {};
#pragma unroll
    for (int u = 0; u < AHEAD; u++)
        if (mine.begin + mine.STEP * u < p.k) {
            const vec8 x = load8(p.x + mine.begin + mine.STEP * u);
            sum[0] += dot8(ahead[u][0], x);
            sum[1] += dot8(ahead[u][1], x);
        }
#pragma unroll 4
    for (int64_t c = mine.begin + mine.STEP * AHEAD; c < p.k; c += mine.STEP) {
        const vec8 x = load8(p.x + c);
        sum[0] += dot8(load8_stream(w[0] + c), x);
        sum[1] += dot8(load8_stream(w[1] + c), x);
    }
    const uint16_t gate = f32_to_bf16(mine.sum(sum[0], part[0])),
                   up = f32_to_bf16(mine.sum(sum[1], part[1]));
    if (!mine.writes() || row >= p.n)
        return;
    p.y_gate[row] = gate;
    p.y_up[row] = up;
    p.h[row] = f32_to_bf16(silu_fast(bf16_to_f32(gate)) * bf16_to_f32(up));
}

template <int SLICES, int ROWS>
static cudaError_t gemv_swiglu(const mx_gemv_swiglu *p, cudaStream_t stream)
{
    return launch_pdl(gemv_swiglu_kernel<SLICES, ROWS>, (unsigned)((p->n + ROWS - 1) / ROWS),
                      32 * SLICES * ROWS, 0, stream, *p);
}

cudaError_t mx_cuda_gemv_swiglu(const mx_gemv_swiglu *p, cudaStream_t stream)
{
    if (p->k % 8)
        return cudaErrorInvalidValue;
    return has_many_rows(p->n) ? gemv_swiglu<MANY_SLICES, 8>(p, stream)
                               : gemv_swiglu<FEW_SLICES, 2>(p, stream);
}

/* 2 to 8 vectors: the tensor cores. A block takes 16 rows of W, its warps slices of K. A lane loads
 * 16 bytes (8 values of k) of two rows of W and of one vector; since a sum may run over k in any
 * order, those 8 values serve as the fragments of two steps of k = 16 for W and x alike, with no
 * shuffling. */
__global__ void __launch_bounds__(256)
    gemv_few_kernel(uint16_t *y, float *y32, const uint16_t *x, const uint16_t *w, int m, int64_t n,
                    int64_t k)
{
    __shared__ float part[8][16][9];
    let_next_start();
    wait_for_previous();
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, r = lane / 4;
    int64_t row = (int64_t)blockIdx.x * 16;
    const uint16_t *w0 = w + min(row + r, n - 1) * k, *w1 = w + min(row + r + 8, n - 1) * k;
    const uint16_t *xv = x + (int64_t)min(r, m - 1) * k; /* columns past m are not written */
    float c[4] = {};
#pragma unroll 4
    for (int64_t i = warp * 32 + lane % 4 * 8; i < k; i += 256) {
        vec8 a0 = load8_stream(w0 + i), a1 = load8_stream(w1 + i), b = load8(xv + i);
        const uint32_t *p0 = (const uint32_t *)&a0, *p1 = (const uint32_t *)&a1,
                       *pb = (const uint32_t *)&b;
        uint32_t f0[4] = {p0[0], p1[0], p0[1], p1[1]}, f1[4] = {p0[2], p1[2], p0[3], p1[3]};
        mma(c, f0, pb[0], pb[1]);
        mma(c, f1, pb[2], pb[3]);
    }
    for (int e = 0; e < 4; e++)
        part[warp][r + (e >> 1) * 8][lane % 4 * 2 + (e & 1)] = c[e];
    __syncthreads();
    int i = threadIdx.x % 16, t = threadIdx.x / 16;
    if (t >= m || row + i >= n)
        return;
    float s = 0;
    for (int j = 0; j < 8; j++)
        s += part[j][i][t];
    if (y32)
        y32[t * n + row + i] = s;
    else
        y[t * n + row + i] = f32_to_bf16(s);
}

template <int M, int R>
static cudaError_t gemv_launch(mx_bf16 *y, float *y32, const mx_bf16 *x, const mx_bf16 *w,
                               int64_t n, int64_t k, cudaStream_t stream)
{
    gemv_kernel<M, R>
        <<<(unsigned)((n + 8 * R - 1) / (8 * R)), 256, 0, stream>>>(y, y32, x, w, n, k);
    return cudaGetLastError();
}

cudaError_t mx_cuda_gemv(mx_bf16 *y, float *y32, const mx_bf16 *x, const mx_bf16 *w, int m,
                         int64_t n, int64_t k, cudaStream_t stream)
{
    if (m < 1 || m > 8 || k % 8)
        return cudaErrorInvalidValue;
    if (m > 1 && k % 32 == 0)
        return launch_pdl(gemv_few_kernel, (unsigned)((n + 15) / 16), 256, 0, stream, y, y32, x,
                            w, m, n, k);
    cudaError_t e = cudaSuccess;
    for (int i = 0; i < m && e == cudaSuccess; i++)
        e = gemv_launch<1, 1>(y ? y + i * n : NULL, y32 ? y32 + i * n : NULL, x + i * k, w, n, k,
                              stream);
    return e;
}
