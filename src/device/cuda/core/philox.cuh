/* philox.cuh - base/rng.h on the device: the same words for the same (key, stream, index). */
#ifndef MX_DEVICE_CUDA_PHILOX_CUH
#define MX_DEVICE_CUDA_PHILOX_CUH

extern "C" {
#include "base/rng.h"
}

static __device__ __forceinline__ mx_random4 philox(uint64_t key, uint64_t stream, uint64_t index)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32);
    uint32_t c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
    for (int round = 0; round < 10; round++) {
        uint32_t a_hi = __umulhi(0xD2511F53u, c0), a_lo = 0xD2511F53u * c0;
        uint32_t b_hi = __umulhi(0xCD9E8D57u, c2), b_lo = 0xCD9E8D57u * c2;
        c0 = b_hi ^ c1 ^ k0, c2 = a_hi ^ c3 ^ k1;
        c1 = b_lo, c3 = a_lo;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}

#endif
