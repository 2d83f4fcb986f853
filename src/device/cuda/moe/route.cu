/* route.cu - which experts a token goes to, and the tokens in the order of their experts.
 *
 * Top k. A value and its index are one 64-bit number whose order is the order asked for: the value
 * as an unsigned number that sorts alike (NaN above all, the two zeros equal), then the complement
 * of the index. No two are equal, so whatever finds the k largest finds the same k. Few of few: a
 * warp a row looks k times for the largest below the last one. Otherwise a block a row narrows down
 * the k-th largest byte by byte with histograms, collects what reaches it and sorts that.
 *
 * Sorting by expert. Entries are cut into chunks; (1) every chunk counts its entries of each
 * expert, (2) one block turns the counts into where each chunk's entries of each expert begin, (3)
 * every chunk, one warp in the order of its entries, hands out places. Lanes with the same expert
 * are ranked by lane, so the sort is stable. A single chunk does all in one launch (decoding).
 */
#include "device/cuda/moe/moe_kernels.h"
#include "device/cuda/core/vec.cuh"
#include "ops/gpu_work.h"

enum { CHUNK = MX_GPU_EXPERTS_CHUNK, WARPS = 4, BLOCK = 256, FEW = 32, SHORT = 16, BATCH = 8 };

/* --- the k largest --- */

__device__ __forceinline__ uint32_t order_of(float x)
{
    uint32_t u = __float_as_uint(x);
    if (x != x)
        return ~0u;
    if (x == 0)
        return 0x80000000u;
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}
__device__ __forceinline__ uint32_t order_of(uint16_t x)
{
    return order_of(bf16_to_f32(x));
}
__device__ __forceinline__ uint32_t order_of(int32_t x)
{
    return (uint32_t)x ^ 0x80000000u;
}
/* Never 0 and never the largest of all, which stand below and above everything. */
template <typename T> __device__ __forceinline__ uint64_t entry(const T *row, int64_t i)
{
    return (uint64_t)order_of(row[i]) << 32 | (0xfffffffeu - (uint32_t)i);
}
__device__ __forceinline__ int32_t index_of(uint64_t e)
{
    return (int32_t)(0xfffffffeu - (uint32_t)e);
}

/* d <= 32 EACH; a lane keeps its part of the row. */
template <int EACH, typename T>
__global__ void top_few_kernel(T *values, int32_t *index, const T *x, int64_t rows, int d, int k)
{
    int64_t r = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    if (r >= rows)
        return;
    const T *row = x + r * d;
    uint64_t own[EACH], last = ~0ull;
#pragma unroll
    for (int i = 0; i < EACH; i++)
        own[i] = lane + 32 * i < d ? entry(row, lane + 32 * i) : 0;
    for (int t = 0; t < k; t++) {
        uint64_t best = 0;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            best = own[i] < last && own[i] > best ? own[i] : best;
        for (int o = 16; o; o >>= 1) {
            uint64_t other = __shfl_xor_sync(~0u, best, o);
            best = other > best ? other : best;
        }
        last = best;
        if (lane == 0) {
            values[r * k + t] = row[index_of(best)];
            index[r * k + t] = index_of(best);
        }
    }
}

/* The k-th largest entry of a row, or a number between it and the next. */
template <typename T> __device__ uint64_t threshold(const T *row, int64_t d, int k, int *count)
{
    __shared__ uint64_t at;
    __shared__ int left, whole;
    if (threadIdx.x == 0)
        at = 0, left = k, whole = 0;
    for (int shift = 56; shift >= 0; shift -= 8) {
        count[threadIdx.x] = 0;
        __syncthreads();
        uint64_t above = shift == 56 ? 0 : at >> (shift + 8);
        for (int64_t i = threadIdx.x; i < d; i += BLOCK) {
            uint64_t e = entry(row, i);
            if (shift == 56 || e >> (shift + 8) == above)
                atomicAdd(&count[e >> shift & 255], 1);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            int b = 255;
            for (; count[b] < left; b--)
                left -= count[b];
            at |= (uint64_t)b << shift;
            whole = count[b] == left;
        }
        __syncthreads();
        if (whole)
            break;
    }
    return at;
}

