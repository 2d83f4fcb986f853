/* select_kernels.cu - see select.h.
 *
 * Scores: a block takes a query and some tiles of 64 keys; the GEMM of the query's heads with a
 * tile's keys is that of tiles.cuh, and its rows are summed with their weights as they come out.
 * Selection: a block takes a row. Eight bits at a time from the top, a histogram tells which value
 * the n-th best has; what lies above is taken, and what equals it, if all of it fits.
 */
#include "device/cuda/attention/select.h"
#include "device/cuda/recurrent/recurrent.cuh"
#include "device/cuda/core/tiles.cuh"
#include "ops/gpu_work.h"

enum { TILES = 8 }; /* of 64 keys, for one block */

struct entry {
    float score;
    int32_t key;
};

__device__ __forceinline__ bool sees(const mx_cuda_select &s, int b, int i, int t)
{
    int64_t q = (int64_t)b * s.queries + i, k = (int64_t)b * s.keys + t;
    int at = s.k_pos ? s.k_pos[k] : t, from = s.q_pos ? s.q_pos[q] : i;
    return at >= 0 && at <= from && (!s.q_seg || s.q_seg[q] == s.k_seg[k]);
}

template <class TQ, class TK, bool FAST, int DP>
__global__ void __launch_bounds__(THREADS, 2)
    select_scores_kernel(const __grid_constant__ mx_cuda_select s, float *scores, int64_t first)
{
    extern __shared__ __align__(16) float pool[];
    const int L = DP + 4;
    float *q = pool, *k = q + C * L, *weight = k + C * L, *sum = weight + C; /* sum (4, C) */
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, r0 = warp / 2 * 16, c0 = warp % 2 * 32;
    int64_t row = first + blockIdx.y;
    int b = (int)(row / s.queries), i = (int)(row % s.queries);
    float *out = scores + (int64_t)blockIdx.y * s.keys;
    for (int tile = 0; tile < TILES; tile++) {
        int t0 = (blockIdx.x * TILES + tile) * C;
        if (t0 >= s.keys)
            return;
        bool ahead = !s.k_pos && t0 > i; /* by index alone: out of sight */
        int n = s.keys - t0 < C ? s.keys - t0 : C;
        float total = 0;
        for (int h0 = 0; h0 < s.heads && !ahead; h0 += C) {
            int heads = s.heads - h0 < C ? s.heads - h0 : C;
            if (h0 == 0)
                load_tile<FAST, C, DP>(k, L, (const TK *)s.k + ((int64_t)b * s.keys + t0) * s.dim,
                                       s.dim, n, s.dim);
            if (tile == 0 || s.heads > C) {
                load_tile<FAST, C, DP>(q, L, (const TQ *)s.q + (row * s.heads + h0) * s.dim, s.dim,
                                       heads, s.dim);
                if (threadIdx.x < C)
                    weight[threadIdx.x] =
                        threadIdx.x >= heads
                            ? 0.f
                            : get_any(s.w, row * s.heads + h0 + threadIdx.x, s.w_f32);
            }
            __syncthreads();
            piece<1, 4> p;
            p.clear();
            mul<FAST, false, true>(p, q + r0 * L, L, k + c0 * L, L, DP);
            float col[4][2] = {};
            p.each([&](int r, int c, float &x) {
                x *= s.scale;
                col[c / 8][c & 1] += x > 0 ? weight[r0 + r] * x : 0.f;
            });
#pragma unroll
            for (int j = 0; j < 8; j++) {
                float &x = col[j / 2][j & 1];
                for (int o = 4; o < 32; o <<= 1)
                    x += __shfl_xor_sync(~0u, x, o);
                if (lane < 4)
                    sum[warp / 2 * C + c0 + j / 2 * 8 + 2 * lane + (j & 1)] = x;
            }
            __syncthreads();
            if (threadIdx.x < C)
                for (int r = 0; r < 4; r++)
                    total += sum[r * C + threadIdx.x];
        }
        if (threadIdx.x < (unsigned)n)
            out[t0 + threadIdx.x] =
                !ahead && sees(s, b, i, t0 + threadIdx.x) ? total : -INFINITY;
        __syncthreads();
    }
}

