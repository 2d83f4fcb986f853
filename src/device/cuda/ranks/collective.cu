/* collective.cu - see collective.h. All of it is bound by memory, as long as places are found in 32
 * bits: a division of 64 takes longer than the 16 bytes it finds. I: what is counted in. */
#include "device/cuda/ranks/collective.h"
#include "device/cuda/core/vec.cuh"

enum { BLOCK = 256, WORDS = 4 }; /* WORDS: that a thread has under way */
enum : int64_t { MOST_32 = (int64_t)1 << 31 };

/* --- sums --- */

/* W neighbours of a buffer, 16 bytes at once where W allows, as numbers of the sum. */
template <int W> __device__ __forceinline__ void take(float (&f)[W], const float *p)
{
    if constexpr (W == 1)
        f[0] = *p;
    else
        load4(f, p);
}
template <int W> __device__ __forceinline__ void take(float (&f)[W], const uint16_t *p)
{
    if constexpr (W == 1)
        f[0] = bf16_to_f32(*p);
    else
        unpack8(f, load8(p));
}
template <int W, class T> __device__ __forceinline__ void take(T (&f)[W], const T *p)
{
#pragma unroll
    for (int j = 0; j < W; j++)
        f[j] = p[j];
}
template <int W> __device__ __forceinline__ void give(float *p, const float (&f)[W])
{
    if constexpr (W == 1)
        *p = f[0];
    else
        store4(p, f);
}
template <int W> __device__ __forceinline__ void give(uint16_t *p, const float (&f)[W])
{
    if constexpr (W == 1)
        *p = f32_to_bf16(f[0]);
    else
        store8(p, pack8(f));
}
template <int W, class T> __device__ __forceinline__ void give(T *p, const T (&f)[W])
{
#pragma unroll
    for (int j = 0; j < W; j++)
        p[j] = f[j];
}

/* T: as it lies; A: as it is added up. across: vectors of W in a run. */
template <class T, class A, int W, class I>
__global__ void __launch_bounds__(BLOCK)
    sum_kernel(T *out, const __grid_constant__ mx_cuda_buffers from, mx_cuda_sum s, I across,
               I total)
{
    I i = (I)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= total)
        return;
    I row = i / across;
    int64_t at = (int64_t)row * s.pitch + (int64_t)(i - row * across) * W;
    A sum[W], x[W];
    take<W>(sum, (const T *)from.at[0] + at);
#pragma unroll 4
    for (int k = 1; k < s.n; k++) {
        take<W>(x, (const T *)from.at[k] + at);
#pragma unroll
        for (int j = 0; j < W; j++)
            sum[j] = s.max ? (x[j] > sum[j] ? x[j] : sum[j]) : sum[j] + x[j];
    }
    give<W>(out + (int64_t)i * W, sum);
}

template <class T, class A, int W>
static cudaError_t sum_by(void *out, const mx_cuda_buffers *from, const mx_cuda_sum *s,
                          cudaStream_t stream)
{
    int64_t across = s->run / W, total = across * s->rows;
    unsigned blocks = (unsigned)((total + BLOCK - 1) / BLOCK);
    if (total < MOST_32)
        sum_kernel<T, A, W, uint32_t><<<blocks, BLOCK, 0, stream>>>(
            (T *)out, *from, *s, (uint32_t)across, (uint32_t)total);
    else
        sum_kernel<T, A, W, int64_t><<<blocks, BLOCK, 0, stream>>>((T *)out, *from, *s, across,
                                                                   total);
    return cudaGetLastError();
}

/* W: elements in 16 bytes, where runs and buffers begin at multiples of them. */
template <class T, class A, int W>
static cudaError_t sum_of(void *out, const mx_cuda_buffers *from, const mx_cuda_sum *s,
                          cudaStream_t stream)
{
    uintptr_t places = (uintptr_t)out;
    for (int k = 0; k < s->n; k++)
        places |= (uintptr_t)from->at[k];
    bool wide = places % 16 == 0 && s->run % W == 0 && (s->rows == 1 || s->pitch % W == 0);
    return wide ? sum_by<T, A, W>(out, from, s, stream) : sum_by<T, A, 1>(out, from, s, stream);
}

