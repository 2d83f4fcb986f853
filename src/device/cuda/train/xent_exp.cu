/* xent_exp.cu - the GEMM of xent_exp.h: x w^T, stored as exponentials, with their sums.
 *
 * An Epilogue of hopper_gemm.cuh: a group keeps a finished tile as differences from the label's
 * logit, times log2 e, two to a register in half precision, and takes 2^x of an eighth of it, and
 * stores that, during each of the next tile's first steps. (The error that half precision makes of
 * an exponential is at most that of bf16 between e^-11 and e^11, and four times that at e^44; sums
 * are of float32.)
 */
#include "device/cuda/attention/flash.cuh"
#include "device/cuda/gemm/hopper_gemm.cuh"
#include "device/cuda/train/xent_exp.h"

#include <cuda_fp16.h>

enum what { EXP, CAPPED, MOST };
static_assert((int)BAND_M == (int)MX_XENT_BAND && (int)TILE_N == (int)MX_XENT_WIDE,
              "marks and sums are of the GEMM's tiles");

struct exp_args {
    uint16_t *e;
    int64_t ld;
    int rows, vocab;
    float scale2;           /* scale log2(e) */
    float cap2, twice_inv;  /* cap log2(e), 2 / cap */
    const float2 *about;
    const int32_t *labels;
    const int32_t *marked, *bands; /* AGAIN alone: which rows, and which bands have any */
    float *parts;
};

/* What a thread keeps of a finished tile. Word 8 c + 4 h + i has columns 32 c + 8 i + 2 q and the
 * next, of row l / 4 + 8 h (lane l = 4 (l / 4) + q). */
template <what WHAT, bool AGAIN> struct exp_epilogue : gemm_epilogue {
    typedef exp_args args;
    uint32_t v[64];
    float sum[2];              /* MOST: the largest so far */
    float about[2], capped[2]; /* times log2 e, before and after the cap */
    uint16_t *y;               /* this lane's first 16 bytes */
    float *part;
    int left[2]; /* columns from there on, of its row and the one 8 below; 0: not stored */
    /* The label and the vocabulary's end, counted from this lane's first column. */
    int label[2], there;
    /* Of the tile that is multiplied. */
    float next_about[2], next_capped[2];
    int next_label[2];

    static __device__ __forceinline__ bool wanted(const args &p, int band)
    {
        return !AGAIN || p.bands[band < 0 ? (p.rows + BAND_M - 1) / BAND_M : band];
    }
    __device__ exp_epilogue(const gemm_smem &, int) : y(nullptr), part(nullptr)
    {
        left[0] = left[1] = 0; /* nothing aside yet */
    }
    __device__ __forceinline__ void begin(const args &p, int m0, int)
    {
        int first = m0 + sum_row();
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int row = min(first + 8 * h, p.rows - 1);
            next_about[h] = p.about[row].x;
            next_capped[h] = WHAT == CAPPED ? p.about[row].y : 0.f;
            next_label[h] = p.labels[row];
        }
    }
    __device__ __forceinline__ void place(const exp_args &p, int m0, int n0)
    {
        int q = threadIdx.x & 3;
        int row = m0 + sum_row();
        y = p.e + row * p.ld + n0 + 8 * q;
        part = p.parts + (int64_t)(n0 / TILE_N) * p.rows + row;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int r = row + 8 * h;
            left[h] = r < p.rows && (!AGAIN || p.marked[r]) ? (int)p.ld - n0 - 8 * q : 0;
            sum[h] = WHAT == MOST ? -INFINITY : 0.f;
            about[h] = next_about[h] * LOG2E, capped[h] = next_capped[h] * LOG2E;
            label[h] = next_label[h] - n0 - 2 * q;
        }
        there = p.vocab - n0 - 2 * q;
    }
    __device__ __forceinline__ void take(int half, const float d[64], const args &p)
    {
        if constexpr (WHAT == MOST)
            take_most(half, d, p);
        else
            take_differences(half, d, p);
    }
    /* What is no column of the vocabulary, and the label, are left out: 2^-inf. */
    __device__ __forceinline__ void take_differences(int half, const float d[64], const args &p)
    {
#pragma unroll
        for (int j = 0; j < 16; j++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                __half2 w = __floats2half2_rn(d[4 * j + 2 * h] * p.scale2 - about[h],
                                              d[4 * j + 2 * h + 1] * p.scale2 - about[h]);
                v[32 * half + j / 4 * 8 + 4 * h + j % 4] = *(uint32_t *)&w;
            }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int at = label[h] - HALF_N * half;
            if (__any_sync(~0u, at >= 0 && at < HALF_N && (at & 6) == 0))
                leave_out(half, label[h], label[h] + 1, h);
            if (there < HALF_N * (half + 1))
                leave_out(half, there, 2 * TILE_N, h);
        }
    }
    __device__ __forceinline__ void leave_out(int half, int from, int to, int h)
    {
#pragma unroll
        for (int j = 16 * half; j < 16 * half + 16; j++) {
            uint32_t &w = v[j / 4 * 8 + 4 * h + j % 4];
            if (8 * j >= from && 8 * j < to)
                w = (w & 0xffff0000u) | 0xfc00u;
            if (8 * j + 1 >= from && 8 * j + 1 < to)
                w = (w & 0xffffu) | 0xfc000000u;
        }
    }
    __device__ __forceinline__ float raised(float f, int h, const exp_args &p)
    {
        if (WHAT != CAPPED) {
            float e = exp2_fast(f);
            sum[h] += e;
            return e;
        }
        /* tanh(l / cap) = 1 - r, its derivative r (2 - r) */
        float u = exp2_fast((f + about[h]) * p.twice_inv), r = __fdividef(2.f, u + 1.f);
        float e = exp2_fast(p.cap2 - p.cap2 * r - capped[h]);
        e = f < -60000.f ? 0.f : e; /* left out */
        sum[h] += e;
        return e * (r * (2.f - r));
    }
    /* Words i and i + 1 of row h of eighth C, in place. */
    template <int C> __device__ __forceinline__ void raise_two(int h, int i, const exp_args &p)
    {
#pragma unroll
        for (int k = i; k < i + 2; k++) {
            uint32_t &w = v[8 * C + 4 * h + k];
            float2 f = __half22float2(*(__half2 *)&w);
            float a = raised(f.x, h, p), b = raised(f.y, h, p);
            w = pack2(a, b);
        }
    }
    template <int C> __device__ __forceinline__ void store(int h, const exp_args &p)
    {
        const uint32_t *w = &v[8 * C + 4 * h];
        if (left[h] > 32 * C)
            store8_stream(y + 32 * C + (h ? 8 * p.ld : 0), make_uint4(w[0], w[1], w[2], w[3]));
    }
    template <int C> __device__ __forceinline__ void part_of(int k, const args &p)
    {
        if constexpr (WHAT == MOST)
            return;
        if (k < 4)
            raise_two<C>(k / 2, k % 2 * 2, p);
        if (k == 3)
            exchange_part<1>(&v[8 * C]);
        if (k == 4)
            exchange_part<2>(&v[8 * C]);
        if (k == 5)
            store<C>(0, p), exchange_part<1>(&v[8 * C + 4]);
        if (k == 6)
            exchange_part<2>(&v[8 * C + 4]);
        if (k == 7)
            store<C>(1, p);
        if (k == 7 && C == EIGHTHS - 1)
            finish();
    }
    __device__ __forceinline__ void finish()
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float s = sum[h];
            s += __shfl_xor_sync(~0u, s, 1);
            s += __shfl_xor_sync(~0u, s, 2);
            if ((threadIdx.x & 3) == 0 && left[h] > 0)
                part[8 * h] = s;
        }
    }
    /* The largest logit of each row, in place of a sum. */
    __device__ __forceinline__ void take_most(int half, const float d[64], const args &p)
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
#pragma unroll
            for (int j = 0; j < 32; j++)
                if (HALF_N * half + j / 2 * 8 + j % 2 < there)
                    sum[h] = fmaxf(sum[h], d[j / 2 * 4 + 2 * h + j % 2] * p.scale2);
            float most = fmaxf(sum[h], __shfl_xor_sync(~0u, sum[h], 1));
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
            if (half == 1 && (threadIdx.x & 3) == 0 && left[h] > 0)
                part[8 * h] = most;
        }
    }
};

