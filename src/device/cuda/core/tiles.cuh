/* tiles.cuh - GEMMs of tiles that lie in shared memory, and loading those.
 *
 * Everything in shared memory is float32. Where tensors are bf16 (FAST) the GEMMs go through the
 * tensor cores as tf32: bf16 values are exact in it, what is computed keeps 11 bits, three more
 * than bf16, and sums are float32. Where tensors are float32 the GEMMs are plain arithmetic.
 * A block has 8 warps, 4 down and 2 across a GEMM; lane l holds rows l/4 and l/4 + 8, columns
 * 2 (l%4) + {0, 1} of each 16 x 8 piece, in both ways of multiplying. A fragment's loads fall into
 * different banks where rows are 4 floats longer than a multiple of 32 and k runs along them, or 8
 * longer and k runs down.
 */
#ifndef MX_DEVICE_CUDA_TILES_CUH
#define MX_DEVICE_CUDA_TILES_CUH

#include "device/cuda/core/vec.cuh"

enum { C = 64, THREADS = 256 }; /* rows of a tile: tokens of a chunk, keys, heads */

/* What the tensor cores keep of x. */
template <bool FAST> __device__ __forceinline__ float kept(float x)
{
    if constexpr (FAST) {
        uint32_t u;
        asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(u) : "f"(x));
        return __uint_as_float(u);
    }
    return x;
}

__device__ __forceinline__ void mma_tf32(float c[4], const float a[4], const float b[2])
{
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])),
                   "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
                   "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
}

/* A piece of a GEMM: MT x NT tiles of 16 x 8. */
template <int MT, int NT> struct piece {
    float c[MT][NT][4];
    __device__ __forceinline__ void clear()
    {
        scale(0);
    }
    __device__ __forceinline__ void scale(float f)
    {
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    c[m][n][i] = f == 0 ? 0 : c[m][n][i] * f;
    }
    /* f(row, column, value &, value &) for each pair of neighbours this lane holds. */
    template <class F> __device__ __forceinline__ void pairs(F f)
    {
        int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int i = 0; i < 4; i += 2)
                    f(m * 16 + g + i * 4, n * 8 + 2 * t, c[m][n][i], c[m][n][i + 1]);
    }
    /* f(row, column, value &) for each element. */
    template <class F> __device__ __forceinline__ void each(F f)
    {
        pairs([&](int row, int col, float &y, float &z) {
            f(row, col, y);
            f(row, col + 1, z);
        });
    }
};

/* Two neighbours of a row of `dim` elements from column col on, if they are inside. */
__device__ __forceinline__ void put_pair(float *row, int col, int dim, float x, float y)
{
    if (dim % 2 == 0 && col < dim)
        *(float2 *)(row + col) = make_float2(x, y);
    else if (col < dim) {
        row[col] = x;
        if (col + 1 < dim)
            row[col + 1] = y;
    }
}
__device__ __forceinline__ void put_pair(uint16_t *row, int col, int dim, float x, float y)
{
    if (dim % 2 == 0 && col < dim)
        *(ushort2 *)(row + col) = make_ushort2(f32_to_bf16(x), f32_to_bf16(y));
    else if (col < dim) {
        row[col] = f32_to_bf16(x);
        if (col + 1 < dim)
            row[col + 1] = f32_to_bf16(y);
    }
}

/* p += a b over k, from the piece's own corner of a and b. a is (m, k), or (k, m) where TA; b is
 * (k, n), or (n, k) where TB. The tiles of a piece lie `jump` apart in a: 16 rows, or in another
 * matrix, so that two GEMMs share what they read of b. Any order of k will do, if both sides
 * have it; PAIRS: a lane has neighbours, which meets fewer bank conflicts where both sides' rows
 * are 4 longer than a multiple of 32 and b is (k, n). */
