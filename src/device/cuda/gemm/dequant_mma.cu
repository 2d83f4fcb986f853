/* dequant_mma.cu - few vectors times codes on the tensor cores: see dequant.h.
 *
 * A block takes 16 rows of w, its warps steps of k in turn. A lane loads 16 bytes of two rows and
 * the same numbers of one vector; since a sum may run over k in any order, these are the fragments
 * of as many mma as they fill, with no shuffling. Codes become bf16, which holds them exactly, so
 * that what is left to the ordinary units is one to three instructions a code. Loads of codes go
 * out before the vector is there (pdl.h): nobody writes weights in a step of decoding.
 *
 * Scales of rows are applied to the sum, those of groups to the sum of each step, which lies in
 * one.
 */
#include "device/cuda/attention/flash.cuh"
#include "device/cuda/core/pdl.cuh"
#include "device/cuda/gemm/dequant_mma.cuh"

#include <cuda_fp8.h>

enum { WARPS = 8, ROWS = 16, VECTORS = 8, AHEAD = 4 };

struct few_call {
    mx_cuda_codes w;
    const uint16_t *x;
    void *y;
    bool y_f32;
    int m;
};

/* Numbers in a lane's 16 bytes. */
__host__ __device__ constexpr int in_lane(mx_cuda_codes_kind kind)
{
    return kind == MX_CUDA_CODES_INT4 ? 32 : 16;
}

/* The codes of a word in pairs of bf16: two pairs, or, of int4, four: i and i + 4. */
template <mx_cuda_codes_kind KIND> __device__ __forceinline__ void widen_word(uint32_t *to,
                                                                              uint32_t word)
{
    if constexpr (KIND == MX_CUDA_CODES_INT4) {
#pragma unroll
        for (int i = 0; i < 4; i++) { /* 128 + u, less 136 */
            uint32_t biased = (word >> 4 * i & 0x000f000fu) | 0x43004300u, less = 0x43084308u;
            __nv_bfloat162 v = __hsub2(*(__nv_bfloat162 *)&biased, *(__nv_bfloat162 *)&less);
            to[i] = *(uint32_t *)&v;
        }
    } else {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float2 v;
            if constexpr (KIND == MX_CUDA_CODES_INT8) { /* 2^23 + u, less 2^23 + 128 */
                uint32_t u = word ^ 0x80808080u;
                v.x = __uint_as_float(__byte_perm(u, 0x4b000000u, 0x7440 + 2 * i)) - 8388736.f;
                v.y = __uint_as_float(__byte_perm(u, 0x4b000000u, 0x7441 + 2 * i)) - 8388736.f;
            } else {
                v = __half22float2(__nv_cvt_fp8x2_to_halfraw2(
                    (__nv_fp8x2_storage_t)(word >> 16 * i), __NV_E4M3));
            }
            to[i] = pack2(v.x, v.y);
        }
    }
}

/* x at the numbers of a word, in the same pairs. */
template <mx_cuda_codes_kind KIND> __device__ __forceinline__ void pair_up(uint32_t *to,
                                                                           const uint32_t *x)
{
    if constexpr (KIND == MX_CUDA_CODES_INT4) {
        to[0] = __byte_perm(x[0], x[2], 0x5410), to[1] = __byte_perm(x[0], x[2], 0x7632);
        to[2] = __byte_perm(x[1], x[3], 0x5410), to[3] = __byte_perm(x[1], x[3], 0x7632);
    } else {
        to[0] = x[0], to[1] = x[1];
    }
}