template <typename T>
__global__ void top_many_kernel(T *values, int32_t *index, const T *x, int64_t d, int k, int slots)
{
    extern __shared__ uint64_t list[]; /* slots: a power of two, at least k */
    __shared__ int count[BLOCK], n;
    int64_t r = blockIdx.x;
    const T *row = x + r * d;
    uint64_t least = threshold(row, d, k, count);
    for (int i = threadIdx.x; i < slots; i += BLOCK)
        list[i] = 0;
    if (threadIdx.x == 0)
        n = 0;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < d; i += BLOCK) {
        uint64_t e = entry(row, i);
        if (e >= least)
            list[atomicAdd(&n, 1)] = e;
    }
    __syncthreads();
    for (int size = 2; size <= slots; size *= 2)
        for (int step = size / 2; step; step /= 2) {
            for (int i = threadIdx.x; i < slots; i += BLOCK) {
                int j = i ^ step;
                bool down = !(i & size);
                if (j > i && (list[i] < list[j]) == down) {
                    uint64_t t = list[i];
                    list[i] = list[j], list[j] = t;
                }
            }
            __syncthreads();
        }
    for (int i = threadIdx.x; i < k; i += BLOCK) {
        values[r * k + i] = row[index_of(list[i])];
        index[r * k + i] = index_of(list[i]);
    }
}

template <typename T>
static void top_k(void *values, int32_t *index, const void *x, int64_t rows, int64_t d, int k,
                  cudaStream_t stream)
{
    unsigned blocks = (unsigned)((rows + WARPS - 1) / WARPS);
    if (k <= FEW && d <= 32 * SHORT) {
        auto kernel = d <= 32 * 4 ? top_few_kernel<4, T> : top_few_kernel<SHORT, T>;
        kernel<<<blocks, WARPS * 32, 0, stream>>>((T *)values, index, (const T *)x, rows, (int)d,
                                                  k);
        return;
    }
    int slots = 2;
    while (slots < k)
        slots *= 2;
    top_many_kernel<<<(unsigned)rows, BLOCK, slots * sizeof(uint64_t), stream>>>(
        (T *)values, index, (const T *)x, d, k, slots);
}

cudaError_t mx_cuda_top_k(void *values, int32_t *index, const void *x, mx_moe_type type,
                          int64_t rows, int64_t d, int64_t k, cudaStream_t stream)
{
    if (k > MX_TOP_K_MOST || k > d)
        return cudaErrorInvalidValue;
    if (!rows)
        return cudaSuccess;
    (type == MX_MOE_F32    ? top_k<float>
     : type == MX_MOE_BF16 ? top_k<uint16_t>
                           : top_k<int32_t>)(values, index, x, rows, d, (int)k, stream);
    return cudaGetLastError();
}

/* --- by expert --- */

__device__ __forceinline__ int bucket(int32_t e, int experts)
{
    return e >= 0 && e < experts ? e : experts;
}
/* The next number of counter[e], lanes in order; for a whole warp, e < 0 takes part and gets
 * nothing. */
__device__ __forceinline__ int take(int *counter, int e)
{
    unsigned same = __match_any_sync(~0u, e), lane = threadIdx.x % 32;
    int rank = __popc(same & ((1u << lane) - 1)), first = e >= 0 ? counter[e] : 0;
    __syncwarp();
    if (e >= 0 && rank == 0)
        counter[e] = first + __popc(same);
    __syncwarp();
    return first + rank;
}
/* counter[0..n) becomes the sums before each; one warp. */
__device__ void sums_before(int *counter, int n)
{
    int lane = threadIdx.x % 32, carry = 0;
    for (int i = lane; i - lane < n; i += 32) {
        int x = i < n ? counter[i] : 0, sum = x;
        for (int o = 1; o < 32; o *= 2) {
            int y = __shfl_up_sync(~0u, sum, o);
            sum += lane >= o ? y : 0;
        }
        if (i < n)
            counter[i] = carry + sum - x;
        carry += __shfl_sync(~0u, sum, 31);
    }
    __syncwarp();
}
__device__ void hand_out(int32_t *order, int32_t *place, const int32_t *expert, int64_t from,
                         int64_t to, int experts, int *counter)
{
    for (int64_t f = from + threadIdx.x; f - threadIdx.x < to; f += 32 * BATCH) {
        int e[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            e[i] = f + 32 * i < to ? bucket(expert[f + 32 * i], experts) : -1;
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            int at = take(counter, e[i]);
            if (e[i] >= 0) {
                order[at] = (int32_t)(f + 32 * i);
                place[f + 32 * i] = at;
            }
        }
    }
}
__device__ void count_chunk(const int32_t *expert, int64_t from, int64_t to, int experts,
                            int *counter)
{
    for (int e = threadIdx.x; e <= experts; e += 32)
        counter[e] = 0;
    __syncwarp();
#pragma unroll 8
    for (int64_t f = from + threadIdx.x; f < to; f += 32)
        atomicAdd(&counter[bucket(expert[f], experts)], 1);
    __syncwarp();
}

