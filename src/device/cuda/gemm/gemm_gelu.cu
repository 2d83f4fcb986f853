/* gemm_gelu.cu - a GEMM with bias and GELU as its epilogue, on hopper_gemm.cuh.
 *
 * A finished tile is put aside as bf16 pairs of u, its bias added. Its eighths are then stored as
 * they are and turned into GELUs. What that saves is memory: u is not read again. The bias of a
 * tile goes through shared memory, since a thread's columns are spread over all of it.
 *
 * Both are stored by the lanes that have them, not by TMA: docs/log/gpu-kernels.md.
 */
#include "device/cuda/gemm/gemm_gelu.h"
#include "device/cuda/gemm/hopper_gemm.cuh"
#include "device/cuda/core/vec.cuh"

struct gelu_args {
    uint16_t *y, *u;
    const uint16_t *bias;
    int m, n;
};

/* gelu_tanh(x) = x s(x), s a sigmoid of 2 sqrt(2 / pi) (x + 0.044715 x^3). */
static constexpr float GELU_A = 1.5957691216057308f, GELU_B = 0.044715f;
__device__ __forceinline__ float gate_of(float x)
{
    return __fdividef(1.f, 1.f + __expf(-GELU_A * (x + GELU_B * x * x * x)));
}
/* Word 8 c + 4 h + i of a tile put aside has columns 32 c + 8 i + 2 q and the next, of row l / 4 +
 * 8 h (lane l = 4 (l / 4) + q); after the exchange, columns 32 c + 8 q + 2 i and the next. */
struct gelu_epilogue : gemm_epilogue {
    typedef gelu_args args;
    uint32_t v[64];
    int64_t at;    /* of this lane's first 16 bytes */
    int left[2];   /* columns from there on, of its row and the one 8 below; 0: not stored */
    uint32_t bias_at; /* this group's bias, a float for each column */
    int group;
    uint32_t next; /* bias of the tile that is multiplied: columns 2 (thread) and the next */

    static __device__ __forceinline__ bool wanted(const args &, int)
    {
        return true;
    }
    __device__ gelu_epilogue(const gemm_smem &r, int g)
        : bias_at(r.spare + g * TILE_N * 4), group(g)
    {
        at = 0, left[0] = left[1] = 0; /* nothing aside yet */
    }
    __device__ __forceinline__ void begin(const args &p, int, int n0)
    {
        int c = n0 + 2 * (threadIdx.x & 127);
        next = c < p.n ? *(const uint32_t *)(p.bias + c) : 0;
    }
    __device__ __forceinline__ void place(const args &p, int m0, int n0)
    {
        int q = threadIdx.x & 3;
        int row = m0 + sum_row();
        at = (int64_t)row * p.n + n0 + 8 * q;
        left[0] = row < p.m ? p.n - n0 - 8 * q : 0;
        left[1] = row + 8 < p.m ? p.n - n0 - 8 * q : 0;
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(bias_at + 8 * (threadIdx.x & 127)),
                     "f"(low_of(next)), "f"(high_of(next))
                     : "memory");
        asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory");
    }
    __device__ __forceinline__ void take(int half, const float d[64], const args &)
    {
#pragma unroll
        for (int j = 0; j < 16; j++) {
            float x, y;
            asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                         : "=f"(x), "=f"(y)
                         : "r"(bias_at + 4 * (HALF_N * half + 8 * j + 2 * (threadIdx.x & 3)))
                         : "memory");
#pragma unroll
            for (int h = 0; h < 2; h++)
                v[32 * half + j / 4 * 8 + 4 * h + j % 4] =
                    pack2(d[4 * j + 2 * h] + x, d[4 * j + 2 * h + 1] + y);
        }
    }
    template <int C> __device__ __forceinline__ void store(uint16_t *to, int h, int n)
    {
        const uint32_t *w = &v[8 * C + 4 * h];
        if (left[h] > 32 * C)
            store8(to + at + 32 * C + (h ? 8 * (int64_t)n : 0),
                   make_uint4(w[0], w[1], w[2], w[3]));
    }
    template <int C> __device__ __forceinline__ void part_of(int k, const args &p)
    {
        int h = k / 4;
        uint32_t *w = &v[8 * C + 4 * h];
        if (k % 4 == 0)
            exchange_part<1>(w);
        if (k % 4 == 1)
            exchange_part<2>(w), store<C>(p.u, h, p.n);
        if (k % 4 >= 2)
#pragma unroll
            for (int i = k % 4 * 2 - 4; i < k % 4 * 2 - 2; i++) {
                float x = low_of(w[i]), y = high_of(w[i]);
                w[i] = pack2(x * gate_of(x), y * gate_of(y));
            }
        if (k % 4 == 3)
            store<C>(p.y, h, p.n);
    }
};

bool mx_gemm_gelu_is_possible(const mx_epilogue_gemm *s)
{
    return epilogue_suits<gelu_epilogue>(s);
}

cudaError_t mx_gemm_gelu_launch(const mx_epilogue_gemm *s, const mx_gemm_gelu_args *a,
                                cudaStream_t stream)
{
    gelu_args p = {a->y, a->u, a->bias, (int)s->m, (int)s->n};
    return ended_launch<gelu_epilogue>(s, a->a, a->b, p, stream);
}
