/* grouped.cuh - where a block of a grouped GEMM works.
 *
 * The rows fall into groups: those before the first expert, the experts', those after the last;
 * the first and the last group belong to no expert and give zeros. Sizes are known on the device
 * only, so more blocks are launched than there can be tiles: every block looks for its tile in the
 * starts, one warp 32 groups at a time, and leaves if there is none.
 */
#ifndef MX_DEVICE_CUDA_GROUPED_CUH
#define MX_DEVICE_CUDA_GROUPED_CUH

#include "device/cuda/moe/moe_kernels.h"
#include <stdint.h>

struct grouped_tile {
    int expert; /* -1: rows of no expert */
    int from, to; /* the group's rows */
    int m0, n0; /* of the tile; m0 counts from the group's first row, or in y_e */
};

struct grouped_shape {
    const int32_t *start;
    int experts, rows;
    int m, n, k;
};

/* Tile t of (tm, tn): bands of 16 tiles in m, so that blocks at work together share operands. */
__device__ __forceinline__ void place_in_band(grouped_tile &g, int t, int tm, int tn, int bm,
                                              int bn)
{
    const int BAND = 16;
    int first = t / (BAND * tn) * BAND, high = min(tm - first, BAND), at = t % (BAND * tn);
    g.m0 = (first + at % high) * bm;
    g.n0 = at / high * bn;
}

/* For GEMMs of rows; one whole warp. False: no such tile. */
__device__ __forceinline__ bool find_row_tile(grouped_tile &g, const grouped_shape &s, int index,
                                              int bm, int bn)
{
    int lane = threadIdx.x % 32, end = 0, tiles = 0, tn = (s.n + bn - 1) / bn;
    for (int first = 0; first <= s.experts + 1; first += 32) {
        int group = first + lane;
        int to = group <= s.experts ? min(s.start[group], s.rows) : s.rows;
        to = max(to, end);
        for (int o = 1; o < 32; o *= 2) {
            int before = __shfl_up_sync(~0u, to, o);
            to = lane >= o ? max(to, before) : to;
        }
        int from = __shfl_up_sync(~0u, to, 1);
        from = lane ? from : end;
        int own = (to - from + bm - 1) / bm, sum = own;
        for (int o = 1; o < 32; o *= 2) {
            int before = __shfl_up_sync(~0u, sum, o);
            sum += lane >= o ? before : 0;
        }
        unsigned here = __ballot_sync(~0u, index < (tiles + sum) * tn);
        if (here) {
            int winner = __ffs(here) - 1, tm = __shfl_sync(~0u, own, winner);
            int t = index - (tiles + __shfl_sync(~0u, sum, winner) - tm) * tn;
            group = first + winner;
            g.expert = group >= 1 && group <= s.experts ? group - 1 : -1;
            g.from = __shfl_sync(~0u, from, winner);
            g.to = __shfl_sync(~0u, to, winner);
            place_in_band(g, t, tm, tn, bm, bn);
            return true;
        }
        tiles += __shfl_sync(~0u, sum, 31);
        end = __shfl_sync(~0u, to, 31);
    }
    return false;
}

/* For sums over an expert's rows; one whole warp. */
__device__ __forceinline__ void find_sum_tile(grouped_tile &g, const grouped_shape &s, int index,
                                              int bm, int bn)
{
    int tm = (s.m + bm - 1) / bm, tn = (s.n + bn - 1) / bn, from = 0;
    g.expert = index / (tm * tn);
    for (int e = threadIdx.x % 32; e <= g.expert; e += 32)
        from = max(from, s.start[e]);
    from = min(__reduce_max_sync(~0u, from), s.rows);
    g.from = from;
    g.to = max(from, min(s.start[g.expert + 1], s.rows));
    place_in_band(g, index % (tm * tn), tm, tn, bm, bn);
}

static inline grouped_shape grouped_shape_of(const mx_grouped_call *g)
{
    return {g->start, (int)g->experts, (int)g->rows, (int)g->m, (int)g->n, (int)g->k};
}

/* Blocks that are enough for any starts. */
static inline int64_t grouped_blocks(const mx_grouped_call *g, int bm, int bn)
{
    int64_t tn = (g->n + bn - 1) / bn, groups = g->experts + 2;
    if (g->kind == MX_GROUPED_TN)
        return g->experts * ((g->m + bm - 1) / bm) * tn;
    return (g->rows / bm + (groups < g->rows ? groups : g->rows)) * tn;
}

#endif