__global__ void sort_one_kernel(int32_t *order, int32_t *start, int32_t *place,
                                const int32_t *expert, int64_t m, int experts)
{
    extern __shared__ int counter[];
    count_chunk(expert, 0, m, experts, counter);
    sums_before(counter, experts + 1);
    for (int e = threadIdx.x; e <= experts; e += 32)
        start[e] = counter[e];
    __syncwarp();
    hand_out(order, place, expert, 0, m, experts, counter);
}

/* count (E + 1, chunks) */
__global__ void count_kernel(int *count, const int32_t *expert, int64_t m, int experts)
{
    extern __shared__ int counter[];
    int64_t from = (int64_t)blockIdx.x * CHUNK, to = from + CHUNK < m ? from + CHUNK : m;
    count_chunk(expert, from, to, experts, counter);
    for (int e = threadIdx.x; e <= experts; e += 32)
        count[(int64_t)e * gridDim.x + blockIdx.x] = counter[e];
}
__global__ void begin_kernel(int *count, int32_t *start, int chunks, int experts)
{
    extern __shared__ int total[];
    int lane = threadIdx.x % 32;
    for (int e = threadIdx.x / 32; e <= experts; e += 32) {
        int *row = count + (int64_t)e * chunks;
        int last = lane == 0 ? row[chunks - 1] : 0;
        __syncwarp();
        sums_before(row, chunks);
        if (lane == 0)
            total[e] = row[chunks - 1] + last;
    }
    __syncthreads();
    if (threadIdx.x < 32)
        sums_before(total, experts + 1);
    __syncthreads();
    for (int e = threadIdx.x; e <= experts; e += 1024)
        start[e] = total[e];
}
__global__ void place_kernel(int32_t *order, int32_t *place, const int32_t *start,
                             const int *count, const int32_t *expert, int64_t m, int experts)
{
    extern __shared__ int counter[];
    int64_t from = (int64_t)blockIdx.x * CHUNK, to = from + CHUNK < m ? from + CHUNK : m;
    for (int e = threadIdx.x; e <= experts; e += 32)
        counter[e] = start[e] + count[(int64_t)e * gridDim.x + blockIdx.x];
    __syncwarp();
    hand_out(order, place, expert, from, to, experts, counter);
}

static int64_t chunks_of(int64_t m)
{
    return (m + CHUNK - 1) / CHUNK;
}

size_t mx_cuda_sort_experts_bytes(int64_t m, int64_t experts)
{
    return mx_gpu_experts_bytes(m, experts);
}

cudaError_t mx_cuda_sort_experts(int32_t *order, int32_t *start, int32_t *place,
                                 const int32_t *expert, int64_t m, int64_t experts, void *scratch,
                                 cudaStream_t stream)
{
    size_t bytes = sizeof(int) * (size_t)(experts + 1);
    int E = (int)experts, chunks = (int)chunks_of(m);
    if (experts > MX_EXPERTS_MOST)
        return cudaErrorInvalidValue;
    if (m <= CHUNK) {
        sort_one_kernel<<<1, 32, bytes, stream>>>(order, start, place, expert, m, E);
        return cudaGetLastError();
    }
    int *count = (int *)scratch;
    count_kernel<<<chunks, 32, bytes, stream>>>(count, expert, m, E);
    begin_kernel<<<1, 1024, bytes, stream>>>(count, start, chunks, E);
    place_kernel<<<chunks, 32, bytes, stream>>>(order, place, start, count, expert, m, E);
    return cudaGetLastError();
}

__global__ void limit_kernel(int32_t *out, const int32_t *expert, int64_t m, int experts,
                             int64_t capacity)
{
    extern __shared__ int counter[];
    const int32_t *in = expert + blockIdx.x * m;
    for (int e = threadIdx.x; e < experts; e += 32)
        counter[e] = 0;
    __syncwarp();
    for (int64_t f = threadIdx.x; f - threadIdx.x < m; f += 32 * BATCH) {
        int e[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            e[i] = f + 32 * i < m ? bucket(in[f + 32 * i], experts) : experts;
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            int rank = take(counter, e[i] < experts ? e[i] : -1);
            if (f + 32 * i < m)
                out[blockIdx.x * m + f + 32 * i] = e[i] < experts && rank < capacity ? e[i]
                                                                                     : experts;
        }
    }
}

cudaError_t mx_cuda_limit_experts(int32_t *out, const int32_t *expert, int64_t rows, int64_t m,
                                  int64_t experts, int64_t capacity, cudaStream_t stream)
{
    if (experts > MX_EXPERTS_MOST)
        return cudaErrorInvalidValue;
    if (rows && m)
        limit_kernel<<<(unsigned)rows, 32, sizeof(int) * (size_t)experts, stream>>>(
            out, expert, m, (int)experts, capacity);
    return cudaGetLastError();
}