/* The same over pages: a warp takes a key of a query. */
template <class TQ, class TK>
__global__ void __launch_bounds__(THREADS)
    select_paged_kernel(const __grid_constant__ mx_cuda_select s, float *scores, int64_t first)
{
    int64_t query = first + blockIdx.y;
    int t = blockIdx.x * (THREADS / 32) + (threadIdx.x >> 5), lane = threadIdx.x & 31;
    int row = s.row[query];
    if (t >= s.keys)
        return;
    int64_t page = -1;
    if (row >= 0 && row < s.rows && t <= s.q_pos[query])
        page = s.table[(int64_t)row * s.columns + t / s.page];
    float total = -INFINITY;
    if (page >= 0 && (page + 1) * s.page <= s.slots) {
        const TK *k = (const TK *)s.k + (page * s.page + t % s.page) * s.dim;
        total = 0;
        for (int h = 0; h < s.heads; h++) {
            const TQ *q = (const TQ *)s.q + (query * s.heads + h) * s.dim;
            float dot = 0;
            for (int d = lane; d < s.dim; d += 32)
                dot += as_float(q[d]) * as_float(k[d]);
            for (int o = 16; o > 0; o >>= 1)
                dot += __shfl_xor_sync(~0u, dot, o);
            dot *= s.scale;
            total += dot > 0 ? get_any(s.w, query * s.heads + h, s.w_f32) * dot : 0.f;
        }
    }
    if (lane == 0)
        scores[(int64_t)blockIdx.y * s.keys + t] = total;
}

/* Larger is better, NaN is best of all; 0 for what is not seen. */
__device__ __forceinline__ uint32_t rank_of(float x)
{
    uint32_t u = __float_as_uint(x);
    if (x == -INFINITY)
        return 0;
    if (x != x)
        return ~0u;
    u = x == 0 ? 0 : u; /* -0 is 0 */
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* --- one thread's quickselect, as ops/select_keys.c has it --- */

__device__ __forceinline__ bool better(const entry &a, const entry &b)
{
    return (a.score != a.score && b.score == b.score) || a.score > b.score;
}
__device__ __forceinline__ void swap(entry &a, entry &b)
{
    entry t = a;
    a = b;
    b = t;
}
__device__ void median_to(entry *to, entry *a, entry *b, entry *c)
{
    if (better(*a, *b))
        swap(*to, better(*b, *c) ? *b : better(*a, *c) ? *c : *a);
    else
        swap(*to, better(*a, *c) ? *a : better(*b, *c) ? *c : *b);
}
__device__ int partition(entry *x, int n)
{
    median_to(&x[0], &x[1], &x[n / 2], &x[n - 1]);
    int i = 1, j = n;
    for (;;) {
        while (better(x[i], x[0]))
            i++;
        j--;
        while (better(x[0], x[j]))
            j--;
        if (i >= j)
            return i;
        swap(x[i], x[j]);
        i++;
    }
}
/* By score and then by key, of all entries: a heap, so that no row takes forever. */
__device__ void sort_entries(entry *x, int n)
{
    auto before = [](const entry &a, const entry &b) {
        return better(a, b) || (!better(b, a) && a.key < b.key);
    };
    for (int end = n, start = n / 2; end > 1;) {
        if (start > 0)
            start--;
        else
            swap(x[--end], x[0]);
        for (int at = start, child; (child = 2 * at + 1) < end; at = child) {
            if (child + 1 < end && before(x[child], x[child + 1]))
                child++;
            if (!before(x[at], x[child]))
                break;
            swap(x[at], x[child]);
        }
    }
}
__device__ void select_best(entry *x, int m, int n)
{
    int first = 0, last = m, tries = 2 * (31 - __clz(m));
    while (last - first > 3) {
        if (tries-- == 0) {
            sort_entries(x + first, last - first);
            return;
        }
        int cut = first + partition(x + first, last - first);
        if (cut <= n - 1)
            first = cut;
        else
            last = cut;
    }
    for (int i = first + 1; i < last; i++)
        for (int j = i; j > first && better(x[j], x[j - 1]); j--)
            swap(x[j], x[j - 1]);
}

/* --- the n best of a row --- */

/* Which value has the n-th best of those seen (more than n are), how many of its equals are above
 * the cut, and how many there are. */
__device__ uint32_t threshold(const float *row, int keys, int n, int *taken, int *equal)
{
    __shared__ int count[256], found[3];
    uint32_t value = 0;
    int need = n;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int i = threadIdx.x; i < 256; i += THREADS)
            count[i] = 0;
        __syncthreads();
        for (int t = threadIdx.x; t < keys; t += THREADS) {
            uint32_t r = rank_of(row[t]);
            if (r && (shift == 24 || (r ^ value) >> (shift + 8) == 0))
                atomicAdd(&count[r >> shift & 255], 1);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            int at = 255, left = need;
            while (at > 0 && count[at] < left)
                left -= count[at--];
            found[0] = at, found[1] = left, found[2] = count[at];
        }
        __syncthreads();
        value |= (uint32_t)found[0] << shift;
        need = found[1];
        *equal = found[2];
        __syncthreads();
    }
    *taken = need;
    return value;
}