/* --- host --- */

template <what WHAT, bool AGAIN>
static cudaError_t launch(const mx_xent_exp *s, const mx_xent_exp_args *a, cudaStream_t stream)
{
    exp_args p = {a->e, s->ld, (int)s->rows, (int)s->vocab, s->scale * LOG2E, s->softcap * LOG2E,
                  s->softcap > 0 ? 2.f / s->softcap : 0.f, (const float2 *)a->about, a->labels,
                  a->marked, a->bands, a->parts};
    return gemm_launch<exp_epilogue<WHAT, AGAIN>, false>(s->rows, s->vocab, s->d, a->x, a->w, p,
                                                       stream);
}

cudaError_t mx_cuda_xent_gemm(const mx_xent_exp *s, const mx_xent_exp_args *a,
                                 mx_xent_pass pass, cudaStream_t stream)
{
    bool cap = s->softcap > 0;
    if (pass == MX_XENT_MOST)
        return launch<MOST, true>(s, a, stream);
    if (pass == MX_XENT_AGAIN)
        return cap ? launch<CAPPED, true>(s, a, stream) : launch<EXP, true>(s, a, stream);
    return cap ? launch<CAPPED, false>(s, a, stream) : launch<EXP, false>(s, a, stream);
}

bool mx_cuda_xent_exp_is_possible(const mx_xent_exp *s)
{
    bool cap = s->softcap > 0;
    const int64_t most = 1 << 30;
    bool fits = gemm_clusters_at_once<exp_epilogue<MOST, true>, false>() &&
                (cap ? gemm_clusters_at_once<exp_epilogue<CAPPED, false>, false>() &&
                           gemm_clusters_at_once<exp_epilogue<CAPPED, true>, false>()
                     : gemm_clusters_at_once<exp_epilogue<EXP, false>, false>() &&
                           gemm_clusters_at_once<exp_epilogue<EXP, true>, false>());
    return fits && s->d % 8 == 0 && s->d > 64 && s->ld % 8 == 0 && s->rows < most &&
           s->vocab < most && s->d < most;
}
