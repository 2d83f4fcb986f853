/* quantize_transpose.cuh - bytes transposed in registers. */
#ifndef MX_DEVICE_CUDA_QUANTIZE_TRANSPOSE_CUH
#define MX_DEVICE_CUDA_QUANTIZE_TRANSPOSE_CUH

#include <stdint.h>

/* Four words of four bytes, transposed. */
__device__ __forceinline__ void transpose_bytes(uint32_t w[4])
{
    uint32_t a = __byte_perm(w[0], w[1], 0x5140), b = __byte_perm(w[2], w[3], 0x5140);
    uint32_t c = __byte_perm(w[0], w[1], 0x7362), d = __byte_perm(w[2], w[3], 0x7362);
    w[0] = __byte_perm(a, b, 0x5410);
    w[1] = __byte_perm(a, b, 0x7632);
    w[2] = __byte_perm(c, d, 0x5410);
    w[3] = __byte_perm(c, d, 0x7632);
}

#endif