template <mx_cuda_codes_kind KIND> struct few_rows {
    const few_call &p;
    int lane;
    const uint4 *w[2]; /* this lane's two rows */
    const float *scale[2];
    float sum[4] = {};

    /* Where the lane's numbers of a step begin. */
    __device__ __forceinline__ int64_t place(int64_t step) const
    {
        return (step * 4 + lane % 4) * in_lane(KIND);
    }
    __device__ __forceinline__ void load(uint4 code[2], float f[2], int64_t step) const
    {
        int64_t at = place(step);
        bool there = at < p.w.k;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            code[r] = there ? __ldcs(w[r] + at / in_lane(KIND)) : make_uint4(0, 0, 0, 0);
            if constexpr (KIND == MX_CUDA_CODES_INT4)
                f[r] = there ? __ldg(scale[r] + at / p.w.group) : 0;
        }
    }
    __device__ __forceinline__ void multiply(const uint4 code[2], const float f[2], int64_t step)
    {
        const int words = in_lane(KIND) / 4, pairs = words / 2; /* numbers, pairs of a word */
        const int64_t at = place(step);
        const uint16_t *x = p.x + min(lane / 4, p.m - 1) * p.w.k + at;
        const uint32_t *c0 = (const uint32_t *)&code[0], *c1 = (const uint32_t *)&code[1];
        float part[4] = {};
        float *to = KIND == MX_CUDA_CODES_INT4 ? part : sum;
        uint4 v = {};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t a0[4], a1[4], b[4];
            if (words * i % 8 == 0 && at < p.w.k)
                v = *(const uint4 *)(x + words * i);
            const uint32_t *from = (const uint32_t *)&v + words * i % 8 / 2;
            widen_word<KIND>(a0, c0[i]), widen_word<KIND>(a1, c1[i]), pair_up<KIND>(b, from);
#pragma unroll
            for (int j = 0; j < pairs; j += 2) {
                uint32_t a[4] = {a0[j], a1[j], a0[j + 1], a1[j + 1]};
                mma(to, a, b[j], b[j + 1]);
            }
        }
        if constexpr (KIND == MX_CUDA_CODES_INT4)
#pragma unroll
            for (int e = 0; e < 4; e++)
                sum[e] = fmaf(part[e], f[e / 2], sum[e]);
    }
};

template <mx_cuda_codes_kind KIND>
__global__ void __launch_bounds__(32 * WARPS) few_kernel(const __grid_constant__ few_call p)
{
    __shared__ float part[WARPS][ROWS][VECTORS + 1];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t row = (int64_t)blockIdx.x * ROWS, groups = p.w.k / p.w.group;
    const int64_t row_bytes = p.w.k * 16 / in_lane(KIND);
    const int64_t steps = (p.w.k + 4 * in_lane(KIND) - 1) / (4 * in_lane(KIND));
    few_rows<KIND> t = {p, lane};
    let_next_start();
#pragma unroll
    for (int r = 0; r < 2; r++) { /* a row past the end is read again, not written */
        int64_t at = min(row + lane / 4 + 8 * r, p.w.n - 1);
        t.w[r] = (const uint4 *)((const char *)p.w.codes + at * row_bytes);
        t.scale[r] = p.w.scale + at * groups;
    }
    uint4 code[AHEAD][2];
    float f[AHEAD][2];
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        t.load(code[i], f[i], warp + i * WARPS);
    wait_for_previous();
    for (int64_t step = warp; step < steps; step += AHEAD * WARPS)
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            t.multiply(code[i], f[i], step + i * WARPS);
            t.load(code[i], f[i], step + (i + AHEAD) * WARPS);
        }
#pragma unroll
    for (int e = 0; e < 4; e++)
        part[warp][lane / 4 + e / 2 * 8][lane % 4 * 2 + e % 2] = t.sum[e];
    __syncthreads();
    const int i = threadIdx.x % ROWS, m = threadIdx.x / ROWS;
    if (m >= p.m || row + i >= p.w.n)
        return;
    float y = 0;
    for (int j = 0; j < WARPS; j++)
        y += part[j][i][m];
    if (KIND != MX_CUDA_CODES_INT4)
        y *= p.w.scale[row + i];
    if (p.y_f32)
        ((float *)p.y)[m * p.w.n + row + i] = y;
    else
        ((uint16_t *)p.y)[m * p.w.n + row + i] = f32_to_bf16(y);
}

bool mx_cuda_dequant_few_can(const mx_cuda_codes *w)
{
    bool whole = w->kind == MX_CUDA_CODES_INT4 ? w->group % 128 == 0 : w->group == w->k;
    return whole && w->k % in_lane(w->kind) == 0 && ((uintptr_t)w->codes & 15) == 0;
}

cudaError_t mx_cuda_dequant_few(void *y, bool y_f32, const void *x, int m, const mx_cuda_codes *w,
                                cudaStream_t stream)
{
    few_call p = {*w, (const uint16_t *)x, y, y_f32, m};
    dim3 blocks((unsigned)((w->n + ROWS - 1) / ROWS)), threads(32 * WARPS);
    if (w->kind == MX_CUDA_CODES_INT8)
        return launch_pdl(few_kernel<MX_CUDA_CODES_INT8>, blocks, threads, 0, stream, p);
    if (w->kind == MX_CUDA_CODES_FP8)
        return launch_pdl(few_kernel<MX_CUDA_CODES_FP8>, blocks, threads, 0, stream, p);
    return launch_pdl(few_kernel<MX_CUDA_CODES_INT4>, blocks, threads, 0, stream, p);
}
