/* grouped_plain.cu - one GEMM per expert without the tensor cores: float32, and widths that the
 * fast kernel cannot load. Tiles of 64 x 64, 16 deep; a thread has 4 x 4 sums, in the order of k.
 */
#include "device/cuda/moe/grouped.cuh"
#include "device/cuda/core/vec.cuh"

enum { SIDE = 64, DEEP = 16, THREADS = 256 };

/* Element (i, k) of an operand is at[i * row + k * step]. */
template <typename T> struct operand {
    const T *at;
    int64_t row, step;
    int rows;
};

template <typename T>
__device__ __forceinline__ void load_tile(float (*s)[SIDE + 4], const operand<T> &f, int k0, int k)
{
    for (int i = threadIdx.x; i < SIDE * DEEP; i += THREADS) {
        int r = f.step == 1 ? i / DEEP : i % SIDE, c = f.step == 1 ? i % DEEP : i / SIDE;
        bool in = r < f.rows && k0 + c < k;
        s[c][r] = in ? as_float(f.at[r * f.row + (k0 + c) * f.step]) : 0.f;
    }
}

template <typename T>
__device__ __forceinline__ void operands_of(operand<T> &a, operand<T> &b, const grouped_tile &g,
                                           const grouped_shape &s, mx_grouped_kind kind,
                                           const T *pa, const T *pb)
{
    int64_t from = g.from, w = g.expert < 0 ? 0 : (int64_t)g.expert * s.n * s.k;
    if (kind == MX_GROUPED_TN) {
        a = {pa + from * s.m + g.m0, 1, s.m, s.m - g.m0};
        b = {pb + from * s.n + g.n0, 1, s.n, s.n - g.n0};
        return;
    }
    a = {pa + (from + g.m0) * s.k, s.k, 1, g.to - g.from - g.m0};
    if (kind == MX_GROUPED_NT)
        b = {pb + w + (int64_t)g.n0 * s.k, s.k, 1, s.n - g.n0};
    else
        b = {pb + w + g.n0, 1, s.n, s.n - g.n0};
}

template <typename T, typename O>
__global__ __launch_bounds__(THREADS) void plain_kernel(grouped_shape s, mx_grouped_kind kind,
                                                        const T *pa, const T *pb, O *y)
{
    __shared__ float as[DEEP][SIDE + 4], bs[DEEP][SIDE + 4];
    grouped_tile g;
    if (kind == MX_GROUPED_TN)
        find_sum_tile(g, s, blockIdx.x, SIDE, SIDE);
    else if (!find_row_tile(g, s, blockIdx.x, SIDE, SIDE))
        return;
    operand<T> a, b;
    operands_of(a, b, g, s, kind, pa, pb);
    int k = kind == MX_GROUPED_TN ? g.to - g.from : g.expert < 0 ? 0 : s.k;
    int r = threadIdx.x / 16 * 4, c = threadIdx.x % 16 * 4;
    float sum[4][4] = {};
    for (int k0 = 0; k0 < k; k0 += DEEP) {
        load_tile(as, a, k0, k);
        load_tile(bs, b, k0, k);
        __syncthreads();
#pragma unroll
        for (int q = 0; q < DEEP; q++) {
            float x[4], w[4];
            load4(x, &as[q][r]);
            load4(w, &bs[q][c]);
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    sum[i][j] = fmaf(x[i], w[j], sum[i][j]);
        }
        __syncthreads();
    }
    y += kind == MX_GROUPED_TN ? ((int64_t)g.expert * s.m + g.m0) * s.n
                               : (int64_t)(g.from + g.m0) * s.n;
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++)
            if (r + i < a.rows && c + j < b.rows)
                put(&y[(int64_t)(r + i) * s.n + g.n0 + c + j], sum[i][j]);
}

template <typename T, typename O>
static void launch(const mx_grouped_call *g, unsigned blocks, cudaStream_t stream)
{
    plain_kernel<<<blocks, THREADS, 0, stream>>>(grouped_shape_of(g), g->kind, (const T *)g->a,
                                                 (const T *)g->b, (O *)g->y);
}

cudaError_t mx_cuda_grouped_plain(const mx_grouped_call *g, cudaStream_t stream)
{
    unsigned blocks = (unsigned)grouped_blocks(g, SIDE, SIDE);
    if (!blocks)
        return cudaSuccess;
    if (g->in_f32)
        launch<float, float>(g, blocks, stream);
    else if (g->out_f32)
        launch<uint16_t, float>(g, blocks, stream);
    else
        launch<uint16_t, uint16_t>(g, blocks, stream);
    return cudaGetLastError();
}
