/* gemm_gelu_grad.cu - a GEMM with GELU's derivative as its epilogue, on hopper_stream.cuh: u comes,
 * du goes, and the helper warp sums up the columns of what goes.
 */
#include "device/cuda/gemm/gemm_gelu_grad.h"
#include "device/cuda/gemm/hopper_stream.cuh"
#include "ops/gpu_work.h"

struct gelu_grad_args {
    float *parts;
    int m, n;
};

/* gelu_tanh'(x) = s + s (1 - s) x (A + 3 A B x^2), s a sigmoid of A (x + B x^3). */
__device__ __forceinline__ float gelu_grad_of(float x)
{
    const float A = 1.5957691216057308f, B = 0.044715f, A2 = -A * GEMM_LOG2E;
    float t = x * x, s = sigmoid_down2(x * fmaf(t, A2 * B, A2)), r = x * fmaf(t, 3 * A * B, A);
    return fmaf(s, fmaf(-s, r, r), s);
}

struct gelu_grad_epilogue : stream_epilogue<1, 4> {
    typedef gelu_grad_args args;
    enum { LOADER_REGISTERS = 56, GROUP_REGISTERS = 224 };
    uint32_t w[8]; /* of the eighth under way: u, then du */

    __device__ gelu_grad_epilogue(const gemm_smem &r, int g) : stream_epilogue(r, g) {}
    template <int C> __device__ __forceinline__ void ready(const args &)
    {
        arrived<C>();
        load<C>(w, 0, 0);
        load<C>(w + 4, 0, 1);
    }
    template <int C> __device__ __forceinline__ void part_of(int k, const args &)
    {
        uint32_t x = v[8 * C + k];
        w[k] = pack2(low_of(x) * gelu_grad_of(low_of(w[k])),
                     high_of(x) * gelu_grad_of(high_of(w[k])));
        if (k == 3)
            store<C>(w, 0, 0);
        if (k == 7)
            store<C>(w + 4, 0, 1), done<C>();
    }

    /* The sum of a box's column 2 (lane % 16) + lane / 16. Many loads are issued before the first
     * is used: one after the other they would take longer than the group needs for an eighth. */
    static __device__ __forceinline__ float sum_of(uint32_t from)
    {
        enum { AT_ONCE = 16 };
        int lane = threadIdx.x & 31, upper = lane / 16;
        float low = 0, high = 0;
        from += upper * BOX_PITCH + lane % 4 * 4;
#pragma unroll
        for (int i = 0; i < BOX_ROWS / 2; i += AT_ONCE) { /* rows 2 i + upper and on */
            uint32_t x[AT_ONCE];
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++)
                asm volatile("ld.shared.b32 %0, [%1];"
                             : "=r"(x[j])
                             : "r"(from + 2 * (i + j) * BOX_PITCH + ((lane / 4 % 4) ^ j % 4) * 16));
            __syncwarp(); /* the assembler would put each load where it is used */
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++)
                low += low_of(x[j]), high += high_of(x[j]);
        }
        float got = __shfl_xor_sync(~0u, upper ? low : high, 16);
        return (upper ? high : low) + got;
    }
    static __device__ __forceinline__ void look(const args &p, uint32_t slot, stream_tile t, int c)
    {
        int lane = threadIdx.x & 31, col = t.n + BOX_WIDE * c + 2 * (lane & 15) + (lane >> 4);
        float sum = sum_of(slot);
        if (t.m < p.m && col < p.n)
            p.parts[(int64_t)(t.m / BOX_ROWS) * p.n + col] = sum;
    }
    static __device__ __forceinline__ void help(const gemm_shape &s, const args &p,
                                               const maps &of, const gemm_smem &r, int group)
    {
        serve<gelu_grad_epilogue>(s, p, of, r, group);
    }
};

/* --- host --- */

bool mx_gemm_gelu_grad_is_possible(const mx_epilogue_gemm *s)
{
    return epilogue_suits<gelu_grad_epilogue>(s);
}

static_assert((int)BOX_ROWS == (int)MX_GPU_GELU_GRAD_ROWS, "as planned");
int64_t mx_gemm_gelu_grad_rows(int64_t m)
{
    return mx_gpu_parts(m, BOX_ROWS);
}

cudaError_t mx_gemm_gelu_grad_launch(const mx_epilogue_gemm *s, const mx_gemm_gelu_grad_args *a,
                                     cudaStream_t stream)
{
    gelu_grad_args p = {a->parts, (int)s->m, (int)s->n};
    stream_maps<1> of;
    cudaError_t e = stream_maps_of<1>(&of, &a->u, &a->du, s->m, s->n);
    return e != cudaSuccess ? e : ended_launch<gelu_grad_epilogue>(s, a->a, a->b, p, stream, of);
}
