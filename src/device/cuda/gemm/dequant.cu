/* dequant.cu - see dequant.h. Most of it is dequant_stream.cu's; this has scales of other groups. A
 * warp has two rows of w, each of its lanes 16 bytes of both at a time, and up to eight rows of x,
 * which stay in L1.
 *
 * A code becomes a float by its place in the bits of one: 2^23 + u is 0x4b000000 | u, and the
 * subtraction of 2^23 and the code's offset is exact. A lane's 16 bytes lie in one group, so that
 * its sum over them is scaled once. A row's sum has one order: along a lane, then over lanes.
 */
#include "device/cuda/gemm/dequant_stream.cuh"
#include "device/cuda/core/vec.cuh"

#include <cuda_fp8.h>

enum { THREADS = 128, WARPS = THREADS / 32, BYTES = 16, ROWS = 2, MOST = 8 };

struct gemv_call {
    mx_cuda_codes w;
    const uint16_t *x;
    void *y;
    bool y_f32;
};

__host__ __device__ constexpr int per_vector(mx_cuda_codes_kind kind)
{
    return kind == MX_CUDA_CODES_INT4 ? 2 * BYTES : BYTES;
}

/* Number i of a word. */
template <mx_cuda_codes_kind KIND> __device__ __forceinline__ float value_of(uint32_t word, int i)
{
    if (KIND == MX_CUDA_CODES_INT8) {
        uint32_t u = __byte_perm(word ^ 0x80808080u, 0x4b000000u, 0x7440 + i);
        return __uint_as_float(u) - 8388736.f; /* 2^23 + 128 */
    }
    if (KIND == MX_CUDA_CODES_INT4)
        return __uint_as_float(0x4b000000u | (word >> 4 * i & 15)) - 8388616.f; /* 2^23 + 8 */
    __half_raw h = __nv_cvt_fp8_to_halfraw((__nv_fp8_storage_t)(word >> 8 * i), __NV_E4M3);
    return __half2float(__half(h));
}

/* sum += the lane's codes times x at the same columns. */
template <mx_cuda_codes_kind KIND, int M>
__device__ __forceinline__ void lane_dots(const uint4 (&code)[ROWS], const uint16_t *x, int64_t k,
                                          float (&part)[ROWS][M])
{
    const int each = per_vector(KIND) / 4; /* numbers of a word */
#pragma unroll
    for (int word = 0; word < 4; word++) {
        float v[ROWS][each];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            uint32_t c = word == 0 ? code[r].x : word == 1 ? code[r].y : word == 2 ? code[r].z
                                                                                   : code[r].w;
#pragma unroll
            for (int i = 0; i < each; i++)
                v[r][i] = value_of<KIND>(c, i);
        }
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int i = 0; i < each; i += 2) {
                uint32_t pair =
                    *reinterpret_cast<const uint32_t *>(x + m * k + word * each + i);
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    part[r][m] = fmaf(v[r][i], low_of(pair), part[r][m]);
                    part[r][m] = fmaf(v[r][i + 1], high_of(pair), part[r][m]);
                }
            }
    }
}

template <mx_cuda_codes_kind KIND, int M> __global__ __launch_bounds__(THREADS) void
gemv_kernel(gemv_call p)
{
    const int lane = threadIdx.x % 32, each = per_vector(KIND);
    const int64_t row = ROWS * ((int64_t)blockIdx.x * WARPS + threadIdx.x / 32);
    const int64_t row_bytes = p.w.k * BYTES / each, groups = p.w.k / p.w.group;
    if (row >= p.w.n)
        return;
    const int64_t step = row + 1 < p.w.n ? 1 : 0; /* the last row alone is read twice */
    const char *codes = (const char *)p.w.codes + row * row_bytes;
    float sum[ROWS][M] = {};
    for (int64_t i = lane; i * each < p.w.k; i += 32) {
        uint4 code[ROWS];
        float part[ROWS][M] = {};
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            code[r] = __ldcs((const uint4 *)(codes + r * step * row_bytes) + i);
        lane_dots<KIND, M>(code, p.x + i * each, p.w.k, part);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float s = p.w.scale[(row + r * step) * groups + i * each / p.w.group];
#pragma unroll
            for (int m = 0; m < M; m++)
                sum[r][m] = fmaf(part[r][m], s, sum[r][m]);
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int m = 0; m < M; m++) {
            float y = warp_sum(sum[r][m]);
            if (lane == 0 && row + r < p.w.n) {
                int64_t at = m * p.w.n + row + r;
                if (p.y_f32)
                    ((float *)p.y)[at] = y;
                else
                    ((uint16_t *)p.y)[at] = f32_to_bf16(y);
            }
        }
}

template <mx_cuda_codes_kind KIND>
static void launch_rows(const gemv_call &p, int64_t m, cudaStream_t stream)
{
    unsigned blocks = (unsigned)((p.w.n + ROWS * WARPS - 1) / (ROWS * WARPS));
    switch (m) {
    case 1: gemv_kernel<KIND, 1><<<blocks, THREADS, 0, stream>>>(p); break;
    case 2: gemv_kernel<KIND, 2><<<blocks, THREADS, 0, stream>>>(p); break;
    case 4: gemv_kernel<KIND, 4><<<blocks, THREADS, 0, stream>>>(p); break;
    default: gemv_kernel<KIND, MOST><<<blocks, THREADS, 0, stream>>>(p);
    }
}

