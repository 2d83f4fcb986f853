/* delta_step.cu - the delta rule token by token, for decoding: the memory is read and written once
 * whatever the number of tokens.
 *
 * A block takes 32 columns of a head's memory. Each of its 8 warps has every eighth row, a lane one
 * column, in registers; the two sums over rows a token needs meet in shared memory.
 */
#include "device/cuda/recurrent/delta.cuh"

enum { COLS = 32, WARPS = 8, ROWS = MX_CUDA_DELTA_DIM / WARPS };

/* Sum over the block's warps, of each column. */
__device__ __forceinline__ float over_warps(float x, float (*part)[COLS])
{
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    part[warp][lane] = x;
    __syncthreads();
    float sum = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++)
        sum += part[w][lane];
    __syncthreads();
    return sum;
}

template <class T>
__global__ void __launch_bounds__(THREADS)
    delta_step_kernel(const __grid_constant__ mx_cuda_delta d, T *out)
{
    __shared__ float part[WARPS][COLS], q[MX_CUDA_DELTA_DIM], k[MX_CUDA_DELTA_DIM];
    int warp = threadIdx.x >> 5, col = blockIdx.x * COLS + (threadIdx.x & 31);
    int h = blockIdx.y, b = blockIdx.z, hk = h / (d.v_heads / d.k_heads), D = d.k_dim, E = d.v_dim;
    int n = d.rows ? d.batch : d.len, first = d.rows ? token_of(d.rows, b, 0, n) : 0;
    if (first >= n)
        return;
    int len = d.rows ? n : row_tokens(d.positions, b, d.len);
    int64_t begin = d.rows ? 0 : (int64_t)b * d.len;
    bool mine = col < E, anew = d.positions[begin + first] == 0;
    int64_t base = ((int64_t)b * d.v_heads + h) * D * E + col;
    float m[ROWS] = {};
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        int row = i * WARPS + warp;
        if (mine && len && !anew && row < D)
            m[i] = get_any(d.state, base + (int64_t)row * E, d.state_f32);
    }
    for (int t = first; t < n; t = d.rows ? token_of(d.rows, b, t + 1, n) : t + 1) {
        int64_t token = begin + t, to = (token * d.v_heads + h) * E + col;
        if (t >= len || d.positions[token] < 0) {
            if (mine && warp == 0)
                put(out + to, 0.f);
            continue;
        }
        bool reset = d.rows && d.positions[token] == 0;
        if (threadIdx.x < MX_CUDA_DELTA_DIM) {
            int64_t from = (token * d.k_heads + hk) * D + threadIdx.x;
            bool there = threadIdx.x < (unsigned)D;
            q[threadIdx.x] = there ? as_float(((const T *)d.q)[from]) : 0.f;
            k[threadIdx.x] = there ? as_float(((const T *)d.k)[from]) : 0.f;
        }
        __syncthreads();
        float keep = expf(get_any(d.g, token * d.v_heads + h, d.gates_f32[0])), sum = 0;
        float beta = get_any(d.beta, token * d.v_heads + h, d.gates_f32[1]);
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            m[i] = reset ? 0.f : m[i] * keep;
            sum += m[i] * k[i * WARPS + warp];
        }
        sum = over_warps(sum, part);
        float u = beta * ((mine ? as_float(((const T *)d.v)[to]) : 0.f) - sum), o = 0;
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            m[i] += k[i * WARPS + warp] * u;
            o += m[i] * q[i * WARPS + warp];
        }
        o = over_warps(o, part);
        if (mine && warp == 0)
            put(out + to, d.scale * o);
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        int row = i * WARPS + warp;
        if (mine && len && row < D)
            put_any(d.state, base + (int64_t)row * E, m[i], d.state_f32);
    }
}

cudaError_t mx_cuda_delta_step(const mx_cuda_delta *d, void *out, cudaStream_t stream)
{
    dim3 grid((unsigned)((d->v_dim + COLS - 1) / COLS), (unsigned)d->v_heads,
              (unsigned)(d->rows ? d->states : d->batch));
    if (d->f32)
        delta_step_kernel<float><<<grid, THREADS, 0, stream>>>(*d, (float *)out);
    else
        delta_step_kernel<uint16_t><<<grid, THREADS, 0, stream>>>(*d, (uint16_t *)out);
    return cudaGetLastError();
}