cudaError_t mx_cuda_sum_buffers(void *out, const mx_cuda_buffers *from, const mx_cuda_sum *s,
                                cudaStream_t stream)
{
    if (!s->rows || !s->run)
        return cudaSuccess;
    switch (s->type) {
    case MX_SUM_F32:
        return sum_of<float, float, 4>(out, from, s, stream);
    case MX_SUM_BF16:
        return sum_of<uint16_t, float, 8>(out, from, s, stream);
    case MX_SUM_F64:
        return sum_of<double, double, 2>(out, from, s, stream);
    default:
        return sum_of<int32_t, int32_t, 4>(out, from, s, stream);
    }
}

/* --- pieces --- */

/* Row k of the grid copies piece k; across: words of a run. */
template <class T, class I>
__global__ void __launch_bounds__(BLOCK)
    join_kernel(T *out, const __grid_constant__ mx_cuda_buffers from, I across, I words)
{
    const T *piece = (const T *)from.at[blockIdx.y];
    I first = (I)blockIdx.x * (BLOCK * WORDS) + threadIdx.x;
    T v[WORDS];
#pragma unroll
    for (int j = 0; j < WORDS; j++)
        if (first + j * BLOCK < words)
            v[j] = piece[first + j * BLOCK];
#pragma unroll
    for (int j = 0; j < WORDS; j++) {
        I i = first + j * BLOCK, row = i / across;
        if (i < words) /* the word i - row * across of piece blockIdx.y of this row */
            out[(int64_t)(row * (gridDim.y - 1) + blockIdx.y) * across + i] = v[j];
    }
}

template <class T>
static cudaError_t join_by(void *out, const mx_cuda_buffers *from, const mx_cuda_join *s,
                           cudaStream_t stream)
{
    int64_t across = s->run / (int64_t)sizeof(T), words = across * s->outer;
    dim3 grid((unsigned)((words + BLOCK * WORDS - 1) / (BLOCK * WORDS)), (unsigned)s->n);
    if (words < MOST_32 / s->n)
        join_kernel<T, uint32_t><<<grid, BLOCK, 0, stream>>>((T *)out, *from, (uint32_t)across,
                                                             (uint32_t)words);
    else
        join_kernel<T, int64_t><<<grid, BLOCK, 0, stream>>>((T *)out, *from, across, words);
    return cudaGetLastError();
}

cudaError_t mx_cuda_join_buffers(void *out, const mx_cuda_buffers *from, const mx_cuda_join *s,
                                 cudaStream_t stream)
{
    uintptr_t places = (uintptr_t)out | (uintptr_t)s->run;
    for (int k = 0; k < s->n; k++)
        places |= (uintptr_t)from->at[k];
    if (!s->outer || !s->run)
        return cudaSuccess;
    return places % 16 == 0  ? join_by<uint4>(out, from, s, stream)
           : places % 4 == 0 ? join_by<uint32_t>(out, from, s, stream)
           : places % 2 == 0 ? join_by<uint16_t>(out, from, s, stream)
                             : join_by<uint8_t>(out, from, s, stream);
}

/* --- numbers --- */

template <class T> __global__ void in_order_kernel(float *out, const T *x, int64_t n)
{
    float sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += sizeof(T) == 2 ? bf16_to_f32((uint16_t)x[i]) : (float)x[i];
    *out = sum;
}

cudaError_t mx_cuda_sum_in_order(float *out, const void *x, mx_sum_type type, int64_t n,
                                 cudaStream_t stream)
{
    if (type == MX_SUM_F64)
        in_order_kernel<<<1, 1, 0, stream>>>(out, (const double *)x, n);
    else if (type == MX_SUM_F32)
        in_order_kernel<<<1, 1, 0, stream>>>(out, (const float *)x, n);
    else if (type == MX_SUM_BF16)
        in_order_kernel<<<1, 1, 0, stream>>>(out, (const uint16_t *)x, n);
    else
        return cudaErrorInvalidValue;
    return cudaGetLastError();
}

/* --- rows of experts --- */

/* Rows of this rank's expert e that came from rank r. */
__device__ __forceinline__ int rows_of(const mx_cuda_expert_rows &s, int e, int r)
{
    int mine = s.experts / s.ranks;
    const int32_t *at = s.table + (int64_t)r * (s.experts + 1) + s.index * mine + e;
    return at[1] - at[0];
}

