/* paged_tile.cu - paged attention of tokens of prompts (see paged_mma.cuh): a block for a tile of
 * them and a key head. Its warps share the keys, each has 16 rows. */
#include "device/cuda/attention/paged_mma.cuh"

enum { TILE_KEYS = 64, TILE_BLOCKS = 264 };

/* The tokens at which tiles begin: tiles lie by position, so that where one begins needs no look
 * back. Gives their number. */
__device__ __forceinline__ int list_tiles(const mx_cuda_paged &p, const token_list &tokens,
                                          int *start)
{
    alone_places places = {0};
    int total = 0;
    for (int n0 = 0; n0 < p.queries; n0 += 32) {
        int n = n0 + (int)(threadIdx.x & 31), at = places.next(tokens, n);
        bool begins = n < p.queries && at < 0 && tokens.sees_any(n) &&
                      (!tokens.is_next(n) || tokens.positions[n] % p.tile == 0);
        unsigned all = __ballot_sync(~0u, begins);
        if (begins)
            start[total + __popc(all & ((1u << (threadIdx.x & 31)) - 1))] = n;
        total += __popc(all);
    }
    return total;
}

/* Keys and values from position x on; gives which of the four pages are the pool's, as bits. */
template <int D>
__device__ __forceinline__ unsigned copy_tile(const mx_cuda_paged &p, uint16_t *tile,
                                              const int32_t *table, int kh, int x, int last)
{
    constexpr int CHUNKS = D / 8, EACH = PAGED_TILE_WARPS * 32 / CHUNKS; /* keys of a round */
    const uint16_t *k = (const uint16_t *)p.k + kh * D, *v = (const uint16_t *)p.v + kh * D;
    const int lane = threadIdx.x & 31, c = (int)threadIdx.x % CHUNKS * 8;
    const int mine = lane < TILE_KEYS / KEYS && x + lane * KEYS <= last
                         ? (int)slot_of(p, table, x + lane * KEYS) : -1;
#pragma unroll
    for (int j = 0; j < TILE_KEYS / EACH; j++) {
        const int r = j * EACH + (int)threadIdx.x / CHUNKS, slot = __shfl_sync(~0u, mine, r / KEYS);
        const bool there = slot >= 0 && x + r <= last;
        const int64_t s = there ? slot + r % KEYS : 0;
        copy16(tile + r * (D + 8) + c, k + s * p.k_row + c, there);
        copy16(tile + (TILE_KEYS + r) * (D + 8) + c, v + s * p.v_row + c, there);
    }
    commit_copies();
    return __ballot_sync(~0u, mine >= 0);
}

/* What the rows of this warp see: tokens n to n + tokens - 1, the first at position `at`. */
__device__ __forceinline__ limits limits_of(const mx_cuda_paged &p, const head_group &h, int at,
                                            int tokens)
{
    limits see;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int t = ((threadIdx.x & 31) / 4 + 8 * i) / h.n;
        see.lo[i] = t < tokens ? (int)first_seen(p, at + t) : 0;
        see.hi[i] = t < tokens ? at + t : -1;
    }
    return see;
}

template <int D>
__device__ __forceinline__ void do_tile(const mx_cuda_paged &p, uint16_t *tiles,
                                        const head_group &h, int n)
{
    constexpr int TILE_SIZE = 2 * TILE_KEYS * (D + 8);
    const int at = p.positions[n], room = p.tile - at % p.tile, t = (int)threadIdx.x;
    const int all_tokens = __syncthreads_count(
        t < room && n + t < p.queries && p.row[n + t] == p.row[n] && p.positions[n + t] == at + t);
    const int mine = (int)threadIdx.x / 32 * (ROWS / h.n); /* this warp's first token */
    const int tokens = min(all_tokens - mine, ROWS / h.n), end = at + all_tokens - 1;
    const int32_t *table = p.table + (int64_t)p.row[n] * p.columns;
    const limits see = limits_of(p, h, at + mine, tokens);
    softmax_rows<D> s, all;
    uint32_t q[D / 16][4];
    load_queries<D>(p, q, h, n + mine, tokens);
    s.clear();
    all.clear();
    int x = (int)first_seen(p, at) / TILE_KEYS * TILE_KEYS;
    unsigned there, next = copy_tile<D>(p, tiles, table, h.kh, x, end);
    for (int i = 0; x <= end; x += TILE_KEYS, i ^= 1) {
        wait_copies<0>();
        __syncthreads();
        there = next;
        if (x + TILE_KEYS <= end)
            next = copy_tile<D>(p, tiles + (i ^ 1) * TILE_SIZE, table, h.kh, x + TILE_KEYS, end);
        const uint16_t *k = tiles + i * TILE_SIZE;
        for (int y = 0; y < TILE_KEYS && x + y <= at + mine + tokens - 1; y += KEYS) {
            if (there >> y / KEYS & 1)
                take_keys<D>(p, s, q, k + y * (D + 8), k + (TILE_KEYS + y) * (D + 8), x + y, see);
        }
        if ((x + TILE_KEYS) % p.leaf == 0 || x + TILE_KEYS > end) {
            s.sum();
            merge_into<D>(all, s);
            s.clear();
        }
    }
    if (tokens > 0)
        store_results<D>(p, all, h, n + mine, tokens);
    __syncthreads();
}

template <int D>
__global__ void __launch_bounds__(PAGED_TILE_WARPS * 32)
    tile_kernel(const __grid_constant__ mx_cuda_paged p)
{
    extern __shared__ __align__(16) uint16_t tiles[];
    int *start = (int *)(tiles + 4 * TILE_KEYS * (D + 8));
    __shared__ int count;
    let_next_start();
    wait_for_previous();
    const token_list tokens = list_tokens(p, (int *)tiles);
    if (threadIdx.x < 32) {
        int total = list_tiles(p, tokens, start);
        if (threadIdx.x == 0)
            count = total;
    }
    __syncthreads();
    const int each = p.k_heads * p.parts;
    for (int u = blockIdx.x; u < count * each; u += gridDim.x)
        do_tile<D>(p, tiles, heads_of(p, u % each / p.parts, u % p.parts), start[u / each]);
}

template <int D> static cudaError_t launch(const mx_cuda_paged &p, cudaStream_t stream)
{
    const int work = p.queries * p.k_heads * p.parts;
    const size_t bytes =
        sizeof(uint16_t) * 4 * TILE_KEYS * (D + 8) + sizeof(int) * (size_t)p.queries;
    cudaError_t e = allow_shared(tile_kernel<D>, bytes);
    if (e == cudaSuccess)
        e = launch_pdl(tile_kernel<D>, work < TILE_BLOCKS ? work : TILE_BLOCKS,
                       PAGED_TILE_WARPS * 32, bytes, stream, p);
    return e;
}

cudaError_t mx_cuda_paged_tiles(const mx_cuda_paged *p, cudaStream_t stream)
{
    return p->qk_dim == 64 ? launch<64>(*p, stream) : launch<128>(*p, stream);
}