template <bool FAST, bool TA, bool TB, bool PAIRS = false, int MT, int NT>
__device__ __forceinline__ void mul(piece<MT, NT> &p, const float *a, int lda, const float *b,
                                    int ldb, int k, int jump = 0)
{
    int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
    const int k0 = PAIRS ? 2 * t : t, k1 = PAIRS ? 2 * t + 1 : t + 4;
    jump = jump ? jump : TA ? 16 : 16 * lda;
    if constexpr (FAST) {
        for (int at = 0; at < k; at += 8) {
            float fa[MT][4], fb[NT][2];
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    int row = g + (i & 1) * 8, col = at + (i & 2 ? k1 : k0);
                    fa[m][i] = a[m * jump + (TA ? col * lda + row : row * lda + col)];
                }
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    int row = at + (i ? k1 : k0), col = n * 8 + g;
                    fb[n][i] = TB ? b[col * ldb + row] : b[row * ldb + col];
                }
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int n = 0; n < NT; n++)
                    mma_tf32(p.c[m][n], fa[m], fb[n]);
        }
    } else {
        for (int at = 0; at < k; at++) {
            float fa[MT][2], fb[NT][2];
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    int row = g + i * 8;
                    fa[m][i] = a[m * jump + (TA ? at * lda + row : row * lda + at)];
                }
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    int col = n * 8 + 2 * t + i;
                    fb[n][i] = TB ? b[col * ldb + at] : b[at * ldb + col];
                }
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int n = 0; n < NT; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        p.c[m][n][i] += fa[m][i >> 1] * fb[n][i & 1];
        }
    }
}

__device__ __forceinline__ void raw4(float4 &r, const float *p)
{
    r = *(const float4 *)p;
}
__device__ __forceinline__ void raw4(uint2 &r, const uint16_t *p)
{
    r = *(const uint2 *)p;
}
__device__ __forceinline__ void wide4(float f[4], const float4 &r)
{
    f[0] = r.x, f[1] = r.y, f[2] = r.z, f[3] = r.w;
}
__device__ __forceinline__ void wide4(float f[4], const uint2 &r)
{
    f[0] = __uint_as_float(r.x << 16), f[1] = __uint_as_float(r.x & 0xffff0000u);
    f[2] = __uint_as_float(r.y << 16), f[3] = __uint_as_float(r.y & 0xffff0000u);
}
template <class T> struct raw_of {
    typedef float4 type;
};
template <> struct raw_of<uint16_t> {
    typedef uint2 type;
};

/* A tile (ROWS, COLS) in a block's registers, between global and shared memory: loads that are
 * issued early arrive while other work goes on. */
template <class T, int ROWS, int COLS> struct tile_in_registers {
    enum { N = ROWS * COLS / 4 / THREADS };
    static_assert(N * THREADS * 4 == ROWS * COLS, "every thread has as many vectors");
    typename raw_of<T>::type r[N];
    /* n rows of `dim` elements, `step` apart; zeros for the rest. */
    __device__ __forceinline__ void take(const T *src, int64_t step, int n, int dim)
    {
        const bool whole = dim % 4 == 0 && step % 4 == 0 && ((uintptr_t)src % (4 * sizeof(T))) == 0;
#pragma unroll
        for (int i = 0; i < N; i++) {
            int at = threadIdx.x + i * THREADS, row = at / (COLS / 4), col = at % (COLS / 4) * 4;
            r[i] = {};
            if (row < n && col < dim && whole)
                raw4(r[i], src + row * step + col);
            else if (row < n && col < dim)
                for (int j = 0; j < 4 && col + j < dim; j++)
                    ((T *)&r[i])[j] = src[row * step + col + j];
        }
    }
    template <bool FAST> __device__ __forceinline__ void put(float *dst, int ld) const
    {
#pragma unroll
        for (int i = 0; i < N; i++) {
            int at = threadIdx.x + i * THREADS, row = at / (COLS / 4), col = at % (COLS / 4) * 4;
            float f[4];
            wide4(f, r[i]);
#pragma unroll
            for (int j = 0; j < 4 && sizeof(T) == 4; j++)
                f[j] = kept<FAST>(f[j]);
            store4(dst + row * ld + col, f);
        }
    }
};
template <bool FAST, int ROWS, int COLS, class T>
__device__ __forceinline__ void load_tile(float *dst, int ld, const T *src, int64_t step, int n,
                                          int dim)
{
    tile_in_registers<T, ROWS, COLS> h;
    h.take(src, step, n, dim);
    h.template put<FAST>(dst, ld);
}

/* A launch with more shared memory than a kernel has unasked. */
template <typename... P, typename... A>
static inline cudaError_t launch_pool(void (*kernel)(P...), dim3 grid, size_t bytes,
                                      cudaStream_t stream, A... args)
{
    cudaError_t e = cudaFuncSetAttribute((const void *)kernel,
                                         cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (e != cudaSuccess)
        return e;
    kernel<<<grid, THREADS, bytes, stream>>>(args...);
    return cudaGetLastError();
}

#endif
