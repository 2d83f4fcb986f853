/* paged.cuh - what the kernels of paged attention share: which positions a query sees, and where
 * they lie. */
#ifndef MX_DEVICE_CUDA_PAGED_CUH
#define MX_DEVICE_CUDA_PAGED_CUH

#include "device/cuda/attention/paged.h"

/* The first position that the query at `at` sees. */
__device__ __forceinline__ int64_t first_seen(const mx_cuda_paged &p, int64_t at)
{
    int64_t lo = 0, span = (int64_t)p.page * p.columns;
    if (p.window && at - p.window + 1 > lo)
        lo = at - p.window + 1;
    if (p.chunk && at / p.chunk * p.chunk > lo)
        lo = at / p.chunk * p.chunk;
    return at + 1 - lo > span ? at + 1 - span : lo;
}

/* The last position that the query at `at` sees where tokens of an image see each other: `until`,
 * as far as this batch enters keys. */
__device__ __forceinline__ int64_t last_seen(const mx_cuda_paged &p, int64_t at, int64_t until)
{
    const int64_t most = at + p.queries - 1;
    return until <= at ? at : until < most ? until : most;
}

/* Where a position lies; -1: its page is not one of the pool's. */
__device__ __forceinline__ int64_t slot_of(const mx_cuda_paged &p, const int32_t *table,
                                           int64_t position)
{
    const unsigned at = (unsigned)position, each = (unsigned)p.page;
    const int64_t page = table[at / each % (unsigned)p.columns];
    return page < 0 || (page + 1) * p.page > p.slots ? -1 : page * p.page + at % each;
}

#endif
