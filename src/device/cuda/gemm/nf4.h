/* nf4.h - NF4 weights (ops/cpu/nf4.h) as numbers, over device pointers. Rules as in kernels.h. */
#ifndef MX_DEVICE_CUDA_NF4_H
#define MX_DEVICE_CUDA_NF4_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* absmax NULL: it is nested, and the others are there. n: elements, a multiple of 32. */
typedef struct {
    const void *codes;
    const float *absmax;
    const uint8_t *absmax_codes;
    const float *nested, *offset, *map;
    int64_t n;
} mx_cuda_nf4;

cudaError_t mx_cuda_nf4_decode(void *to, bool f32, const mx_cuda_nf4 *w, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