/* The number of those before this thread's for which `mine` holds, and of all in *all. */
__device__ __forceinline__ int before_me(bool mine, int *part, int *all)
{
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, before = 0, sum = 0;
    unsigned bits = __ballot_sync(~0u, mine);
    if (lane == 0)
        part[warp] = __popc(bits);
    __syncthreads();
    for (int w = 0; w < THREADS / 32; w++) {
        before += w < warp ? part[w] : 0;
        sum += part[w];
    }
    __syncthreads();
    *all = sum;
    return before + __popc(bits & ((1u << lane) - 1));
}

__global__ void __launch_bounds__(THREADS)
    select_best_kernel(const __grid_constant__ mx_cuda_select s, float *scores, entry *entries,
                       int32_t *selected, int64_t first)
{
    __shared__ int part[THREADS / 32];
    int64_t at = first + blockIdx.x;
    const int32_t *k_pos = s.k_pos ? s.k_pos + at / s.queries * s.keys : NULL;
    float *row = scores + (int64_t)blockIdx.x * s.keys;
    entry *list = entries + (int64_t)blockIdx.x * s.keys;
    int32_t *out = selected + at * s.n;
    int seen = 0, used = 0, all, taken = 0, equal = 0, done = 0;
    for (int t0 = 0; t0 < s.keys; t0 += THREADS) {
        int t = t0 + threadIdx.x;
        before_me(t < s.keys && rank_of(row[t]), part, &all);
        seen += all;
    }
    uint32_t cut = seen > s.n ? threshold(row, s.keys, s.n, &taken, &equal) : 1;
    bool tie = seen > s.n && taken != equal;
    for (int t0 = 0; t0 < s.keys && tie; t0 += THREADS) {
        int t = t0 + threadIdx.x;
        bool mine = t < s.keys && (s.row ? t <= s.q_pos[at] : !k_pos || k_pos[t] >= 0);
        int to = used + before_me(mine, part, &all);
        if (mine)
            list[to] = {row[t], t};
        used += all;
    }
    __syncthreads();
    if (tie && threadIdx.x == 0)
        select_best(list, used, s.n);
    __syncthreads();
    uint32_t *mark = (uint32_t *)row;
    for (int t = threadIdx.x; t < s.keys; t += THREADS)
        mark[t] = !tie && rank_of(row[t]) >= cut;
    __syncthreads();
    for (int i = threadIdx.x; i < s.n && tie; i += THREADS)
        mark[list[i].key] = list[i].score != -INFINITY;
    __syncthreads();
    for (int t0 = 0; t0 < s.keys; t0 += THREADS) {
        int t = t0 + threadIdx.x;
        bool mine = t < s.keys && mark[t];
        int to = done + before_me(mine, part, &all);
        if (mine)
            out[to] = t;
        done += all;
    }
    for (int i = done + threadIdx.x; i < s.n; i += THREADS)
        out[i] = -1;
}

