/* gemm_swiglu.cu - GEMMs with SwiGLU as their epilogue, on hopper_gemm.cuh, and one with its
 * gradient, on hopper_stream.cuh.
 *
 * Forward, a tile is of 128 columns of both GEMMs: half of its B is of one weight, half of the
 * other, so a thread has g and u of the same places.
 */
#include "device/cuda/gemm/gemm_swiglu.h"
#include "device/cuda/gemm/hopper_stream.cuh"

__device__ __forceinline__ float sigmoid(float x)
{
    return sigmoid_down2(x * -GEMM_LOG2E);
}

/* --- forward --- */

struct swiglu_args {
    uint16_t *g, *u, *h;
    int m, n;
};
struct swiglu_maps {
    CUtensorMap second; /* B2 */
};

/* Put aside: words 8 c + 4 h + i of g (gemm_gelu.cu), and 32 further on of u. Eighth C is of
 * columns 32 (C / 2) and on, the rows of half h = C % 2. */
struct swiglu_epilogue : gemm_epilogue {
    typedef swiglu_args args;
    typedef swiglu_maps maps;
    enum { TWO_FACTORS = true, SPREAD = true };
    uint32_t v[64];
    int64_t at;  /* of this lane's first 16 bytes */
    int left[2]; /* columns from there on, of its row and the one 8 below; 0: not stored */

    static __device__ __forceinline__ bool wanted(const args &, int)
    {
        return true;
    }
    __device__ swiglu_epilogue(const gemm_smem &, int)
    {
        at = 0, left[0] = left[1] = 0; /* nothing aside yet */
    }
    __device__ __forceinline__ void begin(const args &, int, int) {}
    __device__ __forceinline__ void place(const args &p, int m0, int n0)
    {
        int q = threadIdx.x & 3, row = m0 + sum_row();
        at = (int64_t)row * p.n + n0 + 8 * q;
        left[0] = row < p.m ? p.n - n0 - 8 * q : 0;
        left[1] = row + 8 < p.m ? p.n - n0 - 8 * q : 0;
    }
    __device__ __forceinline__ void take(int half, const float d[64], const args &)
    {
        put_aside(v, half, d);
    }
    template <int C>
    __device__ __forceinline__ void store(uint16_t *to, const uint32_t w[4], int n)
    {
        const int c = C / 2, h = C % 2;
        if (left[h] > 32 * c)
            store8(to + at + 32 * c + (h ? 8 * (int64_t)n : 0),
                   make_uint4(w[0], w[1], w[2], w[3]));
    }
    template <int C> __device__ __forceinline__ void part_of(int k, const args &p)
    {
        uint32_t *g = &v[8 * (C / 2) + 4 * (C % 2)], *u = g + 32;
        if (k == 0)
            exchange_part<1>(g);
        if (k == 1)
            exchange_part<2>(g), store<C>(p.g, g, p.n);
        if (k == 2)
            exchange_part<1>(u);
        if (k == 3)
            exchange_part<2>(u), store<C>(p.u, u, p.n);
        if (k >= 4) {
            float x = low_of(g[k - 4]), y = high_of(g[k - 4]);
            g[k - 4] = pack2(x * sigmoid(x) * low_of(u[k - 4]),
                             y * sigmoid(y) * high_of(u[k - 4]));
        }
        if (k == 7)
            store<C>(p.h, g, p.n);
    }
};

/* --- backward --- */

struct swiglu_grad_epilogue : stream_epilogue<2, 2> {
    struct args {};
    enum { SPREAD = true, LOADER_REGISTERS = 40, GROUP_REGISTERS = 232 };
    uint32_t g[4], u[4]; /* of half of the eighth under way; then dg and du */

    __device__ swiglu_grad_epilogue(const gemm_smem &r, int group) : stream_epilogue(r, group) {}
    /* g and u become their gradients. */
    static __device__ __forceinline__ void grads_of(float d, float &x, float &y)
    {
        float s = sigmoid(x), silu = x * s;
        x = d * y * fmaf(-silu, s, s + silu);
        y = d * silu;
    }
    template <int C> __device__ __forceinline__ void ready(const args &)
    {
        arrived<C>();
        load<C>(g, 0, 0);
        load<C>(u, 1, 0);
    }
    template <int C> __device__ __forceinline__ void part_of(int k, const args &)
    {
        uint32_t d = v[8 * C + k], &gw = g[k % 4], &uw = u[k % 4];
        float g0 = low_of(gw), g1 = high_of(gw), u0 = low_of(uw), u1 = high_of(uw);
        grads_of(low_of(d), g0, u0);
        grads_of(high_of(d), g1, u1);
        gw = pack2(g0, g1), uw = pack2(u0, u1);
        if (k % 4 == 3)
            store<C>(g, 0, k / 4), store<C>(u, 1, k / 4);
        if (k == 3)
            load<C>(g, 0, 1), load<C>(u, 1, 1);
        if (k == 7)
            done<C>();
    }
    static __device__ __forceinline__ void look(const args &, uint32_t, stream_tile, int) {}
    static __device__ __forceinline__ void help(const gemm_shape &s, const args &p,
                                               const maps &of, const gemm_smem &r, int group)
    {
        serve<swiglu_grad_epilogue>(s, p, of, r, group);
    }
};

/* --- host --- */

bool mx_gemm_swiglu_is_possible(const mx_epilogue_gemm *s)
{
    return epilogue_suits<swiglu_epilogue>(s);
}
bool mx_gemm_swiglu_grad_is_possible(const mx_epilogue_gemm *s)
{
    return epilogue_suits<swiglu_grad_epilogue>(s);
}

cudaError_t mx_gemm_swiglu(const mx_epilogue_gemm *s, const mx_swiglu_forward_args *a,
                           cudaStream_t stream)
{
    swiglu_args p = {(uint16_t *)a->g, (uint16_t *)a->u, (uint16_t *)a->h, (int)s->m, (int)s->n};
    swiglu_maps of;
    cudaError_t e = s->b_outside ? gemm_map(&of.second, a->b2, s->k, s->n)
                                 : gemm_map(&of.second, a->b2, s->n, s->k);
    return e != cudaSuccess ? e : ended_launch<swiglu_epilogue>(s, a->a, a->b, p, stream, of);
}

cudaError_t mx_gemm_swiglu_grad(const mx_epilogue_gemm *s, const mx_swiglu_backward_args *a,
                                cudaStream_t stream)
{
    const void *in[2] = {a->g, a->u};
    void *out[2] = {a->dg, a->du};
    swiglu_grad_epilogue::args p;
    stream_maps<2> of;
    cudaError_t e = stream_maps_of<2>(&of, in, out, s->m, s->n);
    return e != cudaSuccess ? e : ended_launch<swiglu_grad_epilogue>(s, a->a, a->b, p, stream, of);
}
