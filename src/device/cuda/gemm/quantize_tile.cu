/* quantize_tile.cu - numbers quantized in one pass over them, where blocks are rows, columns or all
 * of a tile (quantize.cuh): a tile stays in registers from its maxima to its codes. */
#include "device/cuda/gemm/quantize.cuh"

enum { STEPS = SIDE / DOWN };

/* Eight numbers as they lie in memory; the largest magnitude of each as float bits. */
struct eight_bf16 {
    uint4 w;
    __device__ __forceinline__ void load(const uint16_t *p, bool there)
    {
        w = there ? *(const uint4 *)p : make_uint4(0, 0, 0, 0);
    }
    __device__ __forceinline__ void unpack(float v[LANE]) const
    {
        unpack8(v, w);
    }
};
struct eight_f32 {
    float4 lo, hi;
    __device__ __forceinline__ void load(const float *p, bool there)
    {
        lo = there ? *(const float4 *)p : make_float4(0, 0, 0, 0);
        hi = there ? *(const float4 *)(p + 4) : make_float4(0, 0, 0, 0);
    }
    __device__ __forceinline__ void unpack(float v[LANE]) const
    {
        v[0] = lo.x, v[1] = lo.y, v[2] = lo.z, v[3] = lo.w;
        v[4] = hi.x, v[5] = hi.y, v[6] = hi.z, v[7] = hi.w;
    }
};
template <class T> struct eight_of {
    typedef eight_f32 type;
};
template <> struct eight_of<uint16_t> {
    typedef eight_bf16 type;
};

/* Largest magnitudes of eight columns so far: floats, or bf16 in pairs, as bits, of which a larger
 * number of the same sign has the larger. NaN is above all. */
struct most_f32 {
    uint32_t m[LANE] = {};
    __device__ __forceinline__ void add(const eight_f32 &x)
    {
        float v[LANE];
        x.unpack(v);
#pragma unroll
        for (int i = 0; i < LANE; i++)
            m[i] = max(m[i], bits_of(v[i]));
    }
    __device__ __forceinline__ uint32_t column(int i) const
    {
        return m[i];
    }
    __device__ __forceinline__ uint32_t all() const
    {
        uint32_t most = 0;
#pragma unroll
        for (int i = 0; i < LANE; i++)
            most = max(most, m[i]);
        return most;
    }
};
struct most_bf16 {
    uint32_t m[LANE / 2] = {};
    __device__ __forceinline__ void add(const eight_bf16 &x)
    {
        const uint32_t w[4] = {x.w.x, x.w.y, x.w.z, x.w.w};
#pragma unroll
        for (int i = 0; i < LANE / 2; i++)
            m[i] = __vmaxu2(m[i], w[i] & 0x7fff7fffu);
    }
    __device__ __forceinline__ uint32_t column(int i) const
    {
        return i % 2 ? m[i / 2] & 0xffff0000u : m[i / 2] << 16;
    }
    __device__ __forceinline__ uint32_t all() const
    {
        uint32_t most = __vmaxu2(__vmaxu2(m[0], m[1]), __vmaxu2(m[2], m[3]));
        return max(most << 16, most & 0xffff0000u);
    }
};
template <class T> struct most_of {
    typedef most_f32 type;
};
template <> struct most_of<uint16_t> {
    typedef most_bf16 type;
};

/* Factors are of the numbers themselves, so that none goes beyond the format; where there was an
 * infinity or NaN, all become NaN. */
template <int FORMAT>
__device__ __forceinline__ uint2 codes_within(const float v[LANE], const float f[LANE])
{
    uint32_t w[LANE / 2];
#pragma unroll
    for (int i = 0; i < LANE / 2; i++)
        w[i] = __nv_cvt_float2_to_fp8x2(
            make_float2(__fmul_rn(v[2 * i], f[2 * i]), __fmul_rn(v[2 * i + 1], f[2 * i + 1])),
            __NV_SATFINITE, FORMAT == MX_CUDA_E4M3 ? __NV_E4M3 : __NV_E5M2);
    return make_uint2(w[0] | w[1] << 16, w[2] | w[3] << 16);
}