extern "C" bool mx_cuda_dequant_is_one_launch(const mx_cuda_codes *a, const mx_cuda_codes *b)
{
    return a->kind == b->kind && a->k == b->k && a->group == b->group &&
           mx_cuda_dequant_stream_can(a) && mx_cuda_dequant_stream_can(b);
}

/* The matmul after the first `rows` rows of x. */
static mx_cuda_dequant after(mx_cuda_dequant d, int64_t rows)
{
    d.y = (char *)d.y + rows * d.w.n * (d.y_f32 ? 4 : 2);
    return d;
}

static cudaError_t plain_gemv(const mx_cuda_dequant &d, const uint16_t *x, int64_t m,
                              cudaStream_t stream)
{
    for (int64_t at = 0, n; at < m; at += n) {
        n = m - at >= MOST ? MOST : m - at >= 4 ? 4 : m - at >= 2 ? 2 : 1;
        gemv_call p = {d.w, x + at * d.w.k, after(d, at).y, d.y_f32};
        if (d.w.kind == MX_CUDA_CODES_INT8)
            launch_rows<MX_CUDA_CODES_INT8>(p, n, stream);
        else if (d.w.kind == MX_CUDA_CODES_FP8)
            launch_rows<MX_CUDA_CODES_FP8>(p, n, stream);
        else
            launch_rows<MX_CUDA_CODES_INT4>(p, n, stream);
    }
    return cudaGetLastError();
}

static cudaError_t stream_gemv(const mx_cuda_dequant *one, int n, const void *x, int64_t m,
                               void *h, cudaStream_t stream)
{
    const uint16_t *from = (const uint16_t *)x;
    uint16_t *to = (uint16_t *)h;
    cudaError_t e = cudaSuccess;
    for (int64_t at = 0; at < m && e == cudaSuccess; at += MX_DEQUANT_STREAM_VECTORS) {
        mx_cuda_dequant some[MX_CUDA_DEQUANT_MOST];
        for (int i = 0; i < n; i++)
            some[i] = after(one[i], at);
        int64_t left = m - at;
        e = mx_cuda_dequant_stream(
            some, n, from + at * one->w.k,
            (int)(left < MX_DEQUANT_STREAM_VECTORS ? left : MX_DEQUANT_STREAM_VECTORS),
            to ? to + at * one->w.n : NULL, stream);
    }
    return e;
}

extern "C" cudaError_t mx_cuda_dequant_gemv(const mx_cuda_dequant *one, int n, const void *x,
                                            int64_t m, cudaStream_t stream)
{
    if (n < 1 || n > MX_CUDA_DEQUANT_MOST)
        return cudaErrorInvalidValue;
    if (n == 1 && !mx_cuda_dequant_stream_can(&one->w))
        return plain_gemv(*one, (const uint16_t *)x, m, stream);
    return stream_gemv(one, n, x, m, NULL, stream);
}

extern "C" cudaError_t mx_cuda_dequant_swiglu(const mx_cuda_dequant pair[2], const void *x,
                                              int64_t m, void *h, cudaStream_t stream)
{
    if (pair[0].w.n != pair[1].w.n || pair[0].y_f32 || pair[1].y_f32)
        return cudaErrorInvalidValue;
    return stream_gemv(pair, 2, x, m, h, stream);
}

/* --- rows as bf16 --- */

template <mx_cuda_codes_kind KIND> __global__ __launch_bounds__(THREADS) void
rows_kernel(uint16_t *to, mx_cuda_codes w, int64_t from, int64_t vectors)
{
    const int each = per_vector(KIND);
    int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, per_row = w.k / each;
    if (at >= vectors)
        return;
    int64_t row = from + at / per_row, c = at % per_row * each;
    uint4 code = ((const uint4 *)w.codes)[from * per_row + at];
    uint32_t word[4] = {code.x, code.y, code.z, code.w};
    float s = w.scale[row * (w.k / w.group) + c / w.group];
    uint16_t *out = to + at * each;
#pragma unroll
    for (int i = 0; i < each; i += 8) {
        float f[8];
#pragma unroll
        for (int k = 0; k < 8; k++) {
            int n = i + k;
            f[k] = value_of<KIND>(word[n / (each / 4)], n % (each / 4)) * s;
        }
        store8(out + i, pack8(f));
    }
}

extern "C" cudaError_t mx_cuda_dequant_rows(void *to, const mx_cuda_codes *w, int64_t from,
                                            int64_t rows, cudaStream_t stream)
{
    int64_t vectors = rows * w->k / per_vector(w->kind);
    unsigned blocks = (unsigned)((vectors + THREADS - 1) / THREADS);
    uint16_t *out = (uint16_t *)to;
    if (w->kind == MX_CUDA_CODES_INT8)
        rows_kernel<MX_CUDA_CODES_INT8><<<blocks, THREADS, 0, stream>>>(out, *w, from, vectors);
    else if (w->kind == MX_CUDA_CODES_FP8)
        rows_kernel<MX_CUDA_CODES_FP8><<<blocks, THREADS, 0, stream>>>(out, *w, from, vectors);
    else
        rows_kernel<MX_CUDA_CODES_INT4><<<blocks, THREADS, 0, stream>>>(out, *w, from, vectors);
    return cudaGetLastError();
}