/* Rows whose scores are in scratch at a time. */
static int64_t rows_at_once(const mx_cuda_select *s)
{
    return mx_gpu_select_rows((int64_t)s->batch * s->queries, s->keys);
}

static_assert(sizeof(entry) == 8, "as planned");
size_t mx_cuda_select_bytes(const mx_cuda_select *s)
{
    return mx_gpu_select_bytes((int64_t)s->batch * s->queries, s->keys);
}

template <class TQ, class TK, bool FAST, int DP>
static cudaError_t scores_of(const mx_cuda_select *s, float *scores, int64_t first, int64_t rows,
                             cudaStream_t stream)
{
    size_t bytes = sizeof(float) * (2 * C * (DP + 4) + 5 * C);
    dim3 grid((unsigned)((s->keys + C * TILES - 1) / (C * TILES)), (unsigned)rows);
    return launch_pool(select_scores_kernel<TQ, TK, FAST, DP>, grid, bytes, stream, *s, scores,
                       first);
}

template <class TQ, class TK>
static cudaError_t paged_scores(const mx_cuda_select *s, float *scores, int64_t first, int64_t rows,
                                cudaStream_t stream)
{
    const unsigned each = THREADS / 32;
    dim3 grid(((unsigned)s->keys + each - 1) / each, (unsigned)rows);
    select_paged_kernel<TQ, TK><<<grid, THREADS, 0, stream>>>(*s, scores, first);
    return cudaGetLastError();
}

static cudaError_t paged_any(const mx_cuda_select *s, float *scores, int64_t first, int64_t rows,
                             cudaStream_t stream)
{
    if (s->q_f32)
        return s->k_f32 ? paged_scores<float, float>(s, scores, first, rows, stream)
                        : paged_scores<float, uint16_t>(s, scores, first, rows, stream);
    return s->k_f32 ? paged_scores<uint16_t, float>(s, scores, first, rows, stream)
                    : paged_scores<uint16_t, uint16_t>(s, scores, first, rows, stream);
}

template <int DP>
static cudaError_t scores_any(const mx_cuda_select *s, float *scores, int64_t first, int64_t rows,
                              cudaStream_t stream)
{
    if (s->q_f32)
        return s->k_f32 ? scores_of<float, float, false, DP>(s, scores, first, rows, stream)
                        : scores_of<float, uint16_t, false, DP>(s, scores, first, rows, stream);
    return s->k_f32 ? scores_of<uint16_t, float, false, DP>(s, scores, first, rows, stream)
                    : scores_of<uint16_t, uint16_t, true, DP>(s, scores, first, rows, stream);
}

cudaError_t mx_cuda_select_keys(const mx_cuda_select *s, int32_t *selected, void *work,
                                cudaStream_t stream)
{
    int64_t all = (int64_t)s->batch * s->queries, most = rows_at_once(s);
    entry *entries = (entry *)work;
    float *scores = (float *)(entries + most * s->keys);
    for (int64_t first = 0; first < all; first += most) {
        int64_t rows = all - first < most ? all - first : most;
        cudaError_t e = s->row      ? paged_any(s, scores, first, rows, stream)
                        : s->dim > 64 ? scores_any<128>(s, scores, first, rows, stream)
                                      : scores_any<64>(s, scores, first, rows, stream);
        if (e != cudaSuccess)
            return e;
        unsigned blocks = (unsigned)rows;
        select_best_kernel<<<blocks, THREADS, 0, stream>>>(*s, scores, entries, selected, first);
    }
    return cudaGetLastError();
}