/* place[e * ranks + r]: where those rows begin; starts: only where each expert begins. One warp. */
__global__ void places_kernel(mx_cuda_expert_rows s, int32_t *place, bool starts)
{
    int lane = threadIdx.x, carry = 0;
    for (int i = lane; i - lane < s.experts; i += 32) {
        int e = i / s.ranks, r = i % s.ranks, n = i < s.experts ? rows_of(s, e, r) : 0, sum = n;
        for (int o = 1; o < 32; o *= 2) {
            int before = __shfl_up_sync(~0u, sum, o);
            sum += lane >= o ? before : 0;
        }
        if (i < s.experts && (!starts || r == 0))
            place[starts ? e : i] = carry + sum - n;
        carry += __shfl_sync(~0u, sum, 31);
    }
    if (lane == 0)
        place[starts ? s.experts / s.ranks : s.experts] = carry;
}

/* The last place that is not after row j. */
__device__ __forceinline__ int piece_of(const int32_t *place, int n, int j)
{
    int lo = 0, hi = n;
    while (hi - lo > 1) {
        int mid = (lo + hi) / 2;
        if (place[mid] <= j)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

/* A warp a row; `words` of T make one. */
template <class T, bool BACK>
__global__ void __launch_bounds__(BLOCK)
    move_kernel(mx_cuda_expert_rows s, T *y, const __grid_constant__ mx_cuda_buffers ranks,
                const int32_t *place, int64_t words)
{
    int64_t j = (int64_t)blockIdx.x * (BLOCK / 32) + threadIdx.x / 32;
    if (j >= s.room)
        return;
    T *row = y + j * words;
    int n = s.experts;
    if (j >= place[n]) {
        for (int64_t i = threadIdx.x % 32; i < words && !BACK; i += 32)
            row[i] = T{};
        return;
    }
    int p = piece_of(place, n, (int)j), e = p / s.ranks, r = p % s.ranks;
    int first = s.index * (s.experts / s.ranks) + e;
    int64_t t = s.table[(int64_t)r * (s.experts + 1) + first] + (j - place[p]);
    T *other = (T *)ranks.at[r] + t * words;
    for (int64_t i = threadIdx.x % 32; i < words; i += 32) {
        if (BACK)
            other[i] = row[i];
        else
            row[i] = other[i];
    }
}

cudaError_t mx_cuda_expert_starts(const mx_cuda_expert_rows *s, int32_t *start, int32_t *by_rank,
                                  cudaStream_t stream)
{
    places_kernel<<<1, 32, 0, stream>>>(*s, start, true);
    places_kernel<<<1, 32, 0, stream>>>(*s, by_rank, false);
    return cudaGetLastError();
}

template <class T>
static void move_by(const mx_cuda_expert_rows *s, void *y, const mx_cuda_buffers *ranks, bool back,
                    const int32_t *place, cudaStream_t stream)
{
    unsigned blocks = (unsigned)((s->room + BLOCK / 32 - 1) / (BLOCK / 32));
    auto *kernel = back ? move_kernel<T, true> : move_kernel<T, false>;
    kernel<<<blocks, BLOCK, 0, stream>>>(*s, (T *)y, *ranks, place,
                                         s->row_bytes / (int64_t)sizeof(T));
}

cudaError_t mx_cuda_expert_move(const mx_cuda_expert_rows *s, void *y, const mx_cuda_buffers *ranks,
                                bool back, int32_t *scratch, cudaStream_t stream)
{
    uintptr_t places = (uintptr_t)y | (uintptr_t)s->row_bytes;
    for (int k = 0; k < s->ranks; k++)
        places |= (uintptr_t)ranks->at[k];
    if (!s->room || !s->row_bytes)
        return cudaSuccess;
    places_kernel<<<1, 32, 0, stream>>>(*s, scratch, false);
    (places % 16 == 0  ? move_by<uint4>
     : places % 4 == 0 ? move_by<uint32_t>
     : places % 2 == 0 ? move_by<uint16_t>
                       : move_by<uint8_t>)(s, y, ranks, back, scratch, stream);
    return cudaGetLastError();
}
