/* layout_kernels.cu - see layout.h.
 *
 * A transpose that keeps the last dim copies runs: neighbours in y are neighbours in x. One that
 * moves it goes by 32 x 32 tiles through shared memory, so that both sides touch whole lines: the
 * tile's columns are y's last dim, its rows the dim of y that is x's last.
 */
#include "device/cuda/core/layout.h"
#include "device/cuda/core/vec.cuh"

enum { SIDE = 32 };

/* The offset in x of element i of a packed tensor of this shape. */
__device__ __forceinline__ int64_t place_in(const mx_cuda_layout &l, int64_t i)
{
    int64_t at = 0;
    for (int d = l.n - 1; d >= 0; d--) {
        at += i % l.size[d] * l.step[d];
        i /= l.size[d];
    }
    return at;
}

template <class T>
__global__ void copy_runs_kernel(T *y, const T *x, const __grid_constant__ mx_cuda_layout l,
                                 int64_t n)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] = x[place_in(l, i)];
}

/* Dims of `outer` are all but y's last and the one that is x's last; to: their strides in y. */
struct tiles {
    mx_cuda_layout outer;
    int64_t to[MX_CUDA_LAYOUT_DIMS];
    int64_t rows, cols, row_step, col_step; /* a row: row_step in y; a column: col_step in x */
};

template <class T> __global__ void turn_kernel(T *y, const T *x, const __grid_constant__ tiles t)
{
    __shared__ T tile[SIDE][SIDE + 1];
    int64_t i = blockIdx.x, from = 0, to = 0;
    int64_t across = (t.cols + SIDE - 1) / SIDE, down = (t.rows + SIDE - 1) / SIDE;
    int64_t c0 = i % across * SIDE, r0 = i / across % down * SIDE;
    i /= across * down;
    for (int d = t.outer.n - 1; d >= 0; d--) {
        from += i % t.outer.size[d] * t.outer.step[d];
        to += i % t.outer.size[d] * t.to[d];
        i /= t.outer.size[d];
    }
    for (int c = threadIdx.y; c < SIDE; c += blockDim.y)
        if (c0 + c < t.cols && r0 + threadIdx.x < t.rows)
            tile[threadIdx.x][c] = x[from + (c0 + c) * t.col_step + r0 + threadIdx.x];
    __syncthreads();
    for (int r = threadIdx.y; r < SIDE; r += blockDim.y)
        if (r0 + r < t.rows && c0 + threadIdx.x < t.cols)
            y[to + (r0 + r) * t.row_step + c0 + threadIdx.x] = tile[r][threadIdx.x];
}

/* Neighbouring dims that are neighbours in x too become one; dims of one element go. */
static mx_cuda_layout joined(const mx_cuda_layout *l)
{
    mx_cuda_layout j = {};
    for (int d = 0; d < l->n; d++) {
        if (l->size[d] == 1)
            continue;
        if (j.n && j.step[j.n - 1] == l->size[d] * l->step[d]) {
            j.size[j.n - 1] *= l->size[d];
            j.step[j.n - 1] = l->step[d];
            continue;
        }
        j.size[j.n] = l->size[d];
        j.step[j.n++] = l->step[d];
    }
    return j;
}

template <class T>
static cudaError_t transpose(T *y, const T *x, const mx_cuda_layout *given, cudaStream_t stream)
{
    mx_cuda_layout l = joined(given);
    int64_t n = 1, y_step[MX_CUDA_LAYOUT_DIMS];
    int last = -1; /* which dim of y is x's last */
    for (int d = l.n - 1; d >= 0; n *= l.size[d--]) {
        y_step[d] = n;
        last = l.step[d] == 1 ? d : last;
    }
    if (n == 0)
        return cudaSuccess;
    if (last < 0 || last == l.n - 1) {
        unsigned blocks = (unsigned)((n + 255) / 256);
        copy_runs_kernel<T><<<blocks, 256, 0, stream>>>(y, x, l, n);
        return cudaGetLastError();
    }
    tiles t = {};
    t.rows = l.size[last], t.cols = l.size[l.n - 1];
    t.row_step = y_step[last], t.col_step = l.step[l.n - 1];
    int64_t blocks = (t.cols + SIDE - 1) / SIDE * ((t.rows + SIDE - 1) / SIDE);
    for (int d = 0; d < l.n - 1; d++)
        if (d != last) {
            t.outer.size[t.outer.n] = l.size[d];
            t.outer.step[t.outer.n] = l.step[d];
            t.to[t.outer.n++] = y_step[d];
            blocks *= l.size[d];
        }
    dim3 grid((unsigned)blocks), block(SIDE, 8);
    turn_kernel<T><<<grid, block, 0, stream>>>(y, x, t);
    return cudaGetLastError();
}

cudaError_t mx_cuda_transpose(void *y, const void *x, const mx_cuda_layout *l, int item,
                              cudaStream_t stream)
{
    return item == 2 ? transpose((uint16_t *)y, (const uint16_t *)x, l, stream)
                     : transpose((uint32_t *)y, (const uint32_t *)x, l, stream);
}