template <class T> struct tile_of {
    const mx_cuda_quantize_shape &s;
    const mx_cuda_quantize_args &a;
    grid_of g;
    int64_t row0, col, base; /* col: of this thread's eight */
    float *scale;            /* of this matrix */
    typename eight_of<T>::type x[STEPS];
    float f[LANE];

    __device__ __forceinline__ int64_t row_of(int i) const
    {
        return row0 + i * DOWN + threadIdx.x / ACROSS;
    }
    __device__ __forceinline__ void load()
    {
#pragma unroll
        for (int i = 0; i < STEPS; i++)
            x[i].load((const T *)a.x + base + row_of(i) * s.cols + col,
                      row_of(i) < s.rows && col < s.cols);
    }
    __device__ __forceinline__ float keep(float *at, uint32_t bits, bool first)
    {
        float factor = factor_of(bits, s.format, s.power_of_two);
        if (first)
            *at = __frcp_rn(factor);
        return factor;
    }
    __device__ __forceinline__ void set(float factor)
    {
#pragma unroll
        for (int i = 0; i < LANE; i++)
            f[i] = factor;
    }
    /* One column a thread; then each has the factors of its eight. */
    __device__ __forceinline__ void find_columns(const typename most_of<T>::type &most)
    {
        __shared__ uint32_t part[DOWN][SIDE];
        __shared__ float factor[SIDE];
        int down = threadIdx.x / ACROSS, across = threadIdx.x % ACROSS;
        int64_t at = (int64_t)blockIdx.x * SIDE + threadIdx.x;
#pragma unroll
        for (int i = 0; i < LANE; i++)
            part[down][across * LANE + i] = most.column(i);
        __syncthreads();
        if (threadIdx.x < SIDE) {
            uint32_t all = 0;
            for (int i = 0; i < DOWN; i++)
                all = max(all, part[i][threadIdx.x]);
            factor[threadIdx.x] = keep(scale + blockIdx.y * g.cols + at, all, at < s.cols);
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < LANE; i++)
            f[i] = factor[across * LANE + i];
    }
    /* Factors of columns or of the tile; gives its maximum. */
    __device__ __forceinline__ uint32_t find_factors()
    {
        typename most_of<T>::type most;
#pragma unroll
        for (int i = 0; i < STEPS; i++)
            most.add(x[i]);
        uint32_t all = most_of_tile(most.all());
        if (s.block_cols == 1)
            find_columns(most);
        else if (s.block_rows == SIDE)
            set(keep(scale + blockIdx.y * g.cols + blockIdx.x, all, threadIdx.x == 0));
        return all;
    }
    template <int FORMAT, bool BOTH> __device__ __forceinline__ void store(uint32_t *flat)
    {
        uint8_t *q = (uint8_t *)a.q + base;
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            int64_t row = row_of(i);
            float v[LANE];
            if (s.block_rows == 1) {
                typename most_of<T>::type most;
                most.add(x[i]);
                set(keep(scale + row * g.cols + blockIdx.x, most_of_row(most.all()),
                         threadIdx.x % ACROSS == 0 && row < s.rows));
            }
            x[i].unpack(v);
            uint2 codes = codes_within<FORMAT>(v, f);
            if (row < s.rows && col < s.cols)
                *(uint2 *)(q + row * s.cols + col) = codes;
            if (BOTH)
                *(uint2 *)&flat[(row - row0) * WORDS + threadIdx.x % ACROSS * 2] = codes;
        }
    }
};

template <int FORMAT, bool BOTH, class T>
__global__ void __launch_bounds__(THREADS, sizeof(T) == 2 ? 3 : 2)
    tile_kernel(const __grid_constant__ mx_cuda_quantize_shape s,
                const __grid_constant__ mx_cuda_quantize_args a)
{
    __shared__ uint32_t flat[BOTH ? SIDE * WORDS : 1], transposed[BOTH ? SIDE * WORDS : 1];
    grid_of g = scales_of(s);
    tile_of<T> t = {s, a, g, (int64_t)blockIdx.y * SIDE,
                    (int64_t)blockIdx.x * SIDE + threadIdx.x % ACROSS * LANE,
                    blockIdx.z * s.rows * s.cols, a.scale + blockIdx.z * g.rows * g.cols};
    t.load();
    uint32_t all = t.find_factors();
    if (threadIdx.x == 0)
        atomicMax((uint32_t *)a.amax, all);
    t.template store<FORMAT, BOTH>(flat);
    if (BOTH)
        store_transposed((uint8_t *)a.transposed + t.base, flat, transposed, s);
}

bool mx_cuda_quantize_tile_can(const mx_cuda_quantize_shape *s, const mx_cuda_quantize_args *a)
{
    return !a->given && s->format != MX_CUDA_I8 && (s->block_rows == 1 || s->block_rows == SIDE) &&
           (s->block_cols == 1 || s->block_cols == SIDE) && s->block_rows * s->block_cols > 1;
}

template <int FORMAT, class T>
static void launch_tile(const mx_cuda_quantize_shape *s, const mx_cuda_quantize_args *a, dim3 grid,
                        cudaStream_t stream)
{
    if (s->both)
        tile_kernel<FORMAT, true, T><<<grid, THREADS, 0, stream>>>(*s, *a);
    else
        tile_kernel<FORMAT, false, T><<<grid, THREADS, 0, stream>>>(*s, *a);
}

cudaError_t mx_cuda_quantize_tile(const mx_cuda_quantize_shape *s, const mx_cuda_quantize_args *a,
                                  cudaStream_t stream)
{
    dim3 grid((unsigned)((s->cols + SIDE - 1) / SIDE), (unsigned)((s->rows + SIDE - 1) / SIDE),
              (unsigned)s->matrices);
    cudaError_t e = cudaMemsetAsync(a->amax, 0, sizeof(float), stream);
    if (e != cudaSuccess)
        return e;
    if (s->format == MX_CUDA_E4M3)
        s->x_f32 ? launch_tile<MX_CUDA_E4M3, float>(s, a, grid, stream)
                 : launch_tile<MX_CUDA_E4M3, uint16_t>(s, a, grid, stream);
    else
        s->x_f32 ? launch_tile<MX_CUDA_E5M2, float>(s, a, grid, stream)
                 : launch_tile<MX_CUDA_E5M2, uint16_t>(s, a, grid, stream);
    return cudaGetLastError();
}
