/* recurrent.cuh - what the kernels of recurrent.h share: tensors of either dtype, and how many
 * tokens a row of a decoding run has. */
#ifndef MX_DEVICE_CUDA_RECURRENT_CUH
#define MX_DEVICE_CUDA_RECURRENT_CUH

#include "device/cuda/recurrent/recurrent.h"
#include "device/cuda/core/vec.cuh"

/* Tokens of row b: up to the first position below 0. Asked by whole warps. */
__device__ __forceinline__ int row_tokens(const int32_t *positions, int b, int len)
{
    const int32_t *row = positions + (int64_t)b * len;
    int lane = threadIdx.x & 31;
    for (int t = 0; t < len; t += 32) {
        unsigned end = __ballot_sync(~0u, t + lane < len && row[t + lane] < 0);
        if (end)
            return t + __ffs((int)end) - 1;
    }
    return len;
}

/* The first token from t on that goes on from state r; n: there is none. Asked by whole warps. */
__device__ __forceinline__ int token_of(const int32_t *rows, int r, int t, int n)
{
    int lane = threadIdx.x & 31;
    for (; t < n; t += 32) {
        unsigned hit = __ballot_sync(~0u, t + lane < n && rows[t + lane] == r);
        if (hit)
            return t + __ffs((int)hit) - 1;
    }
    return n;
}

__device__ __forceinline__ float get_any(const void *p, int64_t i, bool f32)
{
    return f32 ? ((const float *)p)[i] : bf16_to_f32(((const uint16_t *)p)[i]);
}
__device__ __forceinline__ void put_any(void *p, int64_t i, float x, bool f32)
{
    if (f32)
        ((float *)p)[i] = x;
    else
        ((uint16_t *)p)[i] = f32_to_bf16(x);
}

#endif
